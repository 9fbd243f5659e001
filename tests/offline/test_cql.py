"""CQL and DiscreteCQL: conservative terms against numbers derived by hand. Tests of SAC and DQN cover the rest."""

import math

import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, SpaceError
from rollax.algorithms.dqn import DQN
from rollax.algorithms.sac import SAC
from rollax.offline.cql import CQL, CQLConfig, DiscreteCQL
from tests.algorithms.tables import f32, two_rows
from tests.algorithms.test_sac import BOX, LINE, tables
from tests.env.refused import raised

SMALL = {"model": {"fcnet_hiddens": ()}, "seed": 0, "train_batch_size": 2, "lr": 0.1, "initial_alpha": 0.5}
UNIFORM = {"num_actions": 2, "actor_lr": 0.1, "critic_lr": 0.1}
QUARTER = 0.25


class Quarters(np.random.Generator):
    """A random generator that returns ½, and for uniform actions ¼ and ¾."""

    def __init__(self):
        super().__init__(np.random.PCG64(0))

    def random(self, shape, dtype):
        found = np.full(shape, 0.5, dtype)
        if len(shape) == 4:
            found[:, 2, :, :] = f32(QUARTER, 1 - QUARTER)[:, None]
        return found


def rows(**columns):
    return two_rows(**{"actions": f32(0.2, -0.4)[:, None], **columns})


class TestContinuous:
    """The actor's actions are 0, ½, 0 in states 0, 1, 2, with log π = -½ log 2π - log(1 - a²) at σ = 1 and noise ½.

    Critics: Q_1 = [s = 0] + a, Q_2 = 2 [s = 1] - a. The sampled actions, those of the policy twice each:

    state   π(s)    π(s')     uniform
      0      0       ½       -½, ½ (density ½)
      1      ½       0       -½, ½
    """

    actor = ([0, 0], [np.arctanh(0.5), 0], [0, 0])
    critics = ([1, 0, 0, 1], [0, 2, 0, -1])
    recorded = np.array([0.2, -0.4])
    actions = np.array([[0, 0, 0.5, 0.5, -0.5, 0.5], [0.5, 0.5, 0, 0, -0.5, 0.5]])

    @property
    def densities(self):
        logp = {0: -0.5 * math.log(2 * math.pi), 0.5: -0.5 * math.log(2 * math.pi) - math.log(0.75)}
        of_policy = [[logp[action] for action in row[:4]] for row in self.actions]
        return np.hstack([of_policy, np.full((2, 2), math.log(0.5))])

    def gaps(self):
        """[critic, row], and the probabilities [critic, row, sample] in its gradient."""
        values = np.stack([np.array([[1], [0]]) + self.actions, np.array([[0], [2]]) - self.actions])
        taken = np.stack([np.array([1, 0]) + self.recorded, np.array([0, 2]) - self.recorded])
        exponents = np.exp(values - self.densities)
        sums = exponents.sum(axis=2)
        return np.log(sums) - taken, exponents / sums[..., None]

    def policy(self, policy_class=CQL, **options):
        policy = policy_class.make_policy(LINE, BOX, {**SMALL, **options})
        weights = tables(policy, self.actor, self.critics)
        if "log_multiplier" in weights:
            weights["log_multiplier"] = np.float32(math.log(2))
        policy.set_weights(weights)
        policy.learning_rng = Quarters()
        return policy

    def kernels(self, policy):
        gradients, stats = policy.compute_gradients(rows())
        (kernel,) = (g for n, g in gradients.items() if n.startswith("critics.") and n.endswith("kernel"))
        return kernel.reshape(2, 4), gradients, stats

    def added(self, weight):
        """½ w / 2 rows times the gradient of the gaps: expected features minus those of the recorded action."""
        _, shares = self.gaps()
        by_action = (shares * self.actions).sum(axis=2) - self.recorded
        return 0.25 * weight * np.stack([np.zeros(2), np.zeros(2), np.zeros(2), by_action.sum(axis=1)], axis=1)

    @pytest.mark.long
    def test_loss_is_that_of_sac_plus_the_gap(self):
        sac = {"actor_lr": 0.1, "critic_lr": 0.1}
        plain, _, before = self.kernels(self.policy(SAC, **sac))
        found, gradients, stats = self.kernels(self.policy(**UNIFORM, deterministic_backup=False, min_q_weight=3.0))
        gaps, _ = self.gaps()
        assert stats["conservative_gap"] == pytest.approx(gaps.mean(), rel=1e-5)
        assert stats["conservative_weight"] == 3
        expected = before["total_loss"] + 0.5 * 3 * gaps.sum(axis=0).mean()
        assert stats["total_loss"] == pytest.approx(expected, rel=1e-5)
        np.testing.assert_allclose(found, plain + self.added(3.0), rtol=1e-4, atol=1e-6)
        # The sampled actions are constant: the actor learns as in SAC.
        _, others, _ = self.kernels(self.policy(SAC, **sac))
        np.testing.assert_allclose(gradients["actor.head.kernel"], others["actor.head.kernel"], rtol=1e-5, atol=1e-7)

    @pytest.mark.long
    def test_weight_0_gives_sac(self):
        plain, _, before = self.kernels(self.policy(SAC, actor_lr=0.1, critic_lr=0.1))
        found, _, stats = self.kernels(self.policy(**UNIFORM, deterministic_backup=False, min_q_weight=0.0))
        np.testing.assert_allclose(found, plain, rtol=1e-6)
        assert stats["total_loss"] == before["total_loss"]

    @pytest.mark.long
    def test_targets_without_entropy(self):
        # Row 0: Q(1, ½) = ½, 1.5: y = 1 + ½ · ½. Row 1 is terminated: y = 2.
        _, _, stats = self.kernels(self.policy(**UNIFORM))
        assert stats["mean_target"] == pytest.approx((1.25 + 2) / 2, rel=1e-5)
        _, _, stats = self.kernels(self.policy(**UNIFORM, deterministic_backup=False))
        logp = -0.5 * math.log(2 * math.pi) - math.log(0.75)
        assert stats["mean_target"] == pytest.approx((1 + 0.5 * (0.5 - 0.5 * logp) + 2) / 2, rel=1e-5)

    @pytest.mark.long
    def test_lagrangian(self):
        # α = 2: the weight is 2 w; log α has the gradient -α (w gap - τ), so it rises where the gap is too large.
        plain, _, before = self.kernels(self.policy(**UNIFORM, min_q_weight=0.0))
        policy = self.policy(**UNIFORM, min_q_weight=3.0, lagrangian=True, lagrangian_thresh=1.5)
        found, gradients, stats = self.kernels(policy)
        gap = self.gaps()[0].mean()
        assert stats["conservative_weight"] == pytest.approx(6, rel=1e-5)
        np.testing.assert_allclose(found, plain + self.added(6.0), rtol=1e-4, atol=1e-6)
        assert gradients["log_multiplier"] == pytest.approx(-2 * (3 * gap - 1.5), rel=1e-5)
        expected = before["total_loss"] + 0.5 * 6 * 2 * gap - 2 * (3 * gap - 1.5)
        assert stats["total_loss"] == pytest.approx(expected, rel=1e-5)
        before = float(policy.params["log_multiplier"])
        policy.learn_on_batch(rows())
        assert policy.params["log_multiplier"] == pytest.approx(before + 0.1, rel=1e-4)  # by the critics' step size

    @pytest.mark.long
    def test_actions_of_more_elements(self):
        box = spaces.Box(-1, 1, (2, 2), np.float32)
        policy = CQL.make_policy(LINE, box, {**SMALL, **UNIFORM})
        assert np.isfinite(policy.learn_on_batch(rows(actions=np.zeros((2, 2, 2), np.float32)))["conservative_gap"])

    def test_refused(self):
        raised(SpaceError, CQL.make_policy, LINE, spaces.Discrete(2), SMALL, says="use DiscreteCQL")
        raised(ConfigError, CQLConfig, says="lagrangian_thresh has no effect", lagrangian_thresh=3.0)


