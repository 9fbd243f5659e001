"""Actors and critics with memory: losses of a padded sequence by hand, and what each row depends on."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax import SAC, TD3
from rollax.batch import Fragment
from rollax.core.spaces import zeros
from rollax.models.outputs import run_model
from rollax.models.recurrent_critics import CRITIC_INPUTS
from tests.algorithms.tables import f32, set_tables
from tests.replay.reference import DrawsAll

SEEN, ACTIONS = spaces.Box(-5, 5, (1,), np.float32), spaces.Box(-1, 1, (1,), np.float32)
PARAMETRIC = spaces.Dict(
    {
        "action_mask": spaces.MultiBinary(3),
        "avail_actions": spaces.Box(-1, 1, (3, 2)),
        "position": spaces.Box(-1, 1, (2,)),
    }
)
GRU = {"use_gru": True, "lstm_cell_size": 1, "fcnet_hiddens": (), "max_seq_len": 4}


def gru(name: str, weight: float) -> dict[str, np.ndarray]:
    """Gates of ½ and n = tanh(w x): h' = ½ tanh(w x) + ½ h."""
    return {f"{name}.input.kernel": f32(0, 0, weight)[None]}


def weights(policy: Any, first: tuple, second: tuple) -> dict[str, np.ndarray]:
    """The actor's h is ½ tanh(-x) + ½ h, and its action tanh(-h artanh(0.5) / 0.4); Q = w · (h, a) of each critic."""
    blank = {name: np.zeros(np.shape(value), np.float32) for name, value in policy.get_weights().items()}
    return {
        **blank,
        **gru("actor.trunk.memory", -1),
        **gru("critics.trunk.memory", 1),
        "actor.head.kernel": -f32(np.arctanh(0.5) / 0.4)[:, None],
        "critics.critics.members.head.kernel": f32(*first, *second).reshape(2, 2, 1),
    }


@pytest.mark.long
def test_losses_of_a_padded_sequence():
    # Three rows, with tanh(x) = 0.8, 0.4, -0.4, and an observation after them, with 0.8; γ = ½.
    #   row   h of critics   π     a     Q_0 = 2h + a   Q_1 = 3a - h   Q⁻_0 = 4h + 2π   Q⁻_1 = 10h   lower
    #    0        0.4       0.5   0.2        1.0            0.2
    #    1        0.4       0.5  -0.4        0.4           -1.6             2.6             4         2.6
    #    2        0         0     0.6        0.6            1.8             0               0         0
    #    3        0.4       0.5                                             2.6             4         2.6
    # y = 1 + 1.3, 2 + 0, 3 + 1.3.  Errors of Q_0: -1.3, -1.6, -3.7, of Q_1: -2.1, -3.6, -2.5.
    options = {"smooth_target_policy": False, "gamma": 0.5, "lr": 0.0, "train_batch_size": 12, "seed": 0}
    policy = TD3.make_policy(SEEN, ACTIONS, {**options, "policy_delay": 1, "model": GRU})
    set_tables(policy, weights(policy, (2, 1), (-1, 3)), weights(policy, (4, 2), (10, 0)))
    columns = {
        "obs": np.arctanh(f32(0.8, 0.4, -0.4))[:, None],
        "actions": f32(0.2, -0.4, 0.6)[:, None],
        "rewards": f32(1, 2, 3),
        "terminateds": np.zeros(3, bool),
        "truncateds": np.arange(3) == 2,
        "trajectory_id": np.zeros(3, int),
        "state_in": (f32(0, 0, -0.4, 0.4, -0.4, 0.4).reshape(3, 2),),
    }
    buffer = DrawsAll(100, gamma=0.5, columns=policy.replayed.columns)
    after = {"obs": np.arctanh(f32(0.8))[:, None], "state_in": (f32(0, 0)[None],)}
    buffer.add(Fragment(columns, [2], after))
    stats = policy.learn_on_batch(buffer.sample(0, np.random.default_rng(0), draw=policy.replayed))
    np.testing.assert_allclose(stats["mean_target"], (2.3 + 2 + 4.3) / 3, rtol=1e-5)
    squares = [1.3**2 + 2.1**2, 1.6**2 + 3.6**2, 3.7**2 + 2.5**2]
    np.testing.assert_allclose(stats["critic_loss"], np.mean(squares), rtol=1e-5)
    np.testing.assert_allclose(stats["actor_loss"], -(1.3 + 1.3 + 0) / 3, rtol=1e-5)
    # The mean error of both critics in each row: 1.7, 2.6, 3.1. Each of the three rows draws the sequence.
    np.testing.assert_allclose(stats["td_error"], [0.9 * 3.1 + 0.1 * 7.4 / 3] * 3, rtol=1e-5)


