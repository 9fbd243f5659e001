"""LSTM, GRU and the default model with memory: by hand, against loops in NumPy, and sequences against single steps."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax.core.spaces import zeros
from rollax.errors import PolicyError
from rollax.models.catalog import make_model
from rollax.models.config import ModelConfig
from rollax.models.outputs import Outputs, is_recurrent, run_model
from rollax.models.recurrent import GRU, LSTM, RecurrentActorCritic

LN = np.log
SEEN, ACTIONS = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4, start=2)
SEQUENCES, STEPS = 3, 5


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def column(*values: float) -> jax.Array:
    return jnp.asarray([values], jnp.float32)


class TestOneStepByHand:
    """One feature, one unit: x = 2, h = 0.5. σ(ln a) = a / (1 + a), and tanh(ln 2) = 0.6."""

    def test_lstm(self):
        # gate   W x      + U h       + b     =        activated
        #  i     ln 3     + 0         + 0     = ln 3   3/4
        #  f     2        - 2         + 0     = 0      1/2
        #  g     0        + 0         + ln 2  = ln 2   0.6
        #  o     0        + ln 4      + 0     = ln 4   4/5
        # c = 0.4: c' = 0.4/2 + 3/4 · 0.6 = 0.65, h' = 4/5 · tanh(0.65) = 0.457336
        lstm = LSTM(1, 1, rngs=nnx.Rngs(0))
        lstm.input.kernel[...], lstm.input.bias[...] = column(LN(3) / 2, 1, 0, 0), column(0, 0, LN(2), 0)[0]  # type: ignore[index]
        lstm.recurrent.kernel[...] = column(0, -4, 0, 2 * LN(4))
        out, (h, c) = jax.jit(lstm)(column(2), (column(0.5), column(0.4)))
        np.testing.assert_allclose(np.ravel([out, h, c]), [0.457336, 0.457336, 0.65], rtol=1e-5)

    def test_gru(self):
        # gate   W x + b           U h + d
        #  r     ln 3              0                         3/4
        #  z     0                 ln 4                      4/5
        #  n     0.2               1 + (4/3 (ln 2 - 0.2) - 1)
        # n = tanh(0.2 + 3/4 · 4/3 (ln 2 - 0.2)) = tanh(ln 2) = 0.6;  h' = 1/5 · 0.6 + 4/5 · 0.5 = 0.52
        gru = GRU(1, 1, rngs=nnx.Rngs(0))
        gru.input.kernel[...], gru.input.bias[...] = column(LN(3) / 2, 0, 0), column(0, 0, 0.2)[0]  # type: ignore[index]
        gru.recurrent.kernel[...] = column(0, 2 * LN(4), 2)
        gru.recurrent.bias[...] = column(0, 0, 4 / 3 * (LN(2) - 0.2) - 1)[0]  # type: ignore[index]
        out, (h,) = jax.jit(gru)(column(2), (column(0.5),))
        np.testing.assert_allclose(np.ravel([out, h]), [0.52, 0.52], rtol=1e-5)


class TestSequences:
    """All rows of several sequences in one call, against a loop over time for each sequence."""

    X = np.random.default_rng(0).normal(size=(SEQUENCES, STEPS, 2)).astype(np.float32)
    STATE = np.random.default_rng(1).normal(size=(2, SEQUENCES, 4)).astype(np.float32)

    def test_lstm(self):
        lstm = LSTM(2, 4, rngs=nnx.Rngs(3))
        w, u = np.array(lstm.input.kernel[...]), np.array(lstm.recurrent.kernel[...])
        expected, last = np.zeros((SEQUENCES, STEPS, 4)), np.zeros((2, SEQUENCES, 4))
        for sequence in range(SEQUENCES):
            h, c = self.STATE[:, sequence]
            for step in range(STEPS):
                i, f, g, o = np.split(self.X[sequence, step] @ w + h @ u, 4)
                c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g)  # the forget gate's bias begins at 1
                h = expected[sequence, step] = sigmoid(o) * np.tanh(c)
            last[:, sequence] = h, c
        out, state = jax.jit(lstm)(self.X.reshape(-1, 2), tuple(self.STATE))
        np.testing.assert_allclose(out, expected.reshape(-1, 4), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(state, last, rtol=1e-4, atol=1e-6)

    def test_gru(self):
        gru = GRU(2, 4, rngs=nnx.Rngs(3))
        w, u = np.array(gru.input.kernel[...]), np.array(gru.recurrent.kernel[...])
        expected, last = np.zeros((SEQUENCES, STEPS, 4)), np.zeros((SEQUENCES, 4))
        for sequence in range(SEQUENCES):
            h = self.STATE[0, sequence]
            for step in range(STEPS):
                (r, z, n), (ur, uz, un) = np.split(self.X[sequence, step] @ w, 3), np.split(h @ u, 3)
                z = sigmoid(z + uz)
                h = expected[sequence, step] = (1 - z) * np.tanh(n + sigmoid(r + ur) * un) + z * h
            last[sequence] = h
        out, (state,) = jax.jit(gru)(self.X.reshape(-1, 2), (self.STATE[0],))
        np.testing.assert_allclose(out, expected.reshape(-1, 4), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(state, last, rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize(("cell", "parts"), [(LSTM, 2), (GRU, 1)])
    def test_gradients_flow_through_one_whole_sequence_only(self, cell, parts):
        layer, state = cell(2, 4, rngs=nnx.Rngs(3)), tuple(jnp.asarray(self.STATE[:parts]))

        def last_of_the_second(x):
            out, _ = layer(x.reshape(-1, 2), state)
            return out.reshape(SEQUENCES, STEPS, 4)[1, -1].sum()

        reached = np.abs(jax.jit(jax.grad(last_of_the_second))(self.X)).max(axis=2) > 0
        assert reached.tolist() == [[False] * STEPS, [True] * STEPS, [False] * STEPS]


def test_matrices_of_the_gates_are_orthogonal_and_the_forget_bias_is_1():
    lstm, gru = LSTM(6, 4, rngs=nnx.Rngs(0)), GRU(6, 4, rngs=nnx.Rngs(0))
    for kernel in (lstm.input.kernel, lstm.recurrent.kernel, gru.input.kernel, gru.recurrent.kernel):
        for gate in np.split(np.array(kernel[...]), kernel[...].shape[1] // 4, axis=1):
            np.testing.assert_allclose(gate.T @ gate, np.eye(4), atol=1e-5)
    assert lstm.input.bias is not None
    assert np.array(lstm.input.bias[...]).tolist() == [0] * 4 + [1] * 4 + [0] * 8


def model_of(seed: int = 0, **config: Any) -> RecurrentActorCritic:
    config = {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": (6,), **config}
    model = make_model(SEEN, ACTIONS, 4, ModelConfig(**config), nnx.Rngs(seed))
    assert isinstance(model, RecurrentActorCritic)
    return model


def columns_of(sequences: int, steps: int) -> dict[str, Any]:
    random, rows = np.random.default_rng(2), sequences * steps
    return {
        "obs": random.normal(size=(rows, 3)).astype(np.float32),
        "prev_actions": random.integers(2, 6, rows),
        "prev_rewards": random.normal(size=rows).astype(np.float32),
    }


def compiled(model: Any) -> Any:
    return jax.jit(lambda columns: run_model(model, columns))


class TestModel:
    @pytest.mark.short("{}-16", "{'vf_share_layers': True}-8")
    @pytest.mark.parametrize(
        ("config", "width"),
        [
            ({}, 16),
            ({"vf_share_layers": True}, 8),
            ({"use_lstm": False, "use_gru": True}, 8),
            ({"use_lstm": False, "use_gru": True, "vf_share_layers": True}, 4),
            ({"lstm_use_prev_action": True, "lstm_use_prev_reward": True}, 16),
        ],
        ids=str,
    )
    def test_sequences_equal_single_steps(self, config, width):
        model = model_of(**config)
        run = compiled(model)
        (initial,) = model.initial_state()
        np.testing.assert_array_equal(initial, np.zeros(width, np.float32))
        columns = columns_of(SEQUENCES, STEPS)
        state: Any = (np.random.default_rng(3).normal(size=(SEQUENCES, width)).astype(np.float32),)
        dist_inputs, values, state_out, _ = jax.tree.map(np.asarray, run({**columns, "state_in": state}))
        for step in range(STEPS):
            rows = np.arange(SEQUENCES) * STEPS + step
            at_step = {**{name: value[rows] for name, value in columns.items()}, "state_in": state}
            one_step, one_value, state, _ = run(at_step)
            np.testing.assert_allclose(one_step, dist_inputs[rows], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(one_value, values[rows], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(state[0], state_out[0], rtol=1e-4, atol=1e-6)

    @pytest.mark.long
    def test_memory_inputs_are_those_of_the_config(self):
        for names in ([], ["action"], ["reward"], ["action", "reward"]):
            model = model_of(**{f"lstm_use_prev_{name}": True for name in names})
            assert model.memory_inputs == tuple(f"prev_{name}s" for name in names)
            state, run = (np.ones((2, 16), np.float32),), compiled(model)
            columns = {**columns_of(2, 1), "state_in": state}
            for name, changed in (("action", columns["prev_actions"] * 0 + 5), ("reward", columns["prev_rewards"] + 1)):
                first, second = (np.asarray(run(c)[0]) for c in (columns, {**columns, f"prev_{name}s": changed}))
                assert (np.abs(first - second).max() > 1e-6) == (name in names)

    def test_actor_and_critic_share_memory_only_with_shared_layers(self):
        state = np.random.default_rng(0).normal(size=(2, 16)).astype(np.float32)
        columns, run = columns_of(2, 1), compiled(model_of())
        before, changed_critic, changed_actor = (
            jax.tree.map(np.asarray, run({**columns, "state_in": (state + np.float32(np.repeat(change, 8)),)}))
            for change in ([0, 0], [0, 1], [1, 0])
        )
        np.testing.assert_array_equal(before[0], changed_critic[0])
        np.testing.assert_array_equal(before[1], changed_actor[1])
        assert np.abs(before[1] - changed_critic[1]).min() > 1e-3
        assert np.abs(before[0] - changed_actor[0]).max() > 1e-5

    def test_free_log_std_and_nested_spaces_with_images(self):
        space = spaces.Dict({"image": spaces.Box(0, 255, (7, 7, 3), np.uint8), "turn": spaces.Discrete(3)})
        memory = {"use_gru": True, "lstm_cell_size": 4, "lstm_use_prev_action": True}
        config = ModelConfig(**memory, free_log_std=True, conv_filters=((2, 3, 2),), conv_dense=4)
        model: Any = make_model(space, spaces.Box(-1, 1, (2,), np.float32), 4, config, nnx.Rngs(0))
        columns = {
            "obs": zeros(space, 6),
            "prev_actions": np.ones((6, 2), np.float32),
            "state_in": (np.ones((2, 8), np.float32),),
        }
        dist_inputs, values, (state,), _ = compiled(model)(columns)
        assert (dist_inputs.shape, values.shape, state.shape) == ((6, 4), (6,), (2, 8))
        np.testing.assert_array_equal(np.asarray(dist_inputs)[:, 2:], 0)


class Recurrent(nnx.Module):
    """A memory of two parts, one of integers, which breaks its interface in the way `how`."""

    def __init__(self, observation_space, num_outputs, *, rngs, how=""):
        self.head, self.how = nnx.Linear(3, num_outputs, rngs=rngs), how
        self.memory_inputs = ("prev_infos",) if how == "unknown input" else ("prev_rewards",)

    def initial_state(self):
        return [np.zeros((2, 2), np.float32), np.zeros((), np.int32)]

    def __call__(self, obs, state, prev_rewards):
        table, count = state
        steps = len(obs) // len(count)
        values = jnp.repeat(count, steps).astype(jnp.float32) + prev_rewards
        if self.how == "one row for each sequence":
            return Outputs(self.head(obs[: len(count)]), values[: len(count)], state)
        if self.how == "no state":
            return Outputs(self.head(obs), values)
        if self.how == "state of each row":
            return Outputs(self.head(obs), values, (jnp.repeat(table, steps, axis=0), jnp.repeat(count, steps)))
        if self.how == "another type":
            return Outputs(self.head(obs), values, (table, count + 0.5))
        return Outputs(self.head(obs), values, (table + 1, count + steps))


class TestCustomModels:
    def build(self, how: str = "") -> Any:
        config = ModelConfig(custom_model=Recurrent, custom_model_config={"how": how})
        return make_model(SEEN, ACTIONS, 4, config, nnx.Rngs(0))

    def test_correct_ones_pass(self):
        assert is_recurrent(self.build())

    @pytest.mark.parametrize(
        ("how", "message"),
        [
            ("one row for each sequence", r"policy of the wrong(.|\n)*13 sequences of length 3(.|\n)*\[39, 4\]"),
            ("no state", r"state changes its shape(.|\n)*got: +tuple of 0"),
            ("state of each row", r"state changes its shape(.|\n)*got: +tuple of 2: float32\[39, 2, 2\]"),
            ("another type", r"state changes its shape(.|\n)*got: .*float32\[13\](.|\n)*int32\[13\]"),
            ("unknown input", r"names an unknown memory input(.|\n)*prev_infos(.|\n)*prev_actions"),
        ],
    )
    def test_wrong_ones_are_named(self, how, message):
        with pytest.raises(PolicyError, match=message):
            self.build(how)
