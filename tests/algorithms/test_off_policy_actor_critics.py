"""DDPG, TD3 and SAC as whole algorithms: every kind of space, workers, saving, and small tasks learned in seconds."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from examples.parametric_actions import ParametricCartPole
from rollax import MultiAgentEnv, Trainer
from rollax.algorithms.registry import get_trainer_class
from rollax.policy.traces import trace_count
from tests.algorithms.envs import Echo, MaskedCartPole, Shown
from tests.algorithms.results import assert_same_weights
from tests.marks import long_except

BOX = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 2], np.float32))
SMALL: dict[str, Any] = {
    "seed": 0,
    "learning_starts": 16,
    "random_steps": 12,
    "timesteps_per_iteration": 40,
    "rollout_fragment_length": 4,
    "train_batch_size": 8,
    "buffer_size": 500,
    "model": {"fcnet_hiddens": (8,), "fcnet_activation": "relu"},
}
each_algorithm = pytest.mark.parametrize("algorithm", long_except({"SAC"}, ["DDPG", "TD3", "SAC"]))


class Level(gym.Env):
    """The right action in [-2, 4] is the height of the bright part of an image. The Dict's other entry is noise."""

    action_space = spaces.Box(-2, 4, (1, 1), np.float32)
    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (8, 8, 1), np.uint8), "noise": spaces.Tuple([spaces.Discrete(3)])}
    )

    def __init__(self, env_config):
        self.steps = 0

    def _next(self):
        height = int(self.np_random.integers(9))
        self.right = -2 + 6 * height / 8
        image = np.full((8, 8, 1), 50, np.uint8)
        image[:height] = 200
        return {"image": image, "noise": (int(self.np_random.integers(3)),)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._next(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = 1 - abs(float(action[0, 0]) - self.right) / 6
        self.steps += 1
        return self._next(), reward, False, self.steps == 10, {}


class TwoLevels(MultiAgentEnv):
    """Two independent copies of `Level`."""

    observation_space, action_space = Level.observation_space, Level.action_space

    def __init__(self, env_config):
        self.envs = {name: Level(env_config) for name in ("left", "right")}

    def reset(self, *, seed=None, options=None):
        both = {name: env.reset(seed=seed) for name, env in self.envs.items()}
        return {name: obs for name, (obs, _) in both.items()}, {}

    def step(self, actions):
        both = {name: env.step(actions[name]) for name, env in self.envs.items()}
        obs, rewards, _, truncateds, _ = ({name: values[i] for name, values in both.items()} for i in range(5))
        return obs, rewards, {"__all__": False}, {**truncateds, "__all__": truncateds["left"]}, {}


IMAGES = {"fcnet_hiddens": (8,), "conv_filters": ((4, 3, 2),), "conv_dense": 8}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "images and more": (Level, {"model": IMAGES}),
    "noise that wanders": (Echo, {"env_config": {"space": BOX}, "exploration": "OrnsteinUhlenbeckNoise"}),
    "n steps, prioritized": (Echo, {"env_config": {"space": BOX}, "n_step": 3, "prioritized_replay": True}),
    "two policies": (
        TwoLevels,
        {
            "model": IMAGES,
            "multiagent": {"policies": {"left": None, "right": None}, "policy_mapping_fn": lambda agent: agent},
        },
    ),
}


def learner_statistics(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return result["info"]["learner"]


@pytest.mark.long
@each_algorithm
@pytest.mark.parametrize("kind", KINDS)
def test_runs(algorithm, kind):
    env, options = KINDS[kind]
    with get_trainer_class(algorithm)(env, {**SMALL, **options}) as trainer:
        result = trainer.train()
        for stats in learner_statistics(result).values():
            assert all(np.isfinite(value) for value in stats.values()), stats
        assert trainer.evaluate(1)["episodes"] == 1


@pytest.mark.long
@pytest.mark.parametrize("env", [MaskedCartPole, ParametricCartPole, Shown], ids=lambda env: env.__name__)
def test_sac_runs_with_discrete_actions(env):
    options = {"env_config": {"image": True}, "model": IMAGES if env is Shown else {"fcnet_hiddens": (8,)}}
    with get_trainer_class("SAC")(env, {**SMALL, **options}) as trainer:  # an invalid action raises
        stats = learner_statistics(trainer.train())["default_policy"]
    assert all(np.isfinite(value) for value in stats.values())


@each_algorithm
def test_restoring_continues_exactly(algorithm, tmp_path):
    config = {
        **SMALL,
        "env_config": {"space": BOX},
        "exploration": "OrnsteinUhlenbeckNoise",
        "prioritized_replay": True,
        "n_step": 2,
        "store_buffer_in_checkpoints": True,
    }
    with get_trainer_class(algorithm)(Echo, config) as trainer:
        trainer.train()
        path = trainer.save(tmp_path, exact=True)
        with Trainer.from_checkpoint(path, trust_code=True) as restored:
            for _ in range(2):
                ours, theirs = (learner_statistics(each.train()) for each in (trainer, restored))
                assert ours == theirs
            assert_same_weights(trainer, restored)
            for name, value in trainer.get_policy().targets.items():
                np.testing.assert_array_equal(value, restored.get_policy().targets[name])


@pytest.mark.long
@each_algorithm
def test_one_worker_gives_the_same_numbers_as_none(algorithm, small_ray):
    config = {**SMALL, "env_config": {"space": BOX}, "exploration": "OrnsteinUhlenbeckNoise"}
    found = []
    for workers in (0, 1):
        with get_trainer_class(algorithm)(Echo, {**config, "num_workers": workers}) as trainer:
            results = [trainer.train() for _ in range(2)]
            found.append([(learner_statistics(r), r["episode_reward_mean"]) for r in results])
    assert found[0] == found[1]


@pytest.mark.long
@pytest.mark.usefixtures("cleared_cache")
@each_algorithm
def test_compiles_for_few_sizes_only(algorithm):
    # The number of due updates differs from step to step.
    config = {**SMALL, "env_config": {"space": BOX}, "training_intensity": 0.7, "timesteps_per_iteration": 0}
    with get_trainer_class(algorithm)(Echo, config) as trainer:
        updates = set()
        for _ in range(24):
            before = trainer.optimizer.num_updates
            trainer.train()
            updates.add(trainer.optimizer.num_updates - before)
        policy: Any = trainer.get_policy()
        assert updates == {0, 2, 3}
        assert trace_count(policy.learner.steps) == 2


@pytest.mark.parametrize(
    ("algorithm", "env", "options"),
    [
        pytest.param("DDPG", Echo, {"env_config": {"space": BOX}}, marks=pytest.mark.long),
        pytest.param("TD3", Echo, {"env_config": {"space": BOX}}, marks=pytest.mark.long),
        ("SAC", Echo, {"env_config": {"space": BOX}}),
        pytest.param(
            "SAC",
            Echo,
            {"env_config": {"space": spaces.Discrete(4, start=-1)}, "target_entropy": 0.2},
            marks=pytest.mark.long,
        ),
        pytest.param(
            "SAC",
            Level,
            {"model": {"fcnet_hiddens": (64, 64), "conv_filters": ((8, 4, 2),), "conv_dense": 32}},
            marks=pytest.mark.long,
        ),
    ],
    ids=["DDPG", "TD3", "SAC", "SAC, discrete", "SAC, images"],
)
def test_learns_to_repeat_observations(algorithm, env, options):
    config = {
        "num_envs_per_worker": 8,
        "rollout_fragment_length": 4,
        "seed": 1,
        "gamma": 0.0,  # an action has no influence on what comes later
        "lr": 3e-3,
        "learning_starts": 256,
        "random_steps": 1000,
        "training_intensity": 0.5,
        "train_batch_size": 64,
        "timesteps_per_iteration": 3000,
        "buffer_size": 5000,
        "model": {"fcnet_hiddens": (64, 64), "fcnet_activation": "relu"},
        "evaluation_num_episodes": 8,
        **options,
    }
    with get_trainer_class(algorithm)(env, config) as trainer:
        trainer.train()
        assert trainer.evaluate()["episode_reward_mean"] / 10 > 0.93
