"""SAC: losses and gradients against numbers derived by hand, for continuous and for discrete actions."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax import ConfigError, Outputs, SpaceError
from rollax.algorithms.sac import SAC
from rollax.ops.mean_over_rows import masked_mean
from tests.algorithms.tables import BOX, HALF, LINE, f32, set_tables, two_rows
from tests.env.refused import raised

SMALL = {"model": {"fcnet_hiddens": ()}, "seed": 0, "train_batch_size": 2, "lr": 0.1, "initial_alpha": 0.5}


class Middle(np.random.Generator):
    """A random generator that always returns the median."""

    def __init__(self):
        super().__init__(np.random.PCG64(0))

    def random(self, shape, dtype):
        return np.full(shape, 0.5, dtype)


class Noiseless(np.random.Generator):
    """A random generator that returns the median as the noise of one action element."""

    def __init__(self, seed):
        super().__init__(np.random.PCG64(seed))

    def random(self, shape, dtype):
        return np.full(shape, 0.5, dtype) if shape[1] == 1 else super().random(shape, dtype)


def tables(policy, actor, critics):
    """All zeros but for the kernels of the actor's and the critics' last layers."""
    found = {name: np.zeros(np.shape(value), np.float32) for name, value in policy.get_weights().items()}
    found["log_alpha"] = policy.get_weights()["log_alpha"]
    found["actor.head.kernel"] = np.asarray(actor, np.float32)
    for number, critic in enumerate(critics):
        (name,) = (n for n in found if n.startswith("critics.") and n.endswith("kernel"))
        found[name][number] = np.asarray(critic, np.float32).reshape(found[name].shape[1:])
    return found


def policy_with(actions, actor, critics, of_targets, observations=LINE, algorithm=SAC, **options):
    policy = algorithm.make_policy(observations, actions, {**SMALL, **options})
    set_tables(policy, tables(policy, actor, critics), tables(policy, actor, of_targets))
    return policy


def kernel(gradients, number):
    (found,) = (g for n, g in gradients.items() if n.startswith("critics.") and n.endswith("kernel"))
    return found[number]


class TestContinuous:
    """α = ½. All noise is the median, so the action is tanh(mean), with log π = -½ log 2π - log(1 - a²) at σ = 1.

    state  mean   a     log π
      0     0     0    -0.918939
      1    HALF  0.5   -0.918939 + 0.287682 = -0.631257
    """

    actor = ([0, 0], [HALF, 0], [0, 0])
    critics = ([1, 0, 0, 1], [0, 2, 0, -1])
    target_critics = ([0, 3, 0, 2], [0, 5, 0, -1])
    logp = f32(-0.918939, -0.631257)

    def policy(self, **options):
        policy = policy_with(BOX, self.actor, self.critics, self.target_critics, **options)
        policy.learning_rng = Middle()
        return policy

    def found(self, **options):
        return self.policy(**options).compute_gradients(two_rows())

    def test_target_and_critics(self):
        # Row 0: Q⁻(1, 0.5) = 4 and 4.5: y = 1 + ½ (4 - ½ · -0.631257) = 3.157814. Row 1 is terminated: y = 2.
        #   Q(0, 0.2) = 1.2, -0.2: errors -1.957814, -3.357814;  Q(1, -0.4) = -0.4, 2.4: errors -2.4, 0.4
        gradients, stats = self.found()
        np.testing.assert_allclose(stats["mean_target"], (3.157814 + 2) / 2, rtol=1e-5)
        np.testing.assert_allclose(stats["td_error"], [2.657814, 1.4], rtol=1e-5)
        squares = (1.957814**2 + 3.357814**2, 2.4**2 + 0.4**2)
        np.testing.assert_allclose(stats["critic_loss"], 0.5 * sum(squares) / 2, rtol=1e-5)
        # e / 2 rows: ½ e² has no factor
        first = [-0.978907, -1.2, 0, -0.978907 * 0.2 + 1.2 * 0.4]
        second = [-1.678907, 0.2, 0, -1.678907 * 0.2 - 0.2 * 0.4]
        for number, expected in enumerate((first, second)):
            np.testing.assert_allclose(kernel(gradients, number).ravel(), expected, rtol=1e-4, atol=1e-6)

    def test_actor(self):
        # The lower critic: state 0: Q = 1, 0: 0; state 1: 0.5, 1.5: 0.5.  α log π - Q, its mean:
        gradients, stats = self.found()
        np.testing.assert_allclose(stats["actor_loss"], np.mean(0.5 * self.logp - [0, 0.5]), rtol=1e-5)
        np.testing.assert_allclose(stats["entropy"], -np.mean(self.logp), rtol=1e-5)
        # By the mean: α 2a - ∂Q/∂a (1 - a²): 0 + 1 = 1, and 0.5 - 0.75 = -0.25; by log σ: -α (the noise is 0). Halved.
        expected = [[0.5, -0.25], [-0.125, -0.25], [0, 0]]
        np.testing.assert_allclose(gradients["actor.head.kernel"], expected, rtol=1e-4, atol=1e-6)

    @pytest.mark.long
    def test_temperature(self):
        # -log α mean(log π + H̄), H̄ = -1
        gradients, stats = self.found()
        np.testing.assert_allclose(stats["alpha"], 0.5, rtol=1e-6)
        np.testing.assert_allclose(gradients["log_alpha"], -np.mean(self.logp - 1), rtol=1e-5)
        np.testing.assert_allclose(stats["alpha_loss"], -np.log(0.5) * np.mean(self.logp - 1), rtol=1e-5)
        gradients, _ = self.found(target_entropy=0.25)
        np.testing.assert_allclose(gradients["log_alpha"], -np.mean(self.logp + 0.25), rtol=1e-5)

    @pytest.mark.long
    def test_a_step_of_the_temperature(self):
        # Adam's first step is as long as its step size: the entropy is above its target, so log α falls by it.
        for options, step in (({}, 0.1), ({"alpha_lr": 0.03}, 0.03), ({"alpha_lr": 0.0}, 0.0)):
            policy = policy_with(BOX, self.actor, self.critics, self.target_critics, **options)
            policy.learn_on_batch(two_rows())
            np.testing.assert_allclose(policy.params["log_alpha"], np.log(0.5) - step, rtol=1e-5)

    def test_a_random_subset_of_the_critics_in_targets(self):
        # Row 0: Q⁻(1, 0.5) = 4, 4.5 and 6. The lower value of two of them is 4 or 4.5: y = 1 + ½ (min - ½ · -0.631257).
        # Row 1 is terminated: y = 2.
        critics, targets = (*self.critics, [0, 0, 0, 0]), (*self.target_critics, [0, 6, 0, 0])
        policy = policy_with(BOX, self.actor, critics, targets, num_critics=3, target_critics=2)
        policy.learning_rng = Noiseless(0)
        batch, found = two_rows(), set()
        for _ in range(20):
            _, stats = policy.compute_gradients(batch)
            found.add(round(float(stats["mean_target"]), 4))
        assert found == {round((y + 2) / 2, 4) for y in (3.157814, 3.407814)}
        subsets = policy.algorithm.loss_columns(batch, policy.learning_rng)["critics_in_target"]
        assert subsets.shape == (2, 2)

    def test_an_actor_of_the_mean(self):
        # State 0: Q = 1, 0; state 1: 0.5, 1.5.
        _, stats = self.found(actor_q="mean")
        np.testing.assert_allclose(stats["actor_loss"], np.mean(0.5 * self.logp - [0.5, 1]), rtol=1e-5)
        np.testing.assert_allclose(stats["mean_target"], (3.157814 + 2) / 2, rtol=1e-5)

    @pytest.mark.long
    def test_actor_and_temperature_make_every_third_update(self):
        policy = self.policy(policy_delay=3)
        before = policy.get_weights()
        for number in (1, 2, 3):
            stats = policy.learn_on_batch(two_rows())
            after = policy.get_weights()
            assert (after["critics.members.head.kernel"] != before["critics.members.head.kernel"]).any()
            for name in ("actor.head.kernel", "log_alpha"):
                assert (after[name] != before[name]).any() == (number == 3), (number, name)
            assert (stats.get("actor_loss") is not None) == (number == 3)

    def test_noise_is_new_at_every_use(self):
        policy = policy_with(BOX, self.actor, self.critics, self.target_critics)
        batch = two_rows()
        columns = [policy.algorithm.loss_columns(batch, policy.learning_rng) for _ in range(2)]
        drawn = [column[name] for column in columns for name in ("noise", "next_noise")]
        assert all(numbers.shape == (2, 1) for numbers in drawn)
        assert len(np.unique(drawn)) == 8


class Highest(SAC):
    def reduce_critics(self, values):
        return values.max(axis=0)


class Imitating(SAC):
    """SAC's critics and temperature, with an actor of its own."""

    def actor_loss(self, model, out, batch, mask):
        _, logp = super().actor_loss(model, out, batch, mask)
        return -masked_mean(self.distribution.logp(out.policy, batch["actions"]), mask), logp


