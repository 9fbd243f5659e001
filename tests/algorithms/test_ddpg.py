"""DDPG and TD3: losses and gradients against numbers derived by hand, delayed updates, and refused settings."""

import copy

import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces

from rollax import NonFiniteError, Outputs, SpaceError
from rollax.algorithms.ddpg import DDPG, DDPGConfig, TD3Config
from tests.algorithms.tables import BOX, HALF, LINE, arrays, f32, set_tables, two_rows
from tests.env.refused import refused

SMALL = {"model": {"fcnet_hiddens": ()}, "seed": 0, "train_batch_size": 2, "lr": 0.1}

ACTOR = [0.0, HALF, 0.0]
CRITICS = ([1, 0, 0, 1], [0, 1, 0, -1])
TARGET_ACTOR = [0.0, HALF, 0.0]
TARGET_CRITICS = ([0, 3, 0, 2], [0, 5, 0, -1])


def weights(policy, actor, critics):
    """All zeros but for the actor's table and each critic's u and c."""
    found = {name: np.zeros(np.shape(value), np.float32) for name, value in policy.get_weights().items()}
    found["actor.head.kernel"] = np.asarray(actor, np.float32)[:, None]
    for number, critic in enumerate(critics):
        found["critics.members.head.kernel"][number] = np.asarray(critic, np.float32)[:, None]
    return found


def td3(config_class=TD3Config, box=BOX, **options):
    """A policy with the tables above as actor, critics and targets."""
    quiet = {"target_noise": 0.0} if config_class is TD3Config else {}
    policy = DDPG.make_policy(LINE, box, config_class(**{**SMALL, **quiet, **options}))
    count = 2 if policy.config.twin_q else 1
    target = weights(policy, TARGET_ACTOR, TARGET_CRITICS[:count])
    set_tables(policy, weights(policy, ACTOR, CRITICS[:count]), target)
    return policy


class Normalized(nnx.Module):
    """An actor with batch normalization, and a linear critic."""

    def __init__(self, observation_space, num_outputs, *, rngs, action_space=None):
        if action_space is None:
            self.norm = nnx.BatchNorm(1, momentum=0.75, rngs=rngs)
        else:
            self.critic = nnx.Linear(2, num_outputs, rngs=rngs)

    def __call__(self, obs, actions=None):
        return Outputs(self.norm(obs) if actions is None else self.critic(jnp.concatenate([obs, actions], axis=-1)))


class TestLoss:
    # Row 0 leads to state 1, where the target actor's action is 0.5: Q⁻ = 3 + 1 = 4 and 5 - 0.5 = 4.5.
    #   y = 1 + 4/2 = 3.    Q(0, 0.2) = 1.2 and -0.2:  errors -1.8, -3.2, squares 3.24 + 10.24 = 13.48
    # Row 1 is terminated: y = 2.  Q(1, -0.4) = -0.4 and 1.4:  errors -2.4, -0.6, squares 5.76 + 0.36 = 6.12
    def test_numbers(self):
        gradients, stats = td3(policy_delay=1).compute_gradients(two_rows(weights=f32(1, 0.5)))
        np.testing.assert_allclose(stats["critic_loss"], (13.48 + 6.12 / 2) / 2, rtol=1e-5)
        np.testing.assert_allclose(stats["td_error"], [2.5, 1.5], rtol=1e-5)
        np.testing.assert_allclose(stats["mean_target"], 2.5, rtol=1e-5)
        np.testing.assert_allclose(stats["mean_q"], ((1.2 - 0.2) / 2 + (-0.4 + 1.4) / 2) / 2, rtol=1e-5)
        # The first critic at the actor's actions: Q_1(0, 0) = 1, Q_1(1, 0.5) = 0.5.
        np.testing.assert_allclose(stats["actor_loss"], -0.75, rtol=1e-5)
        np.testing.assert_allclose(stats["total_loss"], stats["critic_loss"] - 0.75, rtol=1e-5)
        # w e of each row (the 2 of the square, halved by the mean): -1.8, -1.2 and -3.2, -0.3
        first, second = gradients["critics.members.head.kernel"][..., 0]
        np.testing.assert_allclose(first, [-1.8, -1.2, 0, -1.8 * 0.2 + 1.2 * 0.4], atol=1e-5)
        np.testing.assert_allclose(second, [-3.2, -0.3, 0, -3.2 * 0.2 + 0.3 * 0.4], atol=1e-5)
        # -∂Q_1/∂a (1 - π²) / 2 rows
        np.testing.assert_allclose(gradients["actor.head.kernel"].ravel(), [-0.5, -0.375, 0], atol=1e-5)

    def test_one_critic(self):
        # y = 1 + (3 + 1)/2 = 3 with the only critic.
        _, stats = td3(DDPGConfig).compute_gradients(two_rows())
        np.testing.assert_allclose(stats["td_error"], [1.8, 2.4], rtol=1e-5)

    def test_target_actions_are_noisy(self):
        policy = td3(target_noise=3.0, target_noise_clip=0.25, policy_delay=1)
        noise = copy.deepcopy(policy.learning_rng).standard_normal((2, 1), np.float32)
        action = np.clip(0.5 + np.clip(3 * noise[0, 0], -0.25, 0.25), -1, 1)
        assert action != 0.5
        target = 1 + 0.5 * min(3 + 2 * action, 5 - action)
        _, stats = policy.compute_gradients(two_rows())
        np.testing.assert_allclose(stats["td_error"][0], (abs(1.2 - target) + abs(-0.2 - target)) / 2, rtol=1e-5)

    def test_actions_of_any_shape(self):
        box = spaces.Box(np.full((2, 3), -5, np.float32), np.full((2, 3), 7, np.float32))
        policy = DDPG.make_policy(LINE, box, TD3Config(**{**SMALL, "target_noise": 0.0, "random_steps": 0}))
        actions, _, _ = policy.compute_actions(np.array([0, 1, 2]))
        assert actions.shape == (3, 2, 3)
        assert np.abs(actions).max() <= 1
        stats = policy.learn_on_batch(two_rows(actions=actions[:2]))
        assert np.isfinite(stats["critic_loss"])


