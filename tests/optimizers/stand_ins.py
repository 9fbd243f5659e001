"""Policies that record their batches, and workers and actors in the process of the test."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from rollax import MultiAgentBatch, RolloutWorker, SampleBatch
from rollax.config import TrainerConfig
from rollax.policy.policy import Policy
from rollax.processes.failure_rules import FailureRules
from rollax.rollout.remote_workers import RemoteWorkers
from rollax.rollout.sampler import SamplingOnRequest
from rollax.rollout.worker_policies import WorkerPolicies

STEPS = 10
"""Env steps of a fragment."""


class RecordingPolicy(Policy):
    """Learns nothing, but records its batches. Its weights are the number of its updates.

    Attributes:
        learned: what `learned_from` returns of each batch.
        applied: the gradients, each the fragments that it was computed from, and the weights that computed it.
        before: called before each update.
    """

    def __init__(self, config: Any = None) -> None:
        super().__init__(Discrete(10_000_000), Discrete(2), config)
        self.updates = 0
        self.learned: list[list[Any]] = []
        self.applied: list[tuple[list[tuple[int, int]], int]] = []
        self.before: Callable[[int], Any] = lambda updates: None

    def compute_actions(self, obs_batch):  # type: ignore[override]
        return np.zeros(len(obs_batch), np.int64), [], {}

    def learn_on_batch(self, batch):
        self.before(self.updates)
        self.learned.append(self.learned_from(batch))
        self.updates += 1
        return {"rows": batch.count, **self.statistics_of(batch)}

    def learned_from(self, batch: SampleBatch) -> list[Any]:
        """The fragments that a batch was made of: `(number, weights that acted)`."""
        return fragments_in(batch)

    def statistics_of(self, batch: SampleBatch) -> dict[str, Any]:
        return {"first": int(batch["obs"][0])}

    def compute_gradients(self, batch):
        return (fragments_in(batch), self.updates), {"rows": batch.count}

    def apply_gradients(self, gradients):
        self.before(self.updates)
        self.applied.append(gradients)
        self.updates += 1

    def get_weights(self):
        return {"updates": self.updates}

    def set_weights(self, weights):
        self.updates = weights["updates"]


def fragments_in(batch: SampleBatch) -> list[tuple[int, int]]:
    """`(number, weights that acted)` of the fragments of a batch, in their order."""
    pairs = zip(batch["obs"].tolist(), batch["weights"].tolist(), strict=True)
    return list(dict.fromkeys((int(number), int(weights)) for number, weights in pairs))


class FragmentWorker(RolloutWorker):
    """Fragments of 10 env steps, with a row of each of `agents` for every step.

    The rows of worker i's k-th fragment have the observation 1000 i + k, and the weights that it acted with.

    Args:
        index: index of the worker.
        agents: policy id -> agents in each step.
    Attributes:
        idle: whether it has nothing to return, like a worker without clients.
    """

    idle = False
    policy_class: type[Policy] = RecordingPolicy

    def __init__(self, index: int = 0, /, **agents: int) -> None:
        self.worker_index, self.num_workers, self.version, self._env = index, 2, 0, None
        self.agents = agents or {"a": 1}
        self.config = TrainerConfig()
        self.policies = WorkerPolicies({}, None, {})  # without runners, which have filters
        self.policies.update((name, self.policy_class()) for name in self.agents)
        self.runners = self.policies.runners
        self._sampling = SamplingOnRequest(self.rollout, "a stand-in")
        self.timestep = 0
        self.fragments = 0

    def make(self):
        """Reports a worker that samples in the background."""
        return True

    def sample_fragment(self, update=None):
        rollout = None if self.idle else super().sample_fragment(update)
        if self.idle and update is not None:
            self.apply_update(update)
        return rollout

    def sample(self):
        self.fragments += 1
        rows = {name: self._rows(STEPS * count, self.policies[name]) for name, count in self.agents.items() if count}
        if len(self.agents) == 1:
            (batch,) = rows.values()
            return SampleBatch(batch.to_dict(), env_steps=STEPS)
        return MultiAgentBatch(rows, STEPS)

    def _rows(self, count: int, policy: Any) -> SampleBatch:
        number = 1000 * self.worker_index + self.fragments
        return SampleBatch({"obs": np.full(count, number), "weights": np.full(count, policy.updates)})

    def get_weights(self):
        return {name: policy.get_weights() for name, policy in self.policies.items()}

    def get_metrics(self):
        return []

    def set_timestep(self, timestep):
        self.timestep = timestep


class SequentialActors:
    """Implements `Actors`: calls run at once, but only one more is completed at each `wait`.

    Args:
        seed: seed of the choice of the completed call; None for the oldest.
        fails: `(index, number of the fragment)` -> the error raised in its place; a restarted worker begins at a number
            that is 100 higher.
    """

    worker_class: type[FragmentWorker] = FragmentWorker

    def __init__(self, seed: int | None = None, fails: dict[tuple[int, int], Exception] | None = None) -> None:
        self.rng = None if seed is None else np.random.default_rng(seed)
        self.fails = fails or {}
        self.workers: list[FragmentWorker] = []
        self.published: list[Any] = []
        self._outcomes: list[Any] = []
        self._callers: list[FragmentWorker] = []  # by reference
        self.over: dict[int, None] = {}  # references in the order in which their calls ended

    def start(self, index: int, restarts: int) -> FragmentWorker:
        worker = self.worker_class(index)
        worker.fragments = 100 * restarts
        self.workers.append(worker)
        return worker

    def call(self, worker: FragmentWorker, method: str, *arguments: Any) -> int:
        error = self.fails.get((worker.worker_index, worker.fragments + 1))
        self._callers.append(worker)
        self._outcomes.append(getattr(worker, method)(*arguments) if error is None else error)
        return len(self._outcomes) - 1

    def wait(self, references: Sequence[int], count: int, timeout_s: float) -> list[int]:
        oldest: dict[int, int] = {}
        for reference in sorted(set(references) - self.over.keys()):
            oldest.setdefault(self._callers[reference].worker_index, reference)
        if oldest and not any(reference in self.over for reference in references):
            self.over[min(oldest.values()) if self.rng is None else int(self.rng.choice([*oldest.values()]))] = None
        return [reference for reference in references if reference in self.over]

    def outcomes(self, references: Sequence[int]) -> list[Any]:
        return [self._outcomes[reference] for reference in references]

    def put(self, value: Any) -> Any:
        self.published.append(value)
        return value

    def kill(self, worker: FragmentWorker) -> None:
        assert worker in self.workers

    @property
    def fragments(self) -> int:
        """The number of sampled fragments."""
        return sum(worker.fragments % 100 for worker in self.workers)


def serving_pool(count: int, *idle: int) -> tuple[RemoteWorkers, SequentialActors]:
    """A pool of workers that sample in the background, some of them without clients."""
    processes = SequentialActors()
    workers = RemoteWorkers(processes, count, makes=True)
    workers.make_all()
    for worker in processes.workers:
        worker.idle = worker.worker_index in idle
    return workers, processes


def pool_of(count: int, rules: FailureRules | None = None, **settings: Any) -> tuple[RemoteWorkers, SequentialActors]:
    """A pool of `FragmentWorker`s, and their actors."""
    processes = SequentialActors(**settings)
    return RemoteWorkers(processes, count, rules or FailureRules(restart=True)), processes


def learning(worker: FragmentWorker, *policies: str) -> dict[str, Any]:
    """The config key with which only these policies of a worker learn."""
    known = dict.fromkeys(worker.policies)
    return {"multiagent": {"policies": known, "policy_mapping_fn": str, "policies_to_train": policies}}


def policy_of(optimizer: Any, policy_id: str = "a") -> Any:
    """A policy that learns."""
    return optimizer.local_worker.policies[policy_id]


def steps(optimizer: Any, count: int) -> None:
    for _ in range(count):
        optimizer.step()


def learner_threads() -> list[threading.Thread]:
    """The running learner threads."""
    return [thread for thread in threading.enumerate() if thread.name == "rollax-learner"]
