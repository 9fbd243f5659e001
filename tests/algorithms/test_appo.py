"""APPO's loss and gradient by hand, with and without V-trace, its target network and its penalty."""

import math

import numpy as np
import pytest
from gymnasium import spaces

from rollax import APPO
from rollax.batch import Fragment
from tests.algorithms.tables import TABLE, VTRACE, entropy, f32, kl, logits_of, one_gradient

NAN = float("nan")


def make(states=6, **config):
    return APPO.make_policy(spaces.Discrete(states), spaces.Discrete(2), {**TABLE, **config})


class TestLoss:
    # γ = 1/2, ρ̄ = 2, ρ̄' = 3, ε = 0.4. A segment of three rows that is cut, one of one row that terminates, padding.
    # Action 0 is taken. Its probability is p under the learned policy, π' under the target, μ under the acting policy.
    # V-trace corrects for π'/μ.
    #   row   V   r    p    π'    μ   π'/μ   δ                       v                         A
    #    0    1   2   .6   .4    .4    1     2 + 2/2 - 1 = 2         1 + 2 + (17/8)/2 = 65/16  2 + (33/8)/2 - 1 = 49/16
    #    1    2   1   .3   .4    .1    4     2 (1 + 4/2 - 2) = 2     2 + 2 + (1/4)/2 = 33/8    3 (1 + 17/8 - 2) = 27/8
    #    2    4   1   .36  .2    .8   1/4    (1 + 8/2 - 4)/4 = 1/4   17/4                      (1 + 4 - 4)/4 = 1/4
    #    3    8   bootstrap
    #    4    4   3   .1   .5    .5    1     3 - 4 = -1              3                         3 - 4 = -1
    #    5        padding
    #   row   max(π', μ/2)   ratio p / that   min(ratio A, clip(ratio) A)
    #    0        .4              1.5             1.4 · 49/16   clip binds from above
    #    1        .4              .75             .75 · 27/8
    #    2        .4              .9              .9 / 4        the weight μ/π' = 4 is limited to 2
    #    4        .5              .2             -.6            clip binds from below
    P, TARGET, MU = (0.6, 0.3, 0.36, 0.1), (0.4, 0.4, 0.2, 0.5), (0.4, 0.1, 0.8, 0.5)
    VALUES, TARGETS = f32(1, 2, 4, 4), f32(65 / 16, 33 / 8, 17 / 4, 3)
    SURROGATES = (1.4 * 49 / 16, 0.75 * 27 / 8, 0.9 / 4, -0.6)
    ROWS = (0, 1, 2, 4)
    CONFIG = {**VTRACE, "clip_param": 0.4}

    def gradient(self, **config):
        policy = make(**{**self.CONFIG, **config})
        policy.set_weights(self.weights(self.TARGET, f32(50, 60, 70, 80)))  # the target's values are not read
        targets = {name: np.array(value) for name, value in policy.targets.items()}
        policy.set_state({**policy.get_state(), "targets": targets, "weights": self.weights(self.P, self.VALUES)})
        columns = {
            "obs": np.arange(6),
            "actions": np.zeros(6, int),
            "action_logp": np.log(f32(*self.MU[:3], 1e-9, self.MU[3], NAN)),
            "rewards": f32(2, 1, 1, NAN, 3, NAN),
            "discounts": f32(0.5, 0.5, 0.5, 0, 0, NAN),
            "bootstrap": np.array([0, 0, 0, 1, 0, 0], bool),
        }
        return one_gradient(policy, columns, [0, 1, 2, 3, 4, -1])

    @staticmethod
    def weights(p, values):
        logits = logits_of(*p[:3], 0.5, p[3], 0.5)
        return {"logits": logits, "values": f32(*values[:3], 8, values[3], 99)}

    def test_value(self):
        _, stats = self.gradient()
        errors = self.VALUES - self.TARGETS
        policy_loss, vf_loss = -sum(self.SURROGATES) / 4, (errors**2).mean()
        mean_entropy = sum(map(entropy, self.P)) / 4
        expected = {
            "policy_loss": policy_loss,
            "vf_loss": vf_loss,
            "entropy": mean_entropy,
            "vf_explained_var": 1 - errors.var() / self.TARGETS.var(),
            "kl": sum(map(kl, self.TARGET, self.P)) / 4,
            "mean_rho": (1.5 + 3 + 0.45 + 0.2) / 4,  # of p, not of π'
            "max_rho": 3,
            "limited_rhos": 1 / 4,
            "total_loss": policy_loss + 0.25 * vf_loss - 0.1 * mean_entropy,
        }
        assert stats == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize("use_kl_loss", [False, True])
    def test_gradient(self, use_kl_loss):
        gradients, _ = self.gradient(**({"use_kl_loss": True, "kl_coeff": 0.3} if use_kl_loss else {}))
        # -ratio A (onehot - p) where the clip does not bind; c_e p_k (ln p_k + H); β (p - π'); divided by 4 rows
        expected = np.zeros((6, 2))
        weights = (0, self.SURROGATES[1], self.SURROGATES[2], 0)
        for row, p, target, weight in zip(self.ROWS, self.P, self.TARGET, weights, strict=True):
            expected[row] = -weight * np.array([1 - p, p - 1])
            expected[row] += 0.1 * np.array([q * (math.log(q) + entropy(p)) for q in (p, 1 - p)])
            expected[row] += use_kl_loss * 0.3 * np.array([p - target, target - p])
        np.testing.assert_allclose(gradients["logits"], expected / 4, rtol=1e-5, atol=1e-6)
        errors = np.zeros(6, np.float32)
        errors[list(self.ROWS)] = self.VALUES - self.TARGETS
        np.testing.assert_allclose(gradients["values"], 2 * 0.25 * errors / 4, rtol=1e-5)