def test_each_row_has_its_own_noise_process():
    policy = td3(DDPGConfig, exploration="OrnsteinUhlenbeckNoise", noise_scale=0.1, random_steps=0)
    walks = [np.ones((3, 1))]
    for _ in range(2):
        before = walks[0]
        actions, walks, fetches = policy.compute_actions(np.arange(3), walks)  # padded to four rows
        assert walks[0].shape == (3, 1)
        assert len(set(walks[0].ravel() - (1 - 0.15) * before.ravel())) == 3
        np.testing.assert_allclose(actions, fetches["greedy_actions"][:, None] + 0.1 * walks[0], rtol=1e-5)


class TestDelay:
    def test_actor_and_targets_change_only_in_due_updates(self):
        policy = td3(policy_delay=3, tau=0.25)
        for update in range(1, 8):
            params, targets = arrays(policy.params), arrays(policy.targets)
            stats = policy.learn_on_batch(two_rows())
            due = update % 3 == 0
            assert (stats["actor_loss"] is not None) == due
            moved = [name for name, value in policy.params.items() if not np.array_equal(value, params[name])]
            assert {name.partition(".")[0] for name in moved} == ({"actor", "critics"} if due else {"critics"})
            for name, value in policy.targets.items():
                followed = 0.25 * np.array(policy.params[name]) + 0.75 * targets[name]
                np.testing.assert_allclose(value, followed if due else targets[name], rtol=1e-5, atol=1e-7)

    def test_actor_loss_is_computed_only_in_due_updates(self):
        policy = td3(policy_delay=2)
        broken = policy.get_weights()
        broken["actor.head.bias"] = f32(np.nan)
        targets = {name: jnp.array(value) for name, value in policy.targets.items()}
        policy.set_weights(broken)
        policy.learner.set_targets(targets)
        # The first of two updates does not use the actor, so that loss and gradients are finite.
        refused(NonFiniteError, policy.learn_on_batch, two_rows(), says="step 0: the new value of actor.head.bias")
        policy.learner.variables = policy.learner.variables._replace(num_updates=1)
        refused(NonFiniteError, policy.learn_on_batch, two_rows(), says="step 1: the loss")

    def test_actors_with_a_state_of_their_own(self):
        config = {"model": {"custom_model": Normalized}, "policy_delay": 2, "train_batch_size": 2}
        policy = DDPG.make_policy(BOX, BOX, config)
        obs = f32(1, 3)[:, None]
        for update in range(1, 5):
            before = policy.get_weights()
            policy.learn_on_batch(two_rows(obs=obs, new_obs=obs))
            # A moving average of the batch's mean, 2, which each second update moves once, with the parameters.
            moved = 0.75 * before["actor.norm.mean"] + 0.25 * 2
            due = update % 2 == 0
            expected = moved if due else before["actor.norm.mean"]
            np.testing.assert_allclose(policy.extra["actor.norm.mean"], expected, rtol=1e-6)
            is_same = np.array_equal(policy.params["actor.norm.bias"], before["actor.norm.bias"])
            assert is_same == (not due)


def test_each_part_has_its_own_step_size():
    # Adam's first step is as long as the step size, in the direction of the sign.
    policy = td3(policy_delay=1, lr=0.5, actor_lr=0.25, critic_lr=None)
    before = arrays(policy.params)
    assert policy.learn_on_batch(two_rows())["cur_lr"] == 0.5
    for name, step in (("actor.head.kernel", 0.25), ("critics.members.head.kernel", 0.5)):
        moved = np.abs(np.array(policy.params[name]) - before[name])[..., :2, :]  # of the states that are in the rows
        np.testing.assert_allclose(moved, step, rtol=1e-4)


def test_other_actions_are_refused():
    for space, says in (
        (spaces.Discrete(3), "not continuous...DDPG...DQN or SAC"),
        (spaces.Tuple([BOX, BOX]), "not continuous...DDPG...DQN or SAC"),
        (spaces.MultiBinary(2), "not continuous...DDPG...DQN or SAC"),
        (spaces.Box(-np.inf, 1, (2,), np.float32), "finite bounds...DDPG"),
        (spaces.Box(0, 5, (2,), np.int64), "integers"),
    ):
        refused(SpaceError, DDPG.make_policy, LINE, space, SMALL, says=says)
