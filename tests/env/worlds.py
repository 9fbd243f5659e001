"""Environments of every kind, whose values are determined by their seed and the actions."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rollax import BaseEnv, MultiAgentEnv, VectorEnv
from rollax.env.rows import NO_ENVS, Rows

ALL = "__all__"
OBS_SPACE = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION_SPACE = spaces.Discrete(5)
AGENTS = "abcd"
CLOCK_ID = "rollax-tests/Clock-v0"


def action_for(obs: np.ndarray) -> int:
    """The policy of all tests."""
    return int(1000 * obs[-1]) % 5


class Clock(gym.Env):
    """One agent. Episodes of 1 to 4 steps end by termination, truncation, or both at once."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE
    open_count = 0

    def __init__(self, env_config: Any = None, **settings: Any) -> None:
        self.env_config = env_config
        Clock.open_count += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.length, self.kind = self.np_random.integers(1, 5), self.np_random.integers(3)
        return self._obs(0), {"count": 0, "begins": True}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.count += 1
        over = bool(self.count == self.length)
        terminated, truncated = over and bool(self.kind != 1), over and bool(self.kind != 0)
        info = {"count": self.count, **({"last": True} if over else {})}
        return self._obs(action), self.count + int(action) / 10, terminated, truncated, info

    def _obs(self, action):
        return np.array([self.count, action, self.np_random.random()], np.float32)

    def close(self):
        Clock.open_count -= 1


gym.register(CLOCK_ID, entry_point="tests.env.worlds:Clock", order_enforce=False, disable_env_checker=True)


class Counting(gym.Env):
    """Episodes of `length` steps, each for the reward `paid`; the observation is the number of steps, three times."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE
    length, paid = 1, 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.obs(), {}

    def step(self, action):
        self.count += 1
        return self.obs(), self.paid, self.count == self.length, False, {}

    def obs(self):
        return np.full(3, self.count, np.float32)


class ListVector(VectorEnv):
    """A user's vector environment that returns lists."""

    def __init__(self, num_envs: int, make: Callable[[], gym.Env] = Clock) -> None:
        self.envs = [make() for _ in range(num_envs)]
        super().__init__(self.envs[0].observation_space, self.envs[0].action_space, num_envs)

    def reset_at(self, index, seed=None, options=None):
        return self.envs[index].reset(seed=seed)

    def vector_step(self, actions):
        parts = zip(*(env.step(action) for env, action in zip(self.envs, actions, strict=True)), strict=True)
        obs, rewards, terminateds, truncateds, infos = map(list, parts)
        return obs, rewards, terminateds, truncateds, infos

    def get_sub_environments(self):
        return self.envs

    def close(self):
        for env in self.envs:
            env.close()


class ArrayVector(ListVector):
    """A vector of clocks in arrays that every step and reset overwrites."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.obs = np.zeros((num_envs, 3), np.float32)
        self.rewards = np.zeros(num_envs)
        self.flags = np.zeros((2, num_envs), bool)

    def vector_reset(self, seeds=None, options=None):
        infos = [self.reset_at(i, None if seeds is None else seeds[i])[1] for i in range(self.num_envs)]
        return self.obs, infos

    def reset_at(self, index, seed=None, options=None):
        self.obs[index], info = super().reset_at(index, seed)
        self.rewards[index], self.flags[:, index] = 0.0, False
        return self.obs[index], info

    def vector_step(self, actions):
        self.obs[:], self.rewards[:], self.flags[0], self.flags[1], infos = super().vector_step(actions)
        return self.obs, self.rewards, *self.flags, infos


class Party(MultiAgentEnv):
    """Agents appear, leave, return, take turns, and are rewarded while they wait."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE
    possible_agents = AGENTS
    open_count = 0

    def __init__(self, env_config: Any = None) -> None:
        self.random = np.random.default_rng()
        Party.open_count += 1

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.count = 0
        self.alive = {agent for agent in AGENTS if self.random.random() < 0.5} or {"a"}
        self.waiting = set(self.alive)
        obs = {agent: self._obs(agent, 0) for agent in sorted(self.alive)}
        return obs, {agent: {"count": 0} for agent in obs}

    def step(self, actions):
        assert actions.keys() == self.waiting, (actions, self.waiting)
        self.count += 1
        obs, rewards, terms, truncs = {}, {}, {}, {}
        for agent in AGENTS:
            known, (acts, paid, ends, cut) = agent in self.alive, self.random.random(4) < (0.6, 0.6, 0.15, 0.1)
            if acts and (known or self.random.random() < 0.4):
                obs[agent] = self._obs(agent, actions.get(agent, 0))
            if known and paid:
                rewards[agent] = self.count + actions.get(agent, 0) / 10 + ord(agent)
            if known:
                terms[agent], truncs[agent] = bool(ends), bool(cut)
        ended = {agent for agent in terms if terms[agent] or truncs[agent]}
        over, kind = self.random.random() < 0.2 or len(ended) == len(AGENTS), self.random.integers(3)
        terms[ALL], truncs[ALL] = bool(over and kind != 1), bool(over and kind != 0)
        if not over and not obs.keys() - ended:
            actor = min(set(AGENTS) - ended)
            obs[actor] = self._obs(actor, actions.get(actor, 0))
        self.alive = (self.alive | obs.keys()) - ended
        self.waiting = obs.keys() - ended
        return obs, rewards, terms, truncs, {agent: {"count": self.count} for agent in obs}

    def _obs(self, agent: Hashable, action: int) -> np.ndarray:
        return np.array([self.count, 10 * ord(str(agent)) + action, self.random.random()], np.float32)

    def close(self):
        Party.open_count -= 1


