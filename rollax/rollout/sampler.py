"""`Sampler`: samples for a `RolloutWorker`, on request. `make_sampler.py` chooses its class.

By default `CompiledSampler` samples an environment in JAX, `SimulatorSampler` a simulator of PyTorch tensors, and
`BlockSampler` an environment whose sub-environments step together, such as a Gymnasium environment in the worker's
process. `RowSampler` samples all other environments. If a run has a feature that a sampler lacks (`why_not_compiled`,
`why_not_in_blocks`), `BlockSampler` or else `RowSampler` takes its place. The config key `sampler` sets another class.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rollax.batch import Fragment
from rollax.core.stored_values import as_text, read_count, read_dict, read_value, wrong_value
from rollax.env.base_env import BaseEnv
from rollax.env.rows import Rows
from rollax.errors import RollaxError
from rollax.rollout.episodes import EpisodeTable
from rollax.rollout.messages import Rollout
from rollax.rollout.metrics import EpisodeMetrics
from rollax.rollout.policy_runner import PolicyRunner

if TYPE_CHECKING:
    from rollax.rollout.step_recorder import StepRecorder

log = logging.getLogger("rollax.sampling")
_ID_LIMIT = 1 << 62  # there must be further ids in int64


@dataclass(eq=False, repr=False)
class Sampler(ABC):
    """Steps an environment with policies and collects their trajectories.

    A subclass implements `sample`, `step` and `restart`, and keeps `episodes` up to date: `begin` when a trajectory
    begins, `add_rewards` for each poll, `end_trajectories` and `end` when they end. Callbacks, metrics, seeds and the
    episode counts in a checkpoint depend on these calls.

    Args:
        env: the environment.
        runners: policy id -> policy, with its observation filter and action map.
        episodes: the running episodes.
        policy_of: `(agent_id, episode) -> policy id`; None for a single policy. It is called once per agent and
            episode, but a `CompiledSampler` calls it for each agent at each compiled call.
        fragment_length: the least number of environment steps in a fragment, divided by the number of sub-environments.
        complete_episodes: whether a fragment has only whole episodes.
        record: keep trajectories; false if only metrics are read, as in evaluation.
        explore: whether the policies explore; otherwise actions are greedy.
    Attributes:
        timestep: steps trained on so far, in the unit of `count_steps_by`.
        recorder: writes the trajectories; None without the config key `output`.
        next_trajectory: the id of the next trajectory, unique across workers; part of a checkpoint.
    """

    env: BaseEnv
    runners: Mapping[str, PolicyRunner]
    episodes: EpisodeTable
    _: KW_ONLY
    policy_of: Callable[..., str] | None = None
    fragment_length: int = 200
    complete_episodes: bool = False
    record: bool = True
    explore: bool = True
    timestep: int = field(default=0, init=False)
    recorder: StepRecorder | None = field(default=None, init=False)
    next_trajectory: int = field(init=False)

    def __post_init__(self) -> None:
        self.next_trajectory = self.episodes.next_id

    @abstractmethod
    def sample(self) -> tuple[dict[str, Fragment], int]:
        """`(policy id -> fragment, number of environment steps)`; a policy without complete rows has no fragment.

        After a call that raised, or was interrupted, fresh episodes begin.
        """

    @abstractmethod
    def step(self) -> None:
        """Plays one or more steps of an evaluation; after an interrupted call, fresh episodes begin."""

    @abstractmethod
    def restart(self) -> None:
        """Drops running episodes and rows that are in no fragment yet; the next call resets all sub-environments."""

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int] | None = None) -> Rows | None:
        """Resets sub-environments; in an evaluation, sub-environments without a further episode rest instead.

        If sub-environments of this environment cannot rest, all are reset while any has an episode to play.

        Args:
            env_index: [K] sub-environments whose episodes have ended or are dropped.
            seeds: K seeds, as for `BaseEnv.reset_rows`.
        Returns:
            The first rows of the next episodes, fewer than K if some rest; None if none begins, or if the environment
            begins them by itself.
        """
        plays = self.episodes.counting(env_index)
        if np.count_nonzero(plays) < len(plays):
            if self.episodes.are_played():
                return None
            if self.env.rest_rows(env_index[~plays]):
                env_index = env_index[plays]
                seeds = None if seeds is None else list(compress(seeds, plays))
        return self.env.reset_rows(env_index, seeds) if len(env_index) else None

    def take_metrics(self) -> list[EpisodeMetrics]:
        """The metrics of the episodes finished since the last call."""
        return self.episodes.take_metrics(list(self.runners))

    def close_recorder(self) -> None:
        """Completes the file of experience, if there is one."""
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            recorder.close()

    def begin_from(self, first_id: int, first_episode: int) -> None:
        """Sets the next ids and the number of episodes that each sub-environment has begun; new episodes begin."""
        self.episodes.next_id = self.next_trajectory = first_id
        self.episodes["begun"][:] = first_episode
        self.restart()

    def get_state(self) -> dict[str, Any]:
        """The state for a checkpoint: numbers of episodes and trajectories so far, and the policies' random states."""
        return {
            "episodes_begun": self.episodes["begun"].copy(),
            "next_episode_id": self.episodes.next_id,
            "next_trajectory_id": self.next_trajectory,
            "acting": {policy_id: runner.policy.get_acting_state() for policy_id, runner in self.runners.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets a state from `get_state`; new episodes begin. CheckpointError for an invalid one."""
        where = "sampling"
        begun = read_value(state, "episodes_begun", where)
        if not isinstance(begun, np.ndarray) or begun.ndim != 1 or begun.dtype.kind not in "iu" or (begun < 0).any():
            raise wrong_value(
                f"{where}: episodes_begun", as_text(begun), "an array [num_envs] of integers of at least 0"
            )
        next_id, next_trajectory = (
            read_count({"next_trajectory_id": 0, **state}, f"next_{name}_id", where)
            for name in ("episode", "trajectory")
        )
        if max(next_id, next_trajectory) >= _ID_LIMIT:
            raise wrong_value(f"{where}: next ids", max(next_id, next_trajectory), f"less than {_ID_LIMIT}")
        acting = read_dict(state, "acting", where)
        if unknown := set(acting) - set(self.runners):
            raise wrong_value(f"{where}: acting", sorted(unknown), f"ids of the policies {list(self.runners)}")
        shared = min(len(begun), self.episodes.num_envs)  # the new config may have another number of sub-environments
        self.episodes["begun"][:shared] = begun[:shared]
        self.episodes.next_id = next_id
        self.next_trajectory = max(self.next_trajectory, next_trajectory)
        for policy_id, values in acting.items():
            self.runners[policy_id].policy.set_acting_state(values)
        self.restart()


def warn_of_interruption(steps: int) -> None:
    """Warns that the running episodes are dropped, with some steps that are in no batch yet."""
    log.warning(
        "Sampling was interrupted. The running episodes are dropped%s; new ones are started.",
        f", with {steps} steps that are in no batch yet" if steps else "",
    )


class SamplingOnRequest:
    """Samples a fragment whenever one is taken. `BackgroundSampling` samples them in a thread.

    `take` and `halted` raise a RollaxError after `ended`.

    Args:
        sample: returns the next fragment.
        name: the name of the worker, for errors.
        env: the environment for the sampler; None for a worker without one.
    """

    in_background: ClassVar[bool] = False

    def __init__(self, sample: Callable[[], Rollout], name: str, env: BaseEnv | None = None) -> None:
        self._sample, self._name = sample, name
        self.env = env
        self._ended = False

    def take(self, timeout_s: float | None = None, most: int | None = None) -> list[Rollout]:
        """One fragment; in the background, all waiting fragments or the `most` oldest, or [] after the timeout."""
        self._refuse_ended()
        return [self._sample()]

    def note_dropped(self, steps: int) -> None:
        """Does nothing; `BackgroundSampling` adds steps that were dropped elsewhere to `Rollout.dropped_steps`."""

    def turn(self) -> AbstractContextManager[Any]:
        """Context of reads and writes of the sampling state."""
        return nullcontext()

    @contextmanager
    def halted(self, *, drops: bool = False) -> Iterator[None]:
        """Context of code that must not run while a thread samples; `drops`: also drops fragments that wait."""
        self._refuse_ended()
        with self._paused(drops=drops):
            yield

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Context of closing the environment, which may already be closed; drops fragments that wait."""
        with self._paused(drops=True):
            self._ended = True
            yield

    def _paused(self, *, drops: bool) -> AbstractContextManager[Any]:
        return nullcontext()

    def _refuse_ended(self) -> None:
        if self._ended:
            raise RollaxError(
                "The worker has been stopped: its environments are closed.", self._name, "a call after stop()"
            ).expected(
                "such calls before stop(); get_weights() and policies still work",
                "call stop() last, or make a new worker",
            )
