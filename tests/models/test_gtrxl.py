"""The gated transformer: its parts against loops in NumPy, and what a row may depend on."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax import PPO, ConfigError, PPOConfig
from rollax.models.config import ModelConfig
from rollax.models.gtrxl import Gate, GTrXL, RelativeAttention
from rollax.policy.size_checks import check_sizes
from rollax.torch import networks

SEQUENCES, STEPS, MEMORY, WIDTH = 2, 9, 3, 6
SEEN, CHOICES = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)


def made(units: int = 1) -> GTrXL:
    config = ModelConfig(
        use_attention=True,
        attention_dim=WIDTH,
        attention_memory=MEMORY,
        attention_num_transformer_units=units,
        attention_num_heads=2,
        attention_head_dim=4,
        attention_position_wise_mlp_dim=5,
    )
    return GTrXL(4, config, rngs=nnx.Rngs(0))


def at_start(model: GTrXL) -> tuple[np.ndarray, ...]:
    return tuple(np.broadcast_to(part, (SEQUENCES, *part.shape)) for part in model.initial_state())


def inputs() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(SEQUENCES, STEPS, 4)).astype(np.float32)


def outputs(model: GTrXL, x: np.ndarray) -> np.ndarray:
    """[SEQUENCES, STEPS, WIDTH] of whole trajectories."""
    out, _ = jax.jit(lambda x, state: model(x, state))(x.reshape(-1, 4), at_start(model))
    return np.asarray(out).reshape(SEQUENCES, STEPS, WIDTH)


def changed_rows(model: GTrXL, at: int) -> list[int]:
    x = inputs()
    before = outputs(model, x)
    x[:, at] += 1
    return np.flatnonzero(np.abs(outputs(model, x) - before).max(axis=(0, 2)) > 1e-4).tolist()


def test_a_gate_by_hand():
    # x = 0.5, y = 2, with kernels of one number: W = (ln 3 / 2, 0, 0.1), U = (0, 2 ln 4), U_n = 2, and b = ln 4.
    # r = σ(ln 3) = 3/4;  z = σ(0 + ln 4 - ln 4) = 1/2;  n = tanh(0.2 + 2 · 3/4 · 0.5) = tanh(0.95) = 0.739783
    # out = 1/2 · 0.5 + 1/2 · 0.739783
    gate = Gate(1, float(np.log(4)), rngs=nnx.Rngs(0))
    gate.from_output.kernel[...] = jnp.array([[np.log(3) / 2, 0, 0.1]])
    gate.from_input.kernel[...] = jnp.array([[0, 2 * np.log(4)]])
    gate.from_reset.kernel[...] = jnp.array([[2.0]])
    out = gate(jnp.full((1, 1, 1), 0.5), jnp.full((1, 1, 1), 2.0))
    np.testing.assert_allclose(np.ravel(out), [0.619892], rtol=1e-5)


@pytest.mark.parametrize("present", [0, 2, MEMORY])
def test_attention_is_that_of_a_loop(present):
    heads, width, count = 2, 4, 5
    random = np.random.default_rng(1)
    attention = RelativeAttention(WIDTH, heads, width, MEMORY, rngs=nnx.Rngs(0))
    for bias in (attention.content_bias, attention.position_bias):
        bias[...] = jnp.asarray(random.normal(size=(heads, width)), jnp.float32)
    seen = random.normal(size=(1, MEMORY + count, WIDTH)).astype(np.float32)
    got = attention(jnp.asarray(seen), count, jnp.array([float(present)]))

    kernel = {name: np.asarray(getattr(attention, name).kernel[...]) for name in ("query", "position", "output")}
    to_keys, to_values = np.split(np.asarray(attention.key_and_value.kernel[...]), 2, axis=1)
    u, v = np.asarray(attention.content_bias[...]), np.asarray(attention.position_bias[...])
    frequencies = 10_000.0 ** -(np.array([0, 2, 4]) / WIDTH)
    expected = []
    for t in range(count):
        here, parts = MEMORY + t, []
        for head in range(heads):
            of_head = slice(head * width, (head + 1) * width)
            query = seen[0, here] @ kernel["query"][:, of_head]
            scores, values = [], []
            for d in range(MEMORY + 1):  # from the row itself to the earliest one
                if here - d >= MEMORY - present:
                    waves = np.concatenate([np.sin(d * frequencies), np.cos(d * frequencies)])
                    key = seen[0, here - d] @ to_keys[:, of_head]
                    position = waves @ kernel["position"][:, of_head]
                    scores.append(((query + u[head]) @ key + (query + v[head]) @ position) / np.sqrt(width))
                    values.append(seen[0, here - d] @ to_values[:, of_head])
            weights = np.exp(scores) / np.exp(scores).sum()
            parts.append(weights @ np.stack(values))
        expected.append(np.concatenate(parts) @ kernel["output"])
    np.testing.assert_allclose(got[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("units", [1, 2])
def test_sequences_equal_single_steps(units):
    model, x = made(units), inputs()
    state, steps = at_start(model), []
    for t in range(STEPS):
        out, state = model(jnp.asarray(x[:, t]), state)
        steps.append(out)
    np.testing.assert_allclose(outputs(model, x), np.stack(steps, axis=1), atol=1e-5)
    whole = model(jnp.asarray(x.reshape(-1, 4)), at_start(model))[1]
    np.testing.assert_allclose(whole[0], state[0], atol=1e-5)
    # In two sequences, of which the second begins with the state after the first.
    first, state = model(jnp.asarray(x[:, :4].reshape(-1, 4)), at_start(model))
    second, _ = model(jnp.asarray(x[:, 4:].reshape(-1, 4)), state)
    both = [np.asarray(part).reshape(SEQUENCES, -1, WIDTH) for part in (first, second)]
    np.testing.assert_allclose(np.concatenate(both, axis=1), outputs(model, x), atol=1e-5)


def test_a_row_depends_on_itself_and_on_as_many_rows_before_it_as_the_memory_has():
    assert changed_rows(made(), at=2) == [2, 3, 4, 5]
    assert changed_rows(made(units=2), at=2) == [2, 3, 4, 5, 6, 7, 8]


def test_the_memory_has_no_gradient():
    model = made(units=2)
    rows = jnp.asarray(inputs()[:, 0])
    state = (jnp.asarray(np.random.default_rng(2).normal(size=at_start(model)[0].shape), jnp.float32),)
    gradient = jax.grad(lambda packed: model(rows, (packed,))[0].sum())(state[0])
    np.testing.assert_array_equal(gradient[:, :-1], 0)


@pytest.mark.long
def test_the_initial_gates_are_near_the_identity():
    config = ModelConfig(use_attention=True, attention_dim=WIDTH, attention_init_gru_gate_bias=20.0)
    model = GTrXL(4, config, rngs=nnx.Rngs(0))
    x = jnp.asarray(inputs()[:, 0])
    np.testing.assert_allclose(model(x, at_start(model))[0], model.input(x), atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("shared", [False, True])
def test_a_policy_has_one_array_of_state(shared):
    model: Any = {"use_attention": True, "attention_dim": 4, "attention_memory": 5, "vf_share_layers": shared}
    policy = PPO.make_policy(SEEN, CHOICES, {"model": {**model, "lstm_use_prev_reward": True}, "seed": 0})
    (state,) = policy.get_initial_state()
    assert state.shape == ((1 if shared else 2) * (5 * 4 + 1),)
    _, (state_out,), _ = policy.compute_actions(np.zeros((2, 3), np.float32))
    np.testing.assert_array_equal(state_out[:, 20], 1)  # one row is remembered


def test_models_in_pytorch_refuse_it():
    with pytest.raises(ConfigError, match="use_attention"):
        networks.make_model(SEEN, CHOICES, 2, ModelConfig(use_attention=True))


@pytest.mark.parametrize("sizes", [{"attention_memory": 2**24}, {"attention_dim": 2**20}])
def test_a_state_or_layer_that_cannot_fit_is_refused(sizes):
    with pytest.raises(ConfigError):
        check_sizes(SEEN, CHOICES, PPOConfig(model={"use_attention": True, **sizes}), "PPO")
