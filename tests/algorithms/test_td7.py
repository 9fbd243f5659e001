"""TD7: its embeddings, targets, losses and copies against numbers derived by hand. Tests of DDPG cover the rest."""

import numpy as np
import pytest

from rollax import ConfigError
from rollax.algorithms.td7 import TD7, TD7Config
from tests.algorithms.tables import BOX, HALF, LINE, arrays, f32, set_tables, two_rows

SMALL = {"model": {"fcnet_hiddens": ()}, "embedding_dim": 2, "policy_delay": 1, "target_noise": 0.0}
SMALL |= {"train_batch_size": 2, "lr": 0.1, "seed": 0}
# Before they are divided by their mean magnitude: z_s becomes (0.5, 1.5), (1, 1), (-1, 1), and so on.
ENCODER, FIXED, TARGET = [[1, 3], [2, 2], [-1, 1]], [[3, 1], [2, 2], [2, 2]], [[2, 2], [1, 3], [2, 2]]
PAIRS = [[1, 0], [0, 1], [2, 0]]  # z_sa = (z_1 + 2 a, z_2)


def weights(policy, actor, critics, bounds=(0, 2.5)):
    """All zeros but for the encoders, the weights of z_s in the actor, and those of (z_sa, z_s) in each critic."""
    found = {name: np.zeros(np.shape(value), np.float32) for name, value in policy.get_weights().items()}
    for name, table in (("encoder", ENCODER), ("fixed_encoder", FIXED), ("target_encoder", TARGET)):
        found[f"{name}.states_head.kernel"], found[f"{name}.pairs_head.kernel"] = f32(*table), f32(*PAIRS)
    found["actor.head.kernel"][2:, 0] = actor
    found["q_networks.members.head.kernel"][:, 2:, 0] = critics
    return {**found, "bounds": f32(*bounds), "seen": f32(2.125, 2.125)}


def td7(**options):
    policy = TD7.make_policy(LINE, BOX, TD7Config(**{**SMALL, **options}))
    # Q_1 = z_sa1 + z_s1, Q_2 = 2 z_sa2, with targets Q_1 = 2 z_sa1, Q_2 = 3 z_s2.
    now, target = ([1, 0, 1, 0], [0, 2, 0, 0]), ([2, 0, 0, 0], [0, 0, 0, 3])
    set_tables(policy, weights(policy, [HALF, 0], now), weights(policy, [2 * HALF, 0], target))
    return policy


