"""IQL: losses and gradients against numbers derived by hand, for continuous and for discrete actions."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, SpaceError
from rollax.batch import Fragment
from rollax.offline.iql import IQL, IQLConfig
from tests.algorithms.tables import f32, two_rows
from tests.env.refused import raised, refused
from tests.offline.recorded import rarely_rewarded

LINE = spaces.Discrete(3)
"""Three states, observed as one-hot vectors: a linear actor and linear values are tables."""
BOX = spaces.Box(-1, 1, (1,), np.float32)
SMALL = {"model": {"fcnet_hiddens": ()}, "seed": 0, "train_batch_size": 2, "expectile": 0.9, "beta": 2.0}


def policy_with(actions, actor, values, critics, target_critics, **options):
    policy = IQL.make_policy(LINE, actions, {**SMALL, **options})

    def tables(critics):
        found = {name: np.zeros(np.shape(value), np.float32) for name, value in policy.get_weights().items()}
        (name,) = (n for n in found if n.startswith("actor") and n.endswith("head.kernel"))
        found[name] = np.asarray(actor, np.float32).reshape(found[name].shape)
        found["state_value.head.kernel"] = np.asarray(values, np.float32)[:, None]
        (name,) = (n for n in found if n.startswith("critics.") and n.endswith("kernel"))
        found[name] = np.asarray(critics, np.float32).reshape(found[name].shape)
        return found

    policy.set_weights(tables(target_critics))
    targets = {name: jnp.array(value) for name, value in policy.targets.items()}
    policy.set_weights(tables(critics))
    policy.learner.set_targets(targets)
    return policy


class TestContinuous:
    """V = 1, 4, 5; the actions are 0.5 and -0.5; τ = 0.9, β = 2.

    row   Q_1    Q_2     Q⁻_1, Q⁻_2      A = min Q⁻ - V      w         y
     0   1+1/2    0     1.5, 3 + 0.5          0.5            e     1 + ½ 4 = 3
     1   -1/2     2     3.5, 5 - 0.5         -0.5          1 / e    2
    """

    values = (1, 4, 5)
    critics = ([1, 0, 0, 1], [0, 2, 0, 0])
    target_critics = ([1, 4, 0, 1], [3, 5, 0, 1])
    actor = (math.atanh(0.2), 0, 0)
    weights = np.array([math.e, 1 / math.e])

    def found(self, **options):
        policy = policy_with(BOX, self.actor, self.values, self.critics, self.target_critics, **options)
        return policy.compute_gradients(two_rows(actions=f32(0.5, -0.5)[:, None]))

    def test_state_values(self):
        # 0.9 · ¼ and 0.1 · ¼; ∂/∂V = -2 |τ - 1{A<0}| A / 2 rows
        gradients, stats = self.found()
        assert stats["value_loss"] == pytest.approx(0.25 / 2, rel=1e-5)
        assert stats["mean_value"] == pytest.approx(2.5)
        np.testing.assert_allclose(gradients["state_value.head.kernel"].ravel(), [-0.45, 0.05, 0], rtol=1e-5, atol=1e-7)

    def test_critics(self):
        # errors of Q_1: -1.5, -2.5; of Q_2: -3, 0. Σ of mean squares; ∂/∂Q = 2 e / 2 rows
        gradients, stats = self.found()
        assert stats["critic_loss"] == pytest.approx((1.5**2 + 2.5**2 + 9) / 2, rel=1e-5)
        assert stats["mean_target"] == pytest.approx(2.5)
        np.testing.assert_allclose(stats["td_error"], [2.25, 1.25], rtol=1e-5)
        (kernel,) = (g for n, g in gradients.items() if n.startswith("critics.") and n.endswith("kernel"))
        np.testing.assert_allclose(kernel[0].ravel(), [-1.5, -2.5, 0, -0.75 + 1.25], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(kernel[1].ravel(), [-3, 0, 0, -1.5], rtol=1e-5, atol=1e-6)

    def test_actor(self):
        # means m = 0.2, 0 at σ = 1: -log π = ½ (a - m)² + ½ log 2π. By the mean before its tanh: w (m - a) (1 - m²).
        gradients, stats = self.found()
        distances = np.array([0.3, -0.5])
        losses = self.weights * (0.5 * distances**2 + 0.5 * math.log(2 * math.pi))
        assert stats["actor_loss"] == pytest.approx(losses.mean(), rel=1e-5)
        assert stats["mean_weight"] == pytest.approx(self.weights.mean(), rel=1e-5)
        assert stats["entropy"] == pytest.approx(0.5 + 0.5 * math.log(2 * math.pi), rel=1e-5)
        expected = -self.weights * distances * [0.96, 1] / 2
        (kernel,) = (g for n, g in gradients.items() if n.startswith("actor") and n.endswith("head.kernel"))
        np.testing.assert_allclose(kernel.ravel(), [*expected, 0], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(gradients["actor.log_std"], [np.mean(self.weights * (1 - distances**2))], rtol=1e-5)

    def test_weights_are_limited(self):
        _, stats = self.found(max_weight=2.0)
        assert stats["mean_weight"] == pytest.approx((2 + 1 / math.e) / 2, rel=1e-5)

    def test_only_critics_have_targets(self):
        policy = policy_with(BOX, self.actor, self.values, self.critics, self.target_critics, tau=0.25)
        before = {name: np.array(value) for name, value in policy.targets.items()}
        policy.learn_on_batch(two_rows(actions=f32(0.5, -0.5)[:, None]))
        for name, value in policy.targets.items():
            followed = 0.25 * np.array(policy.params[name]) + 0.75 * before[name]
            np.testing.assert_allclose(value, followed if name.startswith("critics") else before[name], rtol=1e-5)

    def test_each_part_has_its_own_step_size(self):
        rates = {"actor_lr": 0.1, "critic_lr": 0.2, "value_lr": 0.0}
        policy = policy_with(BOX, self.actor, self.values, self.critics, self.target_critics, **rates)
        before = policy.get_weights()
        policy.learn_on_batch(two_rows(actions=f32(0.5, -0.5)[:, None]))
        moved = {name: np.abs(value - before[name]).max() for name, value in policy.get_weights().items()}
        for part, step in (("actor", 0.1), ("critics", 0.2), ("state_value", 0)):
            largest = max(distance for name, distance in moved.items() if name.startswith(part))
            assert largest == pytest.approx(step, rel=1e-3)  # Adam's first step is as long as its step size

    @pytest.mark.parametrize(
        ("config", "stored"),
        [
            # the environment receives 3, 3, 0.5 and -1: 1 + 2 a, clipped
            ({}, [1, 1, -0.25, -1]),
            # it receives 3, 1, -0.25 and -1: a, clipped
            ({"normalize_actions": False}, [3, 1, -0.25, -1]),
            ({"normalize_actions": False, "clip_actions": False}, [4, 1, -0.25, -2]),
        ],
    )
    def test_fresh_actions_are_those_that_the_environment_received(self, config, stored):
        policy = IQL.make_policy(LINE, spaces.Box(-1, 3, (1,), np.float64), {**SMALL, **config})
        columns = {"obs": np.zeros(4, np.int64), "actions": f32(4, 1, -0.25, -2)[:, None]}
        rows = policy.postprocess_rows(Fragment(columns, [3], {"obs": np.zeros(1, np.int64)}))
        assert rows["actions"].dtype == np.float32
        assert rows["actions"].ravel().tolist() == stored


class TestDiscrete:
    """The actions 5 and 6; π(·|1) = ¼, ¾, elsewhere ½, ½. V and Q⁻ of the recorded actions are those above."""

    def test_numbers(self):
        actor = [[0, 0], [0, math.log(3)], [0, 0]]
        critics = [[[1, 0], [0, 2], [0, 0]]] * 2
        targets = [[[9, 1.5], [3.5, 0], [0, 0]], [[9, 2], [4, 0], [0, 0]]]
        policy = policy_with(spaces.Discrete(2, start=5), actor, (1, 4, 5), critics, targets)
        gradients, stats = policy.compute_gradients(two_rows(actions=np.array([6, 5])))
        weights = np.array([math.e, 1 / math.e])
        assert stats["actor_loss"] == pytest.approx(np.mean(weights * np.log([2, 4])), rel=1e-5)
        expected = -weights[:, None] * np.array([[-0.5, 0.5], [0.75, -0.75]]) / 2
        np.testing.assert_allclose(gradients["actor.head.kernel"], [*expected, [0, 0]], rtol=1e-5, atol=1e-7)
        # Q = 0, 0 of the recorded actions, y = 3, 2
        assert stats["critic_loss"] == pytest.approx(2 * (9 + 4) / 2, rel=1e-5)

    def test_masked_actions_are_excluded(self):
        space = spaces.Dict({"obs": spaces.Discrete(1), "action_mask": spaces.MultiBinary(3)})
        policy = IQL.make_policy(space, spaces.Discrete(3), SMALL)
        policy.set_weights({name: np.zeros_like(value) for name, value in policy.get_weights().items()})
        obs = {"obs": np.zeros(2, np.int64), "action_mask": np.array([[1, 0, 1]] * 2, np.int8)}
        _, stats = policy.compute_gradients(two_rows(obs=obs, new_obs=obs, actions=np.array([0, 2])))
        assert stats["entropy"] == pytest.approx(math.log(2), rel=1e-5)


class TestRefused:
    def test_spaces(self):
        refused(SpaceError, IQL.make_policy, LINE, spaces.MultiDiscrete([2, 2]), SMALL, says="MARWIL")
        refused(SpaceError, IQL.make_policy, LINE, spaces.Box(-np.inf, np.inf, (1,), np.float32), SMALL, says="finite")

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"expectile": 1.0}, "expectile"),
            ({"noise_scale": 0.5}, "noise_scale has no effect"),
            ({"random_steps": 10}, "random_steps has no effect"),
            ({"actor_lr": 0.1, "critic_lr": 0.1, "value_lr": 0.1, "lr": 0.5}, "lr has no effect"),
        ],
    )
    def test_keys(self, config, message):
        raised(ConfigError, IQLConfig, says=message, **config)


@pytest.mark.short("discrete")
@pytest.mark.parametrize("actions", [spaces.Discrete(2), BOX], ids=["discrete", "continuous"])
def test_learns_the_rewarded_action(actions):
    """In each state the action of the other sign is recorded more often, and earns nothing."""
    paying = np.array([1, 0, 1])
    batch = rarely_rewarded(paying)
    if not isinstance(actions, spaces.Discrete):
        batch["actions"] = (batch["actions"] - 0.5).astype(np.float32)[:, None]
    config = {"model": {"fcnet_hiddens": (16,)}, "lr": 0.01, "train_batch_size": 64, "seed": 0, "beta": 5.0, "tau": 0.1}
    policy = IQL.make_policy(LINE, actions, config)
    for _ in range(40):
        policy.learn_on_batch(batch)
    greedy = np.asarray(policy.compute_actions(np.arange(3), explore=False)[0]).ravel()
    np.testing.assert_array_equal(greedy > 0, paying > 0)
