"""TD3BC: the actor's loss against numbers derived by hand. Tests of TD3 cover the rest."""

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, SampleBatch
from rollax.algorithms.ddpg import TD3
from rollax.batch import Fragment
from rollax.offline.td3_bc import TD3BC, TD3BCConfig
from tests.algorithms.tables import f32, two_rows

LINE = spaces.Discrete(3)
BOX = spaces.Box(-1, 1, (2,), np.float32)
SMALL = {"model": {"fcnet_hiddens": ()}, "seed": 0, "train_batch_size": 2, "policy_delay": 1}
ACTIONS = f32(0.3, 0.1, -0.5, 0.7).reshape(2, 2)


def found(policy_class=TD3BC, rows=None, **options):
    """Actions 0.5, 0 and 0, -0.2; Q_1 = 2 [s = 0] - 4 [s = 1] + a_1."""
    policy = policy_class.make_policy(LINE, BOX, {**SMALL, **options})
    weights = {name: np.zeros_like(value) for name, value in policy.get_weights().items()}
    weights["actor.head.kernel"] = np.arctanh(f32(0.5, 0, 0, -0.2, 0, 0)).reshape(3, 2)
    (critic,) = (name for name in weights if name.startswith("critics.") and name.endswith("kernel"))
    weights[critic][0, :, 0] = [2, -4, 0, 1, 0]
    policy.set_weights(weights)
    gradients, stats = policy.compute_gradients(two_rows(**{"actions": ACTIONS, **(rows or {})}))
    return gradients["actor.head.kernel"], stats


@pytest.mark.long
def test_the_actor():
    # Q_1 = 2.5, -4: λ = 2.5 / 3.25.  Distances, the mean over two elements: (0.2² + 0.1²) / 2, (0.5² + 0.9²) / 2.
    # By an action's element: -λ ∂Q/∂a + 2 (π - a) / 2; through the tanh: times 1 - a²; over 2 rows.
    gradient, stats = found()
    scale = 2.5 / 3.25
    distances = np.array([0.05 / 2, 1.06 / 2])
    assert stats["actor_loss"] == pytest.approx(np.mean(distances - scale * np.array([2.5, -4])), rel=1e-5)
    expected = np.array([[(-scale + 0.2) * 0.75, -0.1], [-scale + 0.5, -0.9 * 0.96]]) / 2
    np.testing.assert_allclose(gradient, [*expected, [0, 0]], rtol=1e-4, atol=1e-6)


def test_alpha_of_0_only_imitates():
    gradient, stats = found(alpha=0.0)
    assert stats["actor_loss"] == pytest.approx((0.05 + 1.06) / 4, rel=1e-5)
    expected = np.array([[0.2 * 0.75, -0.1], [0.5, -0.9 * 0.96]]) / 2
    np.testing.assert_allclose(gradient, [*expected, [0, 0]], rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_the_critics_are_those_of_td3():
    (_, ours), (_, theirs) = found(target_noise=0.0), found(TD3, target_noise=0.0)
    names = ("critic_loss", "mean_q", "mean_target", "mean_td_error")
    assert {name: ours[name] for name in names} == {name: theirs[name] for name in names}


class TestCriticPenalty:
    def test_targets(self):
        # Row 0: π(1) = (0, -0.2), recorded (0.5, 0.4): distance 0.25 + 0.36; Q⁻ = -4: y = 1 + ½ (-4 - 0.3 · 0.61).
        # Row 1 terminated.
        columns = {"new_actions": f32(0.5, 0.4, 9, 9).reshape(2, 2), "acts_next": f32(1, 1)}
        _, stats = found(target_noise=0.0, critic_penalty=0.3, rows=columns)
        assert stats["mean_target"] == pytest.approx((1 + 0.5 * (-4 - 0.3 * 0.61) + 2) / 2, rel=1e-5)
        _, stats = found(target_noise=0.0, critic_penalty=0.3, rows={**columns, "acts_next": f32(0, 0)})
        assert stats["mean_target"] == pytest.approx((1 - 2 + 2) / 2, rel=1e-5)

    def test_next_actions_are_of_the_same_trajectory(self):
        policy = TD3BC.make_policy(LINE, BOX, {**SMALL, "critic_penalty": 0.3})
        columns = {
            "obs": np.array([0, 1, 2]),
            "actions": np.arange(6, dtype=np.float32).reshape(3, 2),
            "rewards": f32(1, 2, 3),
            "terminateds": np.array([False, False, False]),
            "truncateds": np.array([False, True, False]),
        }
        fragment = policy.postprocess_rows(Fragment(columns, [1, 2], {"obs": np.array([2, 2])}))
        np.testing.assert_array_equal(fragment["acts_next"], [1, 0, 0])
        np.testing.assert_array_equal(fragment["new_actions"][0], [2, 3])

    def test_n_steps_are_refused(self):
        with pytest.raises(ConfigError, match="'n_step'"):
            TD3BCConfig(critic_penalty=0.3, n_step=3)
        with pytest.raises(ConfigError, match="'n_step'"):
            TD3BCConfig(critic_penalty=0.3).changed(n_step=3)


@pytest.mark.long
def test_layer_normalization():
    # One hidden layer of two units. Its outputs after the activation are standardized: (x - mean) / deviation.
    model = {"fcnet_hiddens": (2,), "fcnet_activation": "tanh"}
    policy = TD3BC.make_policy(LINE, BOX, {**SMALL, "model": model, "critic_layer_norm": True})
    weights = policy.get_weights()
    assert any("critics" in name and "norms" in name for name in weights)
    assert not any("actor" in name and "norms" in name for name in weights)
    model = policy.split.merge(policy.params, policy.extra)
    hidden = model.critics.member(0).mlp(jnp.eye(5))
    np.testing.assert_allclose(np.abs(hidden), 1, atol=1e-2)  # two numbers are ±1 deviations from their mean


@pytest.mark.long
def test_learns_the_best_action_near_recorded_ones():
    """One state and actions in [0, 0.5]; larger ones earn more. The best action is near 0.5, not near 1."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(0, 0.5, (512, 1)).astype(np.float32)
    obs, zeros = np.zeros(512, np.int64), np.zeros(512, np.float32)
    columns = {"obs": obs, "actions": actions, "rewards": actions[:, 0]}
    columns |= {"new_obs": obs, "discounts": zeros, "weights": zeros + 1}
    config = {"model": {"fcnet_hiddens": (16,)}, "lr": 0.01, "train_batch_size": 64, "seed": 0}
    best = []
    for alpha in (0.0, 0.05):
        policy = TD3BC.make_policy(spaces.Discrete(1), spaces.Box(-1, 1, (1,), np.float32), {**config, "alpha": alpha})
        for _ in range(60):
            policy.learn_on_batch(SampleBatch(columns))
        best.append(float(np.ravel(policy.compute_actions(np.zeros(1, np.int64), explore=False)[0])[0]))
    assert best[0] == pytest.approx(0.25, abs=0.08)
    assert best[0] + 0.02 < best[1] < 0.75
