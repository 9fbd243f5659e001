"""PettingZoo's parallel and AEC environments as `MultiAgentEnv`s; PettingZoo itself is never imported here."""

from __future__ import annotations

import copy
import difflib
import warnings
from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any

from rollax.env import checks
from rollax.env.adapters import asks_spaces_by_agent, takes_turns
from rollax.env.agent_checks import MOST_IDLE_POLLS, stuck
from rollax.env.base_env import in_order
from rollax.env.multi_agent.multi_agent_env import AgentDict, MultiAgentEnv, are_dicts, common_space
from rollax.env.registry import EnvContext
from rollax.env.rows import ALL
from rollax.errors import ConfigError, EnvError, MultiAgentError, not_installed

_COMMON = "common"
"""A key that belongs to no agent."""


def from_pettingzoo(env: Any) -> MultiAgentEnv:
    """An environment of PettingZoo's parallel or AEC API as a `MultiAgentEnv`; `EnvError` for any other.

    Trainers accept PettingZoo's environments directly; this function is for methods of `MultiAgentEnv`, such as
    `with_agent_groups`.
    """
    if not asks_spaces_by_agent(env):
        raise EnvError("This is not an environment of PettingZoo.", "from_pettingzoo", env).expected(
            "one of the parallel or the AEC API", "pass an instance; pass other kinds to rollax without from_pettingzoo"
        )
    return AECPettingZooEnv(env) if takes_turns(env) else ParallelPettingZooEnv(env)


class PettingZooEnv(MultiAgentEnv):
    """The common part of both kinds."""

    def __init__(self, env: Any) -> None:
        self.env = self.as_written = env
        name = getattr(env, "metadata", {}).get("name") or type(getattr(env, "unwrapped", env)).__name__
        self.spec = SimpleNamespace(id=name)  # names the environment in error messages, as Gymnasium's `spec` does
        agents = getattr(env, "possible_agents", None)
        self.possible_agents = None if agents is None else list(in_order(agents))
        if self.possible_agents:
            with warnings.catch_warnings():
                # An environment with only dicts of spaces warns that it should have a method.
                warnings.simplefilter("ignore")
                self.observation_spaces = {agent: env.observation_space(agent) for agent in self.possible_agents}
                self.action_spaces = {agent: env.action_space(agent) for agent in self.possible_agents}
            self.observation_space = common_space(self.observation_spaces)
            self.action_space = common_space(self.action_spaces)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec.id}, possible_agents={self.possible_agents})"

    @property
    def render_mode(self) -> Any:
        return getattr(self.env, "render_mode", None)

    def render(self) -> Any:
        return None if self.render_mode is None else self.env.render()  # without a render mode, `render` warns

    def close(self) -> None:
        self.env.close()


