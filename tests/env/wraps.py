"""Any single-agent environment, wrapped as every other kind of environment."""

from collections.abc import Callable

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollax import BaseEnv, to_base_env
from rollax.core import spaces as columns
from tests.env.worlds import AsAgents, DictEnvs, ListVector

Make = Callable[[], gym.Env]


class ColumnVector(ListVector):
    """Observations as columns."""

    def vector_reset(self, seeds=None, options=None):
        obs, infos = super().vector_reset(seeds)
        return columns.stack(self.observation_space, obs), infos

    def vector_step(self, actions):
        obs, *rest = super().vector_step(actions)
        return columns.stack(self.observation_space, obs), *rest


class OneAgent(AsAgents):
    """Agent "a" alone."""

    def __init__(self, make: Make) -> None:
        super().__init__(make(), "a")


class DictView(DictEnvs):
    """The same as a user's BaseEnv, in lockstep."""

    def __init__(self, make: Make, num_envs: int, restarts_itself: bool = False) -> None:
        super().__init__([OneAgent(make) for _ in range(num_envs)], restarts_itself)

    def ready(self):
        return range(self.num_envs)


class Old:
    """The same of the old interface."""

    def __init__(self, make: Make) -> None:
        self.env = make()
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space

    def reset(self):
        result = self.env.reset()
        return result[0] if isinstance(result, tuple) and result else result

    def step(self, action):
        result = self.env.step(action)
        if not (isinstance(result, tuple) and len(result) == 5):
            return result
        obs, reward, terminated, truncated, info = result
        return obs, reward, terminated if truncated is False else truncated, info


WRAPS: dict[str, Callable[[Make, int], BaseEnv]] = {
    "in turn": lambda make, n: to_base_env(make(), lambda index: make(), n),
    "vector of lists": lambda make, n: to_base_env(ListVector(n, make)),
    "vector of columns": lambda make, n: to_base_env(ColumnVector(n, make)),
    **{
        f"native {mode.name}": lambda make, n, mode=mode: to_base_env(SyncVectorEnv([make] * n, autoreset_mode=mode))
        for mode in AutoresetMode
    },
    "multi-agent": lambda make, n: to_base_env(OneAgent(make), lambda index: OneAgent(make), n),
    "dict view": lambda make, n: to_base_env(DictView(make, n)),
    "old": lambda make, n: to_base_env(Old(make), lambda index: Old(make), n),
}
