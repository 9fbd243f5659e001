"""Stable-Baselines3's vector environments, with a stand-in for `VecEnv` and `DummyVecEnv` under their import path."""

import gymnasium as gym
import numpy as np

from rollax import EnvError, check_env, to_base_env
from rollax.core import spaces as columns
from tests.env.refused import play, refused
from tests.env.worlds import ACTION_SPACE, OBS_SPACE


class VecEnv:
    """The part of `stable_baselines3.common.vec_env.base_vec_env.VecEnv` of 2.x that stepping needs."""

    metadata, render_mode = {"render_modes": []}, None

    def __init__(self, num_envs, observation_space, action_space):
        self.num_envs, self.observation_space, self.action_space = num_envs, observation_space, action_space
        self.reset_infos = [{} for _ in range(num_envs)]
        self._seeds = [None] * num_envs

    def step(self, actions):
        self.step_async(actions)
        return self.step_wait()

    def seed(self, seed=None):
        self._seeds = [seed + index for index in range(self.num_envs)]
        return self._seeds


VecEnv.__module__ = "stable_baselines3.common.vec_env.base_vec_env"


class DummyVecEnv(VecEnv):
    """Steps its environments in turn, and resets one in the step that ends its episode, as Stable-Baselines3 does."""

    def __init__(self, env_fns):
        self.envs = [make() for make in env_fns]
        super().__init__(len(self.envs), self.envs[0].observation_space, self.envs[0].action_space)
        self.closed = False

    def reset(self):
        obs = []
        for index, env in enumerate(self.envs):
            first, self.reset_infos[index] = env.reset(seed=self._seeds[index])
            obs.append(first)
        self._seeds = [None] * self.num_envs
        return columns.stack(self.observation_space, obs)

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        obs, rewards, dones, infos = [], [], [], []
        for index, env in enumerate(self.envs):
            last, reward, terminated, truncated, info = env.step(self.actions[index])
            done, info = terminated or truncated, dict(info)
            info["TimeLimit.truncated"] = truncated and not terminated
            if done:
                info["terminal_observation"] = last
                last, self.reset_infos[index] = env.reset()
            for column, value in ((obs, last), (rewards, reward), (dones, done), (infos, info)):
                column.append(value)
        return columns.stack(self.observation_space, obs), np.array(rewards, np.float32), np.array(dones), infos

    def get_images(self):
        return [env.render() for env in self.envs]

    def close(self):
        self.closed = True


class Line(gym.Env):
    """Counts to 3: odd sub-environments are truncated there, even ones terminate."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def __init__(self, number=0):
        self.number = number

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.seen = seed
        self.count = 0
        return np.array([0, self.number, 0], np.float32), {"begins": self.number}

    def step(self, action):
        self.count += 1
        over, odd = self.count == 3, bool(self.number % 2)
        obs = np.array([self.count, self.number, action], np.float32)
        return obs, float(action), over and not odd, over and odd, {"count": self.count}


def lines(count):
    return DummyVecEnv([lambda number=number: Line(number) for number in range(count)])


def test_ends_and_resets():
    base = to_base_env(lines(2))
    rows = base.reset_rows(np.arange(2), seeds=[7, 8])
    assert [env.seen for env in base.get_sub_environments()] == [7, 8]
    assert rows.info_list() == [{"begins": 0}, {"begins": 1}]
    for count in (1, 2, 3):
        base.send_rows(rows, None, np.array([2, 4]))
        rows = base.poll_rows()
        assert rows.obs.tolist() == [[count, 0, 2], [count, 1, 4]]  # the real last observation included
        assert rows.rewards.tolist() == [2, 4]
    assert (rows.terminateds.tolist(), rows.truncateds.tolist()) == ([True, False], [False, True])
    assert [info["count"] for info in rows.info_list()] == [3, 3]
    started = base.reset_rows(rows.ended_envs)
    assert started.obs.tolist() == [[0, 0, 0], [0, 1, 0]]
    assert started.info_list() == [{"begins": 0}, {"begins": 1}]
    base.stop()
    assert base.env.env.closed


def test_nested_observations():
    class Nested(Line):
        observation_space = gym.spaces.Dict({"a": OBS_SPACE, "b": gym.spaces.Discrete(4)})

        def reset(self, *, seed=None, options=None):
            obs, info = super().reset(seed=seed)
            return {"a": obs, "b": 0}, info

        def step(self, action):
            obs, *others = super().step(action)
            return {"a": obs, "b": self.count}, *others

    base = to_base_env(DummyVecEnv([lambda: Nested(0), lambda: Nested(1)]))
    rows = base.reset_rows(np.arange(2))
    for _ in range(3):
        base.send_rows(rows, None, np.array([0, 1]))
        rows = base.poll_rows()
    assert rows.obs["b"].tolist() == [3, 3]
    assert base.reset_rows(rows.ended_envs).obs["b"].tolist() == [0, 0]


def test_an_end_without_its_final_observation():
    class WithoutFinalObs(DummyVecEnv):
        def step_wait(self):
            *others, infos = super().step_wait()
            return *others, [{key: info[key] for key in info if key != "terminal_observation"} for info in infos]

    base = to_base_env(WithoutFinalObs([Line]))
    refused(EnvError, play, base, 3, says="The last observation of an ended episode is missing")


def test_check_env():
    report = check_env(lambda context: lines(2))
    assert (report.kind, report.name, report.num_envs) == ("stable_baselines3.VecEnv", "DummyVecEnv", 2)
    assert report.warnings == ()
