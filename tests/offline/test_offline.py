"""The offline algorithms with their trainers, on recorded data."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax import (
    ApexDQNTrainer,
    BCTrainer,
    CQLTrainer,
    DQNTrainer,
    IQLTrainer,
    MARWILTrainer,
    PGTrainer,
    PolicySpec,
    TD3BCTrainer,
    Trainer,
)
from rollax.errors import ConfigError, DatasetError
from tests.env.refused import raised, refused
from tests.offline.data_runs import SMALL, Line
from tests.offline.recorded import ACTIONS, OBSERVATIONS, ListReader, trajectory

TINY: dict[str, Any] = {**SMALL, "train_batch_size": 8, "updates_per_step": 4}
BOX = spaces.Box(-2, 2, (2,), np.float32)


def recorded(end="terminated", count=4):
    return ListReader([trajectory(number, 5, end) for number in range(count)])


def continuous():
    """Observations [k, t] and actions [-2, t / 4] of trajectory k."""
    found = [trajectory(number, 5, "truncated") for number in range(4)]
    for one in found:
        one.columns["actions"] = np.stack([np.full(5, -2.0), np.arange(5) / 4], axis=1).astype(np.float32)
    return ListReader(found, OBSERVATIONS, BOX)


def drawn_by(trainer, count=64):
    return trainer.optimizer.drawn_from["default_policy"].sample(count, np.random.default_rng(0))


def test_bc_without_data_is_refused():
    refused(ConfigError, BCTrainer, "CartPole-v1", says="BC learns from recorded data")


@pytest.mark.short("terminated")
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_returns_of_marwil_extend_to_the_end_of_the_trajectory(end):
    # γ = 0.1 lets returns be read as digits: from step t on, t + 1, t + 2, ... up to 5.
    with MARWILTrainer(config={**TINY, "input": recorded(end), "gamma": 0.1}) as trainer:
        drawn = drawn_by(trainer)
        stats = trainer.train()["info"]["learner"]["default_policy"]
    t = drawn["obs"][:, 1].astype(int)
    np.testing.assert_allclose(drawn["rewards"], np.array([1.2345, 2.345, 3.45, 4.5, 5])[t], rtol=1e-6)
    left = np.where(end == "terminated", 0.0, 0.1 ** (5.0 - t))
    np.testing.assert_allclose(drawn["discounts"], left, rtol=1e-5)
    if end == "truncated":
        np.testing.assert_array_equal(drawn["new_obs"][:, 1], 5)
    assert all(value is not None for value in stats.values())


@pytest.mark.long
@pytest.mark.parametrize("memory", [{}, {"use_gru": True, "lstm_cell_size": 8}])
def test_bc_imitates_what_only_a_memory_knows(memory):
    """Each action is the sign of the observation before; without a memory, one of two equally likely actions."""
    rng, found = np.random.default_rng(0), []
    for number in range(16):
        rows = trajectory(number, 8)
        signs = rng.choice([-1.0, 1.0], 9)
        rows.columns |= {"obs": np.stack([signs, signs], axis=1).astype(np.float32), "actions": np.zeros(8, np.int64)}
        rows.columns["actions"][1:] = signs[:7] > 0
        found.append(rows)
    model = {"fcnet_hiddens": (8,), "max_seq_len": 8, **memory} if memory else {"fcnet_hiddens": (8,)}
    config = {**TINY, "input": ListReader(found), "model": model, "train_batch_size": 64, "lr": 0.02}
    with BCTrainer(config={**config, "updates_per_step": 150}) as trainer:
        loss = trainer.train()["info"]["learner"]["default_policy"]["policy_loss"]
    # 7 of 8 actions are random signs: without a memory the loss is at least 7/8 ln 2 = 0.6.
    assert loss < 0.2 if memory else loss > 0.5


@pytest.mark.long
@pytest.mark.parametrize("trainer_class", [IQLTrainer, CQLTrainer])
def test_actor_critics_learn_from_actions_in_the_scale_of_the_policy(trainer_class):
    with trainer_class(config={**TINY, "input": continuous()}) as trainer:
        actions = drawn_by(trainer)["actions"]
        stats = trainer.train()["info"]["learner"]["default_policy"]
    assert np.all(actions[:, 0] == -1)
    assert actions.max() == 0.5
    assert all(value is not None for value in stats.values())


@pytest.mark.long
def test_td3bc_standardizes_observations_by_the_data():
    with TD3BCTrainer(config={**TINY, "input": continuous(), "critic_penalty": 0.1}) as trainer:
        drawn = drawn_by(trainer, 2000)
        stats = trainer.train()["info"]["learner"]["default_policy"]
    # Observations are standardized over all records, the last ones of trajectories included.
    steps, numbers = np.arange(6), np.arange(4)
    assert set(np.round(drawn["obs"][:, 1], 3)) <= set(np.round((steps - 2.5) / steps.std(), 3).astype(np.float32))
    assert set(np.round(drawn["obs"][:, 0], 3)) == set(np.round((numbers - 1.5) / numbers.std(), 3).astype(np.float32))
    followed = drawn["actions"][:, 1] < 0.5
    np.testing.assert_array_equal(drawn["acts_next"], followed)
    np.testing.assert_allclose(drawn["new_actions"][followed, 1], drawn["actions"][followed, 1] + 0.125, atol=1e-6)
    assert stats["critic_loss"] is not None


@pytest.mark.long
def test_a_checkpoint_is_evaluated_without_its_data(tmp_path):
    data = tmp_path / "data"
    with PGTrainer("CartPole-v1", {"model": {"fcnet_hiddens": (4,)}, "seed": 0}) as trainer:
        trainer.record(3, data)
    config = {**TINY, "input": data, "off_policy_estimation_methods": ["wis"]}
    with BCTrainer("CartPole-v1", config) as trainer:
        trainer.train()
        saved, rewards = trainer.save(tmp_path / "bc"), trainer.evaluate(2)["episode_rewards"]
        assert trainer.config.input == str(data)
    moved = data.rename(tmp_path / "moved")
    refused(DatasetError, Trainer.from_checkpoint, saved, says="The data does not exist")
    with Trainer.from_checkpoint(saved, learn=False) as trainer:
        found = trainer.evaluate(2)
        assert found["episode_rewards"] == rewards
        assert found["off_policy_estimates"] == {}
        assert len(trainer.record(2, tmp_path / "more")["files"]) == 1
        refused(ConfigError, trainer.train, says="learn=False")
        again = trainer.save(tmp_path / "again")  # with the state of the optimizer
    moved.rename(data)
    results = []
    for path in (saved, again):
        with Trainer.from_checkpoint(path) as trainer:
            results.append(trainer.train()["info"]["learner"])
    assert results[0] == results[1]


def test_marwil_without_advantages_has_the_same_statistics_from_the_first_result_on():
    with MARWILTrainer(config={**TINY, "input": recorded(), "beta": 0.0}) as trainer:
        before = set(trainer.optimizer.stats["default_policy"])
        assert set(trainer.train()["info"]["learner"]["default_policy"]) == before
    assert before == {"policy_loss", "entropy", "total_loss", "cur_lr"}


def test_recorded_data_without_a_policy_to_train_is_refused():
    no_policies = {"policies": {"default_policy": None}, "policies_to_train": ()}
    with pytest.raises(ConfigError, match=r"No policy learns from the recorded data(.|\n)*policies_to_train"):
        DQNTrainer(config={"input": recorded(), "multiagent": no_policies})


@pytest.mark.short("DQNTrainer")
@pytest.mark.parametrize("trainer_class", [DQNTrainer, ApexDQNTrainer])
def test_from_data_to_an_environment_and_back(trainer_class, tmp_path):
    config = {**TINY, "model": {"fcnet_hiddens": (4,)}, "num_workers": 0, "buffer_size": 100, "learning_starts": 8}
    with trainer_class(config={**config, "input": recorded()}) as trainer:
        trainer.train()
        updates, path = trainer.optimizer.num_updates, trainer.save(tmp_path)
    spaces_of = {"observation_space": OBSERVATIONS, "action_space": ACTIONS}
    with Trainer.from_checkpoint(path, input=None, env=lambda context: Line(), **spaces_of) as trainer:
        assert trainer.optimizer.num_updates == updates
        trainer.train()
        path = trainer.save(tmp_path)
    with Trainer.from_checkpoint(path, input=recorded(), env=None, timesteps_per_iteration=0) as trainer:
        assert trainer.train()["info"]["replay"]["num_updates"] > updates


@pytest.mark.parametrize("wrong", ["", 3, True, {"a": 1.7e308, "b": 1.7e308}])
def test_inputs_that_are_no_data_are_refused(wrong):
    raised(ConfigError, BCTrainer, says="input", config={**TINY, "input": wrong})


def test_one_policy_for_data_with_different_spaces_is_refused():
    reader = ListReader([trajectory(0, 5, policy_id="left"), trajectory(1, 5, policy_id="right")])
    reader.observation_spaces = {"left": OBSERVATIONS, "right": spaces.Box(0, 1, (3,))}
    reader.action_spaces = dict.fromkeys(("left", "right"), ACTIONS)
    raised(ConfigError, BCTrainer, says="multiagent", config={**TINY, "input": reader})


@pytest.mark.parametrize("given", ["observation_space", "action_space"])
@pytest.mark.parametrize("policies", [{}, {"default_policy": PolicySpec()}])
def test_a_space_that_is_given_is_not_taken_from_the_data(given, policies):
    space = {"observation_space": OBSERVATIONS, "action_space": ACTIONS}
    data = recorded()
    setattr(data, f"{given}s", {})
    config = {**TINY, "input": data, "multiagent": {"policies": policies}}
    with BCTrainer(config={**config, given: space[given]}) as trainer:
        assert {name: getattr(trainer.get_policy(), name) for name in space} == space
    (other,) = space.keys() - {given}
    with pytest.raises(ConfigError, match=rf"spaces.*(.|\n)* expected: {given}\n .*fix"):
        BCTrainer(config={**config, other: space[other]})
