"""QMIX in environments: several groups, members that appear and leave, other policies, and learning."""

import numpy as np
import pytest

from rollax import DQN
from rollax.algorithms.qmix import QMIXTrainer, VDNTrainer
from rollax.policy.replayed import SINGLE_ROWS
from tests.algorithms import replayed
from tests.algorithms.contract.cases import lifting, two_step
from tests.algorithms.group_envs import Roll
from tests.algorithms.test_qmix_learning import TWO_STEP
from tests.marks import long_except

GRU = {"fcnet_hiddens": (8,), "use_gru": True, "lstm_cell_size": 8, "max_seq_len": 4}
SMALL = {**replayed.SMALL, "num_envs_per_worker": 2, "learning_starts": 16, "timesteps_per_iteration": 48}
SMALL |= {"rollout_fragment_length": 6, "train_batch_size": 16, "buffer_size": 400}
FLAT = SMALL["model"]
each_model = pytest.mark.parametrize("model", long_except({"GRU"}, {"without memory": FLAT, "GRU": GRU}))


def rolling(context):
    return Roll(context).with_agent_groups({"team": ["a", "b", "c"]})


def two_groups(context):
    return Roll(context).with_agent_groups({"one": ["a", "b"], "two": ["c", "alone"]})


@pytest.mark.long
@each_model
def test_groups_with_leaving_members_beside_another_policy(model):
    multiagent = {
        "policies": {"team": None, "single": (DQN, None, None, {"train_batch_size": 4, "model": FLAT})},
        "policy_mapping_fn": lambda agent_id: "team" if agent_id == "team" else "single",
    }
    config = {**SMALL, "mixer": "qmix", "model": model, "multiagent": multiagent}
    with QMIXTrainer(rolling, config) as trainer:
        result = trainer.train()
        buffers, updates = trainer.optimizer.buffers, trainer.optimizer.num_updates
        team = buffers["team"].sample(60, np.random.default_rng(0))
        # every policy makes the same number of updates, each on one training batch
        assert [trainer.get_policy(name).learner.num_updates for name in ("team", "single")] == [updates] * 2
    for name in ("team", "single"):
        assert np.isfinite(result["info"]["learner"][name]["q_loss"])
    assert result["policy_reward_mean"] == {"team": 9.0, "single": 4.0}
    # In step k = 0, 1, 2, 3 the team earns 3, 3, 2, 1; members that have left have zeros.
    step = ((team["obs"][2]["seen"][:, 0] - 0.25) * 8).round().astype(int)
    np.testing.assert_array_equal(team["rewards"], np.array([3, 3, 2, 1])[step])
    np.testing.assert_array_equal(team["obs"][0]["seen"][:, 0] > 0, step < 2)
    np.testing.assert_array_equal(team["obs"][1]["seen"][:, 0] > 0, step < 3)


@pytest.mark.long
def test_several_groups_with_a_policy_each():
    policies = {"one": None, "two": (None, None, None, {"mixer": None, "model": GRU})}
    multiagent = {"policies": policies, "policy_mapping_fn": lambda agent_id: agent_id}
    with QMIXTrainer(two_groups, {**SMALL, "multiagent": multiagent}) as trainer:
        result = trainer.train()
        assert trainer.get_policy("two").replayed.length == 4
        assert trainer.get_policy("one").replayed == SINGLE_ROWS
    for name in ("one", "two"):
        assert np.isfinite(result["info"]["learner"][name]["q_loss"])
    assert result["policy_reward_mean"] == {"one": 5.0, "two": 8.0}


@pytest.mark.long
def test_several_groups_with_one_policy():
    with VDNTrainer(two_groups, SMALL) as trainer:
        assert trainer.train()["policy_reward_mean"] == {"default_policy": 6.5}


def test_actions_of_one_pair():
    with QMIXTrainer(lifting, {**SMALL, "model": GRU}) as trainer:
        env = lifting({})
        obs = env.reset(seed=0)[0]["pair"]
        action, state, _ = trainer.compute_single_action(obs)
        assert len(action) == 2
        obs = env.step({"pair": action})[0]["pair"]
        action, later, _ = trainer.compute_single_action(obs, state)
        assert state[0].shape == (2, 8)
        assert not np.array_equal(state[0], later[0])


@pytest.mark.long
@pytest.mark.parametrize(("trainer_class", "reward"), [(QMIXTrainer, 8.0), (VDNTrainer, 7.0)])
def test_two_step_game_under_full_exploration(trainer_class, reward):
    """QMIX can represent the values of state 2. The best sum of two values gives 6.5 for 8, less than 7 of state 1."""
    config = {**TWO_STEP, "buffer_size": 5000, "timesteps_per_iteration": 6000, "seed": 0}
    with trainer_class(two_step, config) as trainer:
        trainer.train()
        assert trainer.evaluate(2)["episode_reward_mean"] == reward