class TestDiscrete:
    """Two states, Q = log [1, 3, 4] and log [2, 2, 1]; the recorded actions are the second and the first."""

    config = {"model": {"fcnet_hiddens": ()}, "seed": 0, "train_batch_size": 2, "dueling": False}
    values = np.log([[1, 3, 4], [2, 2, 1]])

    def found(self, policy_class, masked=False, **options):
        space = spaces.Discrete(2)
        obs = np.array([0, 1])
        if masked:
            space = spaces.Dict({"obs": space, "action_mask": spaces.MultiBinary(3)})
            obs = {"obs": obs, "action_mask": np.array([[1, 1, 1], [1, 1, 0]], np.int8)}
        policy = policy_class.make_policy(space, spaces.Discrete(3, start=1), {**self.config, **options})
        weights = {name: np.zeros_like(value) for name, value in policy.get_weights().items()}
        (kernel,) = (name for name in weights if name.endswith("kernel"))
        policy.set_weights({**weights, kernel: self.values.astype(np.float32)})
        gradients, stats = policy.compute_gradients(rows(obs=obs, new_obs=obs, actions=np.array([2, 1])))
        return gradients[kernel], stats

    def test_loss_is_that_of_dqn_plus_the_gap(self):
        plain, before = self.found(DQN)
        found, stats = self.found(DiscreteCQL, min_q_weight=3.0)
        gaps = np.log([8 / 3, 5 / 2])
        assert stats["conservative_gap"] == pytest.approx(gaps.mean(), rel=1e-5)
        assert stats["total_loss"] == pytest.approx(before["total_loss"] + 3 * gaps.mean(), rel=1e-5)
        added = 3 * np.array([[1 / 8, 3 / 8 - 1, 4 / 8], [2 / 5 - 1, 2 / 5, 1 / 5]]) / 2
        np.testing.assert_allclose(found, plain + added, rtol=1e-4, atol=1e-6)

    def test_masked_actions_are_excluded(self):
        plain, _ = self.found(DQN, masked=True)
        found, stats = self.found(DiscreteCQL, masked=True)
        assert stats["conservative_gap"] == pytest.approx(np.log([8 / 3, 2]).mean(), rel=1e-5)
        np.testing.assert_allclose((found - plain)[1], [-0.25, 0.25, 0], rtol=1e-4, atol=1e-6)

    def test_distributions(self):
        config = {**self.config, "num_atoms": 5, "v_min": -1.0, "v_max": 1.0}
        policy = DiscreteCQL.make_policy(spaces.Discrete(2), spaces.Discrete(3), config)
        policy.set_weights({name: np.zeros_like(value) for name, value in policy.get_weights().items()})
        stats = policy.learn_on_batch(rows(actions=np.array([2, 0])))
        assert stats["conservative_gap"] == pytest.approx(math.log(3), rel=1e-5)  # all values are 0