class ParallelPettingZooEnv(PettingZooEnv):
    """All agents of `env.agents` act at every step; the episode is over when all of these have ended."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[AgentDict, AgentDict]:
        result = self.env.reset(seed=seed, options=options)
        if not are_dicts(result, 2):
            return result  # refused later, as in any environment
        obs, infos = result
        agents = _agents(self.env, self.spec.id)
        self._refuse_unobserved(agents, obs)
        return {agent: obs[agent] for agent in agents} | self._undeclared(obs), _by_agent(infos)

    def step(self, actions: AgentDict) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        result = self.env.step(actions)
        if not are_dicts(result, 5):
            return result
        obs, rewards, terminateds, truncateds, infos = result
        agents = _agents(self.env, self.spec.id)
        if obs.keys() != actions.keys() or len(agents) != len(actions):
            self._refuse_unobserved(agents, obs)
            strange = self._undeclared(obs)
            obs = {agent: value for agent, value in obs.items() if agent in actions or agent in agents} | strange
            left = [agent for agent in actions if agent not in agents]
            # An agent that is no longer in `agents` has ended, even without a flag; an invalid flag is refused later.
            down = [a for a in left if terminateds.get(a, False) is False and truncateds.get(a, False) is False]
            terminateds = terminateds | dict.fromkeys(down, True)
        # Some environments keep ended agents in `agents`: then no agent is left that can act.
        over = all(terminateds.get(agent) or truncateds.get(agent) for agent in agents)
        return obs, rewards, terminateds | {ALL: over}, truncateds | {ALL: False}, _by_agent(infos)

    def _undeclared(self, obs: AgentDict) -> AgentDict:
        """The observations of undeclared agents, which are passed on and refused later."""
        declared = self.possible_agents
        return {a: value for a, value in obs.items() if a not in declared and a != _COMMON} if declared else {}

    def _refuse_unobserved(self, agents: list[Hashable], obs: AgentDict) -> None:
        unobserved = [agent for agent in agents if agent not in obs]
        if unobserved:
            raise MultiAgentError.wrong_keys(
                "An agent has no observation.", f"{self.spec.id}, agent {unobserved[0]!r}", obs, agents
            ).fix("return one for every agent of the episode, or remove the agent from env.agents")


class AECPettingZooEnv(PettingZooEnv):
    """Agents act one at a time: only `env.agent_selection` is in `obs`.

    Rewards come from `env.last()`: at its turn, an agent gets the rewards since its last turn. For agents that have
    ended, this class steps the environment with the action None.
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
        env, over, name, turns = self.env, False, self.spec.id, 0
        obs, rewards, terminateds, truncateds, infos = parts = {}, {}, {}, {}, {}
        while not over:
            agent = self._selecting.agent_selection
            result = env.last()
            checks.check_step(result, f"{name}, agent {agent!r}", "last()")
            value, rewards[agent], terminated, truncated, infos[agent] = result
            for kind, flag in (("terminated", terminated), ("truncated", truncated)):
                if type(flag) not in checks.BOOLEANS:
                    raise checks.not_boolean(kind, flag, f"{name}, agent {agent!r}")
            if not (terminated or truncated):
                obs[agent] = value
                break
            if value is not None:
                obs[agent] = copy.deepcopy(value)  # the environment may fill the same array for the next agent
            terminateds[agent], truncateds[agent] = terminated, truncated
            turns += 1
            if turns > MOST_IDLE_POLLS:
                raise stuck(name, rewards, _agents(env, name))
            env.step(None)
            over = not _agents(env, name)
        terminateds[ALL], truncateds[ALL] = over, False
        return parts


def _by_agent(infos: AgentDict) -> AgentDict:
    """The infos by agent, without PettingZoo's common entry."""
    return {agent: info for agent, info in infos.items() if agent != _COMMON} if _COMMON in infos else infos


def _agents(env: Any, name: str) -> list[Hashable]:
    agents = getattr(env, "agents", None)
    if not isinstance(agents, list | tuple):
        raise MultiAgentError("The agents are not a list.", f"{name}.agents", checks.outline(agents)).expected(
            "a list of the agents of the running episode",
            "set self.agents in reset(), and remove agents that have ended",
        )
    return agents  # type: ignore[return-value]


def _holder(env: Any, name: str) -> Any:
    """The wrapper or environment that has the attribute itself; a lookup through all wrappers is as slow as a step."""
    while name not in vars(env) and not hasattr(type(env), name) and "env" in vars(env):
        env = vars(env)["env"]
    return env


PREFIX = "pettingzoo/"


def pettingzoo_ids() -> list[str]:
    """The names in PettingZoo's registry, such as `pettingzoo/classic/rps_v2`."""
    return sorted({PREFIX + name.replace("-v", "_v") for name in _pettingzoo().aec_registry})


def pettingzoo_creator(env_id: str) -> Callable[[EnvContext], Any]:
    """Returns a creator with the parallel API if possible, or else AEC; `env_config` is passed as keywords.

    An id may omit the family, and has its version after `_v` or `-v`. `ConfigError` for an unknown id.
    """
    pettingzoo, name = _pettingzoo(), env_id.removeprefix(PREFIX).replace("_v", "-v")
    found = [known for known in pettingzoo.aec_registry if name in (known, known.partition("/")[2])]
    if not found:
        ids = pettingzoo_ids()
        short = {known.rpartition("/")[2]: known for known in ids}
        near = [short[match] for match in difflib.get_close_matches(env_id.rpartition("/")[2], short, n=3)]
        raise ConfigError("Unknown environment of PettingZoo.", "env", env_id).expected(
            f"an id such as {', '.join(near or ids[:3])}",
            "correct the name; `rollax list --envs pettingzoo` shows them all",
        )
    api = "parallel" if found[0] in pettingzoo.parallel_registry else "aec"
    return lambda context: pettingzoo.make(api, found[0], **context)


def _pettingzoo() -> Any:
    try:
        import pettingzoo
    except ImportError as error:
        raise not_installed("PettingZoo", error, where="env", package="pettingzoo", extra="pettingzoo") from error
    return pettingzoo
