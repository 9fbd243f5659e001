"""`to_pettingzoo`: a `MultiAgentEnv` as a parallel environment of PettingZoo."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from typing import Any

import gymnasium as gym

from rollax.env.adapters import adapted
from rollax.env.checks import env_name
from rollax.env.dict_rows import flags_of
from rollax.env.multi_agent.multi_agent_env import AgentDict, MultiAgentEnv, space_of
from rollax.errors import EnvError, MultiAgentError, SpaceError, not_installed

try:
    from pettingzoo import ParallelEnv
except ImportError as error:
    raise not_installed("PettingZoo", error, where="to_pettingzoo", package="pettingzoo", extra="pettingzoo") from error


def to_pettingzoo(env: MultiAgentEnv) -> ParallelEnv:
    """The environment with PettingZoo's parallel API, in which every agent acts at every step.

    An agent that is alive but does not act stays in `agents`: it gets its last observation again, its action is
    ignored, and `infos[agent]["acts"]` is False. Environments in which agents take turns can be exported too.

    Args:
        env: the environment, with its spaces and `possible_agents`; `EnvError` for any other kind.
    """
    if not isinstance(env, MultiAgentEnv):
        raise EnvError.is_not("This", "a multi-agent environment", "to_pettingzoo", env).fix(
            "pass an instance of a subclass of MultiAgentEnv"
        )
    return _Exported(adapted(env))


class _Exported(ParallelEnv):
    def __init__(self, env: MultiAgentEnv) -> None:
        self.env = env
        self.metadata = {"name": env_name(env), **(getattr(env, "metadata", None) or {})}
        self.render_mode = getattr(env, "render_mode", None)
        if env.possible_agents:
            self.possible_agents = list(env.possible_agents)
        self.agents: list[Hashable] = []
        self._last_obs: AgentDict = {}
        self._acting: set[Hashable] = set()

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[AgentDict, AgentDict]:
        obs, infos = self.env.reset(seed=seed, options=options)
        # Copies, because an environment may reuse an array for the observation of another agent.
        self._last_obs, self.agents, self._acting = copy.deepcopy(dict(obs)), list(obs), set(obs)
        return dict(obs), self._infos(infos, self.agents)

    def step(self, actions: Mapping) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        before = self.agents
        self._check(actions)
        given = {agent: action for agent, action in actions.items() if agent in self._acting}
        obs, rewards, terminateds, truncateds, infos = self.env.step(given)
        flags = {agent: flags_of(agent, terminateds, truncateds) for agent in dict.fromkeys((*before, *obs))}
        # An agent that ends in its first observation is omitted.
        reported = [agent for agent, ended in flags.items() if agent in before or not any(ended)]
        self.agents = [agent for agent in reported if not any(flags[agent])]
        self._acting = obs.keys() & set(self.agents)
        shown = {agent: obs[agent] if agent in obs else self._last_obs[agent] for agent in reported}
        self._last_obs = {agent: copy.deepcopy(shown[agent]) for agent in self.agents}
        return (
            shown,
            {agent: float(rewards.get(agent, 0.0)) if agent in before else 0.0 for agent in reported},
            {agent: flags[agent][0] for agent in reported},
            {agent: flags[agent][1] for agent in reported},
            self._infos(infos, reported),
        )

    def _check(self, actions: Mapping) -> None:
        where = f"{self}, exported to PettingZoo"
        if not self.agents:
            raise EnvError(
                "step() was called before the reset or after the end of an episode.", where, "no agents"
            ).expected("reset() first", "reset the environment when `agents` is empty")
        wrong = (actions.keys() - set(self.agents)) | (self._acting - actions.keys())
        if wrong:
            raise MultiAgentError.wrong_keys(
                "The actions are not for the agents in `agents`.", where, actions, self.agents
            ).fix("pass one action for each agent of `agents`, and no other")

    def _infos(self, infos: AgentDict, agents: list[Hashable]) -> AgentDict:
        return {agent: {"acts": agent in self._acting, **infos.get(agent, {})} for agent in agents}

    def observation_space(self, agent: Hashable) -> gym.Space:
        return self._space(agent, "observation_space")

    def action_space(self, agent: Hashable) -> gym.Space:
        return self._space(agent, "action_space")

    def _space(self, agent: Hashable, kind: str) -> gym.Space:
        space = space_of(self.env, kind, agent)
        if space is None:
            raise SpaceError.no_space(kind, f"{self}, exported to PettingZoo, agent {agent!r}").fix(
                f"set {kind} on the MultiAgentEnv, or {kind}s where agents differ"
            )
        return space

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()
