"""PPO's loss and gradient by hand, its advantages, and coefficients that change between updates."""

import math

import numpy as np
import pytest
from gymnasium import spaces

from rollax import PPOConfig, SampleBatch
from rollax.algorithms.ppo import PPO
from rollax.errors import ConfigError
from tests.algorithms.tables import TABLE, entropy, f32, kl, logits_of, one_gradient

ONE_STEP = {**TABLE, "sgd_minibatch_size": 4, "num_sgd_iter": 1}
LOG2 = math.log(2)


def make(states=4, actions=2, **config):
    return PPO.make_policy(spaces.Discrete(states), spaces.Discrete(actions), {**ONE_STEP, **config})


class TestLoss:
    # Row i is in state i; the last row is padding. p is the new, q the old probability of action 0.
    #   row    p     q   action  ratio   A    r·A  clip(r)·A   min
    #    0    .6    .4      0     1.5    2    3.0     2.4      2.4   clip binds from above
    #    1    .25   .5      0     0.5   -1   -0.5    -0.8     -0.8   clip binds from below
    #    2    .5    .5      1     1.0    3    3.0     3.0      3.0   inside
    #   policy_loss = -4.6/3
    #   row    V     G   (V - G)²   limited to 5
    #    0     1     3      4           4
    #    1     2    2.5    .25         .25
    #    2     0   -10    100           5
    #   vf_loss = 9.25/3
    #   G has variance (4.5² + 4² + 8.5²)/3 = 108.5/3, G - V = (2, .5, -10) has (4.5² + 3² + 7.5²)/3 = 85.5/3.
    P, Q = (0.6, 0.25, 0.5), (0.4, 0.5, 0.5)
    CONFIG = {"clip_param": 0.2, "vf_clip_param": 5.0, "vf_loss_coeff": 0.5, "entropy_coeff": 0.01, "kl_coeff": 0.3}

    def gradient(self, **config):
        unset = {name.removesuffix("_schedule") for name in config if name.endswith("_schedule")}
        policy = make(**{name: value for name, value in {**self.CONFIG, **config}.items() if name not in unset})
        shifted = logits_of(*self.P, 0.5) + 0.7  # which changes nothing
        policy.set_weights({"logits": shifted, "values": f32(1, 2, 0, 9)})
        columns = {
            "obs": np.arange(4),
            "actions": np.array([0, 0, 1, 1]),
            "action_logp": np.log(f32(0.4, 0.5, 0.5, 1e-3)),
            "action_dist_inputs": np.log(f32(*[[q, 1 - q] for q in (*self.Q, 0.01)])),
            "advantages": f32(2, -1, 3, np.nan),
            "value_targets": f32(3, 2.5, -10, np.inf),
        }
        return one_gradient(policy, columns, [0, 1, 2, -1])

    def test_value(self):
        _, stats = self.gradient()
        expected = {
            "policy_loss": -4.6 / 3,
            "vf_loss": 9.25 / 3,
            "entropy": sum(map(entropy, self.P)) / 3,
            "kl": sum(map(kl, self.Q, self.P)) / 3,
            "vf_explained_var": 1 - 85.5 / 108.5,
            "clip_fraction": 2 / 3,  # ratios of 1.5, 0.5 and 1
        }
        assert expected["entropy"] == pytest.approx((0.6730117 + 0.5623351 + LOG2) / 3)
        assert expected["kl"] == pytest.approx((0.0810930 + 0.1438410 + 0) / 3, rel=1e-6)
        total = expected["policy_loss"] + 0.5 * expected["vf_loss"] - 0.01 * expected["entropy"] + 0.3 * expected["kl"]
        assert stats == pytest.approx({**expected, "total_loss": total}, rel=1e-5)

    def test_gradient(self):
        gradients, _ = self.gradient()
        # Of row i in its logits z, divided by 3 rows:
        #   surrogate: 0 where the clip binds; row 2: -r A ∂logp/∂z = -3 (onehot(1) - p) = (1.5, -1.5)
        #   -c2 H: c2 p_k (ln p_k + H)        β KL(q || p): β (p - q)
        expected = np.zeros((4, 2))
        expected[2] = [1.5, -1.5]
        for row, (p, q) in enumerate(zip(self.P, self.Q, strict=True)):
            h = entropy(p)
            expected[row] += 0.01 * np.array([p * (math.log(p) + h), (1 - p) * (math.log(1 - p) + h)])
            expected[row] += 0.3 * np.array([p - q, q - p])
        np.testing.assert_allclose(gradients["logits"], expected / 3, rtol=1e-5, atol=1e-7)
        # c1 2 (V - G) / 3, and 0 where the limit binds
        np.testing.assert_allclose(gradients["values"], 0.5 * 2 * f32(-2, -0.5, 0, 0) / 3, rtol=1e-5)

    def test_options_disable_their_terms(self):
        gradients, stats = self.gradient(kl_coeff=0.0, entropy_coeff=0.0, vf_clip_param=None)
        np.testing.assert_allclose(gradients["logits"], np.array([[0, 0], [0, 0], [1.5, -1.5], [0, 0]]) / 3, atol=1e-6)
        np.testing.assert_allclose(gradients["values"], 0.5 * 2 * f32(-2, -0.5, 10, 0) / 3, rtol=1e-5)
        assert stats["vf_loss"] == pytest.approx(104.25 / 3)
        assert stats["total_loss"] == pytest.approx(stats["policy_loss"] + 0.5 * stats["vf_loss"])
        assert stats["kl"] > 0  # still reported

    def test_clip_comes_from_the_schedule(self):
        # With ε = 1 nothing binds: rows 0 and 1 now count with r A ∂logp/∂z.
        gradients, stats = self.gradient(clip_param_schedule=[[0, 1.0]], kl_coeff=0.0, entropy_coeff=0.0)
        assert stats["policy_loss"] == pytest.approx(-(3 - 0.5 + 3) / 3)
        np.testing.assert_allclose(gradients["logits"][0], np.array([-3 * 0.4, 3 * 0.4]) / 3, rtol=1e-5)


