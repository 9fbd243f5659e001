"""The verbs of a client that chooses actions with the server's weights, and submits whole episodes."""

from __future__ import annotations

import copy
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from rollax.env.rows import DEFAULT_AGENT
from rollax.errors import EpisodeLostError, InvalidRequestError, RequestError
from rollax.serving.acting import Actor
from rollax.serving.agent_reader import check_finite_number, check_same_agents
from rollax.serving.client_calls import Calls
from rollax.serving.local_episodes import LocalActor, LocalAgent, LocalEpisode
from rollax.serving.protocol import Episode
from rollax.serving.remote_inference import PolicyMapping, checked_hello, plain_info, reading_answer, without_policy
from rollax.serving.values import plain
from rollax.serving.weights import policy_from_bytes, read_description, update_policy

_REFUSED = (400, 409, 413, 422)  # statuses of requests that the server would refuse again


class _Submission(NamedTuple):
    """Finished episodes that are sent in one message."""

    request_id: str
    episodes: list[Episode]


class LocalInference:
    """Acts with copies of the served policies. Thread safe; one thread at a time acts.

    Args:
        calls: sends the episodes.
        pages: fetches the weights, over HTTP.
        update_interval, policy_mapping_fn, episodes_per_message, explore, seed: as for `PolicyClient`.
    """

    def __init__(
        self,
        calls: Calls,
        pages: Calls,
        *,
        update_interval: float,
        policy_mapping_fn: PolicyMapping | None,
        episodes_per_message: int,
        explore: bool | None,
        seed: int | None,
    ) -> None:
        self.version = -1
        self.submitted = {"accepted": 0, "too_old": 0}
        self._calls, self._pages = calls, pages
        self._update_interval, self._per_message = update_interval, episodes_per_message
        self._mapping, self._explore, self._seed = policy_mapping_fn, explore, seed
        self._lock, self._updating = threading.Lock(), threading.Lock()
        self._checked, self._newest = 0.0, -1
        self._several, self._largest, self._max_id_length = False, None, 0
        self._policies: list[str] = []
        self._actors: dict[str, LocalActor] = {}
        self._made_of: dict[str, dict[str, Any]] = {}  # policy id -> spaces, config, ... of its actor
        self._fetched: dict[str, tuple[str, int]] = {}  # policy id -> ETag and version of its weights
        self._running: dict[str, LocalEpisode] = {}
        self._finished: list[Episode] = []
        self._unanswered: list[_Submission] = []

    # The verbs.

    def start_episode(self, episode_id: str | None, training_enabled: bool) -> str:
        self._update()
        episode_id = uuid.uuid4().hex if episode_id is None else episode_id
        self._check_id(episode_id, "episode_id")
        with self._lock:
            if episode_id in self._running:
                raise RequestError("The episode is already running.", "start_episode", episode_id, status=409).fix(
                    "end it first, or leave episode_id out to get a new id"
                )
            self._running[episode_id] = LocalEpisode(episode_id, training_enabled)
        return episode_id

    def get_actions(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            chosen: dict[str, dict[str, Any]] = {}
            waiting: dict[Actor, list[tuple[LocalEpisode, str, LocalAgent, Any]]] = {}
            for episode_id, obs in observations.items():
                episode, by_agent = self._find(episode_id), self._by_agent(obs, "observations")
                chosen[episode_id] = dict.fromkeys(by_agent)
                for agent_id, value in by_agent.items():
                    agent, row = self._agent(episode, agent_id, value)
                    waiting.setdefault(agent.actor, []).append((episode, agent_id, agent, row))
            for actor, rows in waiting.items():
                memories, values = [agent.memory for _, _, agent, _ in rows], [row for *_, row in rows]
                actions = actor.act(memories, values, [None] * len(rows))
                for (episode, agent_id, agent, row), (action, logp) in zip(rows, actions, strict=True):
                    episode.agents[agent_id] = agent
                    agent.act(row, copy.deepcopy(action), logp, episode.t)  # the caller may write into its copy
                    chosen[episode.id][agent_id] = action
            for episode_id in observations:
                self._running[episode_id].step(self.version)
        return chosen if self._several else {name: of_agent[DEFAULT_AGENT] for name, of_agent in chosen.items()}

    def log_action(self, episode_id: str, obs: Any, action: Any) -> None:
        with self._lock:
            episode = self._find(episode_id)
            values, actions = self._by_agent(obs, "observations"), self._by_agent(action, "actions")
            check_same_agents(values, actions, episode_id)
            logged: list[tuple[str, LocalAgent, Any, Any]] = []
            for agent_id, value in values.items():
                agent, row = self._agent(episode, agent_id, value)
                where = f"action of {episode_id!r}, {agent_id!r}"
                logged.append((agent_id, agent, row, agent.actor.reader.action(row, actions[agent_id], where)))
            # Nothing has changed yet, so a refused call can be repeated.
            for agent_id, agent, row, taken in logged:
                if agent.actor.remembers:
                    agent.actor.act([agent.memory], [row], [taken])
                episode.agents[agent_id] = agent
                agent.act(row, taken, None, episode.t)
            episode.step(self.version)

    def log_returns(self, episode_id: str, reward: Any, info: Mapping[str, Any] | None) -> None:
        with self._lock:
            episode, rewards = self._find(episode_id), self._by_agent(reward, "rewards")
            infos = {} if info is None else self._by_agent(info, "infos")
            where = f"info of {episode_id!r}"
            infos = {agent_id: plain_info(plain(part), f"{where}, {agent_id!r}") for agent_id, part in infos.items()}
            where = f"reward of {episode_id!r}"
            amounts = {
                agent_id: check_finite_number(plain(amount), "reward", where) for agent_id, amount in rewards.items()
            }
            # A reward of 0 and an info for agents that have not acted or have ended are ignored.
            agents = {
                agent_id: episode.running(agent_id, "A reward")
                for agent_id in {**amounts, **infos}
                if amounts.get(agent_id) or episode.is_running(agent_id)
            }
            for agent_id, agent in agents.items():
                agent.add_returns(amounts.get(agent_id, 0.0), infos.get(agent_id))

    def end_agents(self, episode_id: str, observations: Mapping[str, Any], truncated: bool) -> None:
        with self._lock:
            self._end(self._find(episode_id), self._by_agent(observations, "observations"), truncated)

    def end_episode(self, episode_id: str, obs: Any, truncated: bool) -> None:
        with self._lock:
            last, episode = self._by_agent(obs, "observations"), self._find(episode_id)
            self._end(episode, {name: last.get(name) for name in episode.agents if episode.is_running(name)}, truncated)
            del self._running[episode_id]
            if not episode.agents:
                what = "The episode ended without an action and is dropped."
                raise RequestError(what, "end_episode", episode_id, status=409).fix("call get_action first")
            self._finished.append(episode.message())
            if len(self._finished) < self._per_message:
                return
        self._submit_finished()

    def close(self) -> None:
        """Submits the remaining finished episodes."""
        try:
            self._submit_finished()
        finally:
            self._pages.close()

    # Between this process and the server.

    def _update(self) -> None:
        """Fetches newer weights if `update_interval` has passed, or a response had a newer version."""
        with self._updating:
            now = time.monotonic()
            due = self.version < 0 or now - self._checked >= self._update_interval or self._newest > self.version
            if not due:
                return
            if not self._policies:
                hello = checked_hello(self._calls)
                with reading_answer(self._calls.address.text, "hello"):
                    self._several, learns, limits = hello["multi_agent"], hello["learns"], hello["limits"]
                    self._largest = limits["largest_number"] if learns else None
                    self._max_id_length = limits["max_id_length"]
                    self._policies = list(dict(hello["policies"]))
                self._explore = learns if self._explore is None else self._explore
            self._checked = now
            versions = [self._fetch(policy_id) for policy_id in self._policies]
            self.version = min(versions)
            # A server that restarts from an earlier checkpoint has an older version.
            self._newest = self.version

    def _fetch(self, policy_id: str) -> int:
        """Fetches the weights of a policy if they have changed; returns their version."""
        etag, version = self._fetched.get(policy_id, (None, -1))
        headers = {} if etag is None else {"If-None-Match": etag}
        status, answered, content = self._pages.fetch(f"/v1/weights?policy_id={quote(policy_id, safe='')}", headers)
        if status == 304:
            return version
        description = read_description(content)
        made_of = {name: value for name, value in description.items() if name not in ("version", "timestep")}
        actor = self._actors.get(policy_id)
        if actor is None or made_of != self._made_of[policy_id]:  # the server may restart with another config
            runner = policy_from_bytes(content, seed=_seed(self._seed, self._policies.index(policy_id)))
            self._actors[policy_id] = LocalActor(runner, bool(self._explore), self._largest)
            self._made_of[policy_id] = made_of
        else:
            with self._lock:
                update_policy(actor.runner, content)
        self._fetched[policy_id] = answered.get("ETag", ""), description["version"]
        return description["version"]

    def _submit_finished(self) -> None:
        """Submits the finished episodes.

        A submission without an answer is kept, and the next call sends it again with the same id, because the server
        may have accepted it. Episodes that the server refuses together are submitted one by one, and the first error
        is raised at the end.
        """
        with self._lock:
            waiting = deque(self._unanswered)
            if self._finished:
                waiting.append(_Submission(uuid.uuid4().hex, self._finished))
            self._unanswered, self._finished = [], []
        refused = None
        try:
            while waiting:
                try:
                    self._submit(waiting[0])
                except RequestError as error:
                    if error.status not in _REFUSED:
                        raise
                    episodes = waiting.popleft().episodes
                    if len(episodes) > 1:
                        waiting.extendleft(_Submission(uuid.uuid4().hex, [episode]) for episode in reversed(episodes))
                        continue
                    error.add_note(f"Episode {episodes[0].episode_id!r} is lost.")
                    refused = refused or error
                else:
                    waiting.popleft()
        finally:
            with self._lock:
                self._unanswered = [*waiting, *self._unanswered]
        if refused is not None:
            raise refused

    def _submit(self, submission: _Submission) -> None:
        answer = self._calls.call("submit_episodes", submission._asdict())
        with self._lock:
            for name in self.submitted:
                self.submitted[name] += answer[name]
            self._newest = max(self._newest, answer["version"])

    # Episodes and values.

    def _find(self, episode_id: str) -> LocalEpisode:
        """A running episode; EpisodeLostError for other ids."""
        if episode_id not in self._running:
            what, where = "The episode is unknown or has ended.", "PolicyClient in local mode"
            raise EpisodeLostError(what, where, episode_id, status=404).fix("start one with start_episode")
        return self._running[episode_id]

    def _check_id(self, value: Any, where: str) -> None:
        if not isinstance(value, str) or not 0 < len(value) <= self._max_id_length:
            raise InvalidRequestError("The server does not accept this id.", where, value).expected(
                f"a string of 1 to {self._max_id_length:g} characters"
            )

    def _agent(self, episode: LocalEpisode, agent_id: str, obs: Any) -> tuple[LocalAgent, Any]:
        """An agent that acts, and its observation in the dtypes of its space."""
        agent = episode.acting(agent_id)
        if agent is None:
            self._check_id(agent_id, "agent id")
            policy_id = self._policy_of(agent_id)
            agent = LocalAgent(self._actors[policy_id], policy_id if len(self._policies) > 1 else None)
        return agent, agent.actor.reader.observation(obs, f"observation of {episode.id!r}, {agent_id!r}")

    def _end(self, episode: LocalEpisode, last: Mapping[str, Any], truncated: bool) -> None:
        """Ends agents with their last observations, which may be None; if one observation is wrong, no agent ends."""
        rows: dict[LocalAgent, Any] = {}
        for agent_id, obs in last.items():
            agent, where = episode.running(agent_id, "The end"), f"observation of {episode.id!r}, {agent_id!r}"
            # An agent may end without a last observation only if there are several agents.
            absent = obs is None and self._several
            rows[agent] = None if absent else agent.actor.reader.observation(obs, where, masks=False)
        for agent, row in rows.items():
            agent.end(row, truncated)

    def _policy_of(self, agent_id: str) -> str:
        if self._mapping is not None:
            policy_id = self._mapping(agent_id)
        else:
            policy_id = self._policies[0] if len(self._policies) == 1 else agent_id
        if policy_id not in self._actors:
            raise without_policy(agent_id, policy_id, self._policies)
        return policy_id

    def _by_agent(self, value: Any, what: str) -> Mapping[str, Any]:
        if not self._several:
            return {DEFAULT_AGENT: value}
        if not isinstance(value, Mapping):
            fix = "pass a dict, {agent id: value, ...}: the server has several agents"
            raise InvalidRequestError(f"The {what} are not by agent.", got=value).expected("a dict", fix)
        return value


def _seed(seed: int | None, number: int) -> int | None:
    """The seed of policy `number`, so that policies draw different random numbers."""
    return seed if seed is None or not number else int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
