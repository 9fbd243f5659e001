"""EnvPool: a stand-in with its behavior, and the library itself where it is installed."""

import logging
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rollax import PPOTrainer, check_env, to_base_env
from rollax.env.making import make_base_env
from rollax.env.registry import EnvContext

SMALL = {"train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1, "model": {"fcnet_hiddens": (8,)}}


class Pool(gym.vector.VectorEnv):
    """Counts to three in each of its copies, with the behavior of EnvPool.

    Its spaces are those of one copy; the constructor takes the seed, and a reset ignores it with a warning; the step
    after an end resets and ignores its action; infos are a dict of arrays, one of them nested, without masks; rewards
    are float32; every step fills the same arrays.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": ["rgb_array", "human"]}
    render_mode = None
    single_observation_space = observation_space = spaces.Box(0, 10, (2,), np.float32)
    single_action_space = action_space = spaces.Discrete(2)

    def __init__(self, num_envs: int = 3, seed: int = 42) -> None:
        self.num_envs = num_envs
        self.random = np.random.default_rng(seed)
        self.count = np.zeros(num_envs, np.int32)
        self.obs, self.rewards = np.zeros((num_envs, 2), np.float32), np.zeros(num_envs, np.float32)
        self.flags = np.zeros((2, num_envs), bool)

    def reset(self, env_id=None, *, seed=None, options=None):  # type: ignore[override]
        if seed is not None:
            warnings.warn("seeds are fixed when the environment is created", stacklevel=2)
        self.flags[:] = True
        obs, _, _, _, infos = self.step(np.zeros(self.num_envs, np.int32))
        return obs, infos

    def step(self, actions):
        assert actions.shape == (self.num_envs,)
        resets = self.flags.any(axis=0)
        self.count[:] = np.where(resets, 0, self.count + 1)
        self.obs[:, 0] = self.count
        self.obs[:, 1] = np.where(resets, self.random.uniform(0, 1, self.num_envs), actions)
        self.rewards[:] = np.where(resets, 0, 1)
        self.flags[0], self.flags[1] = (self.count == 3) & (actions == 1), (self.count == 3) & (actions == 0)
        numbers = np.arange(self.num_envs, dtype=np.int32)
        infos = {"env_id": numbers, "players": {"env_id": numbers}, "elapsed_step": self.count.copy()}
        return self.obs, self.rewards, *self.flags, infos


# rollax recognizes EnvPool by the module of its classes.
Pool.__module__ = "envpool.python.gymnasium_envpool"


class TestStandIn:
    def test_rows(self):
        base = to_base_env(Pool())
        rows = base.reset_rows(np.arange(3), [1, 2, 3])
        seen = []
        for _ in range(9):
            seen.append((rows.obs[:, 0].tolist(), rows.rewards.tolist(), rows.starts[0], rows.truncateds.tolist()))
            if rows.acts.any():
                base.send_rows(rows, None, np.array([0, 1, 1]))
            rows = base.poll_rows()
            if len(rows.ended_envs):
                assert rows.terminateds.tolist() == [False, True, True]
                assert base.reset_rows(rows.ended_envs) is None
        episode = [([c] * 3, [float(c > 0)] * 3, c == 0, [c == 3, False, False]) for c in range(4)]
        assert seen == [*episode, *episode, episode[0]]
        assert rows.info_list()[2] == {"env_id": 2, "players": {"env_id": 2}, "elapsed_step": 1}

    def test_seeds_are_left_to_the_creator_and_warn_once(self, caplog):
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                to_base_env(Pool()).reset_rows(np.arange(3), [1, 2, 3])
        assert caplog.text.count("does not accept a seed in reset()") == 1

    def test_check_env(self):
        report = check_env(lambda: Pool(seed=7))
        assert [finding.name for finding in report.findings] == ["seed"]
        assert report.warnings == ()
        assert report.kind == "gymnasium.VectorEnv"


class TestLibrary:
    """The real library."""

    @pytest.fixture
    def envpool(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield pytest.importorskip("envpool")

    def test_classic_control(self, envpool):
        def make(context):
            return envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4, seed=5)

        assert check_env(make).warnings == ()
        config = {
            **SMALL,
            "seed": 0,
            "train_batch_size": 512,
            "sgd_minibatch_size": 128,
            "num_sgd_iter": 10,
            "lr": 3e-3,
        }
        with PPOTrainer(make, config) as trainer:
            lengths = [trainer.train()["episode_len_mean"] for _ in range(15)]
        assert lengths[-1] > 2 * lengths[0]

    def test_atari(self, envpool):
        def make(context):
            return envpool.make("Pong-v5", env_type="gymnasium", num_envs=2, seed=5)

        base = make_base_env(make, EnvContext(), 1)
        rows = base.reset_rows(np.arange(2))
        for _ in range(10):
            assert rows.obs.shape == (2, 4, 84, 84)
            base.send_rows(rows, None, np.array([2, 3]))
            rows = base.poll_rows()
        base.stop()
        with PPOTrainer(make, SMALL) as trainer:
            assert trainer.train()["timesteps_total"] == 64
