"""PQN: λ-returns, loss, gradient and steps against numbers derived by hand; settings; memory."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax import PQN, ConfigError, PQNConfig, PQNTrainer, RolloutWorker, SampleBatch, SpaceError
from rollax.batch import Fragment
from rollax.models.outputs import Outputs
from tests.algorithms.envs import Corridor
from tests.algorithms.tables import TABLE, f32

STATES = spaces.Discrete(10)
SETTINGS = {**TABLE, "train_batch_size": 4, "sgd_minibatch_size": 4, "num_sgd_iter": 1}


def policy_with(values, space=STATES, **options):
    """A policy with a table [state, action] of values."""
    table = f32(*np.ravel(values)).reshape(-1, 2)
    policy = PQN.make_policy(space, spaces.Discrete(2, start=3), {**SETTINGS, **options})
    policy.set_weights({**policy.get_weights(), "network.logits": np.concatenate([table, np.zeros((10, 2))])[:10]})
    return policy


def fragment(highest, **columns):
    """Four steps of an episode that terminated, three of one that was truncated, two of one that goes on."""
    return Fragment(
        {
            "obs": np.arange(9),
            "rewards": f32(1, 2, 3, 4, 5, 6, 7, 8, 9),
            "vf_preds": highest[np.arange(9)],
            "terminateds": np.arange(9) == 3,
            "truncateds": np.arange(9) == 6,
            **columns,
        },
        [3, 6, 8],
        {"obs": np.array([9, 9, 7])},
    )


class TestReturns:
    # max_a Q of states 0 to 9. State 9 is the last one of both ended episodes, state 7 follows the last row.
    highest = f32(1, 2, 3, 4, 5, 6, 7, 8, 9, 5)
    values = np.stack([highest - 1, highest], axis=1)

    @pytest.mark.parametrize(
        ("lambda_", "expected"),
        [
            # γ = 0.1. λ = 1 sums the rewards up to the end, then γⁿ max Q: the truncated episode 5.675 = 5 + .6 + .07 +
            # .005, the one that goes on 8.98 = 8 + .9 + .08.
            (1.0, [1.234, 2.34, 3.4, 4, 5.675, 6.75, 7.5, 8.98, 9.8]),
            # λ = 0: r + γ max Q of the next state, and r = 4 at the termination
            (0.0, [1.2, 2.3, 3.4, 4, 5.6, 6.7, 7.5, 8.9, 9.8]),
            # λ = ½: G_t = r_t + 0.05 G_{t+1} + 0.05 max Q(s_{t+1}), from the last row backwards
            #   terminated 4;  3 + .2 + .2;  2 + .17 + .15;  1 + .116 + .1
            #   truncated  7 + .1 · 5 = 7.5;  6 + .375 + .35;  5 + .33625 + .3
            #   goes on    9 + .1 · 8 = 9.8;  8 + .49 + .45
            (0.5, [1.216, 2.32, 3.4, 4, 5.63625, 6.725, 7.5, 8.94, 9.8]),
        ],
    )
    def test_by_hand(self, lambda_, expected):
        policy = policy_with(self.values, gamma=0.1, lambda_=lambda_)
        rows = policy.postprocess_rows(fragment(self.highest))
        np.testing.assert_allclose(rows["value_targets"], expected, rtol=1e-6)

    def test_rewards_are_scaled_and_values_are_not(self):
        # λ = 0: 0.5 r + γ max Q
        policy = policy_with(self.values, gamma=0.1, lambda_=0.0, reward_scale=0.5)
        rows = policy.postprocess_rows(fragment(self.highest))
        np.testing.assert_allclose(rows["value_targets"], [0.7, 1.3, 1.9, 2, 3.1, 3.7, 4, 4.9, 5.3], rtol=1e-6)
        np.testing.assert_array_equal(rows["rewards"], np.arange(1, 10))


class TestUpdates:
    values = ((1.0, 2.0), (3.0, 4.0), (5.0, 6.0))
    # row  state  action  Q  target  error
    #  0     0      4     2     5     -3
    #  1     1      3     3     2      1
    #  2     2      4     6     4      2
    rows = SampleBatch({"obs": np.arange(3), "actions": np.array([4, 3, 4]), "value_targets": f32(5, 2, 4)})

    def test_loss(self):
        policy = policy_with(self.values, lr=0.0)
        found = policy.learn_on_batch(SampleBatch(dict(self.rows)))
        # ½ (9 + 1 + 4) / 3; the fourth row is padding
        expected = {"q_loss": 7 / 3, "mean_q": 11 / 3, "mean_target": 11 / 3, "mean_td_error": 2.0}
        assert {name: found[name] for name in expected} == pytest.approx(expected)

    def test_an_invalid_action_that_was_given_has_a_value(self):
        space = spaces.Dict({"action_mask": spaces.MultiBinary(2), "state": STATES})
        policy = PQN.make_policy(space, spaces.Discrete(2), {**SETTINGS, "model": {}, "lr": 0.0})
        obs = {"action_mask": np.array([[1, 0], [0, 1]]), "state": np.array([0, 1])}
        rows = SampleBatch({"obs": obs, "actions": np.array([1, 0]), "value_targets": f32(0, 0)})
        assert policy.learn_on_batch(rows)["mean_td_error"] < 10

    def test_gradient(self):
        gradients, _ = policy_with(self.values, grad_clip=None).compute_gradients(SampleBatch(dict(self.rows)))
        np.testing.assert_allclose(gradients["network.logits"][:3], [[0, -1], [1 / 3, 0], [0, 2 / 3]], rtol=1e-5)
        assert not gradients["network.logits"][3:].any()

    @pytest.mark.long
    def test_steps_of_radam(self):
        # For a constant gradient g the corrected moments are g and g². Up to step 5 the variance of the second one
        # counts as infinite, and a step is g. Then it is r g / (|g| + ε), with
        #   ρ_∞ = 2 / (1 - β₂) - 1 = 1999,  ρ_t = ρ_∞ - 2 t β₂ᵗ / (1 - β₂ᵗ),
        #   r² = (ρ_t - 4) (ρ_t - 2) ρ_∞ / ((ρ_∞ - 4) (ρ_∞ - 2) ρ_t).
        optimizer = policy_with(self.values, adam_epsilon=0.25).algorithm.make_optimizer()
        zeros, gradient = {"w": jnp.zeros(2)}, {"w": jnp.array([0.25, -0.75])}
        state = optimizer.init(zeros)
        for number in range(1, 40):
            step, state = optimizer.update(gradient, state, zeros)
            power = 0.999**number
            rho = 1999 - 2 * number * power / (1 - power)
            r = np.sqrt((rho - 4) * (rho - 2) * 1999 / (1995 * 1997 * rho)) if number > 5 else 0.0
            expected = [0.5 * r, -0.75 * r] if number > 5 else [0.25, -0.75]
            np.testing.assert_allclose(step["w"], expected, rtol=0.02)  # float32: ρ_t is a small difference

    def test_epochs_and_minibatches(self):
        config = {"train_batch_size": 64, "num_envs_per_worker": 4, "sgd_minibatch_size": 16, "num_sgd_iter": 3}
        with PQNTrainer("CartPole-v1", {**config, "seed": 0}) as trainer:
            trainer.train()
            assert trainer.get_policy().learner.num_updates == 12


class Counting(nnx.Module):
    """Values of a table plus the number of steps so far in the trajectory, which is its recurrent state."""

    def __init__(self, observation_space, num_outputs, *, rngs):
        self.table = nnx.Param(jnp.zeros((int(observation_space.n), num_outputs), jnp.float32))

    def initial_state(self):
        return (np.zeros(1, np.float32),)

    def __call__(self, obs, state):
        steps = state[0] + 1 + jnp.arange(len(obs) // len(state[0]), dtype=jnp.float32)
        return Outputs(self.table[...][obs] + steps.reshape(-1, 1), state=(steps[:, -1:],))


def test_returns_with_memory_bootstrap_from_the_state_after_the_last_row():
    # Episodes of three steps; the values at steps 1, 2, 3 are 1, 2, 3, and 4 after the last step. λ = 0, γ = 0.5:
    # 1 + ½ · next value, or 1 at a termination. Fragments of two steps cut the episodes.
    model = {"custom_model": Counting, "max_seq_len": 2}
    sizes = {"num_envs_per_worker": 2, "rollout_fragment_length": 2, "train_batch_size": 4}
    config = PQNConfig(**{**SETTINGS, **sizes, "gamma": 0.5, "lambda_": 0.0, "model": model})
    worker = RolloutWorker(Corridor, PQN, config=config)
    ends = set()
    for _ in range(6):
        batch = worker.sample()
        assert isinstance(batch, SampleBatch)
        steps, terminated = batch["obs"] + 1.0, batch["terminateds"]
        np.testing.assert_array_equal(batch["vf_preds"], steps)
        np.testing.assert_allclose(batch["value_targets"], 1 + 0.5 * np.where(terminated, 0, steps + 1))
        ends |= set(zip(terminated.tolist(), batch["truncateds"].tolist(), strict=True))
    assert ends == {(False, False), (True, False), (False, True)}


def test_epsilon_falls_over_its_timesteps():
    policy = PQN.make_policy(STATES, spaces.Discrete(2), {"final_epsilon": 0.2, "epsilon_timesteps": 100, "seed": 0})
    epsilon = policy.exploration.epsilon
    assert [epsilon(step) for step in (0, 50, 100, 1000)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


def test_settings():
    with pytest.raises(SpaceError, match="use SAC"):
        PQN.make_policy(STATES, spaces.Box(-1, 1, (2,)))
    with pytest.raises(ConfigError, match="sgd_minibatch_size is larger"):
        PQNConfig(train_batch_size=100)
    assert PQNConfig(train_batch_size=2048).fragment_length == 64
