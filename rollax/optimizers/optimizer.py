"""`Optimizer`: the base of all policy optimizers, with workers, policies, counters and statistics."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from rollax.batch import MultiAgentBatch, SampleBatch
from rollax.config import TrainerConfig, resolve_config
from rollax.config.field_group import inherited
from rollax.config.trainer import by_name
from rollax.errors import ConfigError, PolicyError, page
from rollax.optimizers.timings import Timings
from rollax.rollout.messages import Rollout, Update
from rollax.rollout.metrics import EpisodeMetrics
from rollax.rollout.worker import RolloutWorker
from rollax.rollout.worker_set import NO_REMOTE_WORKERS

if TYPE_CHECKING:
    from rollax.rollout.remote_workers import RemoteWorkers, Reply

log = logging.getLogger("rollax.optimizers")
Stats = dict[str, dict[str, Any]]
Found = TypeVar("Found")
POLL_S = 0.05
"""Seconds; the longest wait for samples, draws or the learner before a step checks the others."""
MOST_EPISODES = 1_000_000
"""The most episodes that an optimizer without a trainer keeps for its user: half a GB."""
OWN_TRAINER = (
    f"leave it out of policies_to_train, and train it in a trainer of its own algorithm ({page('two-trainers')})"
)
_WORKER_KEYS = frozenset(
    {
        *("env_config", "env_wrappers", "observation_space", "action_space", "action_repeat", "frame_stack"),
        *("clip_rewards", "normalize_actions", "clip_actions"),
        *("num_envs_per_worker", "remote_worker_envs", "remote_env_batch_wait_ms", "remote_env_timeout_s"),
        *("restart_failed_sub_environments", "rollout_fragment_length", "batch_mode", "explore", "sample_async"),
        *("max_policy_lag", "callbacks", "sampler", "output"),
    }
)
"""Keys that rollout workers read, from their own config."""


class WaitEndedError(Exception):
    """`Optimizer.waits` was set to false, and a step had to wait for samples."""


class Optimizer(ABC):
    """Turns samples into updates, one step at a time.

    Args:
        local_worker: holds the policies that learn; without remote workers it also samples.
        remote_workers: the workers that sample: a `RemoteWorkers`, or Ray actors of `RolloutWorker.as_remote()`.
        config: an object of the optimizer's `config_class`, or a dict of its keys; None: the local worker's config, or
            the defaults if that config is of another class and there are `keys`.
        keys: keys that replace keys of `config`, such as `train_batch_size=500`.
    Attributes:
        policies: policy id -> policy to train.
        env_steps, agent_steps: steps learned from so far.
        stats: policy id -> statistics of its last update; the values of a policy without data are None.
        stop_at: steps after which the run ends; an iteration ends there too.
        waits: if false, a step ends with a WaitEndedError instead of waiting for external clients. `iterate` sets it to
            true when it returns.
    Raises:
        ConfigError: the config is not of the optimizer's `config_class`; a key is unknown or has a wrong value; or a
            key that only workers or policies read differs from the config of the local worker.
        PolicyError: a policy to train cannot learn from the samples of this optimizer.
    """

    config_class: ClassVar[type[TrainerConfig]] = TrainerConfig
    """The config class with the fields that the optimizer reads."""

    gives_fragments: ClassVar[bool] = False
    """Whether policies learn from sampled fragments, not from draws of a replay buffer."""

    learns: ClassVar[bool] = True
    """Whether a step learns, so that recorded data are read and estimates are made."""

    pauses_between_steps: ClassVar[bool] = True
    """Whether remote workers sample only during a step. Otherwise runs with them depend on timing."""

    def __init__(
        self,
        local_worker: RolloutWorker,
        remote_workers: Sequence[Any] | RemoteWorkers = (),
        config: TrainerConfig | Mapping[str, Any] | None = None,
        **keys: Any,
    ) -> None:
        if config is None and (not keys or isinstance(local_worker.config, self.config_class)):
            config = local_worker.config
        if isinstance(config, TrainerConfig) and not isinstance(config, self.config_class):
            raise self._without_its_fields(type(config))
        self.config: Any = resolve_config(self.config_class, config, **keys)
        self.local_worker = local_worker
        self._refuse_of_workers({**config, **keys} if isinstance(config, Mapping) else keys)
        self.remote = NO_REMOTE_WORKERS
        if not isinstance(remote_workers, Sequence) or remote_workers:
            from rollax.rollout.remote_workers import RemoteWorkers  # loaded only where it is used

            self.remote = RemoteWorkers.of(remote_workers)
        learning = self.config.multiagent.policies_to_train
        trained = {i: local_worker.get_policy(i) for i in (local_worker.policies if learning is None else learning)}
        # In the order of the policies: the order of a set differs between processes, and policies may share variables.
        self.policies = {i: trained[i] for i in local_worker.policies if i in trained}
        if self.gives_fragments:
            self._check_learn_from_fragments()
        self.env_steps = 0
        self.agent_steps = 0
        self.stop_at = self._iteration_ends = math.inf
        self.timings = Timings()
        self.waits = True
        self.version = max(self.version, 1)  # remote workers have version 0 until the first broadcast
        self._episodes: deque[EpisodeMetrics] = deque(maxlen=MOST_EPISODES)
        self.forget()
        self._set_up()

    def _set_up(self) -> None:  # noqa: B027  most have no more
        """Sets attributes of a subclass; called at the end of the constructor."""

    def __repr__(self) -> str:
        sizes = f"train_batch_size={self.config.train_batch_size}, {self.config.count_steps_by}={self.steps}"
        return f"{type(self).__name__}({sizes}, remote_workers={len(self.remote)})"

    @abstractmethod
    def step(self) -> Stats:
        """Samples, and learns if enough is sampled; returns the latest statistics of each policy that learns."""

    def iterate(self) -> Stats:
        """Calls `step` until an iteration is complete; returns the statistics of the last call.

        An iteration trains on at least `timesteps_per_iteration` steps and takes at least `min_time_s_per_iteration`
        seconds. It ends earlier with the call that reaches `stop_at`. If `waits` is false, there is no minimum time,
        and the iteration ends where a call would wait.
        """
        started, steps_before, config = time.perf_counter(), self.steps, self.config
        self._iteration_ends = steps_before + config.timesteps_per_iteration
        try:
            while True:
                stats = self.step()
                enough = self.steps - steps_before >= config.timesteps_per_iteration
                long_enough = time.perf_counter() - started >= config.min_time_s_per_iteration or not self.waits
                if (enough and long_enough) or self.steps >= self.stop_at:
                    return stats
        except WaitEndedError:
            return dict(self.stats)
        finally:
            self.waits, self._iteration_ends = True, math.inf
            self.local_worker.set_timestep(self.steps)  # a checkpoint has it, for exploration that follows a schedule

    def rounds_left(self, size: int, most: int) -> int:
        """The number of rounds of `size` steps that an iteration still needs, at least 1 and at most `most`."""
        left = min(self.stop_at, self._iteration_ends) - self.steps
        return most if math.isinf(left) else max(min(math.ceil(left / size), most), 1)

    @property
    def steps(self) -> int:
        """Steps trained on so far, in the unit of `count_steps_by`."""
        return self.env_steps if self.config.count_steps_by == "env_steps" else self.agent_steps

    def get_state(self) -> dict[str, Any]:
        """The state for a checkpoint, apart from the counters."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027  most have no state
        """Restores what `get_state` returned; if it raises, nothing has changed."""

    @property
    def version(self) -> int:
        """The version of the local worker's weights: it grows with each update, and starts at 1."""
        return self.local_worker.version

    @version.setter
    def version(self, version: int) -> None:
        self.local_worker.version = version

    def begin_exactly(self) -> None:
        """Drops state that a checkpoint does not hold, so that a restored run equals the continued one.

        Raises:
            ConfigError: the runs would differ; nothing has changed then.
        """
        from rollax.optimizers.exact import check_exact  # loaded only where it is used

        check_exact(self)

    def rest(self) -> None:  # noqa: B027  most have no thread
        """Waits until no thread learns; after an interrupted step, a learner thread may still run."""

    def report(self) -> dict[str, Any]:
        """Further entries of `info` in the results."""
        return {}

    def take_episodes(self) -> list[EpisodeMetrics]:
        """The episodes that have ended since the last call, at most the last `MOST_EPISODES`."""
        episodes, self._episodes = self._episodes, deque(maxlen=MOST_EPISODES)
        return list(episodes)

    def forget(self) -> None:
        """Drops unreported episodes, times and statistics, which a checkpoint does not hold."""
        self.take_episodes()
        self.timings.take()
        self.stats: Stats = {i: dict.fromkeys(policy.statistics) for i, policy in self.policies.items()}

    def stop(self) -> None:  # noqa: B027  most have none
        """Ends other threads and processes of the optimizer; the workers stay."""

    def _size(self, rollout: Rollout) -> int:
        """The steps of a rollout, in the unit of `train_batch_size`."""
        return rollout.env_steps if self.config.count_steps_by == "env_steps" else rollout.agent_steps

    def broadcast(self) -> None:
        """Publishes weights and running statistics, with which remote workers act from their next request on."""
        self.local_worker.set_timestep(self.steps)
        if self.remote:
            self._publish(self.version, self.local_worker.get_weights())

    def _publish(self, version: int, weights: Any) -> None:
        local = self.local_worker
        with self.timings.measured("broadcast_s"):
            filters, filters_set = local.get_filters(), dict(local.policies.filters_set)
            self.remote.publish(Update(version, self.steps, weights, filters, filters_set))

    def _note(self, policy_id: str, stats: Mapping[str, Any] | None) -> None:
        """Records the statistics of an update, without the errors of the rows; None: the policy had no data."""
        if stats is None:
            self.stats[policy_id] = dict.fromkeys(self.stats[policy_id])
        else:
            found = stats.items()
            self.stats[policy_id] = {n: value for n, value in found if n != SampleBatch.TD_ERROR or np.ndim(value) == 0}

    def _sampled(self, rollout: Rollout) -> None:
        """Records the episodes, running statistics and times of a rollout."""
        self.timings.add("sample_s", rollout.sample_s + rollout.gradients_s)
        self.timings.dropped_steps += rollout.dropped_steps
        self._episodes += rollout.episodes
        policies = self.local_worker.policies
        # The local worker already has its own statistics.
        for policy_id, state in rollout.filters.items() if self.remote else ():
            if rollout.filters_set.get(policy_id, 0) != policies.filters_set.get(policy_id, 0):
                continue  # outdated, because the statistics were set in between
            statistics = policies.runners[policy_id].running_statistics
            (statistics.set_state if rollout.whole_filters else statistics.merge)(state)

    @property
    def samples_in_background(self) -> bool:
        """Whether the workers that sample do so in background threads."""
        return self.remote.sample_in_background if self.remote else self.local_worker.samples_in_background

    def _check_waits(self) -> None:
        """Raises WaitEndedError if `waits` is false; called while no samples arrive from workers in the background."""
        if not self.waits and self.samples_in_background:
            raise WaitEndedError

    def _awaited(self, sample: Callable[[], Found | None]) -> Found:
        """Calls a method of the local worker until its result is not empty; returns this result."""
        while not (found := sample()):
            self._check_waits()
        return found

    def _replies(self) -> list[Reply]:
        """The replies of remote workers that have arrived; waits for at least one."""
        with self.timings.measured("wait_s"):
            while not (replies := self.remote.collect(POLL_S)) and self.remote.pending:
                self._check_waits()
        return replies

    def _gather(self, requests: int) -> list[Rollout]:
        """`requests` fragments of each worker, in the order of request and worker.

        If the workers sample in the background, the fragments that arrive first, at least one: some workers may have no
        clients.
        """
        if self.remote.sample_in_background:
            for index in self.remote.short_of(1):
                self.remote.request(index, "sample_fragment")
            return [reply.value for reply in self._replies()]
        for _ in range(requests):
            for index in self.remote.indices:
                self.remote.request(index, "sample_fragment")
        of_worker: dict[int, list[Rollout]] = {index: [] for index in self.remote.indices}
        with self.timings.measured("wait_s"):
            while self.remote.requests_in_flight:
                for index, rollout in self.remote.collect():
                    of_worker[index].append(rollout)
        # A worker that has failed returns fewer fragments; a worker with requests of an interrupted step returns more.
        rounds = zip_longest(*(rollouts for _, rollouts in sorted(of_worker.items())))
        return [rollout for rollouts in rounds for rollout in rollouts if rollout is not None]

    def count_rounds(self, made: int, *, env_steps: int, agent_steps: int) -> None:
        """Counts `made` rounds of a compiled call as sampled and learned from, and records their episodes."""
        self.env_steps += made * env_steps
        self.agent_steps += made * agent_steps
        self.version += made
        self._episodes += self.local_worker.get_metrics()
        self.timings.lags.add(0)

    def _trained_on(self, rollout: Rollout) -> None:
        """Counts the steps of a fragment as learned from."""
        self.env_steps += rollout.env_steps
        self.agent_steps += rollout.agent_steps
        self.timings.lags.add(self.version - rollout.version)

    def _refuse_of_workers(self, given: Iterable[str]) -> None:
        """Raises ConfigError for a key of workers or policies, with another value than in the worker's config."""
        places = inherited(type(self.config), "places")
        for key in by_name(type(self.config), dict.fromkeys(given)):
            value, there = getattr(self.config, key), getattr(self.local_worker.config, key, None)
            of_policies = key == "model" or "policy" in places.get(key, ())
            if (of_policies or key in _WORKER_KEYS) and key != "train_batch_size" and value != there:
                readers = "workers read it from their config"
                if key not in _WORKER_KEYS:
                    readers = "policies read it from the config of their worker"
                raise ConfigError(
                    f"{key} has no effect here: {readers}.", f"{type(self).__name__}({key}=...)", value
                ).expected(
                    f"{there!r}, as in the config of the local worker",
                    f"make the workers with it: RolloutWorker(..., config={{'{key}': ...}})",
                )

    def _without_its_fields(self, config_class: type[TrainerConfig]) -> ConfigError:
        own, name = self.config_class, config_class.__name__
        return ConfigError(
            "The config lacks keys of its optimizer.",
            f"{type(self).__name__}, with the config class {name}",
            f"no {', '.join(sorted(own.model_fields.keys() - config_class.model_fields.keys()))}",
        ).expected(
            f"a config class that is derived from {own.__name__}",
            f"`class {name}({own.__name__}): ...`, from {own.__module__}, as config_class of trainer and policy",
        )

    def _check_learn_from_fragments(self) -> None:
        # If the worker's config replays too, the user has chosen this optimizer.
        for policy in self.policies.values():
            if getattr(policy.config, "replays", False) and not self.local_worker.config.replays:
                raise PolicyError(
                    "A policy to train learns from replayed experience, but this trainer replays none.",
                    f"{policy.label}, config key 'multiagent.policies_to_train'",
                    f"a {type(policy.config).__name__}, where the trainer's is a "
                    f"{type(self.local_worker.config).__name__}",
                ).expected("a policy that learns from fresh samples, such as one of PPO or IMPALA", OWN_TRAINER)

    def _learn(self, batch: MultiAgentBatch) -> None:
        """One update of each policy that learns, from its rows of a batch."""
        try:
            with self.timings.measured("learn_s"):
                for policy_id, policy in self.policies.items():
                    rows = batch.get(policy_id)
                    # An empty batch is false.
                    self._note(policy_id, (policy.learn_on_batch(rows) or {}) if rows else None)
        except BaseException:
            log.warning("Learning was interrupted: a batch of %d steps is dropped and not counted.", batch.env_steps)
            raise
