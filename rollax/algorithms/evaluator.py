"""`Evaluator`: plays whole episodes of the trained policies, in environments of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from rollax.config import TrainerConfig
from rollax.core.spaces import leaves
from rollax.errors import ConfigError, PolicyError, SpaceError
from rollax.rollout.messages import Update
from rollax.rollout.metrics import EpisodeMetrics, EvaluationResult, Result, summarize
from rollax.rollout.worker import RolloutWorker
from rollax.rollout.worker_policies import specs_of
from rollax.rollout.worker_set import WorkerSet, worker_arguments

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer
    from rollax.rollout.policy_runner import PolicyRunner
    from rollax.rollout.remote_workers import RemoteEvaluation


class Evaluator:
    """Evaluates a trainer's current policies; see `Trainer.evaluate`, and `recording.py` for videos and data sets.

    Attributes:
        on_workers: called with the workers each time that they are made.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.on_workers: Callable[[WorkerSet], Any] = lambda workers: None
        if (evaluation := trainer.config.for_evaluation()).model != trainer.config.model:
            self._check_weights_fit(evaluation)
        if trainer.config.evaluation_interval is not None and trainer.config.env is not None and not self.plays:
            raise ConfigError(
                "The environment cannot be evaluated: external clients play its episodes.",
                "config key 'evaluation_interval'",
                f"env={trainer.config.env!r}",
            ).expected(
                "an environment that can be stepped",
                "set evaluation_config={'env': ..., 'env_config': {}}, or leave the key out",
            )
        self._estimates = trainer.config.estimates(trainer) if trainer.optimizer.learns else None
        self._workers: WorkerSet | None = None  # made at the first use
        self._evaluations = 0  # the number of evaluations in other processes so far
        self._begun: tuple[RemoteEvaluation, Mapping[str, Any]] | None = None
        if trainer.config.evaluation_interval is not None and trainer.config.evaluation_num_workers:
            self._workers = self.workers  # before training, so that a cluster without room raises an error now

    @property
    def plays(self) -> bool:
        """Whether there is an environment whose episodes the evaluator can play."""
        config = self._trainer.config
        if config.env is None:
            return False
        if config.for_evaluation().env is not config.env or not config.steps_the_env:
            return True
        return all(self._trainer.workers.foreach_worker(lambda worker: worker.env.evaluates))

    def evaluate(self, num_episodes: int | None = None) -> EvaluationResult:
        """The result of `num_episodes` episodes (None: `evaluation_num_episodes`), with off-policy estimates."""
        if self._trainer.config.env is None and self._estimates is not None:
            return evaluation_result([], self._estimates())
        count = self.count_of(num_episodes)
        if self._begun is not None:  # `train` has begun an evaluation, and a callback of the iteration evaluates too
            self._begun[0].wait()
        if self.workers.remote:
            return self.result_of(self._played_elsewhere(count).wait())
        self._copy_policies_to(self.workers.local)
        return self.result_of(self.workers.local.evaluate(count))

    def begin(self) -> None:
        """Begins an evaluation of the current policies in other processes, whose result `finish` returns."""
        estimates = {} if self._estimates is None else self._estimates()
        self._begun = self._played_elsewhere(self.count_of(None)), estimates

    def finish(self) -> EvaluationResult:
        """Waits for the episodes of the evaluation that has begun, and returns the result."""
        assert self._begun is not None
        (playing, estimates), self._begun = self._begun, None
        return evaluation_result(playing.wait(), estimates)

    @property
    def workers(self) -> WorkerSet:
        """The workers that evaluate, made at the first use."""
        if self._workers is None:
            config, count = self.config(), self._trainer.config.evaluation_num_workers
            if count:
                envs = min(config.num_envs_per_worker, -(-config.evaluation_num_episodes // count))
                config = config.changed(num_workers=count, num_envs_per_worker=envs)
            self._workers = WorkerSet({**self._worker_arguments(config), "record": False})
            self.on_workers(self._workers)
        return self._workers

    def _played_elsewhere(self, count: int) -> RemoteEvaluation:
        from rollax.rollout.remote_workers import RemoteEvaluation  # loaded only where it is used

        local = self.workers.local
        self._evaluations += 1
        weights, filters = self._trained(local)
        update = Update(self._evaluations, self._trainer.optimizer.steps, weights, filters)
        return RemoteEvaluation(self.workers.remote, count, local.config.num_envs_per_worker, update)

    def stop(self) -> None:
        """Closes the environments; the next evaluation makes new ones, with seeds that depend on the iteration."""
        workers, self._workers, self._begun = self._workers, None, None
        if workers is not None:
            workers.stop()

    def count_of(self, num_episodes: int | None) -> int:
        """The number of episodes to play, by default `evaluation_num_episodes`; ConfigError for an invalid one."""
        if num_episodes is None:
            return self._trainer.config.evaluation_num_episodes
        from rollax.rollout.whole_episodes import OR_DEFAULT, check_count  # loaded only where it is used

        check_count(num_episodes, "evaluate(num_episodes=...)", OR_DEFAULT)
        return num_episodes

    def result_of(self, episodes: list[EpisodeMetrics]) -> EvaluationResult:
        """The result of an evaluation with these episodes, and with off-policy estimates if the config has any."""
        return evaluation_result(episodes, {} if self._estimates is None else self._estimates())

    def _copy_policies_to(self, worker: RolloutWorker) -> None:
        weights, filters = self._trained(worker)
        worker.set_weights(weights)
        worker.set_filters(filters)
        worker.set_timestep(self._trainer.optimizer.steps)

    def _trained(self, worker: RolloutWorker) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the trained weights and running statistics of the policies that the worker has.

        Raises SpaceError if these policies choose other actions there than in training.
        """
        trained, there = self._trainer.worker, worker.policies
        for name in trained.policies.keys() & there.keys():
            ours, theirs = trained.runners[name], worker.runners[name]
            if _choices(theirs) != _choices(ours):
                raise SpaceError(
                    "The environment of the evaluation has other actions.",
                    f"evaluation_config, policy {name!r}",
                    _actions_text(theirs),
                ).expected(
                    f"{_actions_text(ours)}, as in training; finite bounds of a Box may be others",
                    "evaluate in such an environment",
                )
        parts = trained.get_weights(), trained.get_filters()
        weights, filters = ({name: part for name, part in of.items() if name in there} for of in parts)
        return weights, filters

    def _check_weights_fit(self, evaluation: TrainerConfig) -> None:
        """Refuses evaluation policies that do not fit the trained weights, before the first evaluation."""
        trained = self._trainer.worker.policies
        arguments = self._worker_arguments(evaluation)
        specs = arguments["policy_cls_or_specs"]
        for name in trained.keys() & specs.keys():
            spaces = {kind: getattr(trained[name], kind) for kind in ("observation_space", "action_space")}
            specs[name] = specs[name]._replace(**spaces)
        try:
            self._copy_policies_to(RolloutWorker(**arguments, samples=False))
        except PolicyError as error:
            raise ConfigError(f"evaluation_config is invalid. {error}") from None

    @contextmanager
    def further_worker(self, config: TrainerConfig) -> Iterator[RolloutWorker]:
        """Context of a worker with the current policies and an environment of its own."""
        worker = RolloutWorker(**self._worker_arguments(config), record=False)
        try:
            self._copy_policies_to(worker)
            yield worker
        finally:
            worker.stop()

    def _worker_arguments(self, config: TrainerConfig) -> dict[str, Any]:
        arguments = worker_arguments(config, self._trainer.policy_class)
        specs = specs_of(arguments["policy_cls_or_specs"])
        for name, policy in self._trainer.worker.policies.items():
            # A centralized critic does not act, and its weights fit only its space in training, which is kept here.
            space = getattr(policy.config, "critic_space", None)
            if space is not None and name in specs:
                specs[name] = specs[name]._replace(config={**specs[name].config, "critic_space": space})
        return {**arguments, "policy_cls_or_specs": specs}

    def config(self, recording: int = 0, explore: bool | None = None, num_episodes: int | None = None) -> TrainerConfig:
        """The config of evaluation.

        Args:
            recording: the number of files that a recording's folder has already.
            explore: replaces the config's `explore`.
            num_episodes: the number of episodes to play, by default `evaluation_num_episodes`.
        """
        config = self._trainer.config.for_evaluation(explore)
        envs = min(config.num_envs_per_worker, num_episodes or config.evaluation_num_episodes)
        # Separate random streams: evaluation does not repeat training episodes. The seed depends on the iteration in
        # which workers are made, so that a run and its restored copy play the same episodes after `save(exact=True)`.
        iteration = self._trainer.iteration
        seed = config.seed
        if seed is not None:
            words = (seed, 1, iteration, *([recording] if recording else ()))
            seed = int(np.random.SeedSequence(words).generate_state(1)[0])
        # `record_env` records training: evaluation would write other episodes into the same files.
        trained_in = self._trainer.config.env
        env = getattr(config.env, "unrecorded", config.env) if config.env is trained_in else config.env
        return config.changed(num_envs_per_worker=envs, seed=seed, env=env)


def _choices(runner: PolicyRunner) -> list[tuple[Any, ...]]:
    """What a policy chooses in each part of its action space; dtypes, and the bounds of Boxes, make no difference."""
    found: list[tuple[Any, ...]] = []
    for path, space in leaves(runner.policy.action_space):
        if isinstance(space, Box):
            found.append((path, space.shape, runner.action_map.boxes[path].scaled.tolist()))
        elif isinstance(space, Discrete):
            found.append((path, int(space.n), int(space.start)))
        elif isinstance(space, MultiDiscrete):
            found.append((path, space.nvec.tolist(), space.start.tolist()))
        else:
            found.append((path, type(space), space.shape))
    return found


def _actions_text(runner: PolicyRunner) -> str:
    scale = f", normalize_actions={runner.action_map.settings['normalize_actions']}" if runner.action_map.boxes else ""
    return f"{runner.policy.action_space}{scale}"


def evaluation_result(
    episodes: list[EpisodeMetrics], off_policy_estimates: Mapping[str, Any] = MappingProxyType({})
) -> EvaluationResult:
    """The result of an evaluation from the metrics of its episodes."""
    summary = summarize(episodes)
    own = {
        "episodes": len(episodes),
        "episode_rewards": [episode.reward for episode in episodes],
        "off_policy_estimates": dict(off_policy_estimates),
    }
    return cast(EvaluationResult, Result({**summary, **own}))
