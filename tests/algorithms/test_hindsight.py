"""Hindsight goals in runs of every algorithm that has them, what is refused, and learning runs."""

from typing import Any

import numpy as np
import pytest

from rollax import MultiAgentEnv, Trainer
from rollax.algorithms.registry import algorithms_with, get_trainer_class
from rollax.core.introspection import defining_class
from rollax.errors import ConfigError, EnvError, PolicyError, SpaceError
from tests.algorithms.checkpoints import check_continues_exactly
from tests.algorithms.contract.cases import settings, space_for
from tests.env.goal_worlds import Reach
from tests.marks import long_except

NAMES = algorithms_with("hindsight_goals")
each_algorithm = pytest.mark.parametrize("name", long_except({"DQN", "SAC", "APEX_DDPG"}, NAMES))


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    env = {"env": Reach, "env_config": {"space": space_for(name)}, "num_envs_per_worker": 2}
    goals = {"hindsight_goals": 4, "n_step": 1, "observation_filter": "NoFilter"}
    return {**settings(name), **env, **goals, **changes}


def make(name: str, **changes: Any) -> Trainer:
    return get_trainer_class(name)(config=config_of(name, **changes))


def check_drawn(trainer: Trainer, iterations: int = 2) -> None:
    """Trains, and checks rewards and ends of all rows that are learned from."""
    algorithm: Any = trainer.get_policy().algorithm
    select, batches = algorithm.loss_columns, []

    def loss_columns(batch: Any, rng: Any) -> dict[str, Any]:
        if "indices" in batch:  # Ape-X computes initial priorities of sampled rows, too
            batches.append(batch)
        return select(batch, rng)

    vars(algorithm)["loss_columns"] = loss_columns
    for _ in range(iterations):
        trainer.train()
    del vars(algorithm)["loss_columns"]
    relabelled = 0
    for batch in batches:
        goals = batch["obs"]["desired_goal"]
        np.testing.assert_array_equal(batch["new_obs"]["desired_goal"], goals)
        reached = (goals == batch["next_achieved_goal"])[:, 0]
        np.testing.assert_array_equal(batch["rewards"], np.where(reached, 0, -1))
        np.testing.assert_array_equal(batch["discounts"] == 0, reached)
        relabelled += (goals < 100).sum()
    rows = sum(map(len, batches))
    assert rows > 100
    assert relabelled / rows == pytest.approx(0.8, abs=0.1)


@pytest.mark.short("DQN")
@each_algorithm
def test_rows_have_the_rewards_and_ends_of_their_goals_and_a_restored_run_continues_exactly(name, tmp_path):
    with make(name, store_buffer_in_checkpoints=True, prioritized_replay=True) as trainer:
        check_drawn(trainer)
        check_continues_exactly(trainer, tmp_path, trust_code=True)


@pytest.mark.long
def test_replay_shards_have_the_functions_of_the_environment(small_ray):
    with make("APEX_DDPG", num_workers=1, timesteps_per_iteration=200) as trainer:
        check_drawn(trainer)


@pytest.mark.long
@pytest.mark.parametrize("on_disk", [False, True])
def test_recorded_rows_get_other_goals_too(on_disk, tmp_path):
    with make("DQN", learning_starts=1000) as played:
        played.record(10, tmp_path / "data")
    folder = str(tmp_path / "decoded") if on_disk else None
    with make("DQN", input=str(tmp_path / "data"), input_folder=folder, timesteps_per_iteration=200) as trainer:
        check_drawn(trainer)


@pytest.mark.parametrize("name", NAMES)
def test_goals_of_recorded_rows_are_decoded_once_for_all_runs(name):
    author = defining_class(get_trainer_class(name).policy_class, "postprocess")
    assert vars(author).get("derives_from_settings")


class Pair(MultiAgentEnv):
    """Two agents with goals of their own."""

    possible_agents = ("left", "right")

    def __init__(self, context):
        self.envs = {agent: Reach(context) for agent in ("left", "right")}
        self.observation_space, self.action_space = self.envs["left"].observation_space, self.envs["left"].action_space
        self.compute_reward = self.envs["left"].compute_reward
        self.compute_terminated = self.envs["left"].compute_terminated

    def reset(self, *, seed=None, options=None):
        return {agent: env.reset(seed=seed)[0] for agent, env in self.envs.items()}, {}

    def step(self, actions):
        outcomes = {agent: self.envs[agent].step(action) for agent, action in actions.items()}
        obs, rewards, _, truncated, _ = ({agent: part[i] for agent, part in outcomes.items()} for i in range(5))
        return obs, rewards, {"__all__": False}, {"__all__": all(truncated.values())}, {}


@pytest.mark.long
def test_each_policy_of_several_agents_has_the_goals_of_its_own_trajectories():
    specs = {"default_policy": None, "without": (None, None, None, {"hindsight_goals": 0})}
    mapping = {"left": "default_policy", "right": "without"}
    several = {"policies": specs, "policy_mapping_fn": mapping.__getitem__}
    with make("DQN", env=Pair, multiagent=several) as trainer:
        check_drawn(trainer)
        optimizer: Any = trainer.optimizer
        drawn = optimizer.buffers["without"].sample(100, np.random.default_rng(0))
        assert (drawn["obs"]["desired_goal"] >= 100).all()


class WithoutGoals(Reach):
    def __init__(self, context):
        super().__init__(context)
        self.observation_space = self.observation_space["observation"]

    def _observation(self):
        return self.place


class WithoutReward(Reach):
    compute_reward: Any = property()


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"n_step": 3}, ConfigError, "n_step"),
        ({"observation_filter": "MeanStdFilter"}, ConfigError, "observation_filter"),
        ({"clip_rewards": True}, ConfigError, "clip_rewards"),
        ({"frame_stack": 2}, ConfigError, "frame_stack"),
        ({"action_repeat": 2}, ConfigError, "action_repeat"),
        ({"hindsight_goals": 0, "hindsight_strategy": "final"}, ConfigError, "hindsight_strategy"),
        ({"model": {"use_gru": True}}, PolicyError, "memory"),
        ({"env": WithoutGoals}, SpaceError, "desired_goal"),
        ({"env": WithoutReward}, EnvError, "compute_reward"),
    ],
)
def test_what_cannot_be_relabelled_is_refused_at_once(changes, error, named):
    with pytest.raises(error, match=named):
        make("DQN", **changes)
