"""The replay buffer and the number of updates after a restore."""

from __future__ import annotations

import pytest

from rollax import ApexDQNTrainer, DQNTrainer, PolicyError, PolicySpec, Trainer
from tests.algorithms.checkpoints import to_plain
from tests.algorithms.envs import TwoAgents
from tests.algorithms.replayed import SMALL

CONFIG = {**SMALL, "timesteps_per_iteration": 20}
POLICIES = {"policies": {"left": None, "right": None}, "policy_mapping_fn": lambda agent: agent}
both = pytest.mark.parametrize("trainer_class", [DQNTrainer, ApexDQNTrainer])


def rows(trainer: Trainer) -> dict[str, int]:
    return trainer.optimizer.report()["replay"]["rows"]


def updates(trainer: Trainer) -> int:
    return trainer.optimizer.report()["replay"]["num_updates"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints of 40 steps, by algorithm, with and without the buffer."""
    found = {}
    for trainer_class in (DQNTrainer, ApexDQNTrainer):
        for stores in (False, True):
            config = {**CONFIG, "store_buffer_in_checkpoints": stores, "n_step": 1}
            with trainer_class("CartPole-v1", config) as trainer:
                trainer.train()
                trainer.train()
                assert (rows(trainer)["default_policy"], updates(trainer)) == (40, 5)
                found[trainer_class, stores] = trainer.save(tmp_path_factory.mktemp("saved"))
    return found


@both
class TestFittingCheckpoint:
    @pytest.mark.long
    def test_without_the_buffer_learning_waits_for_learning_starts(self, trainer_class, saved):
        with Trainer.from_checkpoint(saved[trainer_class, False], buffer_size=300) as trainer:
            assert rows(trainer) == {"default_policy": 0}
            assert [(trainer.train(), updates(trainer))[1] for _ in range(2)] == [5, 10]  # 20 steps, then 20 beyond

    @pytest.mark.long
    @pytest.mark.parametrize("stores", [False, True])
    def test_rows_of_another_run_are_dropped(self, trainer_class, saved, stores):
        with trainer_class("CartPole-v1", {**CONFIG, "n_step": 1}) as trainer:
            for _ in range(3):
                trainer.train()
            trainer.restore(saved[trainer_class, stores])
            assert rows(trainer) == {"default_policy": 40 if stores else 0}
            assert updates(trainer) == 5

    @pytest.mark.long
    def test_another_intensity_holds_after_the_restore(self, trainer_class, saved):
        with Trainer.from_checkpoint(saved[trainer_class, True], training_intensity=1.0) as trainer:
            trainer.train()
            assert updates(trainer) == 5 + 20
        with Trainer.from_checkpoint(saved[trainer_class, True], training_intensity=0.1) as trainer:
            trainer.train()
            assert updates(trainer) == 5 + 2


@pytest.mark.long
@pytest.mark.parametrize("count", ["before", "stored"])
@both
def test_a_forged_count_of_updates_makes_no_endless_step(trainer_class, count):
    config = {**CONFIG, "n_step": 1, "buffer_size": 40, "training_intensity": 0.25}
    config |= {"store_buffer_in_checkpoints": True}
    with trainer_class("CartPole-v1", config) as trainer:
        trainer.train()
        trainer.train()
        state, made = trainer.get_state(), updates(trainer)
        due = {**state["optimizer"]["due"], count: 2**60}
        trainer.set_state({**state, "optimizer": {**state["optimizer"], "due": due}})
        trainer.train()
        # Those of a full buffer, and those of 20 new steps.
        assert updates(trainer) == made + 40 // 4 + 20 // 4


@pytest.mark.long
@both
def test_a_refused_checkpoint_changes_nothing(trainer_class, tmp_path):
    config = {**CONFIG, "n_step": 1, "store_buffer_in_checkpoints": True, "multiagent": POLICIES}
    with trainer_class(TwoAgents, config) as saved:
        saved.train()
        path = saved.save(tmp_path)
    # Weights of `left` fit, so that they are restored before those of `right` are refused.
    unlike = {"left": None, "right": PolicySpec(config={"model": {"fcnet_hiddens": (9,)}})}
    with trainer_class(TwoAgents, {**config, "multiagent": {**POLICIES, "policies": unlike}, "seed": 4}) as trainer:
        for _ in range(2):
            trainer.train()
        before = to_plain(trainer.get_state())
        with pytest.raises(PolicyError, match="wrong shape"):
            trainer.restore(path)
        assert to_plain(trainer.get_state()) == before
        trainer.train()
        assert (trainer.optimizer.steps, updates(trainer)) == (60, 10)


@pytest.mark.long
@both
def test_buffers_of_policies_that_no_longer_learn_are_not_restored(trainer_class, tmp_path):
    config = {**CONFIG, "n_step": 1, "store_buffer_in_checkpoints": True, "multiagent": POLICIES}
    with trainer_class(TwoAgents, config) as trainer:
        trainer.train()
        path = trainer.save(tmp_path)
        fewer = {**config, "multiagent": {**POLICIES, "policies_to_train": ["right"]}}
        with trainer_class(TwoAgents, fewer) as other:
            other.restore(path)
            assert rows(other) == {"right": rows(trainer)["right"]}
            other.train()
