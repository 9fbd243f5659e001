"""`save(exact=True)`: the restored run equals the continued one, bit for bit, or the save is refused."""

import json

import gymnasium as gym
import numpy as np
import pytest

from rollax import ExternalEnv, PGTrainer, PPOTrainer
from rollax.algorithms.registry import get_trainer_class
from rollax.errors import ConfigError, EnvError
from tests.algorithms.checkpoints import CONFIG, PPO, check_continues_exactly, continue_training
from tests.env.refused import refused
from tests.env.test_dm_environment import Catch
from tests.env.vector.test_envpool import Pool
from tests.python_process import output_of

CHILD = """
import json, sys
from rollax import Trainer
from tests.algorithms.checkpoints import continue_training
print(json.dumps([continue_training(Trainer.from_checkpoint(path), 4) for path in sys.argv[1:]]))
"""


@pytest.mark.long
def test_restored_in_a_fresh_process(tmp_path):
    with PPOTrainer("CartPole-v1", PPO) as ppo, PGTrainer("CartPole-v1", CONFIG) as pg:
        paths, expected = [], []
        for trainer in (ppo, pg):
            for _ in range(3):  # an odd number: the evaluations are not in step with the save
                trainer.train()
            paths.append(trainer.save(tmp_path / trainer.name, exact=True))
            expected.append(continue_training(trainer, 4))
    output = output_of("-c", CHILD, *paths, env={"JAX_PLATFORMS": "cpu"})
    assert json.loads(output.splitlines()[-1]) == expected


def test_exact_save_without_the_replay_buffer_is_refused(tmp_path):
    with get_trainer_class("DQN")("CartPole-v1", {"model": CONFIG["model"], "seed": 5}) as trainer:
        with pytest.raises(ConfigError, match=r"saved exactly(.|\n)*store_buffer_in_checkpoints=True"):
            trainer.save(tmp_path, exact=True)
        assert not list(tmp_path.iterdir())


def test_without_a_seed_only_a_search_is_saved_exactly(tmp_path):
    with PGTrainer("CartPole-v1", {**CONFIG, "seed": None}) as trainer:
        refused(ConfigError, trainer.save, tmp_path, says="saved exactly...seed=None", exact=True)
        assert not list(tmp_path.iterdir())
    config = {"num_directions": 2, "model": CONFIG["model"]}
    with get_trainer_class("ES")("CartPole-v1", config) as trainer:
        check_continues_exactly(trainer, tmp_path)


def external():
    return ExternalEnv(gym.spaces.Box(0, 1, (1,)), gym.spaces.Discrete(2))


@pytest.mark.parametrize(("make", "name"), [(Pool, "Pool"), (Catch, "Catch"), (external, "ExternalBaseEnv")])
def test_exact_save_of_an_environment_whose_reset_takes_no_seed_is_refused(tmp_path, make, name):
    with PGTrainer(lambda _: make(), CONFIG) as trainer:
        refused(ConfigError, trainer.save, tmp_path, says=f"saved exactly...{name}", exact=True)
        assert trainer.save(tmp_path)


@pytest.mark.parametrize(
    ("num_envs", "wait_ms"),
    [(2, 0.0), (2, 1.0), pytest.param(2, 1e9, marks=pytest.mark.long), pytest.param(1, 0.0, marks=pytest.mark.long)],
)
def test_exact_save_of_remote_environments_requires_lockstep(small_ray, tmp_path, num_envs, wait_ms):
    remote = {"remote_worker_envs": True, "remote_env_batch_wait_ms": wait_ms, "num_envs_per_worker": num_envs}
    with PGTrainer("CartPole-v1", {**CONFIG, **remote}) as trainer:
        if num_envs == 1 or wait_ms > 1:
            trainer.save(tmp_path, exact=True)
            return
        refused(ConfigError, trainer.save, tmp_path, says="saved exactly...remote_env_batch_wait_ms", exact=True)


def test_a_plain_save_changes_nothing(tmp_path):
    with PPOTrainer("CartPole-v1", PPO) as saved, PPOTrainer("CartPole-v1", PPO) as other:
        for trainer in (saved, other):
            trainer.train()
        saved.save(tmp_path)
        assert continue_training(saved, 2) == continue_training(other, 2)


class FailsOnce(gym.Env):
    """Episodes of three steps; one of its steps raises, if there is a countdown."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)
    countdown = 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        FailsOnce.countdown -= 1
        if FailsOnce.countdown == 0:
            raise RuntimeError("it fails once")
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps == 3, False, {}


@pytest.mark.long
def test_episodes_of_a_failed_iteration_are_in_no_later_result(tmp_path):
    with PGTrainer(lambda _: FailsOnce(), CONFIG) as trainer, PGTrainer(lambda _: FailsOnce(), CONFIG) as other:
        trainer.train()
        FailsOnce.countdown = 30
        refused(EnvError, trainer.train, says="it fails once")
        plain = trainer.save(tmp_path / "plain")
        path = trainer.save(tmp_path, exact=True)
        other.restore(path)
        expected = continue_training(other, 2)
        assert continue_training(trainer, 2) == expected
        FailsOnce.countdown = 30
        refused(EnvError, trainer.train, says="it fails once")
        for one in (trainer, other):
            one.restore(plain)
        assert continue_training(trainer, 2) == continue_training(other, 2)