class TestLoss:
    # Row 0 leads to state 1, whose z_s of the target encoder is (0.5, 1.5), where the target actor's action is
    # tanh(2 · atanh(0.5) · 0.5) = 0.5, so that z_sa = (1.5, 1.5): Q⁻ = 3 and 4.5, bounded by 2.5: y = 1 + 2.5 / 2.
    # The fixed encoder has z_s = (1.5, 0.5) in state 0 and (1, 1) in state 1, so that z_sa = (1.9, 0.5) and (0.2, 1):
    #   Q = (3.4, 1) with errors (1.15, -1.25), and for y = 2: Q = (1.2, 2) with errors (-0.8, 0).
    def test_of_critics(self):
        _, stats = td7().compute_gradients(two_rows())
        np.testing.assert_allclose(stats["mean_target"], 2.125, rtol=1e-5)
        np.testing.assert_allclose(stats["mean_q"], (2.2 + 1.6) / 2, rtol=1e-5)
        np.testing.assert_allclose(stats["critic_loss"], (0.65 + 0.75 + 0.32) / 2, rtol=1e-5)
        np.testing.assert_allclose(stats["td_error"], [1.25, 1], rtol=1e-5)

    def test_of_critics_with_importance_weights(self):
        gradients, stats = td7().compute_gradients(two_rows(weights=f32(0.5, 1)))
        np.testing.assert_allclose(stats["critic_loss"], (1.4 / 2 + 0.32) / 2, rtol=1e-5)
        # Huber's derivatives are 1 and -1 in row 0, and the errors -0.8 and 0 in row 1; inputs are (z_sa, z_s).
        first, second = gradients["q_networks.members.head.kernel"][:, 2:, 0]
        inputs = np.array([[1.9, 0.5, 1.5, 0.5], [0.2, 1, 1, 1]])
        np.testing.assert_allclose(first, (0.5 * inputs[0] - 0.8 * inputs[1]) / 2, rtol=1e-5)
        np.testing.assert_allclose(second, -0.5 * inputs[0] / 2, rtol=1e-5)

    def test_of_the_encoder(self):
        # z_sa = (0.9, 1.5) and z_s' = (1, 1): errors (-0.1, 0.5); z_sa = (0.2, 1), z_s' = (-1, 1): errors (1.2, 0)
        gradients, stats = td7().compute_gradients(two_rows(discounts=f32(0.5, 0.25)))
        np.testing.assert_allclose(stats["encoder_loss"], (0.26 / 2 + 1.44 / 2) / 2, rtol=1e-5)
        # The weights of the action: the mean over rows of a times the error; no term of the critics reaches them.
        expected = [(-0.1 * 0.2 - 1.2 * 0.4) / 2, 0.5 * 0.2 / 2]
        np.testing.assert_allclose(gradients["encoder.pairs_head.kernel"][2], expected, atol=1e-6)

    def test_of_the_encoder_leaves_out_terminations(self):
        # Row 1 terminates: a replay buffer has no observation after it.
        gradients, stats = td7().compute_gradients(two_rows())
        np.testing.assert_allclose(stats["encoder_loss"], 0.26 / 2, rtol=1e-5)
        np.testing.assert_allclose(gradients["encoder.pairs_head.kernel"][2], [-0.1 * 0.2, 0.5 * 0.2], atol=1e-6)

    def test_of_the_actor(self):
        # The mean of both critics is z_s1 + a + z_s2, and actions are tanh(1.5 · atanh(0.5)) and 0.5.
        gradients, stats = td7().compute_gradients(two_rows())
        action = np.tanh(1.5 * HALF)
        np.testing.assert_allclose(stats["actor_loss"], -(2 + action + 2 + 0.5) / 2, rtol=1e-5)
        slopes = 1 - action**2, 0.75
        expected = [-(1.5 * slopes[0] + slopes[1]) / 2, -(0.5 * slopes[0] + slopes[1]) / 2]
        np.testing.assert_allclose(gradients["actor.head.kernel"][2:, 0], expected, rtol=1e-5)

    def test_first_layers_are_divided_by_their_mean_magnitude(self):
        policy = td7()
        changed = policy.get_weights()
        changed["actor.first.kernel"][:] = [[1, -3], [0, 0], [4, 4]]
        changed["actor.head.kernel"][:2, 0] = [1, 2]
        changed["actor.head.kernel"][2:] = 0
        policy.set_weights(changed)
        # (0.5, -1.5), zeros, (1, 1)
        actions = policy.compute_actions(np.arange(3), explore=False)[0]
        np.testing.assert_allclose(actions[:, 0], np.tanh([0.5 - 3, 0, 3]), rtol=1e-5)


def test_copies_are_made_at_the_interval():
    policy = td7(target_network_update_freq=2)
    for update in range(1, 5):
        before = {**arrays(policy.params), **arrays(policy.extra)}
        targets = arrays(policy.targets)
        policy.learn_on_batch(two_rows())
        due = update % 2 == 0
        for name in ("states_head.kernel", "pairs_head.kernel"):
            fixed, target = (f"{which}.{name}" for which in ("fixed_encoder", "target_encoder"))
            np.testing.assert_array_equal(policy.extra[target], before[fixed if due else target])
            np.testing.assert_array_equal(policy.extra[fixed], before[f"encoder.{name}" if due else fixed])
        for name, value in policy.targets.items():
            np.testing.assert_array_equal(value, policy.params[name] if due else targets[name])
        np.testing.assert_array_equal(policy.extra["bounds"], policy.extra["seen"] if due else before["bounds"])
        if update == 1:
            np.testing.assert_allclose(policy.extra["seen"], [2, 2.25], rtol=1e-6)  # both targets


def test_values_in_targets_are_zero_before_the_first_copy():
    policy = TD7.make_policy(LINE, BOX, TD7Config(**SMALL))
    _, stats = policy.compute_gradients(two_rows())
    np.testing.assert_allclose(stats["mean_target"], 1.5, rtol=1e-6)  # the rewards alone


@pytest.mark.parametrize("options", [{"n_step": 2}, {"tau": 0.1}, {"model": {"normalization": "layer"}}], ids=str)
def test_refuses_settings_without_effect(options):
    with pytest.raises(ConfigError, match="has no effect"):
        TD7Config(**options)
    with pytest.raises(ConfigError, match="custom_model"):
        TD7Config(model={"custom_model": "module:Class"})
