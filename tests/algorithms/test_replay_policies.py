"""Policies that a trainer with a replay buffer trains, keys of their specs, and refused ones."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rollax import DQN, PPO, ApexDQNTrainer, ConfigError, DQNTrainer, PolicyError, PolicySpec
from rollax.algorithms.dqn import DQNConfig
from rollax.algorithms.registry import get_trainer_class
from rollax.batch import SampleBatch
from tests.algorithms.checkpoints import to_plain
from tests.algorithms.envs import TwoAgents
from tests.algorithms.replayed import SMALL
from tests.env.refused import raised


def two(left: Any = None, right: Any = None, **multiagent: Any) -> dict[str, Any]:
    """A config with two policies."""
    policies = {"policies": {"left": left, "right": right}, "policy_mapping_fn": lambda agent: agent}
    return {**SMALL, "multiagent": {**policies, **multiagent}}


class Counter(gym.Env):
    """Observes its number of steps; every third one terminates."""

    observation_space, action_space = gym.spaces.Box(0, 3, (1,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.array([self.steps], np.float32), 1.0, self.steps == 3, False, {}


class KnowingWhatCameNext(DQN):
    """Stores the next observation in a column of its own, and its own priorities, which learning does not change."""

    replayed_columns = ("next_obs", "priorities")

    def postprocess(self, fragment, values):
        fragment["next_obs"] = fragment.following("obs")
        fragment["priorities"] = 1.0 * (fragment["obs"][:, 0] == 2)
        return super().postprocess(fragment, values)

    def loss(self, *args):
        loss, statistics = super().loss(*args)
        return loss, {name: value for name, value in statistics.items() if name != "td_error"}


class KnowingTrainer(DQNTrainer):
    policy_class = KnowingWhatCameNext


def test_own_columns_and_priorities_of_a_buffer():
    config = {**SMALL, "prioritized_replay": True, "prioritized_replay_alpha": 1.0, "prioritized_replay_eps": 0.25}
    with KnowingTrainer(Counter, config) as trainer:
        trainer.train()
        drawn = trainer.optimizer.buffers["default_policy"].sample(4000, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn["next_obs"], drawn["obs"] + 1)  # also after the last action
    # Priorities 0.25, 0.25 and 1.25: the last step of an episode is drawn with a probability of about 1.25 / 1.75.
    assert (drawn["obs"] == 2).mean() == pytest.approx(1.25 / 1.75, abs=0.05)


class TestPolicies:
    @pytest.mark.parametrize("trainer_class", [DQNTrainer, ApexDQNTrainer])
    def test_on_policy_ones_are_refused(self, trainer_class):
        says = "cannot learn from replayed experience...policy 'left', algorithm PPO...policies_to_train"
        raised(PolicyError, trainer_class, TwoAgents, two(PPO), says=f"{says}...rollax docs two-trainers")
        trainer_class(TwoAgents, two(PPO, policies_to_train=["right"])).stop()

    @pytest.mark.short("PPO")
    @pytest.mark.parametrize("name", ["PPO", "IMPALA", "A3C"])
    def test_policies_with_replay_are_refused_without_a_buffer(self, name):
        multiagent, make = two(DQN)["multiagent"], get_trainer_class(name)
        says = "but this trainer replays none...policy 'left', algorithm DQN...policies_to_train"
        raised(PolicyError, make, TwoAgents, {"multiagent": multiagent}, says=says)
        make(TwoAgents, {"multiagent": {**multiagent, "policies_to_train": ["right"]}}).stop()


class TestKeys:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("explore", False),
            ("seed", 1),
            ("num_workers", 2),
            ("input", "data"),
            ("output", "data"),
            ("env_config", {}),
        ],
    )
    def test_those_of_the_trainer_are_refused_in_a_spec(self, key, value):
        config = {**two(None, PolicySpec(config={key: value})), "env_config": {"x": 1}}
        raised(ConfigError, DQNConfig, says=f"{key} has no effect here...policies['right']...set {key} in", **config)
        spec = PolicySpec(config={"action_space": gym.spaces.Discrete(2)})
        raised(ConfigError, DQNConfig, says="set it in the spec itself, PolicySpec(action_space", **two(None, spec))

    @pytest.mark.parametrize(
        ("key", "value"),
        [("buffer_size", 300), ("prioritized_replay", True), ("learning_starts", 5000), ("training_intensity", 1.0)],
    )
    def test_those_of_all_policies_are_refused_in_a_spec(self, key, value):
        spec = PolicySpec(config={key: value, "n_step": 2, "gamma": 0.5, "train_batch_size": 4})
        says = f"policies['right'], config key '{key}'...set {key} in the tr"
        raised(ConfigError, DQNTrainer, TwoAgents, two(None, spec), says=says)
        DQNTrainer(TwoAgents, {**two(None, spec), key: value}).stop()  # no contradiction

    def test_those_of_shards_are_refused_in_a_spec(self):
        wrong = two((None, None, None, {"updates_per_draw": 7}))
        raised(ConfigError, ApexDQNTrainer, TwoAgents, wrong, says="config key 'updates_per_draw'")


@pytest.mark.long
def test_a_row_drawn_again_has_the_error_of_its_last_update():
    box = gym.spaces.Box(-1, 1, (2,), np.float32)
    config = {"train_batch_size": 2, "lr": 0.01, "seed": 0, "model": {"fcnet_hiddens": (8,)}}
    policy = DQN.make_policy(box, gym.spaces.Discrete(2), config)
    drawn = SampleBatch(
        {
            "obs": np.full((6, 2), 0.5, np.float32),
            "actions": np.ones(6, np.int64),
            "rewards": np.ones(6, np.float32),
            "new_obs": np.zeros((6, 2), np.float32),
            "discounts": np.full(6, 0.9, np.float32),
            "weights": np.ones(6, np.float32),
            "indices": np.full(6, 17),
        }
    )
    first, second, third = np.abs(policy.learn_on_batch(drawn)["td_error"]).reshape(3, 2)
    # Both rows of an update have the same error, and every update decreases it.
    assert first[0] == first[1] > second[0] == second[1] > third[0] == third[1]


@pytest.mark.long
@pytest.mark.parametrize("trainer_class", [DQNTrainer, ApexDQNTrainer])
def test_a_refused_checkpoint_changes_neither_policies_nor_buffers(trainer_class, tmp_path):
    changes = {"timesteps_per_iteration": 20, "n_step": 1, "store_buffer_in_checkpoints": True}
    with trainer_class(TwoAgents, {**two(), **changes}) as saved:
        saved.train()
        path = saved.save(tmp_path)
    # Weights of `left` fit, so that they are restored before those of `right` are refused.
    unlike = two(None, PolicySpec(config={"model": {"fcnet_hiddens": (9,)}}))
    with trainer_class(TwoAgents, {**unlike, **changes, "seed": 4}) as trainer:
        for _ in range(2):
            trainer.train()
        before = to_plain(trainer.get_state())
        raised(PolicyError, trainer.restore, path, says="wrong shape")
        assert to_plain(trainer.get_state()) == before
        trainer.train()
        assert trainer.optimizer.report()["replay"]["num_updates"] == 10
