"""`Trainer`: trains, evaluates, acts and saves checkpoints, given an environment and a config."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Never, Self, cast

import numpy as np

from rollax.algorithms.call_guard import FIT, ITERATION, PLAYING, TRAIN, CallGuard, non_reentrant
from rollax.algorithms.evaluator import Evaluator
from rollax.algorithms.registry import refuse_config_of_another, refuse_incomplete, refuse_misplaced, run_name
from rollax.batch import DEFAULT_POLICY
from rollax.config import TrainerConfig, resolve_config
from rollax.config.field_group import refuse_two_envs
from rollax.core import runtime
from rollax.core.cleanup import cleanup_on_error
from rollax.core.other_names import OtherNamesOfTrainer, naming_arguments
from rollax.errors import ConfigError
from rollax.optimizers.optimizer import Optimizer
from rollax.policy.policy import Policy
from rollax.policy.policy_spec import PolicyClass
from rollax.rollout.callbacks import check_returned, restore_states, states_of
from rollax.rollout.metrics import EpisodeMetrics, EpisodeWindow, EvaluationResult, Result, TrainResult
from rollax.rollout.worker import RolloutWorker
from rollax.rollout.worker_set import WorkerSet, worker_arguments

if TYPE_CHECKING:
    from rollax.runs.display import ProgressMode
    from rollax.runs.fit import FitResult
    from rollax.runs.loggers.logger import Logger

log = logging.getLogger("rollax.algorithms")


class _ClassName:
    """A class attribute whose value is the name of the class."""

    def __get__(self, trainer: Any, owner: type) -> str:
        return owner.__name__


class Trainer(OtherNamesOfTrainer):
    """Trains the policies of one algorithm.

    Args:
        env: an id, a registered name, `module:Class`, a class, or a creator function; may be in the config instead. Not
            required with recorded data (`input`).
        config: a dict with the algorithm's keys, or its typed config.
    Raises:
        ConfigError, SpaceError, EnvError, PolicyError: the config, a space, the environment or a policy is wrong.
    """

    name: ClassVar[str] = cast(str, _ClassName())
    """The name of the algorithm, which a checkpoint stores; the class name if none is set or inherited."""
    config_class: ClassVar[type[TrainerConfig]]
    policy_class: ClassVar[PolicyClass]
    optimizer_class: ClassVar[type[Optimizer]]
    """The optimizer, which turns samples into updates."""

    # A class attribute, set before __init__ is called, because the __init__ of a subclass may have no keyword for it.
    _evaluates_only = False

    def __init__(
        self, env: Any = None, config: Mapping[str, Any] | TrainerConfig | None = None, **misplaced: Never
    ) -> None:
        refuse_incomplete(type(self))
        refuse_misplaced(type(self), env, misplaced)
        refuse_config_of_another(config, type(self))
        refuse_two_envs(env, config, f"{type(self).__name__}(env=..., config=...)")
        self._config = resolve_config(self.config_class, config, **({} if env is None else {"env": env}))
        optimizer_class = self._config.optimizer_for(type(self))
        if self._evaluates_only:
            from rollax.optimizers.evaluation_only import NullOptimizer  # loaded only where it is used

            optimizer_class = NullOptimizer
        self._config = self._config.with_spaces(f"{type(self).__name__}(env=...)")
        arguments = worker_arguments(self.config, self.policy_class)
        self.workers = WorkerSet(arguments, samples=self.config.steps_the_env)
        self.iteration = 0
        with cleanup_on_error(self.workers.stop):
            if not self._evaluates_only:
                runtime.refuse_missing_gpus(self.config.num_gpus)
            self.optimizer = optimizer_class(self.workers.local, self.workers.remote, self.config)
            with cleanup_on_error(self.optimizer.stop):
                self.evaluator = Evaluator(self)
        self._running = CallGuard(type(self).__name__)
        self.time_total_s = 0.0
        self.recorded_in: tuple[Path, int] | None = None
        """The run folder with the results of this training so far, and the iteration of the last result in it."""
        self.episodes: list[EpisodeMetrics] = []
        """The episodes that ended in the last iteration."""
        self._evaluation_interval = self.config.evaluation_interval
        self._window = EpisodeWindow(self.config.metrics_num_episodes_for_smoothing)

    def __repr__(self) -> str:
        env = self.config.env if isinstance(self.config.env, str) else getattr(self.config.env, "__name__", "...")
        steps = f"timesteps_total={self.optimizer.steps}"
        return f"{type(self).__name__}(env={env!r}, num_workers={self.config.num_workers}, {steps})"

    @property
    def config(self) -> TrainerConfig:
        return self._config

    @config.setter
    def config(self, value: Any) -> None:
        raise ConfigError("The config of a trainer cannot be replaced.", f"{type(self).__name__}.config", value).fix(
            f"create {type(self).__name__}(config=trainer.config.changed(...)), and restore a checkpoint into it"
        )

    @property
    def worker(self) -> RolloutWorker:
        """The local worker, which holds the trained policies."""
        return self.workers.local

    @property
    def evaluation_workers(self) -> WorkerSet:
        """The workers that evaluate, with their environments: `evaluation_workers.foreach_worker(function)`.

        `restore` and `save(exact=True)` replace the workers and their environments.

        Raises:
            ConfigError: there is no environment to evaluate in.
        """
        return self.evaluator.workers

    @property
    def _evaluates_next(self) -> bool:
        interval = self._evaluation_interval
        return interval is not None and (self.iteration + 1) % interval == 0

    @property
    def evaluates_while_training(self) -> bool:
        """Whether the next iteration evaluates the policies that it begins with, while it trains."""
        return self.config.evaluation_parallel_to_training and self._evaluates_next

    @non_reentrant
    def train(self) -> TrainResult:
        """Runs one iteration: steps of the optimizer, and an evaluation if it is due. Returns the result.

        The keys of the result are always the same. If the call raises or is interrupted, the policies are in the state
        before or after an update, samples without an update are dropped, and the next call starts new episodes.
        """
        runtime.refuse_forked()
        started = time.perf_counter()
        steps_before, env_steps_before = self.optimizer.steps, self.optimizer.env_steps
        due, parallel = self._evaluates_next, self.evaluates_while_training
        try:
            if parallel:
                self.evaluator.begin()
            with self._running.marked(ITERATION):
                stats = self.optimizer.iterate()
            self.iteration += 1
            self.episodes = self.optimizer.take_episodes()
            episodes = self._window.summary(self.episodes)
            trained_s = time.perf_counter() - started
            timers, queue = self.optimizer.timings.take()  # before an evaluation, which may raise
            evaluation = self.evaluator.finish() if parallel else self.evaluate() if due else None
        finally:  # an iteration that raises has made steps that count, so its time counts too
            passed_s = time.perf_counter() - started
            self.time_total_s += passed_s
        policy_rewards = episodes["policy_reward_mean"]
        result = Result(
            {
                **episodes,
                "policy_reward_mean": {policy_id: policy_rewards.get(policy_id) for policy_id in self.worker.policies},
                "training_iteration": self.iteration,
                "timesteps_total": self.optimizer.steps,
                "timesteps_this_iter": self.optimizer.steps - steps_before,
                "agent_timesteps_total": self.optimizer.agent_steps,
                "time_this_iter_s": passed_s,
                "time_total_s": self.time_total_s,
                "env_steps_per_s": (self.optimizer.env_steps - env_steps_before) / trained_s,
                "timers": timers,
                "info": {
                    "learner": stats,
                    "queue": queue,
                    "workers": self.workers.health(),
                    **self.optimizer.report(),
                },
                "evaluation": evaluation,
            }
        )
        callbacks = self.worker.callbacks
        check_returned(callbacks, "on_train_result", callbacks.on_train_result(trainer=self, result=result), result)
        return cast(TrainResult, result)

    @naming_arguments("FIT")
    def fit(
        self,
        stop: Mapping[str, float],
        out: str | Path | None = None,
        *,
        checkpoint_frequency: int = 0,
        keep_checkpoints: int | None = None,
        keep_best: bool = True,
        evaluate: bool = True,
        progress: ProgressMode = "auto",
        loggers: Sequence[str | Mapping[str, Any] | Logger] | None = None,
        diagnose: bool = True,
    ) -> FitResult:
        """Trains until a stop condition is reached, as `rollax train` does: with progress, results and checkpoints.

        Ctrl-C or SIGTERM ends training after the running iteration, which then no longer waits for clients, and saves
        the run; a second one raises KeyboardInterrupt at once. An error in an iteration is raised here, and the files
        written so far are kept.

        Args:
            stop: any of `episode_reward_mean`, `evaluation_reward_mean` (goals), `timesteps_total`,
                `training_iteration`, `time_total_s` and `iterations_without_improvement` (limits) -> the number that
                ends training. With a goal for `evaluation_reward_mean` and no `evaluation_interval`, every 10th
                iteration evaluates.
            out: the run folder; None writes nothing. If the trainer's results so far are in this folder, its run
                continues. Any other folder must be new or empty; its results begin with the trainer's results so far.
            checkpoint_frequency: iterations between checkpoints; 0 saves at the end only.
            keep_checkpoints: number of newest checkpoints to keep; None keeps all.
            keep_best: keep the best model of this run folder, by greedy evaluation where there are evaluations, else by
                `episode_reward_mean` in every 10th iteration and when a checkpoint is saved.
            evaluate: evaluate greedily at the end, which adds `evaluation` to the last result. There is no such
                evaluation after a signal, if `can_evaluate` is false, or if no episode has ended in the run and the
                environment has no time limit in Gymnasium.
            progress: "auto" shows a live table on a terminal and in a notebook, and a line per iteration elsewhere;
                "lines" always prints lines, "none" prints nothing.
            loggers: where the numbers, pictures and videos go besides the results of the run folder: names, names with
                settings such as `{"wandb": {"project": "mine"}}`, or instances of `Logger`; None for a TensorBoard log.
                See `rollax docs logging`.
            diagnose: warn once of each problem that the rules of `rollax doctor` find during the run. See
                `rollax docs doctor`.
        Returns:
            The last result, the last checkpoint, and the best checkpoint with its score.
        Raises:
            ConfigError: an unknown stop condition, a number out of range, a limit that is reached already (limits are
                totals of the run), or a folder that is not empty or has a later checkpoint than the trainer.
        """
        from rollax.runs.fit import fit

        self._running.refuse(FIT, TRAIN, *PLAYING)
        with self._running.marked(FIT):
            return fit(
                self,
                run_name(type(self)),
                stop,
                out,
                checkpoint_frequency=checkpoint_frequency,
                keep_checkpoints=keep_checkpoints,
                keep_best=keep_best,
                evaluate=evaluate,
                progress=progress,
                loggers=loggers,
                diagnose=diagnose,
            )

    @contextmanager
    def stopping_at(self, timesteps_total: float, evaluation_interval: int | None = None) -> Iterator[None]:
        """Ends iterations at a number of steps while the block runs, as `fit` does with its stop conditions.

        An iteration ends with the step of the optimizer that reaches the number, however long iterations are otherwise.
        With recorded data the last step has only the remaining updates.

        Args:
            timesteps_total: as in the results of `train`; infinity sets no limit.
            evaluation_interval: iterations between two evaluations, if the config sets none; 0 or None: no evaluations.
        """
        before = self.optimizer.stop_at, self._evaluation_interval
        self.optimizer.stop_at = timesteps_total
        self._evaluation_interval = before[1] or evaluation_interval or None
        try:
            yield
        finally:
            self.optimizer.stop_at, self._evaluation_interval = before

    def stop_waiting(self) -> None:
        """Ends the running or the next iteration early instead of waiting for external clients.

        Signal handlers may call it.
        """
        self.optimizer.waits = False

    @naming_arguments("EVALUATE")
    @non_reentrant
    def evaluate(self, num_episodes: int | None = None, record_dir: str | Path | None = None) -> EvaluationResult:
        """Plays whole episodes in separate environments, greedily by default; nothing is learned from them.

        Args:
            num_episodes: the exact number of episodes; None for `evaluation_num_episodes`.
            record_dir: a folder for an MP4 of each episode, which replaces files of the same names; None: no videos.
        Returns:
            Means and extremes, `episode_rewards`, and with `record_dir` the paths under `videos`. Without an
            environment there are no episodes, only the estimates of `off_policy_estimation_methods`.
        Raises:
            ConfigError: `num_episodes` is not a positive whole number, there is nothing to evaluate with (neither an
                environment nor `off_policy_estimation_methods`), or the extra `video` is not installed.
            EnvError: the environment is broken, returns no frame to record, or has an episode of 1,000,000 steps.
        """
        runtime.refuse_forked()
        if record_dir is not None:
            from rollax.algorithms.recording import evaluate_recorded  # loaded only where it is used

            return evaluate_recorded(self.evaluator, num_episodes, record_dir)
        return self.evaluator.evaluate(num_episodes)

    @property
    def can_evaluate(self) -> bool:
        """Whether `evaluate` can play episodes: in an environment that is no policy server, and before `stop`."""
        return not self._running.stopped and self.evaluator.plays

    @naming_arguments()
    @non_reentrant
    def record(
        self, num_episodes: int, out: str | Path, *, explore: bool = True, infos: bool = False
    ) -> EvaluationResult:
        """Plays `num_episodes` in separate environments and writes them as a data set into the folder `out`.

        The episodes depend on the config's seed, the iteration, and the number of files that are in the folder.

        Args:
            explore: false for greedy actions, which are written without log-probabilities.
            infos: write the info dicts too.
        Returns:
            As `evaluate`, with the paths of the files under `files`.
        """
        runtime.refuse_forked()
        from rollax.algorithms.recording import record  # loaded only where it is used

        return record(self.evaluator, num_episodes, out, explore=explore, infos=infos)

    @naming_arguments("ACT")
    def compute_single_action(
        self,
        obs: Any,
        state: Any = None,
        explore: bool = False,
        prev_action: Any = None,
        prev_reward: float | None = None,
        *,
        policy_id: str = DEFAULT_POLICY,
    ) -> Any:
        """Returns the environment action for one raw observation, greedily unless `explore`.

        The observation filter, and the scaling and clipping of actions are applied. A policy with memory returns
        `(action, state_out, fetches)`; see `PolicyRunner.compute_single_action`.
        """
        self.get_policy(policy_id)
        return self.worker.runners[policy_id].compute_single_action(obs, state, explore, prev_action, prev_reward)

    @naming_arguments("ACT")
    def compute_actions(
        self,
        observations: Any,
        states: Sequence[Any] | None = None,
        explore: bool = False,
        prev_actions: Any = None,
        prev_rewards: Any = None,
        *,
        policy_id: str = DEFAULT_POLICY,
    ) -> tuple[Any, list[np.ndarray], dict[str, Any]]:
        """Returns `(actions, states, fetches)` for N raw observations, greedily unless `explore`.

        The observation filter, and the scaling and clipping of actions are applied; see
        `PolicyRunner.compute_actions`.
        """
        self.get_policy(policy_id)
        return self.worker.runners[policy_id].compute_actions(observations, states, explore, prev_actions, prev_rewards)

    def get_policy(self, policy_id: str = DEFAULT_POLICY) -> Policy:
        """Returns a policy, which takes filtered observations and returns unscaled actions."""
        return self.worker.get_policy(policy_id)

    def get_weights(self, policy_ids: Sequence[str] | str | None = None) -> dict[str, Any]:
        """Returns policy id -> name -> NumPy array, of one policy, of some or, with None, of all."""
        ids = list(self.worker.policies) if policy_ids is None else policy_ids
        ids = [ids] if isinstance(ids, str) else ids
        return {policy_id: self.get_policy(policy_id).get_weights() for policy_id in ids}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Sets the weights of some or all policies, as `get_weights` of any trainer returns them.

        Other processes act with them from their next request on.
        """
        self.worker.set_weights(weights)
        if len(self.workers.remote):  # not after stop()
            self.optimizer.broadcast()
        unfiltered = [i for i in weights if not self.worker.runners[i].learns and self.worker.runners[i].filter.is_new]
        if unfiltered:
            log.warning(
                "Policies %s and their observation filters do not learn, and the filters have no statistics. Set the "
                "filters that belong to these weights: worker.set_filters({id: state, ...}).",
                unfiltered,
            )

    def add_policy(
        self,
        policy_id: str,
        spec: Any = None,
        *,
        copy_of: str | None = None,
        trained: bool = True,
        policy_mapping_fn: Callable[..., str] | None = None,
    ) -> None:
        """Adds a policy to a running trainer; the other policies go on as after `from_checkpoint`.

        The other policies keep their weights, optimizer and filter states, replay buffers and counters; a replay buffer
        on the device is replaced by an empty one on the host. Environments, callbacks and worker processes are made
        again, and new episodes begin.

        Args:
            spec: an entry of `multiagent.policies`, such as None for the algorithm's own policy.
            copy_of: the policy whose state, apart from random numbers, is copied; None: the new policy is untrained.
            trained: whether the new policy learns.
            policy_mapping_fn: the new mapping; None keeps the mapping of the config.
        Raises:
            ConfigError, PolicyError, SpaceError: a wrong argument; the trainer keeps its policies and their state.
        """
        from rollax.algorithms import policy_changes

        self._running.refuse("add_policy()", ITERATION, *PLAYING)
        policy_changes.add(self, policy_id, spec, copy_of=copy_of, trained=trained, policy_mapping_fn=policy_mapping_fn)

    def remove_policy(self, policy_id: str, *, policy_mapping_fn: Callable[..., str] | None = None) -> None:
        """Removes a policy from a running trainer; the other policies go on as with `add_policy`.

        Args:
            policy_mapping_fn: the new mapping, if the mapping of the config names the policy.
        Raises:
            ConfigError, PolicyError, SpaceError: as `add_policy`.
        """
        from rollax.algorithms import policy_changes

        self._running.refuse("remove_policy()", ITERATION, *PLAYING)
        policy_changes.remove(self, policy_id, policy_mapping_fn=policy_mapping_fn)

    def save(self, directory: str | Path, *, exact: bool = False) -> Path:
        """Writes a checkpoint folder `checkpoint_<iteration>` into `directory` and returns its path.

        `exact` also ends the running episodes, and drops episodes that are in no result, so that continuing and
        restoring give the same run, bit for bit.

        Raises:
            CheckpointError: the checkpoint exists already, or writing failed; no incomplete checkpoint is left.
            ConfigError: `exact` for runs that cannot be saved exactly; `rollax docs training` lists them.
            NonFiniteError: weights, target parameters or optimizer state contain NaN or infinity.
        """
        if exact:
            self._running.refuse("save(exact=True)", ITERATION, *PLAYING)
            self.optimizer.begin_exactly()
            self.optimizer.forget()
            self.workers.restart_episodes()
            self.evaluator.stop()
        from rollax.algorithms import checkpoint

        return checkpoint.write(self, Path(directory) / f"checkpoint_{self.iteration:06d}")

    def restore(self, path: str | Path) -> None:
        """Loads policies, optimizers, filters, counters and random state of a checkpoint; the config stays.

        Policies that only the checkpoint has are dropped, and policies that only the trainer has keep their weights and
        optimizer states; a warning names them.

        Args:
            path: a checkpoint; or a folder of checkpoints or a run folder, whose newest checkpoint is read.
        Raises:
            CheckpointError: the checkpoint is damaged, or of another format, algorithm, space or filter, or has none of
                the policies; the trainer keeps its state, but may begin new episodes.
            PolicyError: likewise, if the checkpoint is of another model.
        """
        from rollax.algorithms import checkpoint

        self._running.refuse("restore()", FIT, ITERATION, *PLAYING)  # a run folder has no place for earlier results
        path = checkpoint.checkpoint_at(path, "restore(path)")
        checkpoint.restore(self, checkpoint.read(path), path)

    @classmethod
    def from_checkpoint(cls, path: str | Path, *, trust_code: bool = False, learn: bool = True, **changes: Any) -> Self:
        """Returns a trainer restored from a checkpoint; `Trainer.from_checkpoint` accepts checkpoints of any algorithm.

        A subclass stores additional state through its `get_state` and `set_state`.

        Args:
            path: a checkpoint; or a folder of checkpoints or a run folder, whose newest checkpoint is read.
            learn: False opens it only to act, evaluate and record, without recorded data or remote training workers.
                Changes of keys that only learning reads are refused.
            trust_code: import the classes and functions that the checkpoint names, your own trainer class included.
            changes: config keys to replace, such as `env` or keys that hold code. Keys that are left out of `model` or
                `multiagent` keep their values from the checkpoint. `multiagent` may have more or fewer policies.
        Raises:
            CheckpointError: the checkpoint is damaged, of another format or algorithm, or names untrusted code.
            ConfigError: a change is invalid, or has no effect.
        """
        from rollax.algorithms import checkpoint

        own, path = None if cls is Trainer else cls, checkpoint.checkpoint_at(path, "from_checkpoint(path)")
        return cast(Self, checkpoint.opened(path, own, changes, trust_code=trust_code, learn=learn))

    def get_state(self) -> dict[str, Any]:
        """Returns the state that a checkpoint stores, without the config."""
        self.optimizer.rest()
        of_callbacks = states_of(self.worker.callbacks, self)  # first, because callbacks may change the trainer
        return {
            "iteration": self.iteration,
            "time_total_s": self.time_total_s,
            "env_steps": self.optimizer.env_steps,
            "agent_steps": self.optimizer.agent_steps,
            "episodes": self._window.state(),
            "workers": self.workers.get_state(),
            "optimizer": self.optimizer.get_state(),
            "version": self.optimizer.version,
            "callbacks": of_callbacks,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets the state that `get_state` returned; if a part of it is refused, the trainer keeps its own state.

        If `on_restore`, which is called last, raises an error, the trainer keeps the new state.
        """
        self.optimizer.rest()
        before = self.workers.get_state()
        try:
            self.workers.set_state(state["workers"])
            # The optimizer has no copy of its contents, so it comes second, and changes completely or not at all.
            self.optimizer.set_state(state["optimizer"])
        except BaseException:
            # The workers may be partly changed: weights of another model are refused only while they are set.
            self.workers.set_state(before)
            raise
        self.iteration = state["iteration"]
        self.time_total_s = state["time_total_s"]
        self.optimizer.env_steps = state["env_steps"]
        self.optimizer.agent_steps = state["agent_steps"]
        # Clients with local inference keep weights by version: a version that had other weights must not come again.
        stored, own = state.get("version", 1), self.optimizer.version
        self.optimizer.version = stored if stored > own else own + 1
        self._window.set_state(state["episodes"])
        self.optimizer.forget()
        self.evaluator.stop()
        restore_states(self.worker.callbacks, self, state.get("callbacks", {}))

    def stop(self) -> None:
        """Closes environments, memory-mapped files and other processes. If one fails to close, the others still do.

        Afterwards the trainer still acts, and `save` works. Methods that train, play episodes, restore a checkpoint, or
        add or remove policies raise RollaxError, and so does `save(exact=True)`.
        """
        self._running.stopped = True
        with ExitStack() as parts:
            for part in (self.evaluator, self.workers, self.optimizer):  # the last is stopped first
                parts.callback(part.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
