"""IMPALA's loss and gradient by hand, its columns, and the rows that count."""

import math

import jax
import numpy as np
import pytest
from gymnasium import spaces

from rollax import IMPALA, IMPALAConfig, JaxPolicy, RolloutWorker, SampleBatch
from rollax.batch import Fragment
from rollax.errors import BatchError, ConfigError, PolicyError
from tests.algorithms.envs import Corridor, Echo
from tests.algorithms.tables import TABLE, VTRACE, entropy, f32, logits_of, one_gradient
from tests.env.refused import raised

NAN = float("nan")


def make(states=6, **config):
    return IMPALA.make_policy(spaces.Discrete(states), spaces.Discrete(2), {**TABLE, **config})


class TestLoss:
    # γ = 1/2, ρ̄ = 2, ρ̄' = 3, c̄ = 1. One segment of two rows that terminates, one of two that is cut; then padding.
    # p is the probability of action 0, π that of the action taken, μ the same under the acting policy.
    #   row   V   r    p   action   π     μ    ρ    δ                      v                      A
    #    0    2   2   .2     0     .2    .4   1/2   (2 + 4/2 - 2)/2 = 1    2 + 1 - 2/4 = 5/2      (2 + 1 - 2)/2 = 1/2
    #    1    4   3   .2     1     .8    .2    4    2 (3 - 4) = -2         2                      3 (3 - 4) = -3
    #    2    2   1   .5     0     .5   .125   4    2 (1 + 4/2 - 2) = 2    2 + 2 + 1/4 = 17/4     3 (1 + 9/4 - 2) = 15/4
    #    3    4   1   .3     0     .3    .6   1/2   (1 + 8/2 - 4)/2 = 1/2  9/2                    (1 + 4 - 4)/2 = 1/2
    #    4    8    bootstrap
    #    5         padding
    P, ACTIONS, MU = (0.2, 0.2, 0.5, 0.3), (0, 1, 0, 0), (0.4, 0.2, 0.125, 0.6)
    TARGETS, ADVANTAGES = f32(5 / 2, 2, 17 / 4, 9 / 2), f32(1 / 2, -3, 15 / 4, 1 / 2)
    VALUES = f32(2, 4, 2, 4)

    def gradient(self, **config):
        policy = make(**{**VTRACE, **config})
        policy.set_weights({"logits": logits_of(*self.P, 0.5, 0.5), "values": f32(*self.VALUES, 8, 99)})
        columns = {
            "obs": np.arange(6),
            "actions": np.array([*self.ACTIONS, 0, 0]),
            "action_logp": f32(*np.log(self.MU), -50, NAN),
            "rewards": f32(2, 3, 1, 1, NAN, NAN),
            "discounts": f32(0.5, 0, 0.5, 0.5, 0, NAN),
            "bootstrap": np.array([0, 0, 0, 0, 1, 0], bool),
        }
        return one_gradient(policy, columns, [0, 1, 2, 3, 4, -1])

    def test_value(self):
        _, stats = self.gradient()
        logp = np.log([p if action == 0 else 1 - p for p, action in zip(self.P, self.ACTIONS, strict=True)])
        policy_loss = -(self.ADVANTAGES * logp).sum() / 4
        errors = self.VALUES - self.TARGETS
        np.testing.assert_array_equal(errors, f32(-1 / 2, 2, -9 / 4, -1 / 2))
        vf_loss = (1 / 4 + 4 + 81 / 16 + 1 / 4) / 4
        mean_entropy = sum(map(entropy, self.P)) / 4
        expected = {
            "policy_loss": policy_loss,
            "vf_loss": vf_loss,
            "entropy": mean_entropy,
            "vf_explained_var": 1 - errors.var() / self.TARGETS.var(),
            "mean_rho": 9 / 4,
            "max_rho": 4,
            "limited_rhos": 1 / 2,
            "total_loss": policy_loss + 0.25 * vf_loss - 0.1 * mean_entropy,
        }
        assert stats == pytest.approx(expected, rel=1e-5)

    def test_gradient(self):
        gradients, _ = self.gradient()
        # -A (onehot - p) + c_e p_k (ln p_k + H), divided by the 4 rows to learn from; 2 c_v (V - v) / 4
        expected = np.zeros((6, 2))
        for row, (p, action, advantage) in enumerate(zip(self.P, self.ACTIONS, self.ADVANTAGES, strict=True)):
            expected[row] = -advantage * (np.eye(2)[action] - [p, 1 - p])
            expected[row] += 0.1 * np.array([q * (math.log(q) + entropy(p)) for q in (p, 1 - p)])
        np.testing.assert_allclose(gradients["logits"], expected / 4, rtol=1e-5, atol=1e-7)
        errors = f32(-1 / 2, 2, -9 / 4, -1 / 2, 0, 0)
        np.testing.assert_allclose(gradients["values"], 2 * 0.25 * errors / 4, rtol=1e-5)

    def test_lambda(self):
        # λ = 0: v = V + δ = (3, 2, 4, 9/2)
        _, stats = self.gradient(**{"lambda": 0.0})
        assert stats["vf_loss"] == pytest.approx((1 + 4 + 4 + 1 / 4) / 4)


