"""The config key `env_wrappers`: wrappers of each sub-environment, in Python, in files and on the command line."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from rollax import PPOTrainer, Trainer, check_env
from rollax.algorithms.dqn import DQNConfig
from rollax.algorithms.ppo import PPOConfig
from rollax.cli.parsing import parse_settings
from rollax.config.json_form import decode_config, missing_code
from rollax.env.jax.wrappers import TimeLimit
from rollax.errors import CheckpointError, ConfigError, EnvError
from rollax.runs.experiment import override, read_experiment
from tests.algorithms.checkpoints import continue_training
from tests.env.refused import raised, refused
from tests.env.worlds import Counting
from tests.env.wraps import Old

SMALL = {
    "train_batch_size": 128,
    "sgd_minibatch_size": 64,
    "num_sgd_iter": 1,
    "model": {"fcnet_hiddens": [4]},
    "seed": 1,
}
HERE = "tests.env.test_wrapping"


class Scaled(gym.RewardWrapper):
    """Multiplies rewards, and counts what was made and closed."""

    made: list[Scaled] = []
    closed: list[Scaled] = []

    def __init__(self, env, factor=10.0):
        super().__init__(env)
        self.factor = factor
        Scaled.made.append(self)

    def reward(self, reward):
        return self.factor * float(reward)

    def close(self):
        Scaled.closed.append(self)
        super().close()


def without_velocities(env):
    space = gym.spaces.Box(-5, 5, (2,), np.float32)
    return gym.wrappers.TransformObservation(env, lambda obs: obs[::2].clip(-5, 5), space)


def raising(env):
    raise ValueError("no such thing")


class Breaks(gym.Wrapper):
    """Raises in one of its methods, or lets the environment inside raise in `step`."""

    def __init__(self, env, call):
        super().__init__(env)
        self.call = call

    def reset(self, **keywords):
        if self.call == "reset":
            raise ValueError("no such thing")
        return super().reset(**keywords)

    def step(self, action):
        if self.call == "step":
            raise ValueError("no such thing")
        return super().step(3 if self.call == "inside" else action)


def forgetful(env):
    env.reset(seed=0)


class FourSteps(Counting):
    length, paid = 4, 1.0


@pytest.mark.parametrize(
    "wrappers",
    [
        [without_velocities, Scaled],
        [f"{HERE}:without_velocities", [f"{HERE}:Scaled", {"factor": 10.0}]],
        ((without_velocities, {}), (Scaled, {"factor": 10.0})),
    ],
    ids=["code", "paths", "pairs"],
)
def test_wrappers_of_each_copy_the_innermost_first(wrappers):
    Scaled.made.clear()
    Scaled.closed.clear()
    with PPOTrainer("CartPole-v1", {**SMALL, "env_wrappers": wrappers, "num_envs_per_worker": 2}) as trainer:
        assert trainer.get_policy().observation_space.shape == (2,)
        sub_envs = trainer.worker.env.get_sub_environments()
        assert [type(env) for env in sub_envs] == [Scaled, Scaled]
        result = trainer.train()
        assert result["episode_reward_mean"] == 10 * result["episode_len_mean"]
    assert len(Scaled.made) == 2
    assert set(map(id, Scaled.closed)) == set(map(id, Scaled.made))


def test_in_evaluations_too_unless_they_have_their_own():
    config = {**SMALL, "env_wrappers": [[Scaled, {"factor": 3.0}]], "evaluation_num_episodes": 2}
    with PPOTrainer("CartPole-v1", config) as trainer:
        found = trainer.evaluate()
        assert found["episode_reward_mean"] == pytest.approx(3 * found["episode_len_mean"])
    with PPOTrainer("CartPole-v1", {**config, "evaluation_config": {"env_wrappers": []}}) as trainer:
        found = trainer.evaluate()
        assert found["episode_reward_mean"] == found["episode_len_mean"]


def test_in_checkpoints(tmp_path):
    config = {**SMALL, "env_wrappers": [without_velocities, [Scaled, {"factor": 2.0}]]}
    with PPOTrainer("CartPole-v1", config) as trainer:
        trainer.train()
        path = trainer.save(tmp_path)
    with Trainer.from_checkpoint(path, trust_code=True) as again:
        assert again.config.env_wrappers == (f"{HERE}:without_velocities", (f"{HERE}:Scaled", {"factor": 2.0}))
        expected = continue_training(again, 2)
    refused(CheckpointError, Trainer.from_checkpoint, path, says="env_wrappers")
    with Trainer.from_checkpoint(path, env_wrappers=config["env_wrappers"]) as again:
        assert continue_training(again, 2) == expected


def test_in_files(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(f"run: PPO\nenv: CartPole-v1\nconfig: {{env_wrappers: ['{HERE}:without_velocities']}}\n")
    trusted = override(read_experiment(path, trust_code=True), run=None, env=None, config={}, stop={})
    with PPOTrainer("CartPole-v1", {**SMALL, **trusted.config}) as trainer:
        assert trainer.get_policy().observation_space.shape == (2,)
    raised(ConfigError, override, read_experiment(path), run=None, env=None, config={}, stop={}, says="env_wrappers")


def test_on_the_command_line():
    given = parse_settings([f'env_wrappers=["{HERE}:without_velocities", ["{HERE}:Scaled", {{"factor": 3}}]]'])
    with PPOTrainer("CartPole-v1", {**SMALL, **given}) as trainer:
        result = trainer.train()
    assert result["episode_reward_mean"] == pytest.approx(3 * result["episode_len_mean"])


PATH = f"{HERE}:raising"


@pytest.mark.parametrize(
    "stored",
    [
        [PATH],
        [[PATH, {}]],
        [{"$code": PATH}],
        {"$tuple": [{"$tuple": [PATH, {}]}]},
        [{"$tuple": [{"$code": PATH}, {}]}],
    ],
    ids=["path", "pair", "code", "tuples", "code in a tuple"],
)
def test_no_form_of_a_stored_path_is_imported_without_trust(stored):
    for values in ({"env_wrappers": stored}, {"evaluation_config": {"env_wrappers": stored}}):
        (code,) = missing_code(decode_config(values))
        assert (code.path, code.key.rpartition(".")[2].partition("[")[0]) == (PATH, "env_wrappers")


def test_recorded_episodes_and_hindsight(tmp_path):
    config = {**SMALL, "env_wrappers": [[Scaled, {"factor": 3.0}]], "evaluation_num_episodes": 1}
    with PPOTrainer("CartPole-v1", config) as trainer:
        found = trainer.evaluate(record_dir=str(tmp_path))
    assert found["episode_reward_mean"] == pytest.approx(3 * found["episode_len_mean"])
    refused(ConfigError, DQNConfig, hindsight_goals=4, env_wrappers=[Scaled], says="env_wrappers")


def test_of_the_old_interface_and_of_environments_in_jax():
    with PPOTrainer(lambda _: Old(FourSteps), {**SMALL, "env_wrappers": [Scaled]}) as trainer:
        assert trainer.train()["episode_reward_mean"] == 40
    with PPOTrainer("jax:CartPole-v1", {**SMALL, "env_wrappers": [[TimeLimit, {"max_episode_steps": 7}]]}) as trainer:
        assert trainer.train()["episode_len_mean"] <= 7


@pytest.mark.long
def test_in_remote_environments_and_workers(small_ray):
    wrappers = [f"{HERE}:without_velocities", [Scaled, {"factor": 10.0}]]
    config = {**SMALL, "env_wrappers": wrappers, "num_workers": 1, "remote_worker_envs": True}
    with PPOTrainer("CartPole-v1", config) as trainer:
        result = trainer.train()
    assert result["episode_reward_mean"] == 10 * result["episode_len_mean"]


@pytest.mark.parametrize(
    "value", [Scaled, "x:Y", [3], ["Scaled"], [(Scaled, 3)], [(Scaled, {}, {})], [[[Scaled, {}], {}]]]
)
def test_other_values_are_refused(value):
    refused(ConfigError, PPOConfig, env_wrappers=value, says="env_wrappers")


@pytest.mark.parametrize(
    ("wrapper", "says"),
    [
        (raising, "The wrapper raising raised ValueError: no such thing.*fix: +correct the wrapper raising"),
        (forgetful, "forgetful"),
        ((Scaled, {"factr": 1}), "The wrapper Scaled does not accept.*'env_wrappers'.*factr.*factor"),
        (f"{HERE}:NoSuch", "NoSuch"),
    ],
)
def test_wrappers_that_fail(wrapper, says):
    with pytest.raises((EnvError, ConfigError), match=f"(?s){says}"):
        PPOTrainer("CartPole-v1", {**SMALL, "env_wrappers": [wrapper]})


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("reset", r"The wrapper Breaks raised ValueError in reset\(\): no such thing.*correct the wrapper Breaks"),
        ("step", r"The wrapper Breaks raised ValueError in step\(\): no such thing.*correct the wrapper Breaks"),
        ("inside", r"The environment raised AssertionError in step\(\).*correct the environment"),
    ],
)
def test_the_wrapper_or_the_environment_inside_is_named(call, says):
    with pytest.raises(EnvError, match=f"(?s){says}"):
        check_env("CartPole-v1", env_wrappers=[(Breaks, {"call": call})])
