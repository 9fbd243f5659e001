"""CrossQ: its critics, statistics and config, against numbers derived by hand. Tests of SAC cover the rest."""

import numpy as np
import pytest

from rollax import ConfigError
from rollax.algorithms.crossq import CrossQ, CrossQConfig
from tests.algorithms.tables import BOX, LINE, f32, two_rows
from tests.algorithms.test_sac import Middle

RENORM = {"fcnet_hiddens": (), "normalization": "batch_renorm"}
OPTIONS = {"model": RENORM, "critic_model": RENORM, "train_batch_size": 2, "initial_alpha": 0.5, "seed": 0}
NORM, HEAD = "critics.members.mlp.norms.0", "critics.members.head"
ENTROPY = 0.918939
"""½ log 2π: all weights of the actor are 0 and the noise is the median, so the actions are 0 with log π = -0.918939."""


def made(values=(3.0, 2.96), updates=0):
    """A policy with two critics, b + (a - μ) / σ · k of normalized actions: k of the first is σ of the four actions.

    The actions in the batch are 0.2 and -0.4, and the next ones 0 and 0: μ = -0.05, σ² = 0.2 / 4 - 0.05² + ε = 0.0485.
    """
    policy = CrossQ.make_policy(LINE, BOX, OPTIONS)
    weights = policy.get_weights()
    for name in ("actor.head.kernel", "actor.head.bias", f"{HEAD}.kernel"):
        weights[name] = np.zeros_like(weights[name])
    weights[f"{HEAD}.kernel"][0, 3] = np.sqrt(0.0485)
    weights[f"{HEAD}.bias"] = f32(*values).reshape(2, 1)
    policy.set_weights(weights)
    policy.learner.variables = policy.learner.variables._replace(num_updates=updates)
    policy.learning_rng = Middle()
    return policy


class TestUpdate:
    def test_critics_and_their_constant_targets_are_of_one_pass(self):
        # Values of (s, a): 3 + 0.25 = 3.25, 3 - 0.35 = 2.65, and 2.96 twice; of (s', a'): 3.05 twice, and 2.96 twice.
        # Row 0: y = 1 + ½ (2.96 + ½ 0.918939) = 2.709735; row 1 is terminated: y = 2.
        gradients, stats = made().compute_gradients(two_rows())
        np.testing.assert_allclose(stats["mean_q"], (3.25 + 2.65 + 2 * 2.96) / 4, rtol=1e-5)
        np.testing.assert_allclose(stats["mean_target"], (2.709735 + 2) / 2, rtol=1e-5)
        # By the biases: the mean errors. Through the targets ¼ of an error would be subtracted.
        expected = [(0.540265 + 0.65) / 2, (0.250265 + 0.96) / 2]
        np.testing.assert_allclose(gradients[f"{HEAD}.bias"][:, 0], expected, rtol=1e-4)

    @pytest.mark.long
    @pytest.mark.parametrize("updates", [0, 2])  # without and with a step of the actor
    def test_statistics_of_the_critics_are_those_of_both_halves(self, updates):
        policy = made(updates=updates)
        policy.learn_on_batch(two_rows())
        weights = policy.get_weights()
        # Once, by 0.01 of the batch, from a mean of 0 and a variance of 1.
        np.testing.assert_allclose(weights[f"{NORM}.mean"][:, 3], -0.0005, rtol=1e-4)
        np.testing.assert_allclose(weights[f"{NORM}.var"][:, 3], 0.99 + 0.01 * 0.0475, rtol=1e-6)
        np.testing.assert_array_equal(weights[f"{NORM}.calls"], 1)
        # The actor's are of the states 0 and 1, whose codes have the means ½, ½, 0, and only at its own steps.
        mean = [0.005, 0.005, 0] if updates == 2 else [0, 0, 0]
        np.testing.assert_allclose(weights["actor.trunk.mlp.norms.0.mean"], mean, rtol=1e-4)
        assert policy.targets == {}

    def test_the_loss_of_the_actor_is_by_critics_in_evaluation_mode(self):
        # The lower critic with its running statistics, at the action 0: 3 + √0.0485 · 0.0005 / √(0.990475 + 0.001).
        _, stats = made((3.0, 10.0), updates=2).compute_gradients(two_rows())
        value = 3 + np.sqrt(0.0485) * 0.0005 / np.sqrt(0.991475)
        np.testing.assert_allclose(stats["actor_loss"], -0.5 * ENTROPY - value, rtol=1e-6)

    def test_the_decay_rate_of_adam(self):
        # After gradients of 1 and 0, the moments are ¼ and 0.999 · 0.001, unbiased by ¾ and 1 - 0.999².
        policy = made(updates=0)
        zeros = {name: np.zeros_like(value) for name, value in policy.compute_gradients(two_rows())[0].items()}
        step = []
        for gradient in (1.0, 0.0):
            before = policy.get_weights()[f"{HEAD}.bias"]
            policy.apply_gradients({**zeros, f"{HEAD}.bias": np.full((2, 1), gradient, np.float32)})
            step.append((before - policy.get_weights()[f"{HEAD}.bias"])[0, 0] / policy.config.lr)
        np.testing.assert_allclose(step, [1, (1 / 3) / np.sqrt(0.000999 / (1 - 0.999**2))], rtol=1e-3)


@pytest.mark.long
def test_the_warm_up_is_that_of_all_layers():
    # A layer counts its calls until the warm-up ends.
    policy = CrossQ.make_policy(LINE, BOX, {**OPTIONS, "renorm_warmup_steps": 2, "policy_delay": 1})
    for _ in range(3):
        policy.learn_on_batch(two_rows())
    calls = [np.unique(value).tolist() for name, value in policy.get_weights().items() if name.endswith("calls")]
    assert calls == [[2], [2]]


BATCH, LAYER = {"normalization": "batch"}, {"normalization": "layer"}


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"tau": 0.01}, "tau"),
        ({"critic_model": {}}, "critic_model.normalization"),
        ({"critic_model": None, "model": LAYER}, "model.normalization"),
        ({"critic_model": BATCH, "model": BATCH, "renorm_warmup_steps": 5}, "renorm_warmup_steps"),
    ],
)
def test_settings_without_effect_or_without_normalization(config, key):
    with pytest.raises(ConfigError, match=f"config key '{key}'"):
        CrossQConfig(**config)
