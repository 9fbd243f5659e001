"""DQN with memory: the loss of sequences by hand, the settings, and runs with priorities."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax import ConfigError, DQNTrainer
from rollax.algorithms.dqn import DQN
from rollax.batch import Fragment
from rollax.models.outputs import Outputs
from rollax.policy.replayed import SINGLE_ROWS
from rollax.policy.sequence_draw import SequenceDraw
from tests.algorithms.tables import f32
from tests.replay.reference import DrawsAll

LINE, CHOICE = spaces.Discrete(3), spaces.Discrete(2)
SMALL = {"train_batch_size": 12, "gamma": 0.5, "lr": 0.0, "seed": 0}
MEMORY = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 6, "fcnet_hiddens": (8,)}
RUN = {"num_envs_per_worker": 2, "rollout_fragment_length": 4, "train_batch_size": 24, "learning_starts": 40}
RUN |= {"timesteps_per_iteration": 200, "training_intensity": 0.25, "seed": 0}
RUN |= {"burn_in": 3, "n_step": 2, "prioritized_replay": True}


class Running(nnx.Module):
    """A table of values plus the sum of all states observed so far."""

    def __init__(self, observation_space, num_outputs, *, rngs):
        self.table = nnx.Param(jnp.zeros((3, num_outputs), jnp.float32))

    def initial_state(self):
        return (np.zeros(1, np.float32),)

    def __call__(self, obs, state):
        sums = (jnp.cumsum(obs.reshape(len(state[0]), -1), axis=1) + state[0]).astype(jnp.float32)
        return Outputs(self.table[...][obs] + sums.reshape(-1, 1), state=(sums[:, -1:],))


class AtOnce(DQN):
    """Learns from a whole batch in one step."""

    def make_plan(self):
        return replace(super().make_plan(), minibatch_size=None)


def results(end="truncated", **options):
    """The statistics of a trajectory with the observations 0, 1, 2 and then 1, actions 0, and rewards 1, 2, 3."""
    model = {"custom_model": Running, "max_seq_len": options.pop("length", 4)}
    policy = AtOnce.make_policy(LINE, CHOICE, {**SMALL, **options, "model": model})
    policy.set_weights({"network.table": f32(0, 0.5, 1, 0, 0, 2).reshape(3, 2)})
    columns = {
        "obs": np.array([0, 1, 2]),
        "actions": np.zeros(3, int),
        "rewards": f32(1, 2, 3),
        "terminateds": np.array([False, False, end == "terminated"]),
        "truncateds": np.array([False, False, end == "truncated"]),
        "trajectory_id": np.zeros(3, int),
        "state_in": (f32(0, 0, 1)[:, None],),
    }
    buffer = DrawsAll(100, gamma=0.5, n_step=policy.config.n_step, columns=policy.replayed.columns)
    buffer.add(Fragment(columns, [2], {"obs": np.array([1]), "state_in": (f32(3)[:, None],)}))
    return policy.learn_on_batch(buffer.sample(0, np.random.default_rng(0), draw=policy.replayed))


# The sums of the observations are 0, 1, 3 and 4:
#   t   Q of action 0   best
#   0        0          0.5
#   1        2          2
#   2        3          5
#   3                   5    (the last observation)
@pytest.mark.parametrize(
    ("end", "n_step", "errors"),
    [
        # targets 1 + 2 / 2, 2 + 5 / 2, 3 + 5 / 2
        ("truncated", 1, [-2, -2.5, -2.5]),
        ("terminated", 1, [-2, -2.5, 0]),
        # 1 + 2 / 2 + 5 / 4, 2 + 3 / 2 + 5 / 4, 3 + 5 / 2
        ("truncated", 2, [-3.25, -2.75, -2.5]),
    ],
)
def test_loss_of_a_sequence(end, n_step, errors):
    stats = results(end, n_step=n_step)
    sizes = np.abs(errors)
    # huber(e) = |e| - ½ for |e| above 1
    np.testing.assert_allclose(stats["q_loss"], np.where(sizes > 1, sizes - 0.5, 0).mean(), rtol=1e-6)
    np.testing.assert_allclose(stats["mean_td_error"], sizes.mean(), rtol=1e-6)
    # Each of the three rows draws the sequence.
    np.testing.assert_allclose(stats["td_error"], [0.9 * sizes.max() + 0.1 * sizes.mean()] * 3, rtol=1e-6)


@pytest.mark.short(every=3)
@pytest.mark.parametrize("burn_in", [0, 1, 2])
def test_parts_of_a_trajectory_begin_with_the_stored_state(burn_in):
    # Errors -2, -2.5 of the first part, drawn by two rows; 0 of the second. 0.9 · 2.5 + 0.1 · 2.25 = 2.475.
    stats = results("terminated", length=2, burn_in=burn_in)
    np.testing.assert_allclose(stats["td_error"], [2.475, 2.475, 0], rtol=1e-6)


def test_gradients_have_no_part_of_bootstrap_rows_and_padding():
    # With the weights of each draw 1/2, 1/2 and 1, times 5/3 (see the tests of sequences).
    stats = results("terminated", length=2)
    np.testing.assert_allclose(stats["q_loss"], 5 / 3 * (2 * (1.5 + 2) / 2 + 0) / 5, rtol=1e-6)


def test_what_is_drawn():
    policy = DQN.make_policy(LINE, CHOICE, {**SMALL, "model": {**MEMORY, "lstm_use_prev_reward": True}, "burn_in": 2})
    assert policy.replayed == SequenceDraw(6, 2, columns=("state_in", "prev_rewards"))
    assert DQN.make_policy(LINE, CHOICE, SMALL).replayed == SINGLE_ROWS


@pytest.mark.parametrize(
    "keys",
    [{"burn_in": 2}, {"overlap": 2}, {"zero_init_states": True}, {"priority_eta": 0.5, "prioritized_replay": True}],
)
def test_keys_of_sequences_require_memory(keys):
    key = next(iter(keys))
    with pytest.raises(ConfigError, match=f"{key} has no effect"):
        DQN.make_policy(LINE, CHOICE, {**SMALL, **keys})

    class Flat(nnx.Module):
        def __init__(self, observation_space, num_outputs, *, rngs):
            self.table = nnx.Param(jnp.zeros((3, num_outputs)))

        def __call__(self, obs):
            return Outputs(self.table[...][obs])

    with pytest.raises(ConfigError, match=key):
        DQN.make_policy(LINE, CHOICE, {**SMALL, **keys, "model": {"custom_model": Flat}})


@pytest.mark.parametrize(
    "settings",
    [
        {"model": MEMORY},
        {"model": {**MEMORY, "use_lstm": False, "use_gru": True, "lstm_use_prev_action": True}, "num_atoms": 11},
        {"model": MEMORY, "exploration": "ParameterNoise", "noisy": False},
        {"model": MEMORY, "noisy": True},
    ],
    ids=["LSTM", "GRU, atoms", "parameter noise", "noisy"],
)
@pytest.mark.long
def test_runs_learn_and_set_priorities(settings):
    with DQNTrainer("CartPole-v1", {**RUN, **settings}) as trainer:
        before = trainer.get_weights()["default_policy"]
        trainer.train()
        buffer = trainer.optimizer.buffers["default_policy"]
        drawn = buffer.sample(200, np.random.default_rng(0), draw=trainer.get_policy().replayed)
        assert "state_in" in drawn
        assert len(np.unique(buffer._tree.leaves[:200].round(6))) > 10
        assert any((before[name] != value).any() for name, value in trainer.get_weights()["default_policy"].items())
        assert trainer.evaluate(num_episodes=1)["episode_len_mean"] > 0