class TestAdvantages:
    def test_are_standardized_over_the_batch(self):
        policy = make()
        names = ("obs", "actions", "action_logp", "action_dist_inputs", "value_targets")
        batch = SampleBatch({**{name: np.zeros(4, np.float32) for name in names}, "advantages": f32(1, 2, 3, 6)})
        # mean 3, deviation sqrt((4 + 1 + 0 + 9) / 4)
        expected = f32(-2, -1, 0, 3) / math.sqrt(3.5)
        columns = policy.algorithm.loss_columns(batch, policy.learning_rng)
        np.testing.assert_allclose(columns["advantages"], expected, rtol=1e-6)
        np.testing.assert_array_equal(batch["advantages"], f32(1, 2, 3, 6))


def experience(policy, rows=16):
    obs = np.arange(rows) % 4
    actions, _, fetches = policy.compute_actions(obs)
    columns = {"advantages": np.where(actions == obs % 2, 1, -1).astype(np.float32), "value_targets": obs / f32(2)}
    return SampleBatch({"obs": obs, "actions": actions, **columns, **fetches})


class TestChangesBetweenUpdates:
    def test_kl_coefficient_follows_the_divergence(self):
        policy = make(kl_coeff=0.2, kl_target=0.01, lr=0.5, num_sgd_iter=4, clip_param=0.9)
        expected, seen = 0.2, []
        for update in range(6):
            if update == 3:
                policy.set_weights({"logits": np.zeros((4, 2)), "values": np.zeros(4)})
                wide = make(kl_coeff=0.2, kl_target=1e6, lr=0.5, num_sgd_iter=4, clip_param=0.9)
                wide.set_state(policy.get_state())
                policy = wide
            stats = policy.learn_on_batch(experience(policy))
            assert stats["cur_kl_coeff"] == pytest.approx(expected)
            target = policy.config.kl_target
            factor = 1.5 if stats["kl"] > 2 * target else 0.5 if stats["kl"] < target / 2 else 1.0
            expected *= factor
            seen.append(factor)
            assert policy.numbers["kl_coeff"] == pytest.approx(expected)
        assert seen[0] == 1.5
        assert seen[-1] == 0.5

    def test_kl_coefficient_is_constant_without_a_penalty(self):
        policy = make()
        assert policy.learn_on_batch(experience(policy))["cur_kl_coeff"] == 0
        assert policy.numbers == {}

    # Two states, p = 1/2, action 0 in both, advantages 1 and -1: while nothing is clipped, each step of Adam moves all
    # four logits by nearly lr = 0.1. After n steps p = σ(±0.2n), and KL(1/2 || p) = -ln(4 p (1 - p)) / 2:
    #   n     p       KL
    #   0   .5        0
    #   1   .549834   .004992
    #   2   .598676   .019863   (the second step is .099973)
    @pytest.mark.long
    @pytest.mark.parametrize(
        ("target_kl", "steps", "kl"),
        [(0.0033, 1, 0.004992), (0.0034, 2, 0.019863), (0.0132, 2, 0.019863), (0.014, 3, None), (None, 4, None)],
    )
    def test_an_update_stops_if_the_divergence_exceeds_its_target(self, target_kl, steps, kl):
        policy = make(2, target_kl=target_kl, lr=0.1, num_sgd_iter=4, clip_param=0.9, grad_clip=None)
        half = np.log(np.full((2, 2), 0.5, np.float32))
        columns = {"action_logp": half[0], "action_dist_inputs": half, "advantages": f32(1, -1)}
        zeros = {"actions": np.zeros(2, np.int64), "value_targets": f32(0, 0)}
        stats = policy.learn_on_batch(SampleBatch({"obs": np.arange(2), **zeros, **columns}))
        assert stats["num_gradient_steps"] == policy.learner.num_updates == steps
        if kl is not None:  # that of the minibatch that stopped the update
            assert stats["kl"] == pytest.approx(kl, abs=2e-6)
        moved = 0.1 * steps * f32(1, -1)
        np.testing.assert_allclose(policy.get_weights()["logits"], [moved, -moved], rtol=1e-2)

    @pytest.mark.long
    @pytest.mark.usefixtures("cleared_cache")
    def test_schedules_depend_on_the_timestep(self):
        policy = make(
            lr_schedule=[[0, 1.0], [100, 0.0]],
            clip_param_schedule=[[0, 0.4], [100, 0.2]],
            entropy_coeff_schedule=[[50, 0.1], [150, 0.3]],
        )
        for timestep, lr, clip, entropy_coeff in [
            (0, 1.0, 0.4, 0.1),
            (25, 0.75, 0.35, 0.1),
            (100, 0.0, 0.2, 0.2),
            (200, 0, 0.2, 0.3),
        ]:
            policy.timestep = timestep
            got = policy.coefficients()
            assert (got["lr"], got["clip_param"], got["entropy_coeff"]) == pytest.approx((lr, clip, entropy_coeff))
        before = policy.get_weights()
        stats = policy.learn_on_batch(experience(policy))  # with lr = 0
        assert stats["cur_lr"] == 0
        np.testing.assert_array_equal(before["logits"], policy.get_weights()["logits"])
        policy.timestep = 25
        learning_rates = policy.learn_on_batch(experience(policy))["cur_lr"]
        assert learning_rates == pytest.approx(0.75)
        assert not np.array_equal(before["logits"], policy.get_weights()["logits"])
        assert policy.compilations() == 2  # one to act, one to learn: schedules compile nothing

    def test_constants_without_a_schedule(self):
        policy = make(lr=0.1, clip_param=0.3, entropy_coeff=0.02, kl_coeff=0.5)
        policy.timestep = 10**9
        assert policy.coefficients() == {"lr": 0.1, "clip_param": 0.3, "entropy_coeff": 0.02, "kl_coeff": 0.5}


def test_a_minibatch_larger_than_the_batch_is_refused():
    with pytest.raises(ConfigError, match=r"sgd_minibatch_size=512, train_batch_size=256(.|\n)*fix:"):
        PPOConfig(train_batch_size=256, sgd_minibatch_size=512)
