"""The episodes that a client plays with its own copy of the policies, until they are submitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollax.batch import SampleBatch
from rollax.core import trees
from rollax.errors import RequestError
from rollax.policy.model_policy import ModelPolicy
from rollax.rollout.policy_runner import PolicyRunner
from rollax.serving.acting import Actor, AgentMemory
from rollax.serving.agent_reader import AgentReader
from rollax.serving.protocol import Episode, Trajectory


class LocalActor(Actor):
    """Acts, and returns the log-probabilities of the actions.

    Attributes:
        reader: refuses values that the server would refuse.
    """

    def __init__(self, runner: PolicyRunner, explore: bool, largest: float | None) -> None:
        super().__init__(runner, explore)
        self.reader = AgentReader(self.policy.observation_space, self.policy.action_space, largest)
        if isinstance(self.policy, ModelPolicy) and not self.policy.learns_off_policy:
            self.policy.recorded_columns = self.policy.exploration.recorded  # before the first forward pass

    def rows(self, actions: trees.Tree, fetches: Mapping[str, Any]) -> list[Any]:
        """(action, log-probability or None) of each row."""
        if not self.policy.learns_off_policy:
            fetches = {**fetches, **self.policy.behaviour(actions, fetches, self.explore)}
        if SampleBatch.ACTION_LOGP in fetches and self.runner.action_map.boxes:
            # An action that was clipped for the environment is a different action with another probability.
            fetches = {**fetches, **self.policy.fetches_of(self.runner.action_map.to_policy(actions), fetches)}
        # A greedy action is not sampled from the distribution, so it has no log-probability.
        logp = fetches.get(SampleBatch.ACTION_LOGP) if self.explore else None
        rows = actions.tolist() if isinstance(actions, np.ndarray) and actions.ndim == 1 else trees.unstack(actions)
        return list(zip(rows, [None] * len(rows) if logp is None else logp.tolist(), strict=True))


class LocalAgent:
    """One agent's trajectory so far; `policy_id` is None if the server has only one policy."""

    def __init__(self, actor: LocalActor, policy_id: str | None = None) -> None:
        self.actor, self.memory, self.ended = actor, AgentMemory(actor), False
        self.trajectory = Trajectory(
            obs=[], actions=[], rewards=[], action_logp=[], t=[], infos=[], policy_id=policy_id
        )

    def act(self, obs: Any, action: Any, logp: float | None, t: int) -> None:
        """Adds a step."""
        row = {"obs": obs, "actions": action, "rewards": 0.0, "action_logp": logp, "t": t, "infos": {}}
        for name, value in row.items():
            getattr(self.trajectory, name).append(value)

    def add_returns(self, reward: float, info: Mapping[str, Any] | None) -> None:
        """Adds to the reward and the info of the last step."""
        assert self.trajectory.infos
        self.trajectory.rewards[-1] += reward
        self.trajectory.infos[-1].update(info or {})
        self.memory.reward += reward

    def end(self, obs: Any, truncated: bool) -> None:
        """Ends the trajectory with its last observation; None repeats the previous observation."""
        one, self.ended = self.trajectory, True
        one.obs.append(one.obs[-1] if obs is None else obs)
        one.terminated, one.truncated = not truncated, bool(truncated)
        if None in (one.action_logp or ()):  # actions without a probability, or not chosen by the policy
            one.action_logp = None
        if not any(one.infos or ()):
            one.infos = None


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
        return agent is not None and not agent.ended

    def running(self, agent_id: str, what: str) -> LocalAgent:
        """An agent that has acted and has not ended; RequestError otherwise."""
        if not self.is_running(agent_id):
            expected = f"one of {[name for name, other in self.agents.items() if not other.ended]}"
            raise RequestError(
                f"{what} is for an agent that has not acted or has ended.", f"episode {self.id!r}", agent_id, status=409
            ).expected(expected, "call get_action or log_action first")
        return self.agents[agent_id]

    def acting(self, agent_id: str) -> LocalAgent | None:
        """An agent that can act; None if the agent is new, RequestError if it has ended."""
        agent = self.agents.get(agent_id)
        if agent is not None and agent.ended:
            raise RequestError(
                "An agent appears again after its end.", f"episode {self.id!r}", agent_id, status=409
            ).expected("one trajectory of each agent in an episode", "give it a new id, or use remote inference")
        return agent

    def message(self) -> Episode:
        """The episode, once all of its agents have ended."""
        agents = {agent_id: agent.trajectory for agent_id, agent in self.agents.items()}
        return Episode(
            agents=agents, episode_id=self.id, policy_version=self.version, training_enabled=self.training_enabled
        )