class TestTerms:
    """The policies of `TestContinuous` with one part of the loss replaced."""

    def results(self, algorithm):
        tables = TestContinuous()
        options = (BOX, tables.actor, tables.critics, tables.target_critics)
        policy = policy_with(*options, algorithm=algorithm)
        policy.learning_rng = Middle()
        return policy.compute_gradients(two_rows())

    def test_another_reduction_over_critics(self):
        # Row 0: Q⁻(1, 0.5) = 4 and 4.5: y = 1 + ½ (4.5 - ½ · -0.631257) = 3.407814. Row 1 is terminated: y = 2.
        # The higher critic of the actor: state 0: 1 and 0; state 1: 0.5 and 1.5.
        _, stats = self.results(Highest)
        np.testing.assert_allclose(stats["mean_target"], (3.407814 + 2) / 2, rtol=1e-5)
        np.testing.assert_allclose(stats["actor_loss"], np.mean(0.5 * TestContinuous.logp - [1, 1.5]), rtol=1e-5)

    def test_another_term_of_the_actor_leaves_the_others(self):
        (gradients, stats), (plain_gradients, plain) = self.results(Imitating), self.results(SAC)
        # log π of 0.2 and -0.4 with u = arctanh a: -½ (u - mean)² - ½ log 2π - log(1 - a²)
        u = np.arctanh([0.2, -0.4]) - [0, HALF]
        logp = -0.5 * u**2 - 0.918939 - np.log([0.96, 0.84])
        np.testing.assert_allclose(stats["actor_loss"], -logp.mean(), rtol=1e-5)
        assert not np.allclose(gradients["actor.head.kernel"], plain_gradients["actor.head.kernel"])
        for name in plain_gradients.keys() - {name for name in gradients if name.startswith("actor.")}:
            np.testing.assert_allclose(gradients[name], plain_gradients[name], rtol=1e-5)
        for name in ("critic_loss", "alpha_loss", "mean_q", "mean_target", "entropy"):
            np.testing.assert_allclose(stats[name], plain[name], rtol=1e-5)


