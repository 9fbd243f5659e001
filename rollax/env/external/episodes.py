"""The episodes of an external environment, for the threads that play them."""

from __future__ import annotations

import math
import uuid
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from rollax.env import checks
from rollax.env.external.agent_values import AgentValues
from rollax.env.external.queue import Call, Event, EventQueue, ExternalEpisode, Trajectory
from rollax.errors import EnvError, MultiAgentError

ByAgent = Mapping[Any, Any]
"""Agent id -> an observation, an action, a reward or an info."""

OnActions = Callable[[dict[Hashable, dict[Hashable, Any]] | EnvError], None]
"""Receives actions by episode id and agent, or the error of a request that is not answered any more."""

_FIRST_EPISODES, _FULL_CHECKS = 8, 1000
_REMEMBERED = 1000
_MOST_INFOS = 100_000


class ExternalEpisodes:
    """Checks the calls of the playing threads, in these threads, and queues events for the sampler.

    `agents` are all ids that may appear, None for any. `patience` is that of `EventQueue`.
    """

    def __init__(
        self,
        name: str,
        observation_space: Space | None,
        action_space: Space | None,
        agents: Iterable[Hashable] | None,
        patience: float,
    ) -> None:
        self.name = name
        self.queue = EventQueue(name, patience)
        self.values = AgentValues(observation_space, action_space)
        self._declared = None if agents is None else frozenset(agents)
        self._running: dict[Hashable, ExternalEpisode] = {}
        self._ended: deque[Hashable] = deque(maxlen=_REMEMBERED)  # to distinguish ended from unknown in errors
        self._started = 0

    def start(self, episode_id: Hashable | None, training_enabled: bool) -> Hashable:
        """Starts an episode and returns its id."""
        _check_flag("training_enabled", training_enabled, f"{self.name}, start_episode")
        episode_id = uuid.uuid4().hex if episode_id is None else episode_id
        with self.queue.lock:
            self.queue.refuse_if_stopped()
            if self._lookup(episode_id) is not None:
                raise EnvError(
                    "An episode that is running already.",
                    where=f"{self.name}, start_episode",
                    got=episode_id,
                    expected="an id that no running episode has",
                    fix="end it first, or leave episode_id out to get a new id",
                )
            self._started += 1
            full_checks = _FULL_CHECKS if self._started <= _FIRST_EPISODES else 0
            self._running[episode_id] = ExternalEpisode(episode_id, bool(training_enabled), full_checks)
        return episode_id

    def check_declared(self, agents: Collection[Hashable], where: str) -> None:
        """Refuses agents that the environment does not declare."""
        if self._declared is not None and not self._declared.issuperset(agents):
            raise checks.undeclared(agents, self._declared, where)

    def request_actions(self, observations: Mapping[Hashable, ByAgent]) -> dict[Hashable, dict[Hashable, Any]]:
        """Returns actions by episode id and agent, given observations; blocks until they are available."""
        if not observations:
            return {}
        call = self._request(observations, None)
        try:
            self.queue.wait(call)
        finally:
            answers = [trajectory.answer for trajectory in call.trajectories]
            for trajectory in call.trajectories:
                if trajectory.answer is not None:
                    trajectory.call = None  # another thread may request actions from here on
        return _by_episode(observations, answers)

    def request(self, observations: Mapping[Hashable, ByAgent], on_actions: OnActions) -> None:
        """Requests actions without waiting: `on_actions` is called once, in the sampler's thread, and must not block.

        The observations belong to this object from here on.
        """
        if not observations:
            raise EnvError(
                "A request for actions without an observation.",
                where=self.name,
                got={},
                expected="the observations of at least one episode",
                fix="leave the request out",
            )

        def on_done(call: Call) -> None:
            try:
                if call.stopped:
                    self.queue.refuse_if_stopped()
                result = _by_episode(observations, call.answers)
            except EnvError as error:
                result = error
            on_actions(result)

        self._request(observations, on_done)

    def _request(self, observations: Mapping[Hashable, ByAgent], on_done: Callable[[Call], None] | None) -> Call:
        """Queues a request, complete or not at all."""
        found = [self._find(episode_id) for episode_id in observations]
        by_agents = list(observations.values())
        for episode, by_agent in zip(found, by_agents, strict=True):
            self._check_acting(episode, by_agent)
        values, queue = iter(self._observations(found, by_agents, awaited=True)), self.queue
        with queue.lock:
            queue.refuse_if_stopped()
            for episode, by_agent in zip(found, by_agents, strict=True):
                self._refuse_waiting(episode, by_agent)
            call = Call(len(found), sum(map(len, by_agents)), on_done=on_done)
            queue.waiting.add(call)
            for episode, by_agent in zip(found, by_agents, strict=True):
                event = _event(episode, _acting(episode, by_agent), [next(values) for _ in by_agent])
                for trajectory in event.trajectories:
                    trajectory.call, trajectory.answer = call, None
                call.trajectories.extend(event.trajectories)
                queue.put(event)
            queue.wake_sampler()
        return call

    def log(
        self,
        episode_id: Hashable,
        values: ByAgent,
        actions: ByAgent,
        logps: Mapping[Hashable, float | None] | None = None,
        *,
        blocking: bool = True,
    ) -> None:
        """Records logged actions; blocks while the queue is full, or raises a QueueFullError.

        `logps` are the log-probabilities under an earlier version of the policy, which has chosen the actions; None
        for the agents whose actions another one has chosen.
        """
        episode = self._find(episode_id)
        self._check_acting(episode, values)
        checks.check_by_agent("actions", actions, self._where(episode))
        if actions.keys() != values.keys():
            raise MultiAgentError(
                "Logged actions of other agents than the observations.",
                where=self._where(episode),
                got=sorted(map(str, actions)),
                expected=sorted(map(str, values)),
                fix="log one action for each agent that observed something",
            )
        observed = self._observations([episode], [values], awaited=False)
        taken = [self.values.action(agent, actions[agent], self._where_of(episode, agent)) for agent in values]
        with self.queue.lock:
            self._refuse_waiting(episode, values)
            if blocking:
                episode.logging.update(values)
                try:
                    self.queue.await_room()
                finally:
                    episode.logging.difference_update(values)
            else:
                self.queue.refuse_if_stopped()
                self.queue.refuse_if_full()
            self._refuse_over(episode)
            known = None if logps is None else [logps[agent] for agent in values]
            self._put(_event(episode, _acting(episode, values), observed, actions=taken, logps=known))

    def add_returns(self, episode_id: Hashable, rewards: ByAgent, infos: ByAgent) -> None:
        """Adds rewards to those of the action that answers each agent's last observation, given or awaited."""
        episode = self._find(episode_id)
        for what, by_agent in (("rewards", rewards), ("infos", infos)):
            self._check_agents(what, by_agent, episode)
        amounts = {agent: self._reward(episode, reward) for agent, reward in rewards.items()}
        checks.check_infos(infos.values(), lambda row: self._where(episode))
        with self.queue.lock:
            self.queue.refuse_if_stopped()
            self._refuse_over(episode)
            self._refuse_many(episode, infos)
            for agent, amount in amounts.items():
                trajectory = episode.trajectories.get(agent)
                if trajectory is not None:
                    trajectory.reward += amount
                elif amount:
                    self._refuse_early(episode, agent, amount)
            for agent, info in infos.items():
                episode.infos[agent] = {**episode.infos.get(agent, {}), **info}

    def end_agents(self, episode_id: Hashable, values: ByAgent, truncated: bool) -> None:
        """Ends some trajectories of a running episode; an agent without a last observation has None."""
        episode = self._find(episode_id)
        _check_flag("truncated", truncated, self._where(episode))
        self._check_acting(episode, values)
        observed = self._last_observations(episode, {a: value for a, value in values.items() if value is not None})
        with self.queue.lock:
            self.queue.refuse_if_stopped()
            self._refuse_waiting(episode, values)
            absent = [agent for agent in values if agent not in episode.trajectories]
            if absent:
                raise MultiAgentError(
                    "The end of an agent that is not running.",
                    where=self._where(episode),
                    got=absent,
                    expected=f"some of {sorted(map(str, episode.trajectories))}",
                    fix="end each trajectory once, and only agents that have acted",
                )
            trajectories = [episode.trajectories.pop(agent) for agent in values]
            seen = [observed.get(agent) for agent in values]
            self._put(_event(episode, trajectories, seen, ends=True, truncated=bool(truncated)))

    def end(self, episode_id: Hashable, values: ByAgent, truncated: bool) -> None:
        """Ends an episode and all trajectories in it."""
        episode = self._find(episode_id)
        _check_flag("truncated", truncated, self._where(episode))
        checks.check_by_agent("obs", values, self._where(episode))
        # Agents that have not acted are ignored: they may have no policy, and so no space.
        acted = {agent: value for agent, value in values.items() if agent in episode.trajectories}
        observed = self._last_observations(episode, acted)
        with self.queue.lock:
            self.queue.refuse_if_stopped()
            self._refuse_waiting(episode, episode.trajectories)
            del self._running[episode.id]
            self._ended.append(episode.id)
            episode.over = True
            if not episode.decided:
                raise EnvError(
                    "An episode without an action; it is dropped.",
                    where=self._where(episode),
                    got="end_episode after start_episode",
                    expected="get_action or log_action in between",
                    fix="start an episode only if an agent will act in it",
                )
            trajectories = list(episode.trajectories.values())
            seen = [observed.get(trajectory.agent) for trajectory in trajectories]
            self._put(_event(episode, trajectories, seen, ends=True, truncated=bool(truncated), closes=True))

    def drop(self, episode_id: Hashable) -> None:
        """Ends an episode whose player is lost: what the sampler has not handed over yet is dropped.

        A pending request is still answered.
        """
        episode = self._find(episode_id)
        with self.queue.lock:
            self.queue.refuse_if_stopped()
            self._refuse_over(episode)
            del self._running[episode.id]
            self._ended.append(episode.id)
            episode.over = True
            if episode.decided:
                self._put(Event(episode, [], [], [], {}, drops=True))

    def _last_observations(self, episode: ExternalEpisode, values: ByAgent) -> dict[Hashable, Any]:
        return dict(zip(values, self._observations([episode], [values], awaited=False), strict=True))

    def _put(self, event: Event) -> None:
        self.queue.put(event)
        self.queue.wake_sampler()

    def _where(self, episode: ExternalEpisode) -> str:
        return f"{self.name}, episode {episode.id!r}"

    def _where_of(self, episode: ExternalEpisode, agent: Hashable) -> str:
        return f"{self._where(episode)}, agent {agent!r}"

    def _lookup(self, episode_id: Hashable) -> ExternalEpisode | None:
        try:
            return self._running.get(episode_id)
        except TypeError:
            raise EnvError(
                "An invalid episode id.",
                where=self.name,
                got=checks.outline(episode_id),
                expected="a string, a number, or another hashable value",
                fix="use the id that start_episode returned",
            ) from None

    def _find(self, episode_id: Hashable) -> ExternalEpisode:
        episode = self._lookup(episode_id)
        if episode is None:
            self.queue.refuse_if_stopped()
            raise self._not_running(episode_id)
        return episode

    def _not_running(self, episode_id: Hashable) -> EnvError:
        ended = episode_id in self._ended
        return EnvError(
            "An episode that has ended." if ended else "An unknown episode.",
            where=self.name,
            got=episode_id,
            expected="the id of a running episode",
            fix="start another with start_episode" if ended else "call start_episode first, and use the id it returns",
        )

    def _refuse_over(self, episode: ExternalEpisode) -> None:
        if episode.over:  # meanwhile, by another thread
            raise self._not_running(episode.id)

    def _refuse_waiting(self, episode: ExternalEpisode, agents: Iterable[Hashable]) -> None:
        """Refuses calls for agents with a pending request, and for an ended episode."""
        self._refuse_over(episode)
        for agent in agents:
            trajectory = episode.trajectories.get(agent)
            asking = trajectory is not None and trajectory.call is not None
            if asking or agent in episode.logging:
                raise EnvError(
                    "An episode that still waits for an action." if asking else "Two threads that play one episode.",
                    where=self._where_of(episode, agent),
                    got=f"a second call before the first {'get_action' if asking else 'log_action'} has returned",
                    expected="one call at a time for each agent of an episode",
                    fix="play each episode from one thread, or let the others wait for the action",
                )

    def _refuse_early(self, episode: ExternalEpisode, agent: Hashable, amount: float) -> None:
        """Handles a reward without an action: dropped before the episode's first action, refused afterwards."""
        if episode.decided:
            raise MultiAgentError(
                "A reward for an agent that has ended, or has never acted.",
                where=self._where(episode),
                got=f"{amount} for {agent!r}",
                expected=f"rewards only for {sorted(map(str, episode.trajectories))}",
                fix="log rewards between an agent's first action and its end",
            )
        said = f"a reward of {amount} before the first action is dropped. Logged once."
        checks.say_once("first reward", self.name, f"{self._where(episode)}: {said}")

    def _refuse_many(self, episode: ExternalEpisode, infos: ByAgent) -> None:
        """Refuses infos that nobody takes, as those of agents that never observe anything."""
        count = sum(map(len, infos.values())) + sum(map(len, episode.infos.values())) if infos else 0
        if count > _MOST_INFOS:
            raise EnvError(
                "Too many infos.",
                where=self._where(episode),
                got=f"{count} entries since the last observations of their agents",
                expected=f"at most {_MOST_INFOS}",
                fix="use the same keys again, and log infos of agents that observe something afterwards",
            )

    # Checks, without the lock.

    def _check_agents(self, what: str, by_agent: Any, episode: ExternalEpisode) -> None:
        checks.check_by_agent(what, by_agent, self._where(episode))
        self.check_declared(by_agent, self._where(episode))

    def _check_acting(self, episode: ExternalEpisode, by_agent: Any) -> None:
        self._check_agents("obs", by_agent, episode)
        if not by_agent:
            raise MultiAgentError(
                "Observations of no agent.",
                where=self._where(episode),
                got={},
                expected="an observation for at least one agent",
                fix="call it only if an agent acts or ends",
            )

    def _observations(
        self, episodes: Sequence[ExternalEpisode], by_agents: Sequence[ByAgent], *, awaited: bool
    ) -> list[Any]:
        """The observations of all episodes in a row, in the dtypes of their spaces; see `AgentValues.observations`."""

        def where(row: int) -> str:
            owners = [(episode, agent) for episode, of in zip(episodes, by_agents, strict=True) for agent in of]
            return self._where_of(*owners[row])

        for row, episode in enumerate(episodes):
            if episode.full_checks:
                episode.full_checks -= 1
                for agent, value in by_agents[row].items():
                    self.values.check_in_full(agent, value, self._where_of(episode, agent))
        return self.values.observations(by_agents, where, awaited=awaited)

    def _reward(self, episode: ExternalEpisode, reward: Any) -> float:
        if type(reward) is float and math.isfinite(reward):
            return reward
        return float(checks.reward_column([reward], lambda row: self._where(episode))[0])


