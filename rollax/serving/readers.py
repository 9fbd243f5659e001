"""`Readers`: checks the values in requests against the spaces of their agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rollax.core import trees
from rollax.core.spaces import ACTION_MASK, choices, leaves
from rollax.env.rows import DEFAULT_AGENT
from rollax.errors import RequestError
from rollax.serving.backend import Backend
from rollax.serving.limits import Limits
from rollax.serving.observations import Observations
from rollax.serving.protocol import Episode, Hello, Trajectory
from rollax.serving.request_checks import AllowedActions, check_finite_number, read_plain
from rollax.serving.sessions import Session
from rollax.serving.values import SpaceValues, Where

ONE_AGENT = frozenset({""})
"""The agents of an episode with a single agent."""

_MOST_SPACES = 1_000
_LARGEST_LOGP = 1e4


class Readers:
    """Reads the values of requests for a backend.

    Args:
        backend: has the spaces.
        limits: limits on numbers, ids and agents.
        hello: describes whether the server learns, and has several agents.
    """

    def __init__(self, backend: Backend, limits: Limits, hello: Hello) -> None:
        self._backend, self._limits = backend, limits
        self._largest = limits.largest_number if hello.learns else None
        self._learns = hello.learns
        self._several = hello.multi_agent
        self._by_spaces: dict[tuple[int, int], AgentReader] = {}
        self._only = None if self._several else self._reader(None, None)

    def check_id(self, value: str, where: str) -> None:
        """Refuses ids that are empty or too long."""
        if not 0 < len(value) <= self._limits.max_id_length:
            raise RequestError(
                "The id has the wrong length.",
                status=422,
                where=where,
                got=f"{len(value)} characters",
                expected=f"1 to {self._limits.max_id_length}",
                fix="use a shorter id" if value else "leave it out",
            )

    def observations(
        self, sessions: Sequence[Session], observations: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], dict[str, frozenset[str]]]:
        """`(episode id -> observation, episode id -> its acting agents)`."""
        if self._only is not None:
            ids = list(observations)
            columns = self._only.columns(list(observations.values()), lambda row: f"observation of {ids[row]!r}")
            return Observations(ids, columns), dict.fromkeys(ids, ONE_AGENT)
        for session in sessions:
            agents = observations[session.id]
            self._check_agents(agents, "observations", session)
            if not agents:
                raise _no_agents(session)
            self._check_count(len(session.agents.union(agents)), f"episode {session.id!r}")
        agents = {session.id: frozenset(observations[session.id]) for session in sessions}
        return self._of_agents(sessions, observations), agents

    def _of_agents(self, sessions: Sequence[Session], observations: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Checks the observations of one space together."""
        groups: dict[AgentReader, tuple[list[tuple[str, str]], list[Any]]] = {}
        for session in sessions:
            for agent, value in observations[session.id].items():
                places, values = groups.setdefault(self._reader(session.id, agent), ([], []))
                places.append((session.id, agent))
                values.append(value)
        read: dict[str, dict[str, Any]] = {session.id: dict.fromkeys(observations[session.id]) for session in sessions}
        for reader, (places, values) in groups.items():
            rows = trees.rows(reader.columns(values, _where(places)))
            for (episode_id, agent), row in zip(places, rows, strict=True):
                read[episode_id][agent] = row
        return read

    def logged(self, session: Session, obs: Any, action: Any) -> tuple[Any, Any, Any]:
        """`(observation, action, agents)` of an action that the policy has not chosen."""
        if self._only is not None:
            value = trees.index(self._only.columns([obs], lambda _: f"observation of {session.id!r}"), 0)
            return value, self._only.action(value, action, f"action of {session.id!r}"), ONE_AGENT
        self._check_agents(obs, "observations", session)
        self._check_agents(action, "actions", session)
        if not obs:
            raise _no_agents(session)
        if obs.keys() != action.keys():
            raise RequestError(
                "The logged actions are not of the same agents as the observations.",
                status=422,
                where=f"episode {session.id!r}",
                got=sorted(action),
                expected=sorted(obs),
                fix="log one action for each agent that observed something",
            )
        values = self._of_agents([session], {session.id: obs})[session.id]
        actions = {
            agent: self._reader(session.id, agent).action(values[agent], one, f"action of {session.id!r}, {agent!r}")
            for agent, one in action.items()
        }
        return values, actions, frozenset(obs)

    def returns(self, session: Session, waiting: frozenset[str], reward: Any, info: Any) -> tuple[Any, Any]:
        """`(reward, info)` for agents that have acted or are `waiting` for an action, as in external environments.

        A reward of 0 for other agents is ignored.
        """
        where = f"reward of {session.id!r}"
        if info is not None and self._learns:
            info = read_plain(info, "An info", f"info of {session.id!r}")
        if self._only is not None:
            if isinstance(reward, dict):
                raise _by_agent("rewards", session, reward, several=False)
            reward = check_finite_number(reward, "reward", where, self._largest)
            if reward and not (session.acted or waiting):
                raise _early(where, reward)
            return reward, info
        self._check_agents(reward, "rewards", session)
        rewards = dict[str, float]()
        for agent, number in reward.items():
            number = check_finite_number(number, "reward", f"{where}, agent {agent!r}", self._largest)
            if agent in session.agents or agent in waiting:
                rewards[agent] = number
            elif number:
                raise _early(f"{where}, agent {agent!r}", number)
        if info is not None:
            self._check_agents(info, "infos", session)
            for agent, part in info.items():
                if not isinstance(part, dict):
                    raise _by_agent(f"info of {agent!r}", session, part, several=True)
        return rewards, info

    def ended_agents(self, session: Session, observations: Any) -> dict[str, Any]:
        """Agent id -> last observation, or None, of running agents."""
        if self._only is not None:
            raise RequestError(
                "end_agents is for several agents, but the policy serves one.",
                status=422,
                where=f"end_agents of {session.id!r}",
                fix="use end_episode",
            )
        self._check_agents(observations, "observations", session)
        if not observations:
            raise _no_agents(session)
        absent = sorted(observations.keys() - session.agents)
        if absent:
            raise RequestError(
                "An agent that is not running cannot be ended.",
                status=409,
                where=f"episode {session.id!r}",
                got=absent,
                expected=f"some of {sorted(session.agents)}",
                fix="end each agent once, and only agents that have acted",
            )
        return self._last_of_agents(session, observations)

    def last(self, session: Session, obs: Any) -> Any:
        """The last observation of an episode."""
        if self._only is not None:
            return trees.index(self._only.columns([obs], lambda _: f"observation of {session.id!r}", masks=False), 0)
        self._check_agents(obs, "observations", session)
        return self._last_of_agents(session, {agent: value for agent, value in obs.items() if value is not None})

    def _last_of_agents(self, session: Session, observations: Mapping[str, Any]) -> dict[str, Any]:
        last = dict[str, Any]()
        for agent, value in observations.items():
            where = f"observation of {session.id!r}, agent {agent!r}"
            reader = self._reader(session.id, agent)
            last[agent] = (
                None
                if value is None
                else trees.index(reader.columns([value], lambda _, where=where: where, masks=False), 0)
            )
        return last

    def episodes(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Whole episodes; the columns of their trajectories become arrays."""
        for number, episode in enumerate(episodes):
            where = f"episodes[{number}]"
            if episode.episode_id is not None:
                self.check_id(episode.episode_id, f"{where}.episode_id")
            if not episode.agents or (not self._several and episode.agents.keys() != {DEFAULT_AGENT}):
                raise RequestError(
                    "The submitted episode does not have the expected agents.",
                    status=422,
                    where=f"{where}.agents",
                    got=sorted(episode.agents),
                    expected="at least one agent" if self._several else f"one agent, {DEFAULT_AGENT!r}",
                )
            self._check_agent_ids(episode.agents, where)
            for agent, trajectory in episode.agents.items():
                reader = self._only or self._reader(episode.episode_id, agent)
                reader.trajectory(trajectory, f"{where}.agents[{agent!r}]")
        return list(episodes)

    def _reader(self, episode_id: str | None, agent_id: str | None) -> AgentReader:
        spaces = self._backend.spaces_of(episode_id, agent_id)
        key = id(spaces[0]), id(spaces[1])
        reader = self._by_spaces.get(key)
        if reader is None:
            if len(self._by_spaces) >= _MOST_SPACES:
                self._by_spaces.clear()
            reader = self._by_spaces[key] = AgentReader(*spaces, self._largest)
        return reader

    def _check_agents(self, by_agent: Any, what: str, session: Session) -> None:
        if not isinstance(by_agent, dict):
            raise _by_agent(what, session, by_agent, several=True)
        self._check_agent_ids(by_agent, f"{what} of {session.id!r}")

    def _check_agent_ids(self, agents: Mapping[Any, Any], where: str) -> None:
        self._check_count(len(agents), where)
        for agent in agents:
            if not isinstance(agent, str):
                raise RequestError("The agent id is not a string.", status=422, where=where, got=agent)
            self.check_id(agent, f"agent id in the {where}")

    def _check_count(self, agents: int, where: str) -> None:
        most = self._limits.max_agents
        if agents > most:
            expected, fix = f"at most {most}", "start the server with a higher limits.max_agents, or send fewer agents"
            raise RequestError("Too many agents.", status=413, where=where, got=agents, expected=expected, fix=fix)


class AgentReader:
    """Reads the observations and actions of one kind of agent.

    Args:
        largest: the largest absolute value of a number, unless a bound of its space is higher; None: any finite number.
    """

    def __init__(self, observation_space: Any, action_space: Any, largest: float | None) -> None:
        self.spaces = observation_space, action_space
        self._observations = SpaceValues(observation_space, largest=largest)
        self._actions = SpaceValues(action_space, largest=largest, bounded=True)
        self._masks = AllowedActions(observation_space, action_space)
        self._largest = largest
        self._discrete = sum(int(np.prod(leaf.shape or ())) for _, leaf in leaves(action_space)) == len(
            choices(action_space)
        )

    def columns(self, values: Sequence[Any], where: Where, *, masks: bool = True) -> trees.Tree:
        """Columns of observations; masks without a valid action are allowed if no action follows."""
        columns = self._observations.columns(values, where)
        if masks:
            self._masks.check(columns, where)
        return columns

    def action(self, obs: Any, action: Any, where: str) -> Any:
        """An action that the policy has not chosen for this observation."""
        column = self._actions.columns([action], lambda _: where)
        if self._masks.masked:
            self._masks.check_actions({ACTION_MASK: obs[ACTION_MASK][None]}, column, lambda _: where)
        return trees.index(column, 0)

    def trajectory(self, trajectory: Trajectory, where: str) -> None:
        """Checks a trajectory and turns its columns into arrays."""
        steps = len(trajectory.actions)
        lengths = {"obs": len(trajectory.obs) - 1, "rewards": len(trajectory.rewards)}
        for name in ("action_logp", "t", "infos"):
            if getattr(trajectory, name) is not None:
                lengths[name] = len(getattr(trajectory, name))
        if not steps or any(length != steps for length in lengths.values()):
            raise RequestError(
                "The columns of the trajectory differ in length.",
                status=422,
                where=where,
                got=f"{steps} actions, {lengths['obs'] + 1} obs, {lengths}",
                expected="T actions, rewards and other columns, T + 1 observations, T at least 1",
            )
        if trajectory.terminated and trajectory.truncated:
            raise RequestError("The trajectory is both terminated and truncated.", status=422, where=where)
        obs = self._observations.columns(trajectory.obs, lambda row: f"{where}.obs[{row}]")
        actions = self._actions.columns(trajectory.actions, lambda row: f"{where}.actions[{row}]")
        self._check_masks(obs, actions, where)
        for row, reward in enumerate(trajectory.rewards):
            check_finite_number(reward, "reward", f"{where}.rewards[{row}]", self._largest)
        trajectory.obs, trajectory.actions = obs, actions
        trajectory.rewards = np.array(trajectory.rewards, np.float64)  # type: ignore[assignment]
        if trajectory.action_logp is not None:
            trajectory.action_logp = self._logp(trajectory.action_logp, f"{where}.action_logp")  # type: ignore[assignment]
        if trajectory.infos is not None:
            infos = enumerate(trajectory.infos)
            trajectory.infos = [read_plain(info, "An info", f"{where}.infos[{row}]") for row, info in infos]
        t = trajectory.t
        if t is not None and (t[0] < 0 or t[-1] >= 2**31 or any(later <= earlier for earlier, later in pairwise(t))):
            raise RequestError(
                "The times do not increase.", status=422, where=f"{where}.t", expected="increasing integers from 0"
            )

    def _check_masks(self, obs: trees.Tree, actions: trees.Tree, where: str) -> None:
        if self._masks.masked:
            acting = {ACTION_MASK: obs[ACTION_MASK][:-1]}
            self._masks.check(acting, lambda row: f"{where}.obs[{row}]")
            self._masks.check_actions(acting, actions, lambda row: f"{where}.actions[{row}]")

    def _logp(self, values: Sequence[Any], where: str) -> np.ndarray:
        # A density can be above 1, a probability cannot.
        highest = 1e-3 if self._discrete else _LARGEST_LOGP
        for row, value in enumerate(values):
            check_finite_number(value, "log-probability", f"{where}[{row}]", _LARGEST_LOGP)
            if value > highest:
                raise RequestError(
                    "The log-probability is above 0.",
                    status=422,
                    where=f"{where}[{row}]",
                    got=value,
                    expected="at most 0",
                )
        return np.array(values, np.float32)


def _where(places: Sequence[tuple[str, str]]) -> Where:
    return lambda row: f"observation of {places[row][0]!r}, agent {places[row][1]!r}"


def _no_agents(session: Session) -> RequestError:
    return RequestError(
        "The observations are empty.",
        status=422,
        where=f"episode {session.id!r}",
        got="{}",
        expected="at least one agent",
        fix="send the observations of the agents that act or end",
    )


def _by_agent(what: str, session: Session, got: Any, *, several: bool) -> RequestError:
    return RequestError(
        f"{what[0].upper()}{what[1:]} {'must' if several else 'must not'} be by agent id.",
        status=422,
        where=f"episode {session.id!r}",
        got=type(got).__name__,
        expected="an object with the ids of agents as keys" if several else "a number",
    )


def _early(where: str, reward: Any) -> RequestError:
    return RequestError(
        "An agent has a reward, but has not acted or has ended.",
        status=409,
        where=where,
        got=reward,
        expected="a reward between the first action and the end",
        fix="log rewards after get_action or log_action",
    )
