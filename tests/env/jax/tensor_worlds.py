"""Walkers whose numbers are the same in NumPy and in PyTorch, as batches that are written in place."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

OBS_SPACE = gym.spaces.Box(-8.0, 8.0, (2,), np.float32)


class Walks(gym.vector.VectorEnv):
    """Walkers start at five places; they fall at 1.5, after 5 steps they are stopped, or both at once.

    All numbers are sums of a few powers of two, so they are exact. Observations, rewards and flags are the same arrays
    at each step, and the actions are overwritten, as a simulator may do.

    Args:
        library: numpy or torch.
        num_envs: N.
        final: the key of the last observations.
        broken: the step of the environment whose observation is NaN.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
    single_observation_space = OBS_SPACE
    single_action_space = gym.spaces.Discrete(2)

    def __init__(self, library: Any, num_envs: int = 3, final: str = "final_observation", broken: int = -1) -> None:
        self.library, self.num_envs, self.final, self.broken = library, num_envs, final, broken
        self.obs = library.zeros((num_envs, 2), dtype=library.float32)
        self.rewards = library.zeros(num_envs, dtype=library.float32)
        self.terminated, self.truncated = (library.zeros(num_envs, dtype=library.bool) for _ in range(2))
        self.place, self.count, self.episodes = (library.zeros(num_envs, dtype=library.int64) for _ in range(3))
        self.seed, self.steps, self.seeds = 0, 0, []

    def _begin(self, over: Any) -> None:
        index = self.library.arange(self.num_envs)
        start = (7 * index + 3 * self.episodes + self.seed) % 5 - 2
        self.place[:] = self.library.where(over, start, self.place)
        self.count[:] = self.library.where(over, 0, self.count)
        self.episodes += over

    def _observe(self) -> Any:
        self.obs[:, 0], self.obs[:, 1] = self.place / 4, self.count / 8
        return self.obs

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict]:
        self.seeds.append(seed)
        self.seed = self.seed if seed is None else seed % 5
        self.episodes[:] = 0
        self._begin(self.episodes == 0)
        return self._observe(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict]:
        assert actions.dtype == self.library.int64
        assert actions.shape == (self.num_envs,)
        self.steps += 1
        self.place += 4 * actions - 2
        self.count += 1
        self.rewards[:] = self.place / 8 + actions
        actions[:] = -1
        self.terminated[:], self.truncated[:] = self.library.abs(self.place) >= 6, self.count >= 5
        over = self.terminated | self.truncated
        obs, infos = self._observe(), {"count": self.count + 0}
        if over.any():
            infos = {self.final: obs + 0}
            self._begin(over)
            self._observe()
        if self.steps == self.broken:
            self.obs[0, 0] = np.nan
        return obs, self.rewards, self.terminated, self.truncated, infos


class Torques(Walks):
    """Observations are a Dict, and actions are numbers whose size does not matter."""

    single_observation_space = gym.spaces.Dict(at=OBS_SPACE, twice=gym.spaces.Box(-16.0, 16.0, (1,), np.float32))
    single_action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def _of(self, obs: Any) -> dict[str, Any]:
        return {"at": obs, "twice": 2 * obs[:, :1]}

    def reset(self, **settings: Any) -> tuple[Any, dict]:
        obs, infos = super().reset(**settings)
        return self._of(obs), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict]:
        assert actions.dtype == self.library.float32
        assert actions.shape == (self.num_envs, 1)
        obs, *outcomes, infos = super().step((actions[:, 0] > 0) + 0 * self.count)
        actions[:] = 9
        if self.final in infos:
            infos = {self.final: self._of(infos[self.final])}
        return self._of(obs), *outcomes, infos
