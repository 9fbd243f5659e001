"""The autoregressive distribution of the example against the table of all pairs of choices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from examples.autoregressive_actions import FirstThenSecond, Kicker
from rollax import SampleBatch
from rollax.models.distributions.discrete import Categorical

ROWS, FIRST, SECOND = 3, 2, 3
DISTRIBUTION = FirstThenSecond(Categorical(FIRST), Categorical(SECOND))


def inputs(seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal((ROWS, FIRST * (1 + SECOND))), jnp.float32)


def table(logits: Any) -> np.ndarray:
    """[rows, first, second] probabilities of all pairs."""
    logits = np.asarray(logits)
    first, second = np.exp(logits[:, :FIRST]), np.exp(logits[:, FIRST:].reshape(ROWS, FIRST, SECOND))
    return first[..., None] / first.sum(1)[:, None, None] * (second / second.sum(2, keepdims=True))


def test_log_probabilities_are_those_of_the_table():
    expected = table(inputs(0))
    for a in range(FIRST):
        for b in range(SECOND):
            logp = DISTRIBUTION.logp(inputs(0), jnp.tile(jnp.array([a, b]), (ROWS, 1)))
            np.testing.assert_allclose(np.exp(logp), expected[:, a, b], rtol=1e-5)


def test_entropy_and_divergence_are_sums_over_the_table():
    p, q = table(inputs(0)), table(inputs(1))
    np.testing.assert_allclose(DISTRIBUTION.entropy(inputs(0)), -(p * np.log(p)).sum((1, 2)), rtol=1e-5)
    np.testing.assert_allclose(DISTRIBUTION.kl(inputs(0), inputs(1)), (p * np.log(p / q)).sum((1, 2)), rtol=1e-5)


@pytest.mark.long
def test_samples_have_the_probabilities_of_the_table():
    side = (np.arange(200, dtype=np.float32) + 0.5) / 200
    noise = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    for row, expected in enumerate(table(inputs(0))):
        a, b = np.asarray(DISTRIBUTION.sample(jnp.tile(inputs(0)[row], (len(noise), 1)), jnp.asarray(noise))).T
        found = np.bincount(a * SECOND + b, minlength=FIRST * SECOND) / len(noise)
        np.testing.assert_allclose(found, expected.ravel(), atol=0.01)


def test_the_mode_is_the_likeliest_second_choice_of_the_likeliest_first():
    p = table(inputs(2))
    first = p.sum(2).argmax(1)
    second = p[np.arange(ROWS), first].argmax(1)
    np.testing.assert_array_equal(DISTRIBUTION.mode(inputs(2)), np.stack([first, second], axis=1))


def test_a_policy_acts_and_reports_by_it():
    seen, choices = spaces.Box(0, 1, (1,), np.float32), spaces.MultiDiscrete([FIRST, SECOND])
    policy = Kicker.make_policy(seen, choices, {"model": {"fcnet_hiddens": (4,)}, "seed": 0})
    actions, _, fetches = policy.compute_actions(np.linspace(0, 1, ROWS, dtype=np.float32)[:, None])
    assert actions.shape == (ROWS, 2)
    found = np.log(table(fetches[SampleBatch.ACTION_DIST_INPUTS])[np.arange(ROWS), *actions.T])
    np.testing.assert_allclose(fetches[SampleBatch.ACTION_LOGP], found, rtol=1e-5)


def test_other_widths_are_refused():
    with pytest.raises(ValueError, match="inputs of the wrong shape"):
        DISTRIBUTION.entropy(jnp.zeros((ROWS, FIRST * SECOND)))
