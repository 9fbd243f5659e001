"""`Readers`: checks the values in requests against the spaces of their agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollax.core import trees
from rollax.env.rows import DEFAULT_AGENT
from rollax.errors import InvalidRequestError, RequestError
from rollax.serving.agent_reader import AgentReader, check_finite_number, check_same_agents, read_plain
from rollax.serving.backend import Backend, Observations
from rollax.serving.limits import Limits
from rollax.serving.protocol import Episode, Hello
from rollax.serving.sessions import Session

ONE_AGENT = frozenset({""})
"""The agents of an episode with a single agent."""

_MOST_SPACES = 1_000


class Readers:
    """Reads the values of requests to `backend`, whose `hello` has the flags `learns` and `multi_agent`."""

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
            raise InvalidRequestError("The id has the wrong length.", where, f"{len(value)} characters").expected(
                f"1 to {self._limits.max_id_length}", "use a shorter id" if value else "leave it out"
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
            acting = self._by_agent(observations[session.id], "observations", session, some=True)
            self._check_count(len(session.agents.union(acting)), f"episode {session.id!r}")
        agents = {session.id: frozenset(observations[session.id]) for session in sessions}
        return self._of_agents(sessions, observations), agents

    def _of_agents(self, sessions: Sequence[Session], observations: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Checks observations of agents; the values of one space are checked together."""
        groups: dict[AgentReader, tuple[list[tuple[str, str]], list[Any]]] = {}
        for session in sessions:
            for agent, value in observations[session.id].items():
                places, values = groups.setdefault(self._reader(session.id, agent), ([], []))
                places.append((session.id, agent))
                values.append(value)
        read: dict[str, dict[str, Any]] = {session.id: dict.fromkeys(observations[session.id]) for session in sessions}
        for reader, (places, values) in groups.items():

            def where(row: int, places: list[tuple[str, str]] = places) -> str:
                return f"observation of {places[row][0]!r}, agent {places[row][1]!r}"

            rows = trees.rows(reader.columns(values, where))
            for (episode_id, agent), row in zip(places, rows, strict=True):
                read[episode_id][agent] = row
        return read

    def logged(self, session: Session, obs: Any, action: Any) -> tuple[Any, Any, Any]:
        """`(observation, action, agents)` of a logged action."""
        if self._only is not None:
            value = self._only.observation(obs, f"observation of {session.id!r}")
            return value, self._only.action(value, action, f"action of {session.id!r}"), ONE_AGENT
        self._by_agent(obs, "observations", session, some=True)
        check_same_agents(obs, self._by_agent(action, "actions", session), session.id)
        values = self._of_agents([session], {session.id: obs})[session.id]
        actions = {
            agent: self._reader(session.id, agent).action(values[agent], one, f"action of {session.id!r}, {agent!r}")
            for agent, one in action.items()
        }
        return values, actions, frozenset(obs)

    def reward_and_info(self, session: Session, waiting: frozenset[str], reward: Any, info: Any) -> tuple[Any, Any]:
        """Checks a reward and an info, and returns both.

        Agents that are not running and do not wait for an action may have only a reward of 0, which is ignored.
        """
        where = f"reward of {session.id!r}"
        if info is not None and self._learns:
            info = read_plain(info, "An info", f"info of {session.id!r}")
        if self._only is not None:
            if isinstance(reward, dict):
                raise _not_by_agent("rewards", session, reward, several=False)
            reward = check_finite_number(reward, "reward", where, self._largest)
            if reward and not (session.acted or waiting):
                raise _early_reward(where, reward)
            return reward, info
        rewards = dict[str, float]()
        for agent, number in self._by_agent(reward, "rewards", session).items():
            number = check_finite_number(number, "reward", f"{where}, agent {agent!r}", self._largest)
            if agent in session.agents or agent in waiting:
                rewards[agent] = number
            elif number:
                raise _early_reward(f"{where}, agent {agent!r}", number)
        if info is not None:
            for agent, part in self._by_agent(info, "infos", session).items():
                if not isinstance(part, dict):
                    raise _not_by_agent(f"info of {agent!r}", session, part, several=True)
        return rewards, info

    def ended_agents(self, session: Session, observations: Any) -> dict[str, Any]:
        """Agent id -> last observation or None, for the running agents that end."""
        if self._only is not None:
            raise InvalidRequestError(
                "end_agents is for several agents, but the server has one.", f"end_agents of {session.id!r}"
            ).fix("use end_episode")
        self._by_agent(observations, "observations", session, some=True)
        absent = sorted(observations.keys() - session.agents)
        if absent:
            raise RequestError(
                "An agent that is not running cannot be ended.", f"episode {session.id!r}", absent, status=409
            ).expected(f"some of {sorted(session.agents)}", "end each agent once, and only agents that have acted")
        return self._last_of_agents(session, observations)

    def last(self, session: Session, obs: Any) -> Any:
        """The last observation of an episode."""
        if self._only is not None:
            return self._only.observation(obs, f"observation of {session.id!r}", masks=False)
        by_agent = self._by_agent(obs, "observations", session)
        # Agents that have not acted, or have ended, are ignored: they may have no policy and no space.
        last = {name: by_agent[name] for name in session.agents if by_agent.get(name) is not None}
        return self._last_of_agents(session, last)

    def _last_of_agents(self, session: Session, observations: Mapping[str, Any]) -> dict[str, Any]:
        last = dict.fromkeys(observations)
        for agent, value in observations.items():
            reader, where = self._reader(session.id, agent), f"observation of {session.id!r}, agent {agent!r}"
            last[agent] = None if value is None else reader.observation(value, where, masks=False)
        return last

    def episodes(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Whole episodes; the columns of their trajectories become arrays."""
        for number, episode in enumerate(episodes):
            where = f"episodes[{number}]"
            if episode.episode_id is not None:
                self.check_id(episode.episode_id, f"{where}.episode_id")
            if not episode.agents or (not self._several and episode.agents.keys() != {DEFAULT_AGENT}):
                what, got = "The submitted episode does not have the expected agents.", sorted(episode.agents)
                expected = "at least one agent" if self._several else f"one agent, {DEFAULT_AGENT!r}"
                raise InvalidRequestError(what, f"{where}.agents", got, expected=expected)
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

    def _by_agent(self, by_agent: Any, what: str, session: Session, *, some: bool = False) -> dict[str, Any]:
        """Checks and returns values by agent id; with `some`, they must not be empty."""
        if not isinstance(by_agent, dict):
            raise _not_by_agent(what, session, by_agent, several=True)
        if some and not by_agent:
            raise InvalidRequestError(f"The {what} are empty.", f"episode {session.id!r}", "{}").expected(
                "at least one agent", f"send the {what} of the agents that act or end"
            )
        self._check_agent_ids(by_agent, f"{what} of {session.id!r}")
        return by_agent

    def _check_agent_ids(self, agents: Mapping[Any, Any], where: str) -> None:
        self._check_count(len(agents), where)
        for agent in agents:
            if not isinstance(agent, str):
                raise InvalidRequestError("The agent id is not a string.", where, agent)
            self.check_id(agent, f"agent id in the {where}")

    def _check_count(self, agents: int, where: str) -> None:
        most = self._limits.max_agents
        if agents > most:
            expected, fix = f"at most {most}", "start the server with a higher limits.max_agents, or send fewer agents"
            raise RequestError("Too many agents.", where, agents, status=413).expected(expected, fix)


def _not_by_agent(what: str, session: Session, got: Any, *, several: bool) -> RequestError:
    problem = f"{what[0].upper()}{what[1:]} {'must' if several else 'must not'} be by agent id."
    expected = "an object with the ids of agents as keys" if several else "a number"
    return InvalidRequestError(problem, f"episode {session.id!r}", type(got).__name__, expected=expected)


def _early_reward(where: str, reward: Any) -> RequestError:
    return RequestError("An agent has a reward, but has not acted or has ended.", where, reward, status=409).expected(
        "a reward between the first action and the end", "log rewards after get_action or log_action"
    )
