"""Burn-in: its rows are apart from the rows to learn from, advance the state of each network, and have no gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax import DQN
from rollax.batch import Fragment
from rollax.models.outputs import Outputs, run_model
from rollax.policy.burn_in import after_burn_in
from rollax.policy.sequence_draw import SequenceDraw
from rollax.policy.sequences_as_rows import as_rows, with_burn_in_apart
from tests.replay.reference import DrawsAll


class Decaying(nnx.Module):
    """h' = w h + x, which is also the output."""

    def __init__(self, w):
        self.w = nnx.Param(jnp.asarray(w, jnp.float32))

    def initial_state(self):
        return (np.zeros(1, np.float32),)

    def __call__(self, obs, state):
        def step(h, x):
            h = self.w[...] * h + x
            return h, h

        by_step = obs.reshape(len(state[0]), -1).T
        last, outputs = jax.lax.scan(step, state[0][:, 0], by_step)
        return Outputs(outputs.T.reshape(-1, 1), state=(last[:, None],))


# Up to M = 2 rows of burn-in; the second sequence has one.
SEQUENCES = {
    "obs": np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 0]], np.float32),
    "target_steps": np.array([[0, 0, 3, 4, 4], [0, 2, 3, 3, 0]], np.int32),
    "seq_lens": np.array([5, 4], np.int32),
    "state_in": (np.array([[8], [4]], np.float32),),
    "burn_in": np.array([[True, True], [True, False]]),
}
ARRAYS = jax.tree.map(jnp.asarray, SEQUENCES)


def test_rows_of_burn_in_are_apart():
    apart = with_burn_in_apart(SEQUENCES, np.arange)
    assert apart["obs"].tolist() == [[3, 4, 5], [7, 8, 9]]
    assert apart["target_steps"].tolist() == [[1, 2, 2], [1, 2, 2]]
    assert apart["seq_lens"].tolist() == [3, 3]
    assert apart["burn_in"].inputs["obs"].tolist() == [[1, 2], [6, 7]]
    rows, mask = as_rows(SEQUENCES, np.array([1.0, 0.0]))
    assert rows["target_rows"].tolist() == [1, 2, 2, 4, 5, 5]
    assert mask.tolist() == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(("w", "expected"), [(0.5, [[4.5], [8]]), (0.25, [[2.75], [7]])])
def test_each_network_advances_its_own_state(w, expected):
    # w = ½:  ½ · 8 + 1 = 5, ½ · 5 + 2 = 4.5;  ½ · 4 + 6 = 8, and no second row.
    # w = ¼:  ¼ · 8 + 1 = 3, ¼ · 3 + 2 = 2.75;  ¼ · 4 + 6 = 7.
    rows, _ = as_rows(ARRAYS, np.ones(2), jnp.arange)
    after = after_burn_in(Decaying(w), rows)
    assert after["state_in"][0].tolist() == expected
    assert "burn_in" not in after


def test_no_gradient_through_burn_in():
    # The first row to learn from: h = w b + x with b = 4.5 and 8 after the burn-in, so dh/dw = b. With a gradient
    # through the burn-in it would be larger, by w db/dw.
    rows, _ = as_rows(ARRAYS, np.ones(2), jnp.arange)

    def firsts(w):
        out = run_model(model := Decaying(w), after_burn_in(model, rows))
        return out.policy.reshape(2, 3)[:, 0].sum()

    np.testing.assert_allclose(jax.grad(firsts)(0.5), 4.5 + 8)


def test_batches_without_burn_in_are_as_they_were():
    without = {name: column for name, column in SEQUENCES.items() if name != "burn_in"}
    assert with_burn_in_apart(without, np.arange) is without
    assert after_burn_in(Decaying(0.5), without) is without


@pytest.mark.long
@pytest.mark.parametrize("columns", [("state_in", "prev_actions"), ("prev_actions",)], ids=["stored", "initial"])
def test_replayed_values_are_those_of_acting(columns):
    # From the initial state only with all rows before a sequence as burn-in.
    model = {"fcnet_hiddens": (5,), "use_lstm": True, "lstm_cell_size": 4, "lstm_use_prev_action": True}
    policy = DQN.make_policy(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), {"model": model, "seed": 0})
    obs = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    state, previous, states, acted, values = policy.get_initial_state(), np.zeros(1, np.int64), [], [], []
    state = [part[None] for part in state]
    for row in obs:
        states.append(state[0][0])
        actions, state, fetches = policy.compute_actions(row[None], state, previous)
        acted.append((previous[0], actions[0]))
        values.append(fetches["q_value"][0])
        previous = actions
    before, actions = np.array(acted).T
    fragment = {"obs": obs, "actions": actions, "rewards": np.zeros(9, np.float32), "trajectory_id": np.zeros(9, int)}
    fragment |= {"terminateds": np.arange(9) == 8, "truncateds": np.zeros(9, bool)}
    fragment |= {"state_in": (np.array(states),), "prev_actions": before}
    buffer = DrawsAll(100, columns=columns)
    after = {"obs": obs[:1], "state_in": (np.array(states[:1]),), "prev_actions": before[:1]}
    buffer.add(Fragment(fragment, [8], after))
    batch = buffer.sample(0, np.random.default_rng(0), draw=SequenceDraw(3, burn_in=6, columns=columns))
    sequences, count = policy.memory.sequences({name: batch[name] for name in ("obs", "weights")}, batch, 3)
    rows, _ = as_rows(sequences, np.ones(count))
    replayed = np.asarray(policy.algorithm.forward(policy.current_model(), rows).policy).reshape(9, 4, 2)[:, :3]
    chosen = np.take_along_axis(replayed, np.repeat(actions.reshape(3, 3, 1), 3, axis=0), axis=2)[:, :, 0]
    np.testing.assert_allclose(chosen, np.repeat(np.array(values).reshape(3, 3), 3, axis=0), rtol=1e-5, atol=1e-6)
