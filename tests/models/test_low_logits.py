"""Invalid choices have probability 0 and finite statistics, whatever the logits of the valid ones are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax.models.distributions.discrete import masked
from rollax.models.distributions.factory import make_distribution
from rollax.models.outputs import Outputs
from rollax.policy.mask_checks import are_allowed

LARGEST = float(np.finfo(np.float32).max)
LOW = [-1e30, -1e31, -3e38, -LARGEST, -np.inf]
SPACES = {
    "Discrete": (spaces.Discrete(4, start=2), [0, 1, 0, 1]),
    "MultiDiscrete": (spaces.MultiDiscrete([4, 2, 3]), [0, 1, 0, 1, 0, 1, 0, 1, 1]),
    "Dict": (spaces.Dict(a=spaces.Discrete(3), b=spaces.MultiDiscrete([3, 3])), [0, 1, 1, 1, 0, 1, 0, 0, 1]),
}


class Low(nnx.Module):
    """Outputs for observations with a mask: `low` for valid choices, 0 for invalid ones; gradients reach them."""

    def __init__(self, observation_space, num_outputs, *, rngs, low=-3e38):
        self.low, self.shift = low, nnx.Param(jnp.zeros(num_outputs))

    def __call__(self, obs):
        mask = jnp.asarray(obs["action_mask"], jnp.float32)
        return Outputs(policy=mask * self.low + self.shift[...], value=jnp.zeros(mask.shape[0]))


@pytest.mark.short(every=5)
@pytest.mark.parametrize("invalid", [0.0, LARGEST])
@pytest.mark.parametrize("low", [*LOW, LARGEST])
@pytest.mark.parametrize("name", SPACES)
def test_masked_choices_have_probability_zero(name, low, invalid):
    space, mask = SPACES[name]
    dist, valid = make_distribution(space), np.array(mask) > 0
    rows = 64
    masks = jnp.tile(jnp.array(mask), (rows, 1))
    logits = jnp.tile(jnp.where(valid, low, invalid), (rows, 1))
    uniform = np.random.default_rng(0).random((rows, dist.num_noise), np.float32)
    noise = jnp.asarray(uniform).at[0].set(0).at[1].set(1)

    @jax.jit
    def everything(logits):
        kept = dist.mask(logits, masks)
        drawn, greedy = dist.sample(kept, noise), dist.mode(kept)
        uniform = dist.mask(jnp.zeros_like(logits), masks)
        return drawn, greedy, dist.logp(kept, drawn), dist.entropy(kept), dist.kl(kept, uniform), dist.kl(uniform, kept)

    drawn, greedy, logp, entropy, *kls = everything(logits)
    for actions in (drawn, greedy):
        assert are_allowed(np.asarray(masks), jax.tree.map(np.asarray, actions), space).all()
    # All valid choices are equally likely: entropy and log-probability are the logarithm of their number.
    counts = np.add.reduceat(valid.astype(int), np.cumsum([0, *_sizes(space)[:-1]]))
    np.testing.assert_allclose(entropy, np.log(counts).sum(), rtol=1e-5)
    np.testing.assert_allclose(logp, -np.log(counts).sum(), rtol=1e-5)
    np.testing.assert_allclose(kls, 0, atol=1e-5)


@pytest.mark.short(
    "Discrete--1e+31", "Discrete--inf", "MultiDiscrete--1e+31", "MultiDiscrete--inf", "Dict--1e+31", "Dict--inf"
)
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("name", SPACES)
def test_log_probabilities_of_masked_choices_and_all_gradients_are_finite(name, low):
    space, mask = SPACES[name]
    dist, valid = make_distribution(space), jnp.array([mask]) > 0
    actions = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], space.sample(mask=None))
    first = jax.tree.map(lambda leaf: jnp.zeros_like(leaf) + (2 if name == "Discrete" else 0), actions)  # invalid

    def statistics(logits):
        kept = dist.mask(logits, valid)
        kl = dist.kl(kept, dist.mask(jnp.zeros_like(logits), valid))
        return (dist.logp(kept, first) + dist.entropy(kept) + kl)[0]

    logp, gradient = jax.jit(jax.value_and_grad(statistics))(jnp.where(valid, low, 0.0))
    assert -1e32 < logp < -1e29
    assert np.isfinite(gradient).all()
    assert not gradient[~valid].any()
    assert np.exp(dist.logp(dist.mask(jnp.where(valid, low, 0.0), valid), first)) == 0


def test_valid_choices_keep_their_logits_down_to_the_bound():
    values = jnp.array([[-3e29, -2e29, 0.0, -4e29, -2e30]])
    kept = masked(values, jnp.array([[True, True, False, True, True]]))
    assert kept[0].tolist() == pytest.approx([-3e29, -2e29, -1e30, -4e29, -5e29])
    assert np.isnan(masked(jnp.array([jnp.nan]), jnp.array([True]))).all()


def test_sums_of_masked_values_and_their_products_with_zero_are_finite():
    # As of the members of a group, in padding rows, whose actions are invalid.
    values = masked(jnp.full(100, -LARGEST), jnp.arange(100) % 2 == 0)
    assert np.isfinite(1e3 * values.sum())
    assert 0.0 * values.sum() == 0


def _sizes(space: spaces.Space) -> list[int]:
    if isinstance(space, spaces.Dict):
        return [size for part in space.spaces.values() for size in _sizes(part)]
    return [int(space.n)] if isinstance(space, spaces.Discrete) else space.nvec.tolist()  # type: ignore[attr-defined]