def algorithm_of(observations: spaces.Space, actions: spaces.Space, **model: Any) -> SAC:
    sizes = {"fcnet_hiddens": (4,), "lstm_use_prev_action": True, "lstm_use_prev_reward": True}
    return SAC.make_policy(observations, actions, {"model": {**sizes, **model}, "seed": 0}).algorithm


def columns_of(observations: spaces.Space, actions: spaces.Space, rows: int) -> dict[str, Any]:
    observations.seed(0)
    actions.seed(0)
    draws = [observations.sample() for _ in range(rows)]
    return {
        "obs": jax.tree.map(lambda *leaves: np.stack(leaves), *draws),
        "prev_actions": np.stack([actions.sample() for _ in range(rows)]),
        "prev_rewards": np.random.default_rng(0).normal(size=rows).astype(np.float32),
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("spaces_of", "memory"),
    [
        ((SEEN, ACTIONS), {"use_lstm": True}),
        ((PARAMETRIC, spaces.Discrete(3)), {"use_gru": True}),
        ((SEEN, ACTIONS), {"use_attention": True, "attention_memory": 2, "attention_dim": 4}),
    ],
    ids=["LSTM", "GRU, parametric", "attention"],
)
def test_a_row_depends_on_the_rows_before_it(spaces_of, memory):
    model = algorithm_of(*spaces_of, **memory).make_model(nnx.Rngs(0))
    columns = columns_of(*spaces_of, 4)
    run = jax.jit(lambda columns: run_model(model, columns))
    initial = (jnp.asarray(model.initial_state()[0])[None],)
    together = run({**columns, "state_in": initial})

    state = initial
    for row in range(4):
        one = run({**jax.tree.map(lambda leaf: leaf[[row]], columns), "state_in": state})  # noqa: B023
        state = one.state
        for found, expected in ((one.policy, together.policy), (one.aux[CRITIC_INPUTS], together.aux[CRITIC_INPUTS])):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a[0], b[row], rtol=1e-4, atol=1e-5), found, expected)  # noqa: B023
    np.testing.assert_allclose(state[0], together.state[0], rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_actor_and_critics_learn_by_their_own_losses():
    algorithm = algorithm_of(SEEN, ACTIONS, use_lstm=True)
    model = algorithm.make_model(nnx.Rngs(0))
    batch = columns_of(SEEN, ACTIONS, 4)
    batch |= {"actions": zeros(ACTIONS, 4), "weights": np.ones(4, np.float32), "target": np.ones(4, np.float32)}
    batch |= {"noise": np.full((4, 1), 0.7, np.float32), "state_in": (model.initial_state()[0][None],)}
    batch = jax.tree.map(jnp.asarray, batch)

    def gradients(loss: Any) -> dict[str, float]:
        found = nnx.grad(lambda model: loss(model, algorithm.forward(model, batch)))(model)
        return {
            part: float(sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(found[part])))
            for part in ("actor", "critics")
        }

    def critics(model, out):
        return algorithm.critic_loss(model, {**batch, CRITIC_INPUTS: out.aux[CRITIC_INPUTS]}, jnp.ones(4))[0]

    of_actor = gradients(lambda model, out: algorithm.actor_loss(model, out, batch, jnp.ones(4))[0])
    of_critics = gradients(critics)
    assert of_actor["critics"] == of_critics["actor"] == 0
    assert min(of_actor["actor"], of_critics["critics"]) > 0
