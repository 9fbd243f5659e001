"""`TrainingBackend`: answers requests with the policies of a run that learns from the episodes."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from rollax.core import trees
from rollax.env.external.episode import ByAgent
from rollax.env.external.episodes import ExternalEpisodes
from rollax.env.external.queue import EnvStoppedError, QueueFullError
from rollax.env.rows import DEFAULT_AGENT
from rollax.errors import EnvError, InvalidRequestError, PolicyError, RequestError
from rollax.rollout.policy_runner import PolicyRunner
from rollax.rollout.worker import RolloutWorker
from rollax.serving.backend import Backend, OnActions, hello_of
from rollax.serving.learning_curve import LearningCurve
from rollax.serving.protocol import Actions, Episode, Hello, Submitted, Trajectory

_RETRY_AFTER_S = 0.05
_MOST_AGENTS = 10_000


class TrainingBackend(Backend):
    """Passes requests to the sampler of a worker, whose thread chooses the actions.

    `episodes` belong to the external environment that the worker samples; `curve` is the learning curve so far.
    """

    def __init__(
        self,
        episodes: ExternalEpisodes,
        worker: RolloutWorker,
        *,
        multi_agent: bool = False,
        curve: LearningCurve | None = None,
    ) -> None:
        self.worker = worker
        self.curve = LearningCurve() if curve is None else curve
        self._episodes, self._several = episodes, multi_agent
        self._only = next(iter(worker.runners.values())) if len(worker.runners) == 1 else None
        self._runner_of = lru_cache(_MOST_AGENTS)(self._mapped)
        # Agent -> policy ids that repeated calls of the mapping returned: several if it is random. A mapping may
        # change, as in a league, but whether it is random is determined once.
        mapping: Any = worker.policy_of
        self._returned = lru_cache(_MOST_AGENTS)(lambda agent: frozenset(mapping.returned(agent)))
        self._running: dict[str, _Running] = {}
        self._lock = threading.Lock()  # for counts and curve, which `submit` changes in another thread
        self._counts = {"episodes_submitted": 0, "episodes_too_old": 0, "episodes_dropped": 0}

    def hello(self) -> Hello:
        return hello_of(self.worker.policies, learns=True, multi_agent=self._several, version=self.version)

    @property
    def version(self) -> int:
        return self.worker.version

    def spaces_of(self, episode_id: str | None, agent_id: str | None) -> tuple[Space, Space]:
        policy = self._runner(agent_id).policy
        return policy.observation_space, policy.action_space

    def start_episode(self, episode_id: str, training_enabled: bool) -> None:
        self._episodes.start(episode_id, training_enabled)
        self._running[episode_id] = _Running(training_enabled)

    def request_actions(self, observations: Mapping[str, Any], on_done: OnActions) -> None:
        def on_actions(answers: dict[Hashable, dict[Hashable, Any]] | EnvError) -> None:
            if isinstance(answers, EnvError):
                on_done(answers)
                return
            chosen: Any = answers
            if not self._several:
                chosen = {episode_id: by_agent[DEFAULT_AGENT] for episode_id, by_agent in answers.items()}
            on_done(Actions(chosen, self.worker.version))

        by_agent: Any = observations
        if not self._several:
            by_agent = {episode_id: {DEFAULT_AGENT: obs} for episode_id, obs in observations.items()}
        self._episodes.request(by_agent, on_actions)
        for episode_id in observations:
            self._running[episode_id].steps += 1

    def log_action(self, episode_id: str, obs: Any, action: Any) -> None:
        running, values = self._running[episode_id], self._by_agent(obs)
        if running.trains and self._on_policy(self.worker.runners):
            for agent in values:
                self._check_off_policy(self._policies_of(agent))
        try:
            self._episodes.log(episode_id, values, self._by_agent(action), blocking=False)
        except QueueFullError as error:
            what = "Too many logged actions are waiting for the sampler."
            got, fix = error.parts.get("got"), "wait, then send it again"
            raise RequestError(what, got=got, status=429, retry_after_s=_RETRY_AFTER_S, fix=fix) from None
        running.steps += 1

    def log_returns(self, episode_id: str, reward: Any, info: Mapping[str, Any] | None) -> None:
        rewards = self._by_agent(reward)
        self._episodes.add_returns(episode_id, rewards, {} if info is None else self._by_agent(info))
        self._running[episode_id].reward += sum(rewards.values())

    def end_agents(self, episode_id: str, observations: Mapping[str, Any], truncated: bool) -> None:
        self._episodes.end_agents(episode_id, observations, truncated)

    def end_episode(self, episode_id: str, obs: Any, truncated: bool) -> None:
        self._episodes.end(episode_id, self._by_agent(obs), truncated)
        running = self._running.pop(episode_id)
        self._count(running.reward, running.steps)

    def drop_episode(self, episode_id: str) -> None:
        if self._running.pop(episode_id, None) is None:
            return
        with suppress(EnvStoppedError):
            self._episodes.drop(episode_id)
            with self._lock:
                self._counts["episodes_dropped"] += 1

    def submit(self, episodes: list[Episode]) -> Submitted:
        # All checks come first, because the episodes of a refused submission may be sent again, one by one.
        too_old = []
        for number, episode in enumerate(episodes):
            self._episodes.check_declared(episode.agents, f"episodes[{number}]")
            learning = {agent: self._policies_of(agent) for agent in episode.agents}
            for agent, trajectory in episode.agents.items():
                where = f"episodes[{number}].agents.{agent}.policy_id"
                self._check_policy(trajectory.policy_id, learning[agent], where)
            too_old.append(self._is_too_old(episode, learning))
        for episode, is_too_old in zip(episodes, too_old, strict=True):
            if is_too_old:
                self.worker.note_dropped(max(len(trajectory.rewards) for trajectory in episode.agents.values()))
            else:
                self._play(episode)
        with self._lock:
            self._counts["episodes_submitted"] += len(episodes)
            self._counts["episodes_too_old"] += sum(too_old)
        return Submitted(accepted=len(episodes) - sum(too_old), too_old=sum(too_old), version=self.version)

    def weights(self, policy_id: str) -> bytes:
        from rollax.serving.weights import policy_to_bytes

        version = self.version  # read before the weights, which may be newer, but not older
        return policy_to_bytes(self.worker.runners[policy_id], version)

    def onnx(self, policy_id: str) -> bytes:
        from rollax.serving.export.onnx_model import policy_to_onnx  # requires an extra

        return policy_to_onnx(self.worker.runners[policy_id])

    def statistics(self) -> dict[str, Any]:
        with self._lock:
            return {
                **self._counts,
                "episodes_total": self.curve.episodes,
                "steps_total": self.curve.steps,
                "timestep": max(runner.policy.timestep for runner in self.worker.runners.values()),
                "episode_reward_mean": self.curve.reward,
                "episode_len_mean": self.curve.length,
                "curve": list(self.curve.points),
            }

    # The policies of agents.

    def _runner(self, agent_id: Hashable) -> PolicyRunner:
        if self._only is not None or agent_id is None:
            return self._only or next(iter(self.worker.runners.values()))
        return self._runner_of(str(agent_id))

    def _mapped(self, agent_id: str) -> PolicyRunner:
        assert self.worker.policy_of is not None
        try:
            return self.worker.runners[self.worker.policy_of(agent_id, None)]
        except PolicyError as error:
            raise InvalidRequestError("The agent has no policy.", "agent id", agent_id).expected(
                "an agent for which policy_mapping_fn(agent_id) returns a policy id",
                "use another agent id; a policy mapping for a server depends on the agent id only",
            ) from error

    def _by_agent(self, value: Any) -> ByAgent:
        return value if self._several else {DEFAULT_AGENT: value}

    def _check_policy(self, policy_id: str | None, learning: frozenset[str], where: str) -> None:
        """Refuses a trajectory if the policy that acted is not the policy that would learn from it."""
        if policy_id is not None and {policy_id} != learning:
            what = "The server maps the agent to another policy than the one that acted."
            got = f"{policy_id!r}; on the server {' or '.join(map(repr, sorted(learning)))}"
            expected = "the server's policy_mapping_fn in the client too, and a mapping that is not random"
            fix = "pass the server's mapping to the client; use remote inference if the mapping is random"
            raise InvalidRequestError(what, where, got).expected(expected, fix)

    def _policies_of(self, agent: Hashable) -> frozenset[str]:
        """The policies that may learn from an agent: several if the mapping is random."""
        mapping, runner = self.worker.policy_of, self._runner(agent)  # refuses an agent without a policy
        if mapping is None or self._only is not None:
            return frozenset({runner.policy.name})
        returned = self._returned(agent)
        return returned if len(returned) > 1 else frozenset({mapping(agent, None)})

    def _on_policy(self, policies: Iterable[str]) -> list[str]:
        """The ids in `policies` whose policies do not learn from logged actions."""
        return [policy_id for policy_id in sorted(policies) if not self.worker.runners[policy_id].accepts_off_policy]

    def _check_off_policy(self, policies: Iterable[str]) -> None:
        for policy_id in self._on_policy(policies):
            what = "The policy learns only from its own actions, but got a logged one."
            got = "an action that the policy has not chosen, or one without action_logp or policy_version"
            fix = "use get_action, start the episode with training_enabled false, or serve an algorithm such as DQN"
            raise InvalidRequestError(what, f"policy {policy_id!r}", got).expected("actions of this policy", fix)

    # Episodes played elsewhere.

    def _is_too_old(self, episode: Episode, learning: Mapping[str, frozenset[str]]) -> bool:
        """Whether an episode is too old for an on-policy algorithm; InvalidRequestError if it has logged actions.

        `learning` is agent id -> the policies that may learn from it.
        """
        if not episode.training_enabled or not any(map(self._on_policy, learning.values())):
            return False
        for agent, trajectory in episode.agents.items():
            if trajectory.action_logp is None or episode.policy_version is None:
                self._check_off_policy(learning[agent])
        if episode.policy_version is None:
            return False
        # A version newer than this server's is from before a restart with an earlier checkpoint.
        return self.worker.is_too_old(episode.policy_version) or episode.policy_version > self.version

    def _play(self, episode: Episode) -> None:
        """Queues the events of an episode in time order; blocks while the queue is full."""
        episode_id = f"submitted-{uuid.uuid4().hex}"
        self._episodes.start(episode_id, episode.training_enabled)
        try:
            steps = self._play_steps(episode_id, episode)
        except BaseException:
            with suppress(EnvStoppedError):
                self._episodes.drop(episode_id)
            raise
        reward = sum(float(np.sum(trajectory.rewards)) for trajectory in episode.agents.values())
        self._count(reward, steps)

    def _play_steps(self, episode_id: str, episode: Episode) -> int:
        knows_logp = episode.policy_version is not None
        left: dict[Any, Iterator[_Step]] = {agent: _steps(part) for agent, part in episode.agents.items()}
        following = {agent: next(steps) for agent, steps in left.items()}
        count = 0
        while following:
            now = min(step.t for step in following.values())
            acting = {agent: step for agent, step in following.items() if step.t == now}
            ending = {agent: step for agent, step in acting.items() if step.action is None}
            acting = {agent: step for agent, step in acting.items() if step.action is not None}
            if ending:
                for agent in ending:
                    del following[agent]
                self._end(episode_id, episode, ending, closes=not following)
            if not acting:
                continue
            count += 1
            known = {agent: step.logp for agent, step in acting.items()} if knows_logp else None
            values = {agent: step.obs for agent, step in acting.items()}
            self._episodes.log(episode_id, values, {a: step.action for a, step in acting.items()}, known)
            infos = {agent: step.info for agent, step in acting.items() if step.info}
            self._episodes.add_returns(episode_id, {agent: step.reward for agent, step in acting.items()}, infos)
            for agent in acting:
                following[agent] = next(left[agent])
        return count

    def _end(self, episode_id: str, episode: Episode, ending: Mapping[str, _Step], *, closes: bool) -> None:
        """Ends agents; if `closes`, the episode ends with the last of these agents."""
        terminated = {agent: step.obs for agent, step in ending.items() if episode.agents[agent].terminated}
        truncated = {agent: step.obs for agent, step in ending.items() if agent not in terminated}
        for agents, others, is_truncated in ((terminated, truncated, False), (truncated, {}, True)):
            if agents:
                end = self._episodes.end if closes and not others else self._episodes.end_agents
                end(episode_id, agents, is_truncated)

    def _count(self, reward: float, steps: int) -> None:
        with self._lock:
            self.curve.steps += steps
            self.curve.add(reward, steps)


@dataclass(slots=True)
class _Running:
    """A running episode: whether it is trained on, and its reward and steps so far."""

    trains: bool
    reward: float = 0.0
    steps: int = 0


class _Step(NamedTuple):
    """One step of a trajectory; the last one has no action."""

    t: int
    obs: Any
    action: Any
    reward: float
    logp: float | None
    info: Any


def _steps(trajectory: Trajectory) -> Iterator[_Step]:
    observations, actions = trees.unstack(trajectory.obs), trees.unstack(trajectory.actions)
    times = range(len(actions)) if trajectory.t is None else trajectory.t
    logps = [None] * len(actions) if trajectory.action_logp is None else [float(x) for x in trajectory.action_logp]
    infos = trajectory.infos or [{}] * len(actions)
    rewards = [float(reward) for reward in trajectory.rewards]
    for columns in zip(times, observations[:-1], actions, rewards, logps, infos, strict=True):
        yield _Step(*columns)
    yield _Step(times[-1] + 1, observations[-1], None, 0.0, None, {})
