"""The episodes of an external environment, for the threads that play them."""

from __future__ import annotations

import math
import uuid
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from rollax.env import agent_checks, checks
from rollax.env.external.agent_values import AgentValues
from rollax.env.external.episode import ActionRequest, ByAgent, Event, ExternalEpisode, not_running
from rollax.env.external.queue import EventQueue
from rollax.errors import EnvError, MultiAgentError

OnActions = Callable[[dict[Hashable, dict[Hashable, Any]] | EnvError], None]
"""Receives actions by episode id and agent, or the error of a request that will not be answered."""

_FIRST_EPISODES, _FULL_CHECKS = 8, 1000
_REMEMBERED = 1000


class ExternalEpisodes:
    """Checks the calls of the playing threads, in these threads, and queues events for the sampler.

    `agents` are all ids that may appear, None for any. `patience` is passed to `EventQueue`.
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
                raise EnvError("The episode is already running.", f"{self.name}, start_episode", episode_id).expected(
                    "an id that no running episode has", "end it first, or leave episode_id out to get a new id"
                )
            self._started += 1
            full_checks = _FULL_CHECKS if self._started <= _FIRST_EPISODES else 0
            self._running[episode_id] = ExternalEpisode(self.name, episode_id, bool(training_enabled), full_checks)
        return episode_id

    def check_declared(self, agents: Collection[Hashable], where: str) -> None:
        """Refuses agents that the environment does not declare."""
        if self._declared is not None and not self._declared.issuperset(agents):
            raise agent_checks.undeclared(agents, self._declared, where)

    def request_actions(self, observations: Mapping[Hashable, ByAgent]) -> dict[Hashable, dict[Hashable, Any]]:
        """Returns actions by episode id and agent, given observations; blocks until they are available."""
        if not observations:
            return {}
        request = self._request(observations, None)
        try:
            self.queue.wait(request)
        finally:
            answers = [trajectory.answer for trajectory in request.trajectories]
            for trajectory in request.trajectories:
                if trajectory.answer is not None:
                    trajectory.request = None  # from here on another thread may request actions
        return _by_episode(observations, answers)

    def request(self, observations: Mapping[Hashable, ByAgent], on_actions: OnActions) -> None:
        """Requests actions without waiting: `on_actions` is called once, and must not block.

        The sampler's thread calls it with actions; the thread that stops the environment, with an EnvStoppedError.
        The caller must not change the observations afterwards.
        """
        if not observations:
            raise EnvError("Actions were requested without an observation.", self.name, {}).expected(
                "at least one observation", "call it only if an episode has an observation"
            )

        def on_done(request: ActionRequest) -> None:
            try:
                if request.stopped:
                    self.queue.refuse_if_stopped()
                result = _by_episode(observations, request.answers)
            except EnvError as error:
                result = error
            on_actions(result)

        self._request(observations, on_done)

    def _request(
        self, observations: Mapping[Hashable, ByAgent], on_done: Callable[[ActionRequest], None] | None
    ) -> ActionRequest:
        """Queues a request, either completely or not at all."""
        found = [self._find(episode_id) for episode_id in observations]
        by_agents = list(observations.values())
        for episode, by_agent in zip(found, by_agents, strict=True):
            self._check_acting(episode, by_agent)
        values, queue = iter(self._observations(found, by_agents, awaited=True)), self.queue
        with queue.lock:
            queue.refuse_if_stopped()
            for episode, by_agent in zip(found, by_agents, strict=True):
                episode.refuse_waiting(by_agent)
            request = ActionRequest(len(found), sum(map(len, by_agents)), on_done=on_done)
            queue.waiting.add(request)
            for episode, by_agent in zip(found, by_agents, strict=True):
                event = episode.event(episode.acting(by_agent), [next(values) for _ in by_agent])
                for trajectory in event.trajectories:
                    trajectory.request, trajectory.answer = request, None
                request.events.append(event)
                request.trajectories.extend(event.trajectories)
                queue.put(event)
            queue.wake_sampler()
        return request

    def log(
        self,
        episode_id: Hashable,
        values: ByAgent,
        actions: ByAgent,
        logps: Mapping[Hashable, float | None] | None = None,
        *,
        blocking: bool = True,
    ) -> None:
        """Records logged actions. If the queue is full, the call blocks, or raises QueueFullError if not `blocking`.

        `logps` are the log-probabilities under the earlier version of the policy that chose the actions; None for
        agents whose actions another policy chose.
        """
        episode = self._find(episode_id)
        self._check_acting(episode, values)
        agent_checks.check_by_agent("actions", actions, episode.where)
        if actions.keys() != values.keys():
            raise MultiAgentError.wrong_keys(
                "The logged actions are not of the same agents as the observations.", episode.where, actions, values
            ).fix("log one action for each agent that observed something")
        observed = self._observations([episode], [values], awaited=False)
        taken = [self.values.action(agent, actions[agent], episode.where_of(agent)) for agent in values]
        with self.queue.lock:
            episode.refuse_waiting(values)
            if blocking:
                episode.logging.update(values)
                try:
                    self.queue.await_room()
                finally:
                    episode.logging.difference_update(values)
            else:
                self.queue.refuse_if_stopped()
                self.queue.refuse_if_full()
            episode.refuse_over()
            known = None if logps is None else [logps[agent] for agent in values]
            self._put(episode.event(episode.acting(values), observed, actions=taken, logps=known))

    def add_returns(self, episode_id: Hashable, rewards: ByAgent, infos: ByAgent) -> None:
        """Adds to the reward of each agent's latest action, which may still be pending."""
        episode = self._find(episode_id)
        for what, by_agent in (("rewards", rewards), ("infos", infos)):
            self._check_agents(what, by_agent, episode)
        amounts = {agent: self._reward(episode, reward) for agent, reward in rewards.items()}
        checks.check_infos(infos.values(), lambda row: episode.where)
        with self.queue.lock:
            self.queue.refuse_if_stopped()
            episode.add_returns(amounts, infos)

    def end_agents(self, episode_id: Hashable, values: ByAgent, truncated: bool) -> None:
        """Ends some trajectories of a running episode; `values` has None for an agent without a last observation."""
        episode = self._find(episode_id)
        _check_flag("truncated", truncated, episode.where)
        self._check_acting(episode, values)
        observed = self._last_observations(episode, {a: value for a, value in values.items() if value is not None})
        with self.queue.lock:
            self.queue.refuse_if_stopped()
            episode.refuse_waiting(values)
            absent = [agent for agent in values if agent not in episode.trajectories]
            if absent:
                raise MultiAgentError("An agent that is not running cannot be ended.", episode.where, absent).expected(
                    f"some of {sorted(map(str, episode.trajectories))}",
                    "end each trajectory once, and only agents that have acted",
                )
            trajectories = [episode.trajectories.pop(agent) for agent in values]
            seen = [observed.get(agent) for agent in values]
            episode.end_agents(trajectories, seen, bool(truncated))

    def end(self, episode_id: Hashable, values: ByAgent, truncated: bool) -> None:
        """Ends an episode and all trajectories in it."""
        episode = self._find(episode_id)
        _check_flag("truncated", truncated, episode.where)
        agent_checks.check_by_agent("obs", values, episode.where)
        # Agents that have not acted are ignored: they may have no policy and no space.
        acted = {agent: value for agent, value in values.items() if agent in episode.trajectories}
        observed = self._last_observations(episode, acted)
        with self.queue.lock:
            self.queue.refuse_if_stopped()
            episode.refuse_waiting(episode.trajectories)
            del self._running[episode.id]
            self._ended.append(episode.id)
            episode.over = True
            if not episode.decided:
                what = "The episode ended without an action and is dropped."
                got, fix = "end_episode after start_episode", "start an episode only if an agent will act in it"
                raise EnvError(what, episode.where, got, expected="get_action or log_action in between", fix=fix)
            trajectories = list(episode.trajectories.values())
            seen = [observed.get(trajectory.agent) for trajectory in trajectories]
            self._put(episode.event(trajectories, seen, ends=True, truncated=bool(truncated), closes=True))

    def drop(self, episode_id: Hashable) -> None:
        """Ends an episode whose player is lost: its rows that are in no fragment yet are dropped.

        A pending request is still answered.
        """
        episode = self._find(episode_id)
        with self.queue.lock:
            self.queue.refuse_if_stopped()
            episode.refuse_over()
            del self._running[episode.id]
            self._ended.append(episode.id)
            episode.over = True
            if episode.decided:
                self._put(episode.event([], [], drops=True))

    def _last_observations(self, episode: ExternalEpisode, values: ByAgent) -> dict[Hashable, Any]:
        return dict(zip(values, self._observations([episode], [values], awaited=False), strict=True))

    def _put(self, event: Event) -> None:
        self.queue.put(event)
        self.queue.wake_sampler()

    def _lookup(self, episode_id: Hashable) -> ExternalEpisode | None:
        try:
            return self._running.get(episode_id)
        except TypeError:
            raise EnvError.is_not("The episode id", "hashable", self.name, checks.outline(episode_id)).fix(
                "use the id that start_episode returned"
            ) from None

    def _find(self, episode_id: Hashable) -> ExternalEpisode:
        episode = self._lookup(episode_id)
        if episode is None:
            self.queue.refuse_if_stopped()
            raise not_running(self.name, episode_id, ended=episode_id in self._ended)
        return episode

    # Checks, without the lock.

    def _check_agents(self, what: str, by_agent: Any, episode: ExternalEpisode) -> None:
        agent_checks.check_by_agent(what, by_agent, episode.where)
        self.check_declared(by_agent, episode.where)

    def _check_acting(self, episode: ExternalEpisode, by_agent: Any) -> None:
        self._check_agents("obs", by_agent, episode)
        if not by_agent:
            raise MultiAgentError("The observations are empty.", episode.where, {}).expected(
                "an observation for at least one agent", "call it only if an agent acts or ends"
            )

    def _observations(
        self, episodes: Sequence[ExternalEpisode], by_agents: Sequence[ByAgent], *, awaited: bool
    ) -> list[Any]:
        """One list of the observations of all episodes, in their spaces' dtypes; see `AgentValues.observations`."""

        def where(row: int) -> str:
            owners = [(episode, agent) for episode, of in zip(episodes, by_agents, strict=True) for agent in of]
            episode, agent = owners[row]
            return episode.where_of(agent)

        for row, episode in enumerate(episodes):
            if episode.full_checks:
                episode.full_checks -= 1
                for agent, value in by_agents[row].items():
                    self.values.check_in_full(agent, value, episode.where_of(agent))
        return self.values.observations(by_agents, where, awaited=awaited)

    def _reward(self, episode: ExternalEpisode, reward: Any) -> float:
        if type(reward) is float and math.isfinite(reward):
            return reward
        return float(checks.reward_column([reward], lambda row: episode.where)[0])


def _check_flag(name: str, flag: Any, where: str) -> None:
    if not isinstance(flag, bool | np.bool_):
        raise checks.not_boolean(name, flag, where)


def _by_episode(
    observations: Mapping[Hashable, ByAgent], answers: Iterable[Any]
) -> dict[Hashable, dict[Hashable, Any]]:
    left = iter(answers)
    return {episode_id: {agent: next(left) for agent in by_agent} for episode_id, by_agent in observations.items()}