class TestWithoutVTrace:
    # PPO's surrogate with ε = 0.4; row i is in state i, the last row is padding.
    #   row   p     μ    ratio    A    min(r A, clip(r) A)    V    R   (V - R)²
    #    0   .6    .4     1.5     2           2.8             1    3      4        clip binds
    #    1   .25   .5     0.5    -1          -0.6             2   2.5    .25       clip binds
    #    2   .5    .4    1.25     4           5               0   -1      1
    P, MU = (0.6, 0.25, 0.5), (0.4, 0.5, 0.4)
    CONFIG = {"vtrace": False, "clip_param": 0.4, "vf_loss_coeff": 0.25, "entropy_coeff": 0.1}

    def gradient(self, **config):
        policy = make(4, **{**self.CONFIG, **config})
        policy.set_weights({"logits": logits_of(*self.P, 0.5), "values": f32(1, 2, 0, 9)})
        columns = {
            "obs": np.arange(4),
            "actions": np.zeros(4, int),
            "action_logp": np.log(f32(*self.MU, 1e-3)),
            "action_dist_inputs": logits_of(*self.MU, 0.01).astype(np.float32),
            "advantages": f32(2, -1, 4, NAN),
            "value_targets": f32(3, 2.5, -1, NAN),
            "rewards": np.zeros(4, np.float32),
            "terminateds": np.zeros(4, bool),
        }
        return one_gradient(policy, columns, [0, 1, 2, -1])

    def test_value(self):
        _, stats = self.gradient(use_kl_loss=True, kl_coeff=0.3)
        policy_loss, mean_kl = -(2.8 - 0.6 + 5) / 3, sum(map(kl, self.MU, self.P)) / 3
        mean_entropy = sum(map(entropy, self.P)) / 3
        expected = {
            "policy_loss": policy_loss,
            "vf_loss": 5.25 / 3,
            "entropy": mean_entropy,
            "vf_explained_var": 1 - 4.5 / 9.5,  # R has variance 9.5/3, R - V = (2, .5, -1) has 4.5/3
            "kl": mean_kl,
            "mean_rho": 3.25 / 3,
            "max_rho": 1.5,
            "limited_rhos": 2 / 3,
            "total_loss": policy_loss + 0.25 * 5.25 / 3 - 0.1 * mean_entropy + 0.3 * mean_kl,
        }
        assert stats == pytest.approx(expected, rel=1e-5)

    def test_gradient(self):
        gradients, _ = self.gradient(entropy_coeff=0.0)
        np.testing.assert_allclose(gradients["logits"], np.array([[0, 0], [0, 0], [-2.5, 2.5], [0, 0]]) / 3, atol=1e-6)
        np.testing.assert_allclose(gradients["values"], 2 * 0.25 * f32(-2, -0.5, 1, 0) / 3, rtol=1e-5)

    def test_has_no_target_network(self):
        policy = make(vtrace=False)
        assert policy.targets == {}
        assert "vf_preds" not in make().compute_actions(np.zeros(2, int))[2]
        assert "vf_preds" in policy.compute_actions(np.zeros(2, int))[2]


