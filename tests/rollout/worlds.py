"""Small deterministic environments that log all results and actions, and policies whose actions depend on them."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollax import BaseEnv, EnvContext, MultiAgentEnv, Policy
from rollax.env.rows import Rows
from tests.env.worlds import DictEnvs

ALL = "__all__"
OBS_SPACE = spaces.Box(-1000.0, 1000.0, (4,), np.float32)
ACTION_SPACE = spaces.Discrete(11)
Events = list[tuple[Any, ...]]


def observation(env: int, episode: int, agent: int, step: int) -> np.ndarray:
    """A unique observation without zeros, so that a column that is not filled differs from it."""
    return np.array([env + 1, episode + 1, agent + 1, step + 1], np.float32)


def action_for(obs: np.ndarray) -> np.ndarray:
    """An action that depends on the observation."""
    return (obs @ np.array([1, 3, 5, 7], np.float32)).astype(np.int64) % 11


def reward_for(env: int, episode: int, agent: int, step: int) -> float:
    """Multiples of a quarter with both signs, so that float32 sums are exact."""
    return ((5 * env + 3 * episode + 7 * agent + 11 * step) % 23 - 9) / 4


def a_by_x(agent: Hashable) -> str:
    """A policy mapping: policy x controls agent a, and y the others."""
    return "x" if agent == "a" else "y"


class Encode(Policy):
    """Acts by `action_for`, and stores every column."""

    batch_columns = frozenset({"agent_id", "t", "new_obs", "prev_actions", "prev_rewards"})

    def compute_actions(self, obs_batch):  # type: ignore[override]
        return action_for(obs_batch), [], {}


class Weighted(Policy):
    """Returns lists, has plain numbers as weights, and its compute_actions takes only observations."""

    def __init__(self, observation_space, action_space, config):
        super().__init__(observation_space, action_space, config)
        self.weights = {"bias": 1.5, "scale": 2}

    def compute_actions(self, obs_batch):  # type: ignore[override]
        return [0] * len(obs_batch), [], {}

    def get_weights(self):
        return dict(self.weights)

    def set_weights(self, weights):
        self.weights = dict(weights)


class Line(gym.Env):
    """One agent; lengths from 1 to 5 steps; episodes end by termination, truncation, or both at once, in turn."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def __init__(self, context: EnvContext | int = 0) -> None:
        self.index = context if isinstance(context, int) else context.vector_index
        self.episode, self.count = -1, 0
        self.log: Events = []
        self.seeds: list[int | None] = []

    def reset(self, *, seed=None, options=None):
        self.episode, self.count = self.episode + 1, 0
        self.seeds.append(seed)
        obs = observation(self.index, self.episode, 0, 0)
        self.log.append(("reset", {"agent0": obs}))
        return obs, {}

    def step(self, action):
        self.count += 1
        place = (self.index, self.episode, 0, self.count)
        obs, reward = observation(*place), reward_for(*place)
        over = self.count == 1 + (3 * self.index + 2 * self.episode) % 5
        kind = (self.index + self.episode) % 3
        terminated, truncated = over and kind != 1, over and kind != 0
        flags = {"agent0": terminated, ALL: terminated}, {"agent0": truncated, ALL: truncated}
        self.log.append(("step", {"agent0": int(action)}, {"agent0": obs}, {"agent0": reward}, *flags))
        return obs, reward, terminated, truncated, {"count": self.count}


def native_lines(mode: AutoresetMode, copies: int = 3, **settings: Any) -> Callable[[Any], SyncVectorEnv]:
    """A creator of Gymnasium's vector environment of `Line`s."""
    return lambda _: SyncVectorEnv([lambda i=i: Line(i) for i in range(copies)], autoreset_mode=mode, **settings)


Script = Sequence[Mapping[Hashable, str]]
"""One episode.

First the agents of the reset (any letters); then for each step agent -> letters: o for an observation, r for a reward,
T and C for termination and truncation. In the last step `__all__` has T or C or both.
"""


