"""Workers with numbered rows, a policy that records the rows it learns from, and shards that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from rollax import MultiAgentBatch
from rollax.batch import Fragment
from rollax.config.replay_groups import ReplayFields
from rollax.policy.policy import Policy
from rollax.processes.actors import LocalActors, ProcessLostError
from rollax.replay.shard import ReplayShard, ShardSettings
from tests.optimizers.stand_ins import STEPS, FragmentWorker, SequentialActors

SMALL = {"train_batch_size": 4, "learning_starts": 0, "buffer_size": 4000, "training_intensity": 0.1, "seed": 0}


class RowRecordingPolicy(Policy):
    """Learns nothing, but records its batches. The error of a row is its number plus 1.

    Attributes:
        learned: the numbers of the rows of each batch.
        before: called before each update.
    """

    def __init__(self) -> None:
        super().__init__(Discrete(10_000_000), Discrete(2), ReplayFields(gamma=0.9))
        self.updates = 0
        self.learned: list[list[int]] = []
        self.before: Callable[[int], Any] = lambda updates: None

    def compute_actions(self, obs_batch):  # type: ignore[override]
        return np.zeros(len(obs_batch), np.int64), [], {}

    def learn_on_batch(self, batch):
        self.before(self.updates)
        self.learned.append(batch["obs"].tolist())
        self.updates += 1
        return {"rows": batch.count, "td_error": batch["obs"] + 1.0}

    def get_weights(self):
        return {"updates": self.updates}

    def set_weights(self, weights):
        self.updates = weights["updates"]


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

    def start(self, index: int, restarts: int) -> RowWorker:
        worker = RowWorker(index)
        worker.fragments = 100 * restarts
        self.workers.append(worker)
        return worker


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


def policy_of(optimizer, policy_id="a"):
    return optimizer.local_worker.policies[policy_id]


def shards_of(optimizer):
    return optimizer.shards._actors.shards


def numbers_in(shard):
    """Row number -> its weight in the sum tree."""
    buffer = shard.buffers["a"]
    places = np.flatnonzero(buffer._drawable)
    numbers = buffer._rows.read("obs", places)
    return dict(zip(numbers.tolist(), buffer._tree.get(places).tolist(), strict=True))


def steps(optimizer, count):
    for _ in range(count):
        optimizer.step()


def due(optimizer):
    return int(max(optimizer.steps - optimizer.config.learning_starts, 0) * optimizer.config.training_intensity)
