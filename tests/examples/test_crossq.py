"""The equations of CrossQ against numbers derived by hand, and its learning run."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from examples.crossq import CONFIG, CrossQ, CrossQConfig, CrossQTrainer
from rollax import ConfigError, load_policy
from tests.algorithms.tables import f32, two_rows
from tests.examples.test_tqc import Middle

BOX = spaces.Box(-1, 1, (1,), np.float32)
LAYERS = {"fcnet_hiddens": (), "normalization": "batch_renorm"}
OPTIONS = {"model": LAYERS, "train_batch_size": 2, "initial_alpha": 0.5, "seed": 0}
NORM, HEAD = "critics.members.mlp.norms.0", "critics.members.head"
ENTROPY = 0.918939
"""½ log 2π: all weights of the actor are 0 and the noise is the median, so the actions are 0 with log π = -0.918939."""


def rows():
    return two_rows(actions=f32(0.2, -0.4)[:, None])


def made(values=(3.0, 2.96), updates=0):
    """A policy with two critics, b + (a - μ) / σ · k of normalized actions: k of the first is σ of the four actions.

    The actions in the batch are 0.2 and -0.4, and the next ones 0 and 0: μ = -0.05, σ² = 0.2 / 4 - 0.05² + ε = 0.0485.
    """
    policy = CrossQ.make_policy(spaces.Discrete(3), BOX, OPTIONS)
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
    @pytest.mark.long
    def test_critics_and_their_constant_targets_are_of_one_pass(self):
        # Values of (s, a): 3 + 0.25 = 3.25, 3 - 0.35 = 2.65, and 2.96 twice; of (s', a'): 3.05 twice, and 2.96 twice.
        # Row 0: y = 1 + ½ (2.96 + ½ 0.918939) = 2.709735; row 1 is terminated: y = 2.
        gradients, stats = made().compute_gradients(rows())
        np.testing.assert_allclose(stats["mean_q"], (3.25 + 2.65 + 2 * 2.96) / 4, rtol=1e-5)
        np.testing.assert_allclose(stats["mean_target"], (2.709735 + 2) / 2, rtol=1e-5)
        np.testing.assert_allclose(stats["td_error"], [(0.540265 + 0.250265) / 2, (0.65 + 0.96) / 2], rtol=1e-4)
        # By the biases: the mean errors. Through the targets ¼ of an error would be subtracted.
        np.testing.assert_allclose(
            gradients[f"{HEAD}.bias"][:, 0], [(0.540265 + 0.65) / 2, (0.250265 + 0.96) / 2], rtol=1e-4
        )

    @pytest.mark.long
    @pytest.mark.parametrize("updates", [0, 2])  # without and with a step of the actor
    def test_statistics_of_the_critics_are_those_of_both_halves(self, updates):
        policy = made(updates=updates)
        policy.learn_on_batch(rows())
        weights = policy.get_weights()
        # Once, by 0.01 of the batch, from a mean of 0 and a variance of 1.
        np.testing.assert_allclose(weights[f"{NORM}.mean"][:, 3], -0.0005, rtol=1e-4)
        np.testing.assert_allclose(weights[f"{NORM}.var"][:, 3], 0.99 + 0.01 * 0.0475, rtol=1e-6)
        np.testing.assert_array_equal(weights[f"{NORM}.calls"], 1)

    def test_actor_and_temperature_make_every_third_step(self):
        policy = made()
        for step in range(1, 7):
            before = policy.get_weights()
            stats = policy.learn_on_batch(rows())
            after = policy.get_weights()
            moved = {name.partition(".")[0] for name in after if not np.array_equal(after[name], before[name])}
            assert moved == ({"actor", "critics", "log_alpha"} if step % 3 == 0 else {"critics"})
            assert (stats["actor_loss"] is None) == (step % 3 != 0)
        # The states of the batch are 0 and 1, whose codes have the means ½, ½, 0: 0.01 and then 0.01 of the rest.
        np.testing.assert_allclose(after["actor.trunk.mlp.norms.0.mean"], [0.00995, 0.00995, 0], rtol=1e-4)
        assert after["actor.trunk.mlp.norms.0.calls"] == 2

    def test_the_loss_of_the_actor_is_by_critics_in_evaluation_mode(self):
        # The lower critic with its running statistics, at the action 0: 3 + √0.0485 · 0.0005 / √(0.990475 + 0.001).
        _, stats = made((3.0, 10.0), updates=2).compute_gradients(rows())
        value = 3 + np.sqrt(0.0485) * 0.0005 / np.sqrt(0.991475)
        np.testing.assert_allclose(stats["actor_loss"], -0.5 * ENTROPY - value, rtol=1e-6)
        np.testing.assert_allclose(stats["alpha_loss"], np.log(0.5) * (ENTROPY + 1), rtol=1e-5)

    def test_there_are_no_targets(self):
        assert made().targets == {}


@pytest.mark.long
def test_a_restored_run_continues_exactly(tmp_path):
    # The statistics, the counts of the layers, and the number of steps so far, of which every third has an actor's.
    small = {"learning_starts": 32, "random_steps": 16, "train_batch_size": 16, "timesteps_per_iteration": 40}
    model = {**LAYERS, "fcnet_hiddens": (8,)}
    config = {**small, "store_buffer_in_checkpoints": True, "model": model, "warm_up": 5, "seed": 0}
    with CrossQTrainer("Pendulum-v1", config) as trainer:
        trainer.train()
        path = trainer.save(tmp_path, exact=True)
        obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
        acted = trainer.get_policy().compute_actions(obs, explore=False)[0]
        learned = trainer.train()["info"]["learner"]
        after = trainer.get_policy().get_weights()
    policy = load_policy(path, trainer_class=CrossQTrainer)
    # In the environment's range, which is twice as wide.
    np.testing.assert_array_equal(policy.compute_actions(obs, explore=False)[0], 2 * acted)
    with CrossQTrainer.from_checkpoint(path) as trainer:
        assert trainer.train()["info"]["learner"] == learned
        for name, value in trainer.get_policy().get_weights().items():
            np.testing.assert_array_equal(value, after[name], err_msg=name)


def test_the_key_of_target_networks_is_refused():
    with pytest.raises(ConfigError, match="tau"):
        CrossQConfig(tau=0.01)


@pytest.mark.learning
def test_own_crossq_pendulum(reaches):
    reaches(CrossQTrainer, "Pendulum-v1", -200, 20_000, CONFIG)
