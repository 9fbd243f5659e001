"""Environments with PettingZoo's interfaces, and their histories according to PettingZoo's own loops."""

from typing import Any

import numpy as np
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec_wrapper

from tests.env.drive import DictReader, Trace
from tests.env.worlds import ACTION_SPACE, AGENTS, ALL, OBS_SPACE, Party, action_for


class Declared:
    """What both interfaces declare: spaces by agent; `Party` counts the open environments."""

    render_mode = None

    def __init__(self, env_config: Any = None) -> None:
        self.possible_agents = list(AGENTS)
        self.random = np.random.default_rng()
        Party.open_count += 1

    def observation_space(self, agent):
        return OBS_SPACE

    def action_space(self, agent):
        return ACTION_SPACE

    def close(self):
        Party.open_count -= 1

    def begin(self, seed, share):
        """A random share of the agents begins an episode, at least one."""
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.count = 0
        self.agents = [agent for agent in AGENTS if self.random.random() < share] or ["a"]


class Dance(Declared, ParallelEnv):
    """Agents appear late and leave for good; all present agents act at every step."""

    metadata = {"name": "dance_v0", "is_parallelizable": True}

    def reset(self, seed=None, options=None):
        self.begin(seed, 0.5)
        self.to_come = [agent for agent in AGENTS if agent not in self.agents]
        return {agent: self._obs(agent, 0) for agent in self.agents}, {agent: {"count": 0} for agent in self.agents}

    def step(self, actions):
        assert actions.keys() == set(self.agents)
        self.count += 1
        obs, rewards, terms, truncs = {}, {}, {}, {}
        for agent in self.agents:
            obs[agent] = self._obs(agent, actions[agent])
            rewards[agent] = self.count + actions[agent] / 10 + ord(agent)
            terms[agent], truncs[agent] = (bool(draw < 0.15) for draw in self.random.random(2))
        self.agents = [agent for agent in self.agents if not (terms[agent] or truncs[agent])]
        if self.agents and self.to_come and self.random.random() < 0.3:
            newcomer = self.to_come.pop()
            self.agents.append(newcomer)
            obs[newcomer], rewards[newcomer] = self._obs(newcomer, 0), 0.0
            terms[newcomer] = truncs[newcomer] = False
        return obs, rewards, terms, truncs, {agent: {"count": self.count} for agent in obs}

    def _obs(self, agent, action):
        return np.array([self.count, 10 * ord(agent) + action, self.random.random()], np.float32)


class Queue(Declared, AECEnv):
    """Agents act in turns, are rewarded at any time, and leave while others continue; some never act."""

    metadata = {"name": "queue_v0", "is_parallelizable": False}

    def reset(self, seed=None, options=None):
        self.begin(seed, 0.7)
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos = {agent: {"count": 0} for agent in self.agents}
        self.last_action = dict.fromkeys(self.agents, 0)
        self.agent_selection = self.agents[0]

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self.count += 1
        self.last_action[agent] = action
        self._cumulative_rewards[agent] = 0.0
        for other in self.agents:
            self.rewards[other] = float(self.random.integers(5)) if self.random.random() < 0.5 else 0.0
            self.infos[other] = {"count": self.count}
            if self.random.random() < 0.1:
                self.terminations[other] = True
            elif self.random.random() < 0.1:
                self.truncations[other] = True
        self._accumulate_rewards()
        alive = [other for other in self.agents if not (self.terminations[other] or self.truncations[other])]
        if alive:
            self.agent_selection = alive[int(self.random.integers(len(alive)))]
        self._deads_step_first()

    def observe(self, agent):
        fraction = (37 * self.count + ord(agent)) % 100 / 100 + 0.0005
        return np.array([self.count, self.last_action[agent], fraction], np.float32)


def dance_in_turns(env_config: Any = None) -> AECEnv:
    """A dance through PettingZoo's own conversion: one agent after the other acts, then the environment steps."""
    return parallel_to_aec_wrapper(Dance())


def dance_trace(seed: int, moments: int) -> Trace:
    """The history of one dance, which ends when `agents` is empty."""
    env, trace, first_seed = Dance(), [], seed
    while len(trace) < moments:
        obs, infos = env.reset(seed=first_seed)
        reader, first_seed = DictReader(), None
        trace.append(reader.read(obs, {}, {}, {}, infos))
        while env.agents:
            actions = {agent: action_for(obs[agent]) for agent in env.agents}
            obs, rewards, terms, truncs, infos = env.step(actions)
            flags = terms | {ALL: not env.agents}, truncs | {ALL: False}
            trace.append(reader.read(obs, rewards, *flags, infos))
    env.close()
    return trace[:moments]


def queue_trace(seed: int, moments: int) -> Trace:
    """The history of one queue."""
    return _agent_iter_trace(Queue(), seed, moments)


def dance_in_turns_trace(seed: int, moments: int) -> Trace:
    """The history of one dance in turns."""
    return _agent_iter_trace(dance_in_turns(), seed, moments)


def _agent_iter_trace(env: AECEnv, seed: int, moments: int) -> Trace:
    """By the loop of PettingZoo's documentation: `agent_iter`, `last`, `step`; a moment ends with a live turn."""
    trace, first_seed = [], seed
    while len(trace) < moments:
        env.reset(seed=first_seed)
        reader, first_seed, begins = DictReader(), None, True
        news = obs, rewards, terms, truncs, infos = {}, {}, {}, {}, {}
        for agent in env.agent_iter():
            obs[agent], rewards[agent], terms[agent], truncs[agent], infos[agent] = env.last()
            if terms[agent] or truncs[agent]:
                env.step(None)
                continue
            trace.append(reader.read(*news))
            begins = False
            env.step(action_for(obs[agent]))
            news = obs, rewards, terms, truncs, infos = {}, {}, {}, {}, {}
        assert not begins
        trace.append(reader.read(obs, rewards, terms | {ALL: True}, truncs, infos))
    env.close()
    return trace[:moments]
