"""Bad input that algorithms with a replay buffer refuse."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from rollax import CheckpointError, ConfigError, DQNTrainer, Trainer
from rollax.core import memory
from tests.algorithms.envs import TwoAgents
from tests.algorithms.replayed import SMALL, each_algorithm, env_of


def made(trainer_class, **changes) -> Trainer:
    return trainer_class(env_of(trainer_class), {**SMALL, **changes})


def unchanged(before, after) -> bool:
    return all(np.array_equal(value, after[name], equal_nan=True) for name, value in before.items())


@each_algorithm
class TestConfig:
    @pytest.mark.parametrize(
        ("key", "value", "expected"),
        [
            ("buffer_size", 0, "1 <= buffer_size"),
            ("buffer_size", "much", "integer"),
            ("train_batch_size", 2.5, "integer"),
            ("n_step", 0, "1 <= n_step"),
            ("n_step", True, "number"),
            ("learning_starts", -1, "0 <= learning_starts"),
            ("prioritized_replay_beta", 1.5, "0 <= prioritized_replay_beta <= 1"),
            ("prioritized_replay_eps", 0, "0 < prioritized_replay_eps"),
            ("prioritized_replay_alpha", float("nan"), "finite"),
            ("gamma", 1.01, "0 <= gamma <= 1"),
        ],
    )
    def test_wrong_type_or_out_of_range(self, trainer_class, key, value, expected):
        with pytest.raises(ConfigError) as error:
            made(trainer_class, **{key: value})
        message = str(error.value)
        assert f"'{key}' ({trainer_class.config_class.__name__})" in message
        assert f"got:      {value!r}" in message
        assert expected in message

    @pytest.mark.parametrize("key", ["train_batch_size", "n_step"])
    def test_more_than_the_buffer_holds(self, trainer_class, key):
        with pytest.raises(ConfigError, match=f"{key} is larger than buffer_size(.|\n)*{key}=501, buffer_size=500"):
            made(trainer_class, **{key: 501})

    @pytest.mark.long
    def test_fragments_that_the_buffer_cannot_hold(self, trainer_class):
        with made(trainer_class, rollout_fragment_length=600) as trainer:
            with pytest.raises(ConfigError, match=r"fragment does not fit into the replay buffer(.|\n)*got: *500"):
                trainer.train()

    def test_a_buffer_larger_than_main_memory(self, trainer_class):
        with made(trainer_class, buffer_size=10**13) as trainer:
            with pytest.raises(ConfigError, match=r"more memory than this machine has(.|\n)*fix:"):
                trainer.train()


@pytest.mark.long
def test_buffers_together_larger_than_main_memory_are_refused(monkeypatch):
    policies = {"policies": {"left": None, "right": None}, "policy_mapping_fn": lambda agent: agent}
    with DQNTrainer(TwoAgents, {**SMALL, "multiagent": policies}) as trainer:
        trainer.train()
        one = trainer.optimizer.buffers["left"].nbytes
    for there in (2 * one - 1, 2 * one):
        monkeypatch.setattr(memory, "available_memory_bytes", lambda there=there: there)
        with DQNTrainer(TwoAgents, {**SMALL, "multiagent": policies}) as trainer:
            if there == 2 * one:
                trainer.train()
                continue
            with pytest.raises(ConfigError, match=r"together need more memory(.|\n)*policy 'left'(.|\n)*'right'"):
                trainer.train()


def assert_learns(trainer):
    updates = trainer.get_policy().learner.num_updates
    stats = trainer.train()["info"]["learner"]["default_policy"]
    assert trainer.get_policy().learner.num_updates > updates
    assert np.isfinite([value for value in stats.values() if value is not None]).all()


@each_algorithm
class TestCheckpoint:
    @pytest.mark.long
    @pytest.mark.parametrize("stores", [False, True])
    def test_a_buffer_of_another_size_is_refused(self, trainer_class, stores, tmp_path):
        with made(trainer_class, store_buffer_in_checkpoints=True) as trainer:
            trainer.train()
            path = trainer.save(tmp_path)
        with made(trainer_class, store_buffer_in_checkpoints=stores, buffer_size=400) as other:
            other.train()
            before = other.get_weights()["default_policy"]
            with pytest.raises(CheckpointError, match=r"different capacity(.|\n)*got: *500(.|\n)*expected: *400"):
                other.restore(path)
            assert unchanged(before, other.get_weights()["default_policy"])
            assert_learns(other)
        shutil.rmtree(path)
