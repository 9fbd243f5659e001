"""`ExternalEpisode`: the state of one episode of an external environment, and its events for the sampler."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from rollax.env import checks
from rollax.errors import EnvError, MultiAgentError

ByAgent = Mapping[Any, Any]
"""Agent id -> an observation, an action, a reward or an info."""

_MOST_INFOS = 100_000


@dataclass(slots=True, eq=False)
class ActionRequest:
    """A pending request for actions: a thread waits for them, or a callback gets them."""

    episodes: int
    missing: int  # number of missing actions
    stopped: bool = False
    left: bool = False  # the thread was interrupted while waiting, and its actions are not read
    lock: Any = field(default_factory=threading.Lock)
    on_done: Callable[[ActionRequest], None] | None = None  # called instead of waking a thread
    trajectories: list[Trajectory] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)  # for `on_done`

    def __post_init__(self) -> None:
        self.lock.acquire()

    def done(self) -> None:
        """Wakes the thread, or calls `on_done`; the caller does not hold the queue's lock, and may repeat the call."""
        if self.on_done is None:
            with suppress(RuntimeError):  # an interrupted call has already released the lock
                self.lock.release()
        else:
            self.on_done(self)


@dataclass(slots=True, eq=False)
class Trajectory:
    """One agent of one episode, from its first action to its end."""

    agent: Hashable
    reward: float = 0.0  # received since the last event
    request: ActionRequest | None = None  # the request for its action, until its thread has read the action
    answer: Any = None
    slot: int = -1  # its slot in the sampler, or -1; used only by the sampler's thread


@dataclass(slots=True, eq=False)
class ExternalEpisode:
    """One episode, with its pending events for the sampler. Its methods need the queue's lock."""

    name: str  # of the environment
    id: Hashable
    trains: bool
    full_checks: int  # number of further events that are checked in full
    trajectories: dict[Hashable, Trajectory] = field(default_factory=dict)
    logging: set[Hashable] = field(default_factory=set)  # agents whose logged action waits for room in the queue
    infos: dict[Hashable, dict] = field(default_factory=dict)  # since each agent's last event
    ends: list[Event] = field(default_factory=list)  # ends of agents since the last event
    decided: bool = False  # an action has been requested or logged
    over: bool = False
    events: deque[Event] = field(default_factory=deque)
    number: int = -1  # number of the sub-environment, or -1; used by the sampler's thread only

    @property
    def where(self) -> str:
        """The location of the episode in error messages."""
        return f"{self.name}, episode {self.id!r}"

    def where_of(self, agent: Hashable) -> str:
        return f"{self.where}, agent {agent!r}"

    def acting(self, agents: Iterable[Hashable]) -> list[Trajectory]:
        """Returns the trajectories of acting agents, and starts missing ones."""
        trajectories = self.trajectories
        for agent in agents:
            if agent not in trajectories:
                trajectories[agent] = Trajectory(agent)
        return [trajectories[agent] for agent in agents]

    def event(self, trajectories: list[Trajectory], values: list[Any], **what: Any) -> Event:
        """Returns the next event, with the rewards, the infos and the ended trajectories since the last event."""
        ends, self.ends = self.ends, []
        begins, self.decided = not self.decided, True
        return self._event(trajectories, values, ends_before=ends, begins=begins, **what)

    def end_agents(self, trajectories: list[Trajectory], values: list[Any], truncated: bool) -> None:
        """Ends trajectories. The ends belong to the next environment step, and so to the next event."""
        self.ends.append(self._event(trajectories, values, ends=True, truncated=truncated))

    def _event(self, trajectories: list[Trajectory], values: list[Any], **what: Any) -> Event:
        rewards = [trajectory.reward for trajectory in trajectories]
        for trajectory in trajectories:
            trajectory.reward = 0.0
        agents = [trajectory.agent for trajectory in trajectories if trajectory.agent in self.infos]
        infos = {agent: self.infos.pop(agent) for agent in agents}
        return Event(self, trajectories, values, rewards, infos, **what)

    def add_returns(self, rewards: Mapping[Hashable, float], infos: ByAgent) -> None:
        """Adds to the reward of each agent's latest action, which may still be pending.

        A reward for an agent without an action is dropped before the episode's first action, and refused afterwards.
        """
        self.refuse_over()
        self._refuse_many(infos)
        lost = {agent: amount for agent, amount in rewards.items() if amount and agent not in self.trajectories}
        if lost and self.decided:
            expected = f"rewards only for {sorted(map(str, self.trajectories))}"
            raise MultiAgentError(
                "An agent has a reward, but has ended or has never acted.", self.where, lost
            ).expected(expected, "log rewards between its first action and its end")
        if lost:
            said = f"a reward of {next(iter(lost.values()))} before the first action is dropped. Logged once."
            checks.warn_once("first reward", self.name, f"{self.where}: {said}")
        for agent, amount in rewards.items():
            if agent in self.trajectories:
                self.trajectories[agent].reward += amount
        for agent, info in infos.items():
            self.infos[agent] = {**self.infos.get(agent, {}), **info}

    def refuse_over(self) -> None:
        """Refuses calls for an episode that another thread has ended meanwhile."""
        if self.over:
            raise not_running(self.name, self.id, ended=True)

    def refuse_waiting(self, agents: Iterable[Hashable]) -> None:
        """Refuses calls for agents with a pending request, and for an ended episode."""
        self.refuse_over()
        for agent in agents:
            trajectory = self.trajectories.get(agent)
            waits = trajectory is not None and trajectory.request is not None
            if waits or agent in self.logging:
                expected = "one call at a time for each agent of an episode"
                raise EnvError(
                    "The episode still waits for an action." if waits else "Two threads play one episode.",
                    self.where_of(agent),
                    f"a second call before the first {'get_action' if waits else 'log_action'} has returned",
                ).expected(expected, "wait for the action first, and play each episode from one thread")

    def _refuse_many(self, infos: ByAgent) -> None:
        """Raises `EnvError` if too many infos wait for a next event, for example infos of agents that never observe."""
        count = sum(map(len, infos.values())) + sum(map(len, self.infos.values())) if infos else 0
        if count > _MOST_INFOS:
            raise EnvError("Too many infos.", self.where, f"{count} entries since the last observations").expected(
                f"at most {_MOST_INFOS}",
                "use the same keys again, and log infos of agents that observe something afterwards",
            )