def experience(policy, rows=12):
    obs = np.arange(rows) % 4
    actions, _, fetches = policy.compute_actions(obs)
    flags = {"terminateds": np.zeros(rows, bool), "truncateds": np.zeros(rows, bool)}
    rewards = np.where(actions == obs % 2, 1, -1).astype(np.float32)
    columns = {"obs": obs, "actions": actions, "rewards": rewards, **flags, **fetches}
    return policy.postprocess_rows(Fragment(columns, [1, 6, 11], {"obs": np.zeros(3, int)}))


def same(arrays, others):
    return all(np.array_equal(arrays[name], others[name]) for name in others)


class TestTarget:
    @pytest.mark.long
    @pytest.mark.parametrize(("frequency", "iterations"), [(1, 2), (3, 2), (2, 1)])
    def test_is_updated_at_the_set_frequency(self, frequency, iterations):
        policy = make(4, target_update_frequency=frequency, num_sgd_iter=iterations, lr=0.1)
        targets = policy.get_weights()
        assert same(policy.targets, targets)
        for update in range(1, 7):
            policy.learn_on_batch(experience(policy))
            if update % frequency == 0:
                targets = policy.get_weights()
            assert same(policy.targets, targets), update
            assert same(policy.get_weights(), targets) == (update % frequency == 0)


class TestPenalty:
    def test_coefficient_follows_the_divergence_and_is_saved(self):
        policy = make(4, use_kl_loss=True, kl_coeff=0.2, kl_target=1e-9, num_sgd_iter=3, lr=0.1)
        stats = policy.learn_on_batch(experience(policy))
        assert stats["kl"] > 0
        assert stats["cur_kl_coeff"] == 0.2
        assert policy.numbers["kl_coeff"] == pytest.approx(0.3)
        again = make(4, use_kl_loss=True, kl_target=1e6, num_sgd_iter=3, lr=0.1)
        again.set_state(policy.get_state())
        assert again.numbers["kl_coeff"] == policy.numbers["kl_coeff"]
        assert again.learn_on_batch(experience(again))["cur_kl_coeff"] == pytest.approx(0.3)
        assert again.numbers["kl_coeff"] == pytest.approx(0.15)

    @pytest.mark.long
    def test_coefficient_is_constant_without_kl_loss(self):
        policy = make(4, num_sgd_iter=3, lr=0.1)
        for _ in range(2):
            assert policy.learn_on_batch(experience(policy))["cur_kl_coeff"] == 0

    def test_the_coefficient_of_a_run_without_kl_loss_is_not_restored(self):
        policy = make(4, use_kl_loss=True, kl_coeff=0.3)
        policy.set_state(make(4).get_state())
        assert policy.numbers["kl_coeff"] == 0.3