def _check_flag(name: str, flag: Any, where: str) -> None:
    if not isinstance(flag, bool | np.bool_):
        raise checks.not_boolean(name, flag, where)


def _by_episode(
    observations: Mapping[Hashable, ByAgent], answers: Iterable[Any]
) -> dict[Hashable, dict[Hashable, Any]]:
    """Actions by episode id and agent."""
    left = iter(answers)
    return {episode_id: {agent: next(left) for agent in by_agent} for episode_id, by_agent in observations.items()}


def _acting(episode: ExternalEpisode, agents: Iterable[Hashable]) -> list[Trajectory]:
    """Returns the trajectories of acting agents, and starts missing ones."""
    episode.decided = True
    trajectories = episode.trajectories
    for agent in agents:
        if agent not in trajectories:
            trajectories[agent] = Trajectory(agent)
    return [trajectories[agent] for agent in agents]


def _event(episode: ExternalEpisode, trajectories: list[Trajectory], values: list[Any], **what: Any) -> Event:
    """Returns an event with the rewards and infos received since the last one."""
    rewards = [trajectory.reward for trajectory in trajectories]
    for trajectory in trajectories:
        trajectory.reward = 0.0
    agents = [trajectory.agent for trajectory in trajectories if trajectory.agent in episode.infos]
    infos = {agent: episode.infos.pop(agent) for agent in agents}
    return Event(episode, trajectories, values, rewards, infos, **what)
