"""Bad input that algorithms with a replay buffer refuse."""

import pytest

from rollax import ConfigError, DQNTrainer, Trainer
from rollax.core import memory
from tests.algorithms.envs import TwoAgents
from tests.algorithms.replayed import SMALL, each_algorithm, env_of


def made(trainer_class, **changes) -> Trainer:
    return trainer_class(env_of(trainer_class), {**SMALL, **changes})


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