def test_batches_of_a_worker_learned_off_policy():
    # Each step earns 1 and leads from state s to s + 1. Episodes end in state 3, truncated in sub-environments of odd
    # number. On-policy: v_s = 1 + γ v_{s+1}, up to the bootstrap value of the segment.
    config = IMPALAConfig(**TABLE, gamma=0.5, num_envs_per_worker=2, rollout_fragment_length=5)
    worker = RolloutWorker(Corridor, IMPALA, config=config)
    batch = worker.sample()
    assert isinstance(batch, SampleBatch)
    #                                terminates   truncated    cut     cut
    assert batch["obs"].tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 0, 1, 2]
    assert np.flatnonzero(batch["bootstrap"]).tolist() == [6, 9, 12]
    assert np.flatnonzero(batch["terminateds"]).tolist() == [2]
    assert np.flatnonzero(batch["truncateds"]).tolist() == [5]
    assert (batch.count, batch.agent_steps, batch.env_steps) == (13, 10, 10)
    policy = worker.get_policy()
    assert isinstance(policy, JaxPolicy)
    policy.set_weights({"logits": np.zeros((4, 2)), "values": f32(0, 0, 8, 80)})
    gradients, _ = policy.compute_gradients(batch)
    #   after state 2: 1.75 1.5 1 (terminated), 11.75 21.5 41 (truncated, V = 80), twice 3.5 5 (cut, V = 8)
    #   state 0: V = 0, state 1: V = 0, state 2: V = 8; 10 rows; c_v = 1/2
    sums = f32(1.75 + 11.75 + 2 * 3.5, 1.5 + 21.5 + 2 * 5, 1 + 41 - 2 * 8, 0)
    np.testing.assert_allclose(gradients["values"], -sums / 10, rtol=1e-5)


@pytest.mark.long
def test_an_observation_after_the_end_may_mask_all_actions():
    space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "x": spaces.Box(-1, 1, (2,), np.float32)})
    policy = IMPALA.make_policy(space, spaces.Discrete(3), {"model": {"fcnet_hiddens": (4,)}, "seed": 0})
    obs = {"action_mask": np.array([[1, 0, 1], [0, 1, 1]], np.int8), "x": np.ones((2, 2), np.float32)}
    actions, _, fetches = policy.compute_actions(obs)
    flags = {"terminateds": np.zeros(2, bool), "truncateds": np.array([False, True])}
    columns = {"obs": obs, "actions": actions, "rewards": f32(1, 2), **flags, **fetches}
    after = {"action_mask": np.zeros((1, 3), np.int8), "x": np.ones((1, 2), np.float32)}
    batch = policy.postprocess_rows(Fragment(columns, [1], {"obs": after}))
    assert batch["bootstrap"].tolist() == [False, False, True]
    gradients, stats = policy.compute_gradients(batch)
    assert all(np.isfinite(value).all() for value in jax.tree.leaves((gradients, stats)))
    before = policy.get_weights()
    policy.learn_on_batch(batch)
    assert any(not np.array_equal(value, before[name]) for name, value in policy.get_weights().items())


