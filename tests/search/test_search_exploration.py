"""The key `explore` of ARS and ES: refused where it changes nothing; evaluations and recordings are greedy anyway."""

from __future__ import annotations

import numpy as np
import pytest

from rollax import ARSTrainer, ConfigError, ESTrainer, Trainer
from rollax.search.ars import ARSConfig
from rollax.search.es import ESConfig
from tests.search.search_worlds import Drift
from tests.search.searches import SMALL


def test_without_noise_on_actions_it_has_no_effect():
    with pytest.raises(ConfigError, match=r"explore has no effect: candidates explore by perturbed parameters"):
        ARSConfig(explore=False)
    with pytest.raises(ConfigError, match="explore has no effect(.|\n)*set action_noise_std as well, or leave explore"):
        ESConfig(explore=False, action_noise_std=0.0)
    for config in (ARSConfig(), ESConfig(action_noise_std=0.0)):
        with pytest.raises(ConfigError, match="explore has no effect"):
            config.changed(explore=False)
        with pytest.raises(ConfigError, match="evaluation_config is invalid(.|\n)*explore has no effect"):
            config.changed(evaluation_config={"explore": True})
        assert not config.changed(evaluation_config={"explore": False}).for_evaluation().explore
    assert not ESConfig(explore=False).explore


def test_actions_that_are_not_continuous_have_no_noise():
    with pytest.raises(ConfigError, match=r"explore has no effect(.|\n)*Discrete\(2\)"):
        ESTrainer("CartPole-v1", {**SMALL, "explore": False})


@pytest.mark.long
@pytest.mark.parametrize("trainer_class", [ARSTrainer, ESTrainer])
def test_evaluations_and_recordings_are_greedy(trainer_class, tmp_path):
    with trainer_class(Drift, SMALL) as trainer:
        trainer.train()
        obs = np.full((3, *trainer.get_policy().observation_space.shape), 0.5, np.float32)
        actions = [trainer.compute_actions(obs, explore=explore)[0] for explore in (True, False)]
        np.testing.assert_array_equal(*actions)
        assert trainer.evaluate(2)["episodes"] == 2
        for explore in (True, False):
            assert trainer.record(2, tmp_path / str(explore), explore=explore)["episodes"] == 2


def test_a_checkpoint_from_before_the_refusal_is_restored(tmp_path):
    with ARSTrainer(Drift, SMALL) as trainer:
        trainer._config = trainer.config.model_copy(update={"explore": False})
        path = trainer.save(tmp_path)
    with Trainer.from_checkpoint(path, trust_code=True) as restored:
        assert not restored.config.explore
        assert restored.train()["training_iteration"] == 1
