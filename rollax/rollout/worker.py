"""`RolloutWorker`: policies and environments in one process; usable alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

from rollax.batch import DEFAULT_POLICY, MultiAgentBatch, SampleBatch
from rollax.config import TrainerConfig
from rollax.core.cleanup import cleanup_on_error
from rollax.core.importing import named_by_caller
from rollax.env.base_env import BaseEnv
from rollax.env.registry import EnvContext
from rollax.env.registry import env_creator as creator_of
from rollax.errors import ConfigError, EnvError
from rollax.policy.policy import Policy
from rollax.policy.policy_spec import PolicyClass
from rollax.rollout.callbacks import Callbacks, after_sample
from rollax.rollout.make_sampler import env_with_spaces, make_env, make_sampler, make_sampling
from rollax.rollout.messages import Rollout, Update
from rollax.rollout.metrics import EpisodeList, EpisodeMetrics
from rollax.rollout.postprocess import postprocess
from rollax.rollout.sampler import Sampler
from rollax.rollout.seeds import first_ids
from rollax.rollout.worker_policies import make_policies, resolved_config, specs_of

Result = TypeVar("Result")
PATIENCE_S = 0.5
"""Seconds to wait for a fragment of a background thread, whose external clients may have paused or not started."""


class RolloutWorker:
    """Makes environments and policies, samples batches of experience, and evaluates.

    Args:
        env_creator: a function of one `EnvContext`, a class, or an id.
        policy_cls_or_specs: one policy class, or policy id -> spec (see `PolicySpec.of`).
        policy_mapping_fn: `(agent_id)` or `(agent_id, episode)` -> policy id.
        config: the algorithm's config, a dict of the common keys, or None.
        default_policy_class: the policy class for specs without a class.
        worker_index: 0 in the driver.
        num_workers: the number of remote workers.
        restarts: the number of earlier workers of this index that failed; this worker plays other episodes.
        record: whether to keep trajectories; false for evaluation only.
        samples: false for a worker without an environment, such as the local worker of a run with remote workers. If
            neither config nor specs give spaces, such a worker makes an environment, reads its spaces and closes it.
    Raises:
        ConfigError, SpaceError, EnvError, PolicyError: an invalid config, space, environment or policy.
    """

    def __init__(
        self,
        env_creator: Any,
        policy_cls_or_specs: PolicyClass | Mapping[str, Any],
        *,
        policy_mapping_fn: Callable[..., str] | None = None,
        config: TrainerConfig | Mapping[str, Any] | None = None,
        default_policy_class: PolicyClass | None = None,
        worker_index: int = 0,
        num_workers: int = 0,
        restarts: int = 0,
        record: bool = True,
        samples: bool = True,
    ) -> None:
        specs = specs_of(policy_cls_or_specs)
        self.config = resolved_config(config, specs, default_policy_class)
        self.worker_index = worker_index
        self.num_workers = num_workers
        self.restarts = restarts
        self.version = 0
        self.kept: dict[str, Any] = {}
        """Values that tasks keep in the worker from one call of `perform` to the next."""
        creator = creator_of(named_by_caller(env_creator))
        context = EnvContext(self.config.env_config, worker_index=worker_index, num_workers=num_workers)
        self._env = make_env(creator, context, self.config) if samples else None
        self._closed = False
        with nullcontext() if self._env is None else cleanup_on_error(self._env.stop):
            self.callbacks = Callbacks()
            if self.config.callbacks is not None:
                from rollax.rollout.own_callbacks import make_callbacks  # loaded only where it is used

                self.callbacks = make_callbacks(self.config.callbacks)
            self.policy_of = None
            if policy_mapping_fn is not None or len(specs) > 1:
                from rollax.rollout.policy_mapping import policy_mapping  # loaded only where it is used

                self.policy_of = policy_mapping(policy_mapping_fn, list(specs))
            source = nullcontext(self._env) if samples else env_with_spaces(creator, context, self.config, specs)
            with source as env:
                self.policies = make_policies(
                    self.config, specs, env, self.policy_of, default_policy_class, context, restarts
                )
            self.runners = self.policies.runners
            self._sampling, self._sampler = make_sampling(self, self._env, record=record), None
            if (stepped := self._sampling.env) is not None:
                self._sampler = make_sampler(self, stepped, record=record)
                stepped.sampled_by(self)

    @property
    def samples(self) -> bool:
        """Whether the worker has an environment, not only policies."""
        return self._env is not None

    @property
    def env(self) -> BaseEnv:
        """The environment; raises a ConfigError in a worker that only holds policies."""
        if self._env is None:
            raise self._does_not_sample()
        return self._env

    @property
    def sampler(self) -> Sampler:
        """The sampler; raises a ConfigError in a worker that only holds policies."""
        if self._sampler is None:
            raise self._does_not_sample()
        return self._sampler

    def __repr__(self) -> str:
        # Ray prints it before each line of a process, even if __init__ did not run because of a failed import.
        return f"RolloutWorker(worker_index={getattr(self, 'worker_index', None)})"

    @classmethod
    def as_remote(
        cls, num_cpus: float = 1.0, num_gpus: float = 0.0, resources: Mapping[str, float] | None = None
    ) -> Any:
        """The Ray actor class of this class: `as_remote().remote(...)` has the arguments of the class.

        Each process computes in one thread, and on the CPU unless it reserves a GPU. Environments registered in this
        process by `register_env` are registered there too. Ray is started if it is not running.

        Args:
            num_cpus: CPUs that each process reserves.
            num_gpus: GPUs that each process reserves.
            resources: further Ray resources by name.
        Raises:
            ConfigError: Ray is not installed, or does not start.
        """
        from rollax.processes.cluster import started_ray
        from rollax.rollout.remote_workers import ray_worker_class

        ray = started_ray("num_workers")
        return ray_worker_class(ray, cls, num_cpus=num_cpus, num_gpus=num_gpus, resources=resources)

    def sample(self) -> SampleBatch | MultiAgentBatch:
        """One postprocessed fragment: a `SampleBatch` for a single policy, else a `MultiAgentBatch`.

        A worker that samples in the background halts meanwhile, and keeps the fragments that wait. Raises ConfigError
        if the worker was made with `record=False` or `samples=False`.
        """
        with self._sampling.halted():
            sampler = self.sampler
            if not sampler.record:
                raise ConfigError(
                    "This worker does not record trajectories.", "RolloutWorker.sample()", "record=False"
                ).expected("a worker made with record=True", "call evaluate(), or create a worker with record=True")
            fragments, env_steps = sampler.sample()
            while not fragments:  # no row has received its reward and flags yet
                fragments, more = sampler.sample()
                env_steps += more
            episodes = sampler.episodes
            batches = postprocess(fragments, self.policies, episodes.by_id, self.policies.joint_rows)
            episodes.past.clear()
            samples: SampleBatch | MultiAgentBatch = MultiAgentBatch(batches, env_steps)
            if len(self.policies) == 1:
                (samples,) = batches.values()
                samples.env_steps = env_steps
            return after_sample(self.callbacks, self, samples)

    def sample_fragment(self, update: Update | None = None) -> Rollout | None:
        """Samples a fragment by `rollout`, after replacing weights and running statistics if there is an `update`.

        A worker that samples in the background returns the oldest waiting fragment; None after `PATIENCE_S` seconds.
        """
        if update is not None:
            self.apply_update(update)
        return next(iter(self._sampling.take(PATIENCE_S, most=1)), None)

    def sample_fragments(self) -> list[Rollout]:
        """One fragment; in the background, all waiting fragments, or none after `PATIENCE_S` seconds."""
        return self._sampling.take(PATIENCE_S)

    def rollout(self) -> Rollout:
        """Samples a fragment, with the ended episodes and the new running statistics."""
        started, version = time.perf_counter(), self.version
        batch = self.sample()
        if isinstance(batch, SampleBatch):
            (policy_id,) = self.policies
            batch = MultiAgentBatch({policy_id: batch}, batch.env_steps)
        return Rollout(
            worker_index=self.worker_index,
            version=version,
            batch=batch,
            env_steps=batch.env_steps,
            agent_steps=batch.agent_steps,
            episodes=EpisodeList(self.get_metrics()),
            filters=self.policies.new_statistics(whole=self._has_all_statistics),
            whole_filters=self._has_all_statistics,
            sample_s=time.perf_counter() - started,
            filters_set=dict(self.policies.filters_set),
        )

    def sample_gradients(self, update: Update | None = None) -> Rollout | None:
        """As `sample_fragment`, with gradients of the trained policies instead of the rows."""
        rollout = self.sample_fragment(update)
        if rollout is None:
            return None
        started = time.perf_counter()
        gradients = self.policies.compute_gradients(rollout.batch, self.config.multiagent.policies_to_train)
        gradients_s = time.perf_counter() - started
        return replace(rollout, batch=MultiAgentBatch({}, 0), gradients=gradients, gradients_s=gradients_s)

    def perform(self, task: Callable[[RolloutWorker], Result], update: Update | None = None) -> Result:
        """Returns the result of an optimizer's task, after replacing weights and filters if there is an `update`.

        The task gets this worker, whose sampling halts meanwhile. The task must not change running statistics. For a
        worker in another process, the task is pickled.
        """
        if update is not None:
            self.apply_update(update)
            self.set_filters(update.filters)  # even for a single worker, because tasks add no statistics of their own
        with self._sampling.halted():
            return task(self)

    def apply_update(self, update: Update) -> None:
        """Replaces weights and running statistics.

        From the second update on, statistics that this worker has not sent yet are kept, unless the driver has replaced
        them by `set_filters`.
        """
        with self._sampling.turn():
            self.set_weights(update.weights)
            if self.version == 0:
                self.policies.set_filters(update.filters)
            else:  # the update may already contain this worker's statistics
                self.policies.sync_filters(update.filters, update.filters_set, learning=not self._has_all_statistics)
            self.policies.filters_set = dict(update.filters_set)
            self.set_timestep(update.timestep)
            self.version = update.version

    def evaluate(self, num_episodes: int) -> list[EpisodeMetrics]:
        """Plays an exact number of whole episodes, and returns their metrics.

        Each sub-environment has a fixed share, so short episodes are not counted more often than long ones. Actions
        explore unless the config's `explore` is false. Nothing is learned: running statistics stay as they are. Running
        episodes are dropped, and fresh ones begin afterwards.

        Raises:
            ConfigError: `num_episodes` is not a positive whole number.
            EnvError: an episode has not ended after 1,000,000 steps.
        """
        from rollax.rollout.whole_episodes import play_episodes  # loaded only where it is used

        with self._sampling.halted():
            return play_episodes(self.sampler, num_episodes)

    def write_episodes(self, num_episodes: int) -> list[EpisodeMetrics]:
        """As `evaluate`, and writes these episodes into the folder of the config's `output`."""
        from rollax.rollout.whole_episodes import write_episodes  # as in `evaluate`

        with self._sampling.halted():
            return write_episodes(self.sampler, num_episodes)

    def get_metrics(self) -> list[EpisodeMetrics]:
        """The metrics of sampled episodes since the last call, without those of `evaluate` and `write_episodes`."""
        return self.sampler.take_metrics()

    def get_policy(self, policy_id: str = DEFAULT_POLICY) -> Policy:
        """The policy with that id; PolicyError for an unknown one."""
        return self.policies.get_policy(policy_id)

    def get_weights(self) -> dict[str, Any]:
        """Policy id -> weights."""
        return self.policies.get_weights()

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Sets the weights of some or all policies."""
        self.policies.set_weights(weights)

    def get_filters(self) -> dict[str, Any]:
        """Policy id -> the state of its running statistics: of its observation filter, and of its algorithm."""
        with self._sampling.turn():
            return self.policies.get_filters()

    def set_filters(self, states: Mapping[str, Any]) -> None:
        """Sets the states of running statistics."""
        with self._sampling.turn():
            self.policies.set_filters(states)

    def get_state(self) -> dict[str, Any]:
        """The state of the policies and filters and, if the worker samples, the sampling state."""
        state: dict[str, Any] = {"policies": self.policies.get_state(), "filters": self.get_filters()}
        return {**state, "sampling": self.get_sampling_state()} if self._env is not None else state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets a state from `get_state`; new episodes begin."""
        self.policies.set_state(state["policies"])
        self.set_filters(state["filters"])
        if "sampling" in state:
            self.set_sampling_state(state["sampling"])

    def get_sampling_state(self) -> dict[str, Any]:
        """The state of the sampler; see `Sampler.get_state`."""
        with self._sampling.turn():
            return self.sampler.get_state()

    def set_sampling_state(self, state: Mapping[str, Any]) -> None:
        """Sets a state from `get_sampling_state`; new episodes begin, and fragments that wait are dropped."""
        with self._sampling.halted(drops=True):
            self.sampler.set_state(state)

    def set_restarts(self, restarts: int) -> None:
        """Begins new episodes, with the ids and seeds after this number of `restarts`; drops fragments that wait."""
        with self._sampling.halted(drops=True):
            self.restarts = restarts
            self.sampler.begin_from(*first_ids(self.worker_index, restarts))

    def restart_episodes(self) -> None:
        """Drops the running episodes, the metrics of finished ones, and fragments that wait; fresh episodes begin."""
        with self._sampling.halted(drops=True):
            self.sampler.restart()
            self.sampler.take_metrics()

    def set_timestep(self, timestep: int) -> None:
        """Sets the number of steps trained on."""
        if self._sampler is not None:
            self._sampler.timestep = timestep
        for policy in self.policies.values():
            policy.timestep = timestep

    def apply(self, function: Callable[[RolloutWorker], Any]) -> Any:
        """Calls a function with this worker; returns its result."""
        return function(self)

    def foreach_env(self, function: Callable[[Any], Any]) -> list[Any]:
        """Calls a function with each sub-environment; returns the results. EnvError if there are none."""
        envs = self.env.get_sub_environments()
        if not envs:
            raise EnvError(
                "The environment has no single sub-environments, so the function would never be called.",
                f"{self!r}, {getattr(self.env, 'name', type(self.env).__name__)}",
                "get_sub_environments() == []",
            ).expected(
                "the single environments",
                "implement get_sub_environments(), or change worker.env itself (worker.env.env for a VectorEnv)",
            )
        return [function(env) for env in envs]

    def foreach_policy(self, function: Callable[[Policy, str], Any]) -> list[Any]:
        """Calls a function with each policy and its id; returns the results."""
        return [function(policy, policy_id) for policy_id, policy in self.policies.items()]

    def stop(self) -> None:
        """Closes the environments, and completes the file of experience; sampling is refused afterwards."""
        with self._sampling.ended():
            try:
                if self._sampler is not None:
                    self._sampler.close_recorder()
            finally:
                if self._env is not None and not self._closed:
                    self._env.stop()
                    self._closed = True  # not after an error or an interrupt: a further call closes what is left

    @property
    def samples_in_background(self) -> bool:
        """Whether a background thread samples; see `BackgroundSampling`."""
        return self._sampling.in_background

    def note_dropped(self, steps: int) -> None:
        """Counts environment steps that the optimizer dropped because they were too old to learn from."""
        self._sampling.note_dropped(steps)

    def is_too_old(self, version: int) -> bool:
        """Whether rows sampled with this version of the weights are too old to learn from."""
        most = self.config.max_policy_lag
        on_policy = not self.policies.accept_off_policy
        return most is not None and on_policy and self.version - version > most

    @property
    def _has_all_statistics(self) -> bool:
        """Whether this is the only remote worker, so that its running statistics cover all experience.

        A restarted worker lacks the statistics that its predecessor sent after the last broadcast.
        """
        return self.num_workers == 1 and not self.restarts

    def _does_not_sample(self) -> ConfigError:
        return ConfigError("This worker does not sample: it has only policies.", repr(self), "samples=False").expected(
            "a worker with an environment", "use a remote worker, or set num_workers to 0"
        )


PolicyEvaluator = RolloutWorker
"""The name of the class in early RLlib."""
