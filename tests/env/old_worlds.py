"""Clocks and parties of the old interface."""

from typing import Any

from tests.env.worlds import ACTION_SPACE, OBS_SPACE, Clock, Party


class _Old:
    """A clock or party that is seeded by a method, before a reset that returns observations alone."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE
    world: Any

    def __init__(self, env_config: Any = None) -> None:
        self.env = self.world()
        self.seed_to_come: int | None = None

    def seed(self, seed):
        self.seed_to_come = seed

    def reset(self):
        obs, _ = self.env.reset(seed=self.seed_to_come)
        self.seed_to_come = None
        return obs

    def close(self):
        self.env.close()


class OldClock(_Old):
    """A clock of the old interface."""

    world = Clock

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, {**info, "TimeLimit.truncated": truncated}


class OldVector:
    """Old clocks as an old vector env; `seed(s)` seeds copy i with s + 7 i."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.envs = [OldClock() for _ in range(num_envs)]

    def seed(self, seed):
        for index, env in enumerate(self.envs):
            env.seed(seed + 7 * index)

    def vector_reset(self):
        return [env.reset() for env in self.envs]

    def reset_at(self, index):
        return self.envs[index].reset()

    def vector_step(self, actions):
        return tuple(map(list, zip(*(env.step(a) for env, a in zip(self.envs, actions, strict=True)), strict=True)))

    def get_unwrapped(self):
        return self.envs

    def close(self):
        for env in self.envs:
            env.close()


class OldParty(_Old):
    """A party of the old interface."""

    world, is_multi_agent = Party, True

    def step(self, actions):
        obs, rewards, terms, truncs, infos = self.env.step(actions)
        infos = {agent: dict(infos.get(agent, {})) for agent in (*terms, *infos)}
        for agent in terms:
            infos[agent]["TimeLimit.truncated"] = truncs[agent]
        return obs, rewards, {agent: terms[agent] or truncs[agent] for agent in terms}, infos
