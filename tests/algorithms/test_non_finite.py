"""NaN and infinity in `Trainer.train` raise named errors and break nothing."""

from __future__ import annotations

import numpy as np
import pytest

from rollax import Callbacks, PGTrainer, PPOTrainer
from rollax.errors import NonFiniteError

CONFIG = {"num_envs_per_worker": 4, "train_batch_size": 64, "model": {"fcnet_hiddens": (8,)}, "seed": 5}
PPO = {**CONFIG, "sgd_minibatch_size": 32, "num_sgd_iter": 2}


class InsertNaN(Callbacks):
    """Puts a NaN into a column of each batch while `column` is set."""

    column = None

    def on_sample_end(self, *, worker, samples):
        if self.column is not None:
            samples[self.column][5] = np.nan


@pytest.mark.parametrize("column", ["obs", "advantages"])
@pytest.mark.parametrize(("trainer_class", "config"), [(PPOTrainer, PPO), (PGTrainer, CONFIG)])
def test_a_bad_batch_changes_no_weights(monkeypatch, trainer_class, config, column):
    with trainer_class("CartPole-v1", {**config, "callbacks": InsertNaN}) as trainer:
        trainer.train()
        steps = trainer.get_policy().learner.num_updates
        before = trainer.get_policy().get_weights()
        with monkeypatch.context() as patch:
            patch.setattr(InsertNaN, "column", column)
            with pytest.raises(NonFiniteError) as error:
                trainer.train()
        message = str(error.value)
        assert "policy 'default_policy', gradient step " in message
        assert "the loss (" in message
        assert f"columns ['{column}']" in message
        assert "fix:" in message
        if column == "advantages":  # standardized together, so that the first step is not finite
            assert f"gradient step {steps}:" in message
            for name, value in trainer.get_policy().get_weights().items():
                np.testing.assert_array_equal(value, before[name])
        assert all(np.isfinite(value).all() for value in trainer.get_policy().get_weights().values())
        result = trainer.train()
        assert np.isfinite(list(result["info"]["learner"]["default_policy"].values())).all()


def test_nan_weights_are_detected_in_acting():
    with PPOTrainer("CartPole-v1", PPO) as trainer:
        trainer.train()
        policy = trainer.get_policy()
        weights = policy.get_weights()
        good = {name: value.copy() for name, value in weights.items()}
        weights["policy_trunk.mlp.layers.0.kernel"][0, 0] = np.nan
        policy.set_weights(weights)
        acts = (trainer.train, trainer.evaluate, lambda: trainer.compute_single_action(np.ones(4, np.float32)))
        for act in acts:
            with pytest.raises(
                NonFiniteError, match=r"outputs are not finite(.|\n)*'default_policy', row 0 of \d+, at timestep 64"
            ):
                act()
        policy.set_weights(good)
        assert np.isfinite(trainer.train()["info"]["learner"]["default_policy"]["total_loss"])


def test_nan_weights_of_the_value_function_are_detected_in_learning():
    with PPOTrainer("CartPole-v1", PPO) as trainer:
        policy = trainer.get_policy()
        weights = policy.get_weights()
        weights["value_head.bias"][:] = np.nan
        policy.set_weights(weights)
        with pytest.raises(NonFiniteError, match=r"gradient step 0: the loss \(policy_loss, (.|\n)*'advantages'"):
            trainer.train()


def test_an_exploding_learning_rate_raises_a_named_error():
    with PPOTrainer("CartPole-v1", {**PPO, "lr": 1e38, "grad_clip": None}) as trainer:
        with pytest.raises(NonFiniteError, match="policy 'default_policy'"):
            [trainer.train() for _ in range(5)]


def test_non_finite_weights_are_neither_learned_nor_saved(tmp_path):
    # Loss and gradients are finite; the weights after the first step are not.
    with PPOTrainer("CartPole-v1", {**PPO, "lr": 1e300}) as trainer:
        policy = trainer.get_policy()
        good = policy.get_weights()
        with pytest.raises(NonFiniteError, match=r"'default_policy', gradient step 0: the new value of \w+\."):
            trainer.train()
        for name, value in policy.get_weights().items():
            np.testing.assert_array_equal(value, good[name])
        trainer.save(tmp_path / "good")
        policy.set_weights({**good, "value_head.bias": np.float32([np.inf])})
        with pytest.raises(NonFiniteError, match=r"not saved(.|\n)*'default_policy', weights, value_head\.bias"):
            trainer.save(tmp_path / "bad")
        assert not list(tmp_path.glob("bad/*"))
        trainer.restore(next((tmp_path / "good").iterdir()))
        assert all(np.isfinite(value).all() for value in policy.get_weights().values())
