"""The episodes that a client plays with its own copy of the policies, until they are submitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollax.batch import SampleBatch
from rollax.core import trees
from rollax.errors import EpisodeLostError, RequestError
from rollax.rollout.policy_runner import PolicyRunner
from rollax.serving.acting import Actor, AgentMemory
from rollax.serving.readers import AgentReader


class LocalActor(Actor):
    """Acts, and returns the log-probabilities of the actions.

    Attributes:
        reader: refuses values that the server would refuse.
    """

    def __init__(self, runner: PolicyRunner, explore: bool, largest: float | None) -> None:
        super().__init__(runner, explore)
        self.reader = AgentReader(self.policy.observation_space, self.policy.action_space, largest)

    def rows(self, actions: trees.Tree, fetches: Mapping[str, Any]) -> list[Any]:
        """(action, log-probability or None) of each row."""
        if SampleBatch.ACTION_LOGP in fetches and self.runner.action_map.boxes:
            # An action that was clipped for the environment is a different action with another probability.
            fetches = {**fetches, **self.policy.fetches_of(self.runner.action_map.to_policy(actions), fetches)}
        # A greedy action is not sampled from the distribution, so it has no log-probability.
        logp = fetches.get(SampleBatch.ACTION_LOGP) if self.explore else None
        rows = actions.tolist() if isinstance(actions, np.ndarray) and actions.ndim == 1 else trees.unstack(actions)
        return list(zip(rows, [None] * len(rows) if logp is None else logp.tolist(), strict=True))


class LocalAgent:
    """One agent's trajectory so far.

    Attributes:
        actor: acts for the agent.
        policy_id: the id of its policy, where the server has several; else None.
        memory: its policy's memory.
        logp: log-probability of each action; None for actions without one, or not chosen by the policy.
        t: number of the environment step of each action.
    """

    def __init__(self, actor: LocalActor, policy_id: str | None = None) -> None:
        self.actor, self.memory, self.policy_id = actor, AgentMemory(actor), policy_id
        self.obs: list[Any] = []
        self.actions: list[Any] = []
        self.rewards: list[float] = []
        self.logp: list[float | None] = []
        self.t: list[int] = []
        self.infos: list[dict[str, Any]] = []
        self.ended: str | None = None

    def act(self, obs: Any, action: Any, logp: float | None, t: int) -> None:
        """Adds a step."""
        self.obs.append(obs)
        self.actions.append(action)
        self.rewards.append(0.0)
        self.logp.append(logp)
        self.t.append(t)
        self.infos.append({})

    def add_returns(self, reward: float, info: Mapping[str, Any] | None) -> None:
        """Adds to the reward and the info of the last step."""
        self.rewards[-1] += reward
        self.infos[-1].update(info or {})
        self.memory.reward += reward

    def end(self, obs: Any, truncated: bool) -> None:
        """Ends the trajectory; without a last observation, with the previous one."""
        self.obs.append(self.obs[-1] if obs is None else obs)
        self.ended = "truncated" if truncated else "terminated"

    def message(self) -> dict[str, Any]:
        """The trajectory as `rollax.serving.protocol.Trajectory`."""
        assert self.ended is not None
        message: dict[str, Any] = {
            "obs": self.obs, "actions": self.actions, "rewards": self.rewards, "t": self.t, self.ended: True
        }  # fmt: skip
        if None not in self.logp:
            message["action_logp"] = self.logp
        if self.policy_id is not None:
            message["policy_id"] = self.policy_id
        return {**message, "infos": self.infos} if any(self.infos) else message


class LocalEpisode:
    """A running episode."""

    def __init__(self, episode_id: str, training_enabled: bool) -> None:
        self.id, self.training_enabled = episode_id, training_enabled
        self.agents: dict[str, LocalAgent] = {}
        self.version: int | None = None
        self.t = 0

    def step(self, version: int) -> None:
        """Counts an environment step with weights of this version."""
        self.version = version if self.version is None else min(version, self.version)
        self.t += 1

    def is_running(self, agent_id: str) -> bool:
        """Whether an agent has acted and has not ended."""
        agent = self.agents.get(agent_id)
        return agent is not None and agent.ended is None

    def running(self, agent_id: str, what: str) -> LocalAgent:
        """An agent that has acted and has not ended; RequestError otherwise."""
        if not self.is_running(agent_id):
            raise RequestError(
                f"{what} is of an agent that has not acted, or has ended.",
                status=409,
                where=f"episode {self.id!r}",
                got=agent_id,
                expected=f"one of {[name for name, other in self.agents.items() if other.ended is None]}",
                fix="call get_action or log_action first",
            )
        return self.agents[agent_id]

    def acting(self, agent_id: str) -> LocalAgent | None:
        """An agent that can act; None for a new one. RequestError for one that has ended."""
        agent = self.agents.get(agent_id)
        if agent is not None and agent.ended is not None:
            raise RequestError(
                "An agent appears again after its end.",
                status=409,
                where=f"episode {self.id!r}",
                got=agent_id,
                expected="one trajectory of each agent in an episode",
                fix="give it a new id, or use remote inference",
            )
        return agent

    def message(self) -> dict[str, Any]:
        """The episode as `rollax.serving.protocol.Episode`."""
        agents = {agent_id: agent.message() for agent_id, agent in self.agents.items()}
        message = {"episode_id": self.id, "agents": agents, "policy_version": self.version}
        return message if self.training_enabled else {**message, "training_enabled": False}


class LocalEpisodes:
    """The running episodes by id."""

    def __init__(self) -> None:
        self._running: dict[str, LocalEpisode] = {}

    def start(self, episode_id: str, training_enabled: bool) -> None:
        """Starts an episode; RequestError for the id of a running one."""
        if episode_id in self._running:
            raise RequestError(
                "The episode is already running.",
                status=409,
                where="start_episode",
                got=episode_id,
                fix="end it first, or leave episode_id out to get a new id",
            )
        self._running[episode_id] = LocalEpisode(episode_id, training_enabled)

    def find(self, episode_id: str) -> LocalEpisode:
        """A running episode; EpisodeLostError for other ids."""
        if episode_id not in self._running:
            raise EpisodeLostError(
                "The episode is unknown or has ended.",
                status=404,
                where="PolicyClient in local mode",
                got=episode_id,
                fix="start one with start_episode",
            )
        return self._running[episode_id]

    def end(self, episode_id: str) -> LocalEpisode:
        """Removes an episode; RequestError for one without an action."""
        episode = self._running.pop(self.find(episode_id).id)
        if not episode.agents:
            raise RequestError(
                "The episode ended without an action and is dropped.",
                status=409,
                where="end_episode",
                got=episode_id,
                fix="call get_action or log_action first",
            )
        return episode