class Scripted(MultiAgentEnv):
    """Plays scripts, one per episode, repeatedly."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def __init__(self, scripts: Sequence[Script], index: int = 0) -> None:
        self.scripts, self.index = scripts, index
        self.episode, self.count = -1, 0
        self.log: Events = []
        self.seeds: list[int | None] = []

    def reset(self, *, seed=None, options=None):
        self.episode, self.count = self.episode + 1, 0
        self.seeds.append(seed)
        obs = {agent: self._obs(agent) for agent in self._script[0]}
        self.log.append(("reset", obs))
        return obs, {}

    def step(self, actions):
        self.count += 1
        now = self._script[self.count]
        obs = {agent: self._obs(agent) for agent, does in now.items() if "o" in does}
        rewards = {agent: self._reward(agent) for agent, does in now.items() if "r" in does}
        terms, truncs = (
            {agent: flag in does for agent, does in now.items()} | {ALL: flag in now.get(ALL, "")} for flag in "TC"
        )
        self.log.append(("step", dict(actions), obs, rewards, terms, truncs))
        return obs, rewards, terms, truncs, {}

    @property
    def _script(self) -> Script:
        return self.scripts[(self.index + self.episode) % len(self.scripts)]

    def _obs(self, agent: Hashable) -> np.ndarray:
        return observation(self.index, self.episode, number_of(agent), self.count)

    def _reward(self, agent: Hashable) -> float:
        return reward_for(self.index, self.episode, number_of(agent), self.count)


TOGETHER = [{"a": "o", "b": "o"}, {"a": "or", "b": "or"}, {"a": "or", "b": "or", ALL: "T"}]
"""The script of an episode of two agents, of two steps."""


def scripted(*scripts):
    """A function that creates a `Scripted` of these scripts."""
    return lambda context: Scripted(scripts, context.vector_index)


def number_of(agent: Hashable) -> int:
    """a, b, c, ... -> 0, 1, 2, ..."""
    return ord(str(agent)[0]) - ord("a")


class Asynchronous(DictEnvs):
    """As `DictEnvs`; if it sleeps, no sub-environment is ready at every second poll."""

    def __init__(self, envs: Sequence[Scripted], restarts_itself: bool = False, sleeps: bool = False) -> None:
        super().__init__(envs, restarts_itself)
        self.sleeps = sleeps

    def ready(self):
        return super().ready() if not self.sleeps or self.polls % 2 else []


class Columnar(BaseEnv):
    """`Line`s in the columnar view; at each poll some are ready, in any order.

    Args:
        envs: the sub-environments.
    """

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def __init__(self, envs: Sequence[Line]) -> None:
        self.envs, self.num_envs = list(envs), len(envs)
        self.rng = np.random.default_rng(0)
        self.actions: dict[int, int] = {}

    def reset_rows(self, env_index, seeds=None):
        obs = np.stack([self.envs[i].reset()[0] for i in env_index.tolist()])
        return Rows.starting(env_index, env_index, obs)

    def send_rows(self, rows, selection, actions):
        index = rows.env_index if selection is None else rows.env_index[selection]
        assert not self.actions.keys() & set(index.tolist())
        self.actions.update(zip(index.tolist(), actions.tolist(), strict=True))

    def poll_rows(self):
        ready = self.rng.permutation(list(self.actions))[: self.rng.integers(1, self.num_envs + 1)]
        steps = [self.envs[i].step(self.actions.pop(i)) for i in ready.tolist()]
        obs, rewards, terms, truncs = (np.array(column) for column in list(zip(*steps, strict=True))[:4])
        over = terms | truncs
        return Rows(ready, ready, obs, rewards, terms, truncs, np.zeros(len(ready), bool), ~over, ready[over])

    def get_sub_environments(self):
        return self.envs
