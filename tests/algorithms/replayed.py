"""Algorithms with replay, an environment for each of them, and small settings."""

from typing import Any

import numpy as np
import pytest

from rollax import SampleBatch, Trainer
from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from rollax.config.replay_groups import ReplayFields
from tests.marks import long_except

GROUP_ALGORITHMS = {"QMIX", "VDN"}
"""They act for groups of agents. Their own tests cover for groups what is tested here for one agent."""
DATA_ALGORITHMS = {"BC"}
"""Algorithms that learn from recorded data only."""
SEARCH_ALGORITHMS = {"ARS", "ES"}
"""Algorithms that learn from the returns of whole episodes only."""
CONTINUOUS = {"DDPG", "TD3", "TD7", "FlashSAC", "TQC", "CrossQ", "APEX_DDPG", "TD3BC", "CQL"}

SMALL: dict[str, Any] = {"learning_starts": 20, "timesteps_per_iteration": 40, "rollout_fragment_length": 4}
SMALL |= {"train_batch_size": 8, "training_intensity": 0.25, "buffer_size": 500}
SMALL |= {"model": {"fcnet_hiddens": (8,)}, "seed": 3}


def env_of(trainer_class: type[Trainer]) -> str:
    """The id of an environment whose actions the algorithm takes."""
    return "Pendulum-v1" if trainer_class.name in CONTINUOUS else "CartPole-v1"


def sample_from_buffers(trainer: Trainer, count: int) -> SampleBatch:
    """Transitions from the buffers of the default policy, about as many from each buffer."""
    optimizer: Any = trainer.optimizer
    buffers = (
        [optimizer.buffers]
        if hasattr(optimizer, "buffers")
        else [shard.handle.buffers for shard in optimizer.shards._live.values()]
    )
    full = [held["default_policy"] for held in buffers if len(held["default_policy"])]
    rng = np.random.default_rng(1)
    return SampleBatch.concat_samples([buffer.sample(-(-count // len(full)), rng) for buffer in full])[:count]


def _replayed() -> list[type[Trainer]]:
    classes = [get_trainer_class(name) for name in ALGORITHMS if name not in GROUP_ALGORITHMS | DATA_ALGORITHMS]
    return [trainer_class for trainer_class in classes if issubclass(trainer_class.config_class, ReplayFields)]


REPLAYED = _replayed()
IN_SHORT = {"DQN", "SAC", "APEX_DDPG"}
"""One with discrete actions, one with continuous actions, one asynchronous; the others run in the long part."""
BY_NAME = {found.name: found for found in REPLAYED}
each_algorithm = pytest.mark.parametrize("trainer_class", long_except(IN_SHORT, BY_NAME))
