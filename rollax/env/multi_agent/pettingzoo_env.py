"""PettingZoo's parallel and AEC environments as `MultiAgentEnv`s; PettingZoo itself is never imported here."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from typing import Any, NamedTuple

import gymnasium as gym

from rollax.env.dict_rows import ALL
from rollax.env.multi_agent.agent_spaces import common_space
from rollax.env.multi_agent.multi_agent_env import MultiAgentEnv
from rollax.errors import EnvError

AgentDict = dict[Hashable, Any]


def is_pettingzoo(env: Any) -> bool:
    """True where spaces are asked for by agent: `observation_space(agent)`, as in no other kind of environment."""
    space = getattr(env, "observation_space", None)
    steps = hasattr(env, "reset") and hasattr(env, "step")
    return steps and callable(space) and not isinstance(space, gym.Space) and not isinstance(env, type)


def adapt(env: Any) -> Any:
    """The same environment as a `MultiAgentEnv`. One that is none of PettingZoo's is left as it is."""
    if not is_pettingzoo(env):
        return env
    return AECPettingZooEnv(env) if hasattr(env, "last") and hasattr(env, "observe") else ParallelPettingZooEnv(env)


def from_pettingzoo(env: Any) -> MultiAgentEnv:
    """An environment of PettingZoo's parallel or AEC API as a `MultiAgentEnv`, `with_agent_groups` for instance.

    A trainer takes PettingZoo's environments as they are; this is for what only a `MultiAgentEnv` has.

    Args:
        env: as it comes from the library.
    Raises:
        EnvError: none of PettingZoo's.
    """
    if not is_pettingzoo(env):
        raise EnvError(
            "No environment of PettingZoo.",
            where="from_pettingzoo",
            got=env,
            expected="an environment of the parallel or the AEC API",
            fix="pass an instance; other kinds of environment need no adapter",
        )
    return adapt(env)


class _Spec(NamedTuple):
    """Names the environment in error messages, as Gymnasium's `spec` does."""

    id: str


class PettingZooEnv(MultiAgentEnv):
    """What both kinds have in common.

    Args:
        env: as it comes from the library.
    """

    def __init__(self, env: Any) -> None:
        self.env = self.as_written = env
        self.spec = _Spec(getattr(env, "metadata", {}).get("name") or type(getattr(env, "unwrapped", env)).__name__)
        agents = getattr(env, "possible_agents", None)
        self.possible_agents = None if agents is None else list(agents)
        if self.possible_agents:
            with warnings.catch_warnings():
                # Where an env has only dicts of spaces, asking for one of them recommends to write a method.
                warnings.simplefilter("ignore")
                self.observation_spaces = {agent: env.observation_space(agent) for agent in self.possible_agents}
                self.action_spaces = {agent: env.action_space(agent) for agent in self.possible_agents}
            self.observation_space = common_space(self.observation_spaces)
            self.action_space = common_space(self.action_spaces)

    def render(self) -> Any:
        # Without a render mode, render() only warns.
        return None if getattr(self.env, "render_mode", None) is None else self.env.render()

    def close(self) -> None:
        self.env.close()


class ParallelPettingZooEnv(PettingZooEnv):
    """All agents of `env.agents` act at every step; the episode is over when there are none left."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[AgentDict, AgentDict]:
        obs, infos = self.env.reset(seed=seed, options=options)
        # There may be entries that belong to no agent.
        return {agent: obs[agent] for agent in self.env.agents}, infos

    def step(self, actions: AgentDict) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        obs, rewards, terminateds, truncateds, infos = self.env.step(actions)
        agents = self.env.agents
        if obs.keys() != actions.keys() or len(agents) != len(actions):
            obs = {agent: value for agent, value in obs.items() if agent in actions or agent in agents}
            left = [agent for agent in actions if agent not in agents]
            # Whoever is gone from `agents` has ended, with a flag or without.
            terminateds = terminateds | {a: True for a in left if not (terminateds.get(a) or truncateds.get(a))}
        over = not agents
        return obs, rewards, terminateds | {ALL: over}, truncateds | {ALL: False}, infos


class AECPettingZooEnv(PettingZooEnv):
    """Agents act one at a time: only `env.agent_selection` is in `obs`.

    Rewards are those of `env.last()`: what an agent has received since its last turn, at its next one. Agents that have
    ended are stepped with None here, and nobody is asked about them.
    """

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[AgentDict, AgentDict]:
        self.env.reset(seed=seed, options=options)
        self._selecting = _holder(self.env, "agent_selection")
        obs, _, terminateds, _, infos = self._until_somebody_acts()
        return {agent: value for agent, value in obs.items() if agent not in terminateds}, infos

    def step(self, actions: AgentDict) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        (action,) = actions.values()
        self.env.step(action)
        return self._until_somebody_acts()

    def _until_somebody_acts(self) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        env, over = self.env, False
        obs, rewards, terminateds, truncateds, infos = parts = {}, {}, {}, {}, {}
        while not over:
            agent = self._selecting.agent_selection
            value, rewards[agent], terminated, truncated, infos[agent] = env.last()
            if not (terminated or truncated):
                obs[agent] = value
                break
            if value is not None:
                obs[agent] = value
            terminateds[agent], truncateds[agent] = terminated, truncated
            env.step(None)
            over = not env.agents
        terminateds[ALL], truncateds[ALL] = over, False
        return parts


def _holder(env: Any, name: str) -> Any:
    """Whoever holds an attribute. Wrappers look it up in each other, which takes them as long as a step."""
    while name not in vars(env) and not hasattr(type(env), name) and "env" in vars(env):
        env = vars(env)["env"]
    return env