class AsAgents(MultiAgentEnv):
    """A single-agent environment of agents that see and get the same; the actions of the first one are taken."""

    def __init__(self, env: gym.Env, *agents: Hashable) -> None:
        self.env, self.agents = env, agents
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, *, seed=None, options=None):
        return tuple(dict.fromkeys(self.agents, part) for part in self.env.reset(seed=seed))

    def step(self, actions):
        obs, reward, *flags, info = self.env.step(actions[self.agents[0]])
        everyone = (*self.agents, ALL)
        return (
            *(dict.fromkeys(self.agents, part) for part in (obs, reward)),
            *(dict.fromkeys(everyone, flag) for flag in flags),
            dict.fromkeys(self.agents, info),
        )

    def close(self):
        self.env.close()


class DictEnvs(BaseEnv):
    """A user's BaseEnv in the dict view: at each poll some of its multi-agent environments are ready.

    Args:
        envs: the environments.
        restarts_itself: the first observation of the next episode comes in a later poll, without a reset.
    """

    def __init__(self, envs: Sequence[Any], restarts_itself: bool = False) -> None:
        self.envs, self.num_envs, self.restarts_itself = list(envs), len(envs), restarts_itself
        self.observation_space, self.action_space = envs[0].observation_space, envs[0].action_space
        self.answers: dict[int, dict] = {}
        self.over = set(range(self.num_envs))
        self.seeds: list[int | None] = [None] * self.num_envs
        self.polls = 0

    def ready(self) -> Iterable[int]:
        return [i for i in range(self.num_envs) if self.num_envs == 1 or (i + self.polls) % 3]

    def poll(self):
        self.polls += 1
        parts = obs, rewards, terms, truncs, infos, _ = ({}, {}, {}, {}, {}, {})
        for i in self.ready():
            if i in self.over:
                assert self.restarts_itself
                obs[i], infos[i] = self.envs[i].reset(seed=self.seeds[i])
                rewards[i], terms[i], truncs[i] = dict.fromkeys(obs[i]), {ALL: False}, {ALL: False}
                self.over.remove(i)
            else:
                obs[i], rewards[i], terms[i], truncs[i], infos[i] = self.envs[i].step(self.answers.pop(i, {}))
                if terms[i][ALL] or truncs[i][ALL]:
                    self.over.add(i)
        return parts

    def send_actions(self, actions):
        for i, by_agent in actions.items():
            self.answers.setdefault(i, {}).update(by_agent)

    def try_reset(self, env_id=None, *, seeds=None):
        indices = range(self.num_envs) if env_id is None else [env_id]
        for i in indices:
            self.answers.pop(i, None)
        if self.restarts_itself:
            self.over |= set(indices)
            for n, i in enumerate(indices):
                self.seeds[i] = None if seeds is None else seeds[n]
            return None
        self.over -= set(indices)
        results = [self.envs[i].reset(seed=None if seeds is None else seeds[n]) for n, i in enumerate(indices)]
        obs, infos = zip(*results, strict=True)
        return dict(zip(indices, obs, strict=True)), dict(zip(indices, infos, strict=True))

    def get_sub_environments(self):
        return self.envs

    def stop(self):
        for env in self.envs:
            env.close()


class DictParties(DictEnvs):
    """Parties in the dict view."""

    def __init__(self, num_envs: int, restarts_itself: bool = False) -> None:
        super().__init__([Party() for _ in range(num_envs)], restarts_itself)


TWO_AGENTS: Any = dict.fromkeys("ab", np.zeros(3, np.float32)), {}
"""The first observations of two agents, and their infos."""


class FixedSteps(MultiAgentEnv):
    """Returns the given steps, then repeats the last one; keeps the actions, seeds and options that it gets."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def __init__(self, *steps: Any, first: Any = TWO_AGENTS) -> None:
        self.steps, self.first = list(steps), first
        self.got: list[dict] = []
        self.resets: list[tuple] = []

    def reset(self, *, seed=None, options=None):
        self.resets.append((seed, options))
        return self.first

    def step(self, actions):
        self.got.append(actions)
        return self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]


class RowClocks(BaseEnv):
    """A user's BaseEnv in the columnar view."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.envs = [Clock() for _ in range(num_envs)]
        self.actions = np.zeros(num_envs, np.int64)

    def poll_rows(self):
        results = [env.step(action) for env, action in zip(self.envs, self.actions, strict=True)]
        obs, rewards, terms, truncs, infos = zip(*results, strict=True)
        everyone, over = np.arange(self.num_envs), np.array(terms) | np.array(truncs)
        no = np.zeros(self.num_envs, bool)
        return Rows(
            *(everyone, everyone, np.array(obs), np.array(rewards), np.array(terms), np.array(truncs), no, ~over),
            ended_envs=np.flatnonzero(over) if over.any() else NO_ENVS,
            infos=infos,
        )

    def send_rows(self, rows, selection, actions):
        self.actions[rows.env_index if selection is None else rows.env_index[selection]] = actions

    def reset_rows(self, env_index, seeds=None):
        results = [self.envs[i].reset(seed=None if seeds is None else seeds[n]) for n, i in enumerate(env_index)]
        obs, infos = zip(*results, strict=True)
        return Rows.starting(env_index, env_index, np.array(obs), infos=infos)

    def get_sub_environments(self):
        return self.envs

    def stop(self):
        for env in self.envs:
            env.close()