def test_critic_columns_require_next_values():
    policy = make()
    flags = {"terminateds": np.zeros(1, bool)}
    columns = {"obs": np.zeros(1, int), "critic_obs": np.zeros((1, 2)), **flags}
    fragment = Fragment(columns, [0], {"obs": np.zeros(1, int)})
    with pytest.raises(PolicyError, match=r"sample_batch\.after\['critic_obs'\]"):
        policy.postprocess_rows(fragment)
    fragment.after["critic_obs"] = np.ones((1, 2))
    says = "not a Fragment.\n  where:    policy 'default_policy', algorithm IMPALA, postprocess"
    raised(BatchError, policy.postprocess_rows, SampleBatch(columns), says=says)
    batch = policy.postprocess_rows(fragment)
    assert batch["critic_obs"].tolist() == [[0, 0], [1, 1]]


def test_actions_of_others_have_their_own_probability():
    policy = make()
    policy.set_weights({"logits": np.log(np.full((6, 2), [0.25, 0.75])), "values": np.zeros(6)})
    actions, _, fetches = policy.compute_actions(np.zeros(8, int))
    assert set(actions) == {0, 1}
    given = policy.fetches_of(np.zeros(8, int), fetches)
    np.testing.assert_allclose(given["action_logp"], np.log(np.full(8, 0.25)), rtol=1e-5)


class TestOptimizer:
    # The first mean of squares is (1 - decay) g², so a step of RMSProp is lr g / sqrt((1 - decay) g² + ε).
    @pytest.mark.parametrize(
        ("options", "gradient", "step"),
        [
            ({"decay": 0.9, "epsilon": 0.01, "lr": 0.5, "grad_clip": None}, (1, -2), (-0.5 / 0.11**0.5, 1 / 0.41**0.5)),
            # The gradient is clipped first: the norm of (3, -4) is 5, and clipped to 1 it is (0.6, -0.8).
            ({"decay": 0.0, "epsilon": 1.0, "lr": 1.0, "grad_clip": 1.0}, (3, -4), (-0.6 / 1.36**0.5, 0.8 / 1.64**0.5)),
        ],
    )
    def test_rmsprop_by_hand(self, options, gradient, step):
        policy = make(opt_type="rmsprop", **options)
        policy.apply_gradients({"logits": np.zeros((6, 2), np.float32), "values": f32(*gradient, 0, 0, 0, 0)})
        np.testing.assert_allclose(policy.get_weights()["values"], f32(*step, 0, 0, 0, 0), rtol=1e-5)

    def test_unknown_optimizers_are_refused(self):
        with pytest.raises(ConfigError, match="opt_type"):
            IMPALAConfig(opt_type="sgd")  # pyright: ignore[reportArgumentType]


def test_replay_without_slots_is_refused():
    with pytest.raises(ConfigError, match="replay_buffer_num_slots"):
        IMPALAConfig(replay_proportion=0.5)


@pytest.mark.long
def test_every_step_of_an_update_uses_the_whole_batch():
    config = {"num_sgd_iter": 3, "num_envs_per_worker": 2, "env_config": {"space": spaces.Discrete(3)}, "seed": 0}
    worker = RolloutWorker(Echo, IMPALA, config=IMPALAConfig(**config))
    policy = worker.get_policy()
    assert isinstance(policy, JaxPolicy)
    batch = worker.sample()
    assert isinstance(batch, SampleBatch)
    stats = policy.learn_on_batch(batch)
    assert policy.learner.num_updates == 3
    assert stats["max_rho"] > 1  # at the last step the policy differs from the one that acted
