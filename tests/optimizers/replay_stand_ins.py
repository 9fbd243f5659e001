"""Workers with numbered rows, a policy that records the rows it learns from, and shards that fail."""

from typing import Any

import numpy as np

from rollax import MultiAgentBatch
from rollax.batch import Fragment
from rollax.config.replay_groups import ReplayFields
from rollax.processes.actors import LocalActors, ProcessLostError
from rollax.replay.shard import ReplayShard, ShardSettings
from tests.optimizers.stand_ins import STEPS, FragmentWorker, RecordingPolicy, SequentialActors

SMALL = {"train_batch_size": 4, "learning_starts": 0, "buffer_size": 4000, "training_intensity": 0.1, "seed": 0}


class RowRecordingPolicy(RecordingPolicy):
    """Records the numbers of the rows of its batches. The error of a row is its number plus 1."""

    def __init__(self) -> None:
        super().__init__(ReplayFields(gamma=0.9))

    def learned_from(self, batch):
        return batch["obs"].tolist()

    def statistics_of(self, batch):
        return {"td_error": batch["obs"] + 1.0}


class RowWorker(FragmentWorker):
    """Fragments are whole trajectories of 10 steps. Row s of worker i's k-th fragment is number 10 (1000 i + k) + s."""

    policy_class = RowRecordingPolicy

    def sample(self):
        self.fragments += 1
        rows = {name: self._trajectory(place) for place, name in enumerate(self.agents)}
        if len(rows) == 1:
            (only,) = rows.values()
            only.env_steps = STEPS
            return only
        return MultiAgentBatch(rows, STEPS)

    def sample_apart(self, update=None):
        fragment = self.sample_fragment(update)
        return fragment, fragment.batch

    def _trajectory(self, place: int) -> Fragment:
        number = 1000 * self.worker_index + self.fragments
        steps = np.arange(STEPS)
        return Fragment(
            {
                "obs": STEPS * number + steps,
                "actions": np.zeros(STEPS, np.int64),
                "rewards": np.ones(STEPS, np.float32),
                "terminateds": steps == STEPS - 1,
                "truncateds": np.zeros(STEPS, bool),
                "trajectory_id": np.full(STEPS, 10 * number + place),
            },
            [STEPS - 1],
            {"obs": np.zeros(1, np.int64)},
        )


class RowActors(SequentialActors):
    """Runs `RowWorker`s."""

    worker_class = RowWorker


class FailingShards(LocalActors):
    """Shards in this process that can be made to fail.

    Attributes:
        shards: all started shards.
        failing: shards whose calls fail.
    """

    def __init__(self, settings: ShardSettings) -> None:
        super().__init__(lambda index, restarts: ReplayShard(settings, index, restarts))
        self.shards: list[ReplayShard] = []
        self.failing: set[ReplayShard] = set()
        self.killed: list[ReplayShard] = []

    def start(self, index: int, restarts: int) -> ReplayShard:
        self.shards.append(super().start(index, restarts))
        return self.shards[-1]

    def call(self, handle: ReplayShard, method: str, *arguments: Any) -> Any:
        reference = super().call(handle, method, *arguments)
        if handle in self.failing:
            reference.value = ProcessLostError("killed")
        return reference

    def kill(self, handle: ReplayShard) -> None:
        self.killed.append(handle)


def shards_of(optimizer):
    return optimizer.shards._actors.shards


def numbers_in(shard):
    """Row number -> its weight in the sum tree."""
    buffer = shard.buffers["a"]
    places = np.flatnonzero(buffer._drawable)
    numbers = buffer._rows.read("obs", places)
    return dict(zip(numbers.tolist(), buffer._tree.get(places).tolist(), strict=True))


def due(optimizer):
    return int(max(optimizer.steps - optimizer.config.learning_starts, 0) * optimizer.config.training_intensity)
