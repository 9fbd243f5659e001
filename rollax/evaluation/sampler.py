"""`Sampler`: what a `RolloutWorker` samples with. The config key `sampler` takes a class of your own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field

from rollax.batch import Fragment
from rollax.env.base_env import BaseEnv
from rollax.evaluation.episode_table import EpisodeTable
from rollax.evaluation.metrics import EpisodeMetrics
from rollax.evaluation.policy_runner import PolicyRunner
from rollax.evaluation.recorder import Recorder


@dataclass(eq=False, repr=False)
class Sampler(ABC):
    """Steps an environment with policies and collects their trajectories.

    A subclass implements `sample`, `step` and `restart`, and keeps `episodes` up to date: `begin` where a trajectory
    begins, `add_rewards` for each poll, `end_trajectories` and `end` where they end. Callbacks, metrics, seeds and the
    numbers of episodes in a checkpoint follow from that.

    Args:
        env: the environment.
        runners: policy id -> policy, with its observation filter and action map.
        episodes: the running episodes.
        policy_of: `(agent_id, episode) -> policy id`, called once per agent and episode; None for a single policy.
        fragment_length: env steps of each sub-environment in a fragment.
        complete_episodes: a fragment holds whole episodes only.
        record: keep trajectories; false where only metrics are read, as in evaluation.
        explore: whether actions are drawn from the policy's distribution.
    Attributes:
        timestep: environment steps trained on so far.
        recorder: writes what is played; None: nothing does.
        next_trajectory: the number of the next trajectory that begins, unique across workers; part of a checkpoint.
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
    recorder: Recorder | None = field(default=None, init=False)
    next_trajectory: int = field(init=False)

    def __post_init__(self) -> None:
        self.next_trajectory = self.episodes.next_id

    @abstractmethod
    def sample(self) -> tuple[dict[str, Fragment], int]:
        """A fragment for each policy, and the number of env steps behind them; no fragment where no row is complete.

        After a call that raised, or was interrupted, fresh episodes begin.
        """

    @abstractmethod
    def step(self) -> None:
        """One round of acting and observing, for evaluation; interrupted calls are followed by fresh episodes."""

    @abstractmethod
    def restart(self) -> None:
        """Drops the running episodes and what no fragment holds yet; the next call resets all sub-environments."""

    def take_metrics(self) -> list[EpisodeMetrics]:
        """The metrics of the episodes finished since the last call."""
        return self.episodes.take_metrics(list(self.runners))
