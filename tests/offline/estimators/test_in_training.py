"""Estimates at each evaluation of a trainer."""

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from rollax import ConfigError, DQNTrainer
from rollax.errors import DatasetError, SpaceError
from rollax.offline.estimators.estimate import METHODS, estimate_policy
from rollax.offline.fields import OffPolicyEstimationFields
from rollax.offline.marwil import BCTrainer
from tests.env.refused import raised, refused
from tests.offline.data_runs import SMALL, Line
from tests.offline.data_runs import TINY as FROM_DATA
from tests.offline.recorded import ListReader, trajectory

TINY = {name: value for name, value in FROM_DATA.items() if name != "updates_per_step"}
BC = {**SMALL, "train_batch_size": 4, "updates_per_step": 5, "lr": 0.01}
NUMBERS = {"v_behavior", "v_target", "v_gain", "v_std", "low", "high", "effective_sample_size"}


def logged(count: int = 6, steps: int = 3, policy_id: str = "default_policy", **ends: str) -> list:
    """Trajectories of a policy that chooses each of three actions with the same probability."""
    found = [trajectory(number, steps, policy_id=policy_id, **ends) for number in range(count)]
    for one in found:
        one.columns["action_logp"] = np.full(steps, -np.log(3), np.float32)
    return found


def trainer_of(methods: Any = ("wis",), reader: Any = None, env: Any = Line, **settings: Any) -> BCTrainer:
    config = {**BC, "input": reader or ListReader(logged()), "off_policy_estimation_methods": methods}
    config |= {"gamma": 0.5, **settings}
    return BCTrainer(env, config)


@pytest.mark.long
def test_each_evaluation_has_estimates_of_the_current_policy() -> None:
    reader = ListReader(logged())
    with trainer_of(["wis", "pdis"], reader, evaluation_interval=2, evaluation_num_episodes=1) as trainer:
        opened = reader.opened
        assert trainer.train()["evaluation"] is None
        found = trainer.train()["evaluation"]["off_policy_estimates"]
        assert set(found) == {"default_policy"}
        assert set(found["default_policy"]) == {"wis", "pdis"}
        assert set(found["default_policy"]["wis"]) == NUMBERS
        expected = estimate_policy(trainer.worker.runners["default_policy"], ListReader(logged()), ["wis", "pdis"])
        assert found["default_policy"]["wis"]["v_target"] == expected["wis"].v_target
        assert found["default_policy"]["pdis"]["low"] == expected["pdis"].low
        assert found["default_policy"]["wis"]["effective_sample_size"] == expected.effective_sample_size
        # Rewards 1, 2, 3 with γ = 0.5: 1 + 1 + 0.75.
        assert found["default_policy"]["wis"]["v_behavior"] == 2.75
        trainer.train()
        later = trainer.evaluate()["off_policy_estimates"]["default_policy"]["pdis"]["v_target"]
        assert later != found["default_policy"]["pdis"]["v_target"]
        assert reader.opened == opened  # read once, when the trainer was built


def test_without_a_method_the_key_is_empty_and_nothing_is_read() -> None:
    reader = ListReader(logged())
    with BCTrainer(Line, {**BC, "input": reader}) as trainer:
        assert reader.opened == 1
        assert trainer.evaluate(1)["off_policy_estimates"] == {}


def test_without_an_environment_evaluations_are_estimates() -> None:
    with trainer_of(env=None, evaluation_interval=1) as trainer:
        evaluation = trainer.train()["evaluation"]
        assert evaluation["episodes"] == 0
        assert evaluation["episode_reward_mean"] is None
        assert set(evaluation["off_policy_estimates"]["default_policy"]["wis"]) == NUMBERS


def test_separate_data_without_learning_from_data() -> None:
    settings = {**TINY, "off_policy_estimation_input": ListReader(logged()), "off_policy_estimation_methods": ["wis"]}
    with DQNTrainer(Line, settings) as trainer:
        before = str(trainer.get_policy().get_acting_state())
        found = trainer.evaluate(1)["off_policy_estimates"]["default_policy"]["wis"]
        assert found["v_behavior"] == pytest.approx(1 + 0.99 * 2 + 0.99**2 * 3)
        assert str(trainer.get_policy().get_acting_state()) == before


def test_other_policy_ids_and_cut_trajectories() -> None:
    short, cut = logged(2, 1, policy_id="theirs"), logged(3, 2, policy_id="theirs", end="cut")
    with trainer_of(reader=ListReader([*logged(2, 3), *short, *cut])) as trainer:
        found = trainer.evaluate(1)["off_policy_estimates"]["default_policy"]["wis"]
        assert found["v_behavior"] == (2 * 2.75 + 2 * 1.0) / 4


class TestRefused:
    def test_without_data(self) -> None:
        says = "off_policy_estimation_methods has no effect...off_policy_estimation_input or input"
        raised(ConfigError, DQNTrainer, Line, {**TINY, "off_policy_estimation_methods": ["wis"]}, says=says)
        with pytest.raises(ConfigError, match="off_policy_estimation_input has no effect"):
            DQNTrainer(Line, {**TINY, "off_policy_estimation_input": "log"})
        for no_source in ({"log": 1, "other": 99}, True, ""):
            settings = {**TINY, "off_policy_estimation_input": no_source, "off_policy_estimation_methods": ["wis"]}
            raised(ConfigError, DQNTrainer, Line, settings, says="all episodes count the same")

    def test_an_unknown_method(self) -> None:
        refused(ConfigError, trainer_of, ["wiss"], says="off_policy_estimation_methods")
        field = OffPolicyEstimationFields.model_fields["off_policy_estimation_methods"]
        assert get_args(get_args(field.annotation)[0]) == METHODS

    def test_a_log_without_probabilities(self) -> None:
        plain = ListReader([trajectory(number, 3) for number in range(4)])
        refused(DatasetError, trainer_of, ["wis"], plain, says="log-probabilities")

    def test_data_of_one_policy_with_two_spaces(self) -> None:
        reader = ListReader([*logged(2), *[replace(one, policy_id="other") for one in logged(2)]])
        reader.action_spaces["other"] = type(reader.action_spaces["other"])(2)
        settings = {**TINY, "off_policy_estimation_input": reader, "off_policy_estimation_methods": ["wis"]}
        refused(SpaceError, DQNTrainer, Line, settings, says="different action spaces")