@dataclass(slots=True, eq=False)
class Event:
    """One event of K agents of one episode."""

    episode: ExternalEpisode
    trajectories: list[Trajectory]
    values: list[Any]  # K observations; None for an agent that ends without an observation
    rewards: list[float]  # K, since each agent's last event
    infos: dict[Hashable, dict]
    actions: list[Any] | None = None  # K logged actions; None if the policy acts, or no agent acts
    logps: list[float | None] | None = None  # K log-probabilities, None where no earlier policy version acted
    ends_before: list[Event] = field(default_factory=list)  # other trajectories that end in the same environment step
    begins: bool = False  # the episode begins with this event; False for a part of the episode's first event
    ends: bool = False  # the trajectories end
    truncated: bool = False  # the trajectories are truncated instead of terminated
    closes: bool = False  # the episode ends
    drops: bool = False  # the episode ends, and its rows that are in no fragment yet are dropped

    def part(self, rows: Sequence[int]) -> Event:
        """The part of an event without logged actions that concerns the agents of these rows."""
        if len(rows) == len(self.trajectories):
            return self
        trajectories, values, rewards = (
            [column[row] for row in rows] for column in (self.trajectories, self.values, self.rewards)
        )
        return replace(self, trajectories=trajectories, values=values, rewards=rewards, begins=False)

    def unanswered(self, request: ActionRequest) -> list[int]:
        """The rows for which a request still lacks an action."""
        return [row for row, one in enumerate(self.trajectories) if one.request is request and one.answer is None]

    def restarts_agents(self) -> bool:
        """Whether an agent acts again in the environment step that ends its trajectory."""
        ended = {trajectory.agent for end in self.ends_before for trajectory in end.trajectories}
        return not ended.isdisjoint(trajectory.agent for trajectory in self.trajectories)


def not_running(name: str, episode_id: Hashable, *, ended: bool) -> EnvError:
    """The error of a call for an episode of the environment `name` that is not running."""
    return EnvError("The episode has ended." if ended else "Unknown episode.", name, episode_id).expected(
        "the id of a running episode",
        "start another with start_episode" if ended else "call start_episode first, and use the id it returns",
    )