class Masking(nnx.Module):
    """An actor or critic of three actions in three states, of which action 2 is masked by minus infinity."""

    def __init__(self, observation_space, num_outputs, *, rngs):
        self.head = nnx.Linear(3, num_outputs, use_bias=False, kernel_init=nnx.initializers.zeros, rngs=rngs)

    def __call__(self, obs):
        return Outputs(jnp.where(jnp.arange(3) == 2, -jnp.inf, self.head(jnp.eye(3)[obs])))


class TestDiscrete:
    """α = ½; the actions 5 and 6, in state 1 with probabilities ¼ and ¾, elsewhere equally likely.

    H(1) = -(¼ log ¼ + ¾ log ¾) = 0.562335
    """

    actions = spaces.Discrete(2, start=5)
    actor = ([0, 0], [0, np.log(3)], [0, 0])
    critics = ([[1, 2], [4, 0], [0, 0]], [[3, 0], [3, 1], [0, 0]])
    target_critics = ([[9, 9], [2, 4], [9, 9]], [[9, 9], [3, 1], [9, 9]])

    def found(self, **options):
        policy = policy_with(self.actions, self.actor, self.critics, self.target_critics, **options)
        return policy.compute_gradients(two_rows(actions=np.array([6, 5])))

    def test_target_and_critics(self):
        # Row 0: min Q⁻(1) = (2, 1): V = ¼ 2 + ¾ 1 + ½ 0.562335 = 1.531168: y = 1.765584. Row 1: y = 2.
        #   Q(0, 6) = 2, 0: errors 0.234416, -1.765584;  Q(1, 5) = 4, 3: errors 2, 1
        gradients, stats = self.found()
        np.testing.assert_allclose(stats["td_error"], [1.0, 1.5], rtol=1e-5)
        np.testing.assert_allclose(stats["mean_target"], (1.765584 + 2) / 2, rtol=1e-5)
        squares = (0.234416**2 + 1.765584**2, 4 + 1)
        np.testing.assert_allclose(stats["critic_loss"], 0.5 * sum(squares) / 2, rtol=1e-5)
        np.testing.assert_allclose(kernel(gradients, 0), [[0, 0.117208], [1, 0], [0, 0]], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(kernel(gradients, 1), [[0, -0.882792], [0.5, 0], [0, 0]], rtol=1e-4, atol=1e-6)

    def test_actor(self):
        # State 0: min Q = (1, 0), Σ π (½ log π - Q) = ½ log ½ - ½ = -0.846574
        # State 1: min Q = (3, 0), -½ 0.562335 - ¾ = -1.031168
        gradients, stats = self.found()
        np.testing.assert_allclose(stats["actor_loss"], (-0.846574 - 1.031168) / 2, rtol=1e-5)
        # π_a (½ log π_a - Q_a - J) / 2 rows:
        #   ½ (-0.346574 - 1 + 0.846574) = -0.25, +0.25;  ¼ (-0.693147 - 3 + 1.031168) = -0.665495, +0.665495
        expected = [[-0.125, 0.125], [-0.332747, 0.332747], [0, 0]]
        np.testing.assert_allclose(gradients["actor.head.kernel"], expected, rtol=1e-4, atol=1e-6)

    def test_temperature(self):
        # E log π = -0.693147, -0.562335; H̄ = 0.98 log 2 = 0.679284
        gradients, stats = self.found()
        np.testing.assert_allclose(stats["entropy"], (0.693147 + 0.562335) / 2, rtol=1e-5)
        np.testing.assert_allclose(gradients["log_alpha"], -(0.679284 - 0.627741), rtol=1e-3)

    def test_actions_that_a_custom_model_masks_are_excluded(self):
        policy = SAC.make_policy(LINE, spaces.Discrete(3), {"model": {"custom_model": Masking}, "seed": 0})
        gradients, stats = policy.compute_gradients(two_rows(actions=np.array([0, 1])))
        # Two actions, equally likely and worth 0; α = 1: y = 1 + ½ log 2, and 2
        np.testing.assert_allclose(stats["entropy"], np.log(2), rtol=1e-6)
        np.testing.assert_allclose(stats["actor_loss"], -np.log(2), rtol=1e-6)
        np.testing.assert_allclose(stats["mean_target"], (3 + np.log(2) / 2) / 2, rtol=1e-6)
        np.testing.assert_allclose(gradients["actor.head.kernel"], 0, atol=1e-7)

    def test_invalid_actions_are_excluded(self):
        space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "state": LINE})
        obs = {"action_mask": np.array([[1, 1, 0], [0, 1, 0]], np.int8), "state": np.array([0, 1])}
        new_obs = {"action_mask": np.array([[0, 1, 1], [1, 1, 1]], np.int8), "state": np.array([1, 2])}
        actor = ([0, 0, 0], [9, 0, np.log(3)], [0, 0, 0])
        critics = ([[1, 2, 99], [0, 4, 0], [0, 0, 0]], [[3, 0, 99], [0, 3, 0], [0, 0, 0]])
        targets = ([[0] * 3, [99, 2, 4], [0] * 3], [[0] * 3, [99, 3, 1], [0] * 3])
        policy = policy_with(spaces.Discrete(3), actor, critics, targets, space)
        batch = two_rows(obs=obs, new_obs=new_obs, actions=np.array([1, 1]))
        gradients, stats = policy.compute_gradients(batch)
        # Row 0 bootstraps as above, from actions 1 and 2 with ¼ and ¾, worth (2, 1).
        np.testing.assert_allclose(stats["mean_target"], (1.765584 + 2) / 2, rtol=1e-5)
        # Two valid actions, equally likely, worth (1, 0); one valid action, worth 3, without entropy.
        np.testing.assert_allclose(stats["actor_loss"], (-0.846574 - 3) / 2, rtol=1e-5)
        np.testing.assert_allclose(gradients["actor.head.kernel"][0], [-0.125, 0.125, 0], rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(gradients["actor.head.kernel"][1:], 0)
        # H̄ = 0.98 log 2 and 0.98 log 1
        np.testing.assert_allclose(gradients["log_alpha"], (0.693147 - 0.679284) / 2, rtol=1e-3)
        greedy, _, _ = policy.compute_actions(new_obs, explore=False)
        assert greedy[0] == 2


def test_other_actions_and_noise_for_discrete_ones_are_refused():
    for space in (spaces.MultiDiscrete([2, 2]), spaces.Tuple([BOX, BOX])):
        raised(SpaceError, SAC.make_policy, LINE, space, SMALL, says="one discrete choice...SAC...use PPO")
    infinite = spaces.Box(-1, np.inf, (2,), np.float32)
    raised(SpaceError, SAC.make_policy, LINE, infinite, SMALL, says="finite bounds...SAC")
    noisy = {**SMALL, "exploration": "GaussianNoise"}
    raised(ConfigError, SAC.make_policy, LINE, spaces.Discrete(2), noisy, says="not continuous")


def test_a_number_of_critics_in_targets_needs_a_number_of_critics():
    for config in ({"target_critics": 2}, {"target_critics": 3, "num_critics": 2}):
        with pytest.raises(ConfigError, match="'target_critics'"):
            SAC.config_class(**config)
    assert SAC.config_class(num_critics=3, target_critics=2).changed(num_critics=None).target_critics == 2
