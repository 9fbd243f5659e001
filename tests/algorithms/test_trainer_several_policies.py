"""`Trainer` with several policies: trained policies, results by policy, copied weights and filters."""

from itertools import combinations

import numpy as np
import pytest

from rollax import Policy, PPOTrainer
from rollax.errors import ConfigError, PolicyError
from tests.algorithms.envs import TwoAgents
from tests.algorithms.results import PPO_STATS


class Right(Policy):
    """Always takes the same action, and counts its calls."""

    calls = 0

    def compute_actions(self, obs_batch):
        Right.calls += 1
        return np.ones(len(obs_batch), np.int64), [], {}


class TestMultiAgent:
    CONFIG = {"num_envs_per_worker": 2, "train_batch_size": 20, "sgd_minibatch_size": 20, "num_sgd_iter": 2}
    CONFIG |= {"model": {"fcnet_hiddens": (8,)}, "seed": 5, "evaluation_num_episodes": 3}
    CONFIG["multiagent"] = {
        "policies": {"left": None, "right": None, "spare": None},
        "policy_mapping_fn": lambda agent_id: agent_id,
        "policies_to_train": ["left", "spare"],
    }

    def make(self, **config):
        return PPOTrainer(env=TwoAgents, config={**self.CONFIG, **config})

    @pytest.mark.long
    def test_weights_without_their_filter_are_logged(self, caplog):
        with self.make(observation_filter="MeanStdFilter") as trainer:
            trainer.train()
            weights, filters = trainer.get_weights(), trainer.worker.get_filters()
            trainer.set_weights({"left": weights["left"]})
            assert not caplog.records
            trainer.set_weights({"right": weights["left"]})
            assert "Policies ['right'] and their observation filters do not learn" in caplog.text
            caplog.clear()
            trainer.worker.set_filters({"right": filters["left"]})
            trainer.set_weights({"right": weights["left"]})
            assert not caplog.records

    def test_policies_start_different_and_only_those_to_train_learn(self):
        with self.make() as trainer:
            before = trainer.worker.get_weights()
            results = [trainer.train() for _ in range(2)]
            after = trainer.worker.get_weights()
        kernels = [weights["policy_trunk.mlp.layers.0.kernel"] for weights in before.values()]
        assert not any(np.array_equal(*pair) for pair in combinations(kernels, 2))
        moved = {
            policy_id: any(not np.array_equal(value, after[policy_id][name]) for name, value in weights.items())
            for policy_id, weights in before.items()
        }
        assert moved == {"left": True, "right": False, "spare": False}
        for result in results:
            assert set(result["info"]["learner"]) == {"left", "spare"}
            assert set(result["info"]["learner"]["left"]) == PPO_STATS
            assert result["info"]["learner"]["spare"] == dict.fromkeys(PPO_STATS)  # it has no experience
            assert result["policy_reward_mean"] == {"left": 5, "right": 50, "spare": None}
            assert result["episode_reward_mean"] == 55

    def test_the_episodes_of_the_last_iteration(self):
        with self.make() as trainer:
            assert trainer.episodes == []
            for _ in range(2):
                result = trainer.train()
                assert len(trainer.episodes) == result["episodes_this_iter"] == 4
                assert [one.policy_rewards for one in trainer.episodes] == 4 * [{"left": [5], "right": [50]}]

    @pytest.mark.short("env_steps-20")
    @pytest.mark.parametrize(("unit", "total"), [("env_steps", 20), ("agent_steps", 40)])
    def test_steps_are_counted_by(self, unit, total):
        with self.make(count_steps_by=unit, train_batch_size=total, rollout_fragment_length=10) as trainer:
            result = trainer.train()
            assert result["timesteps_total"] == result["timesteps_this_iter"] == total
            assert trainer.get_policy("left").timestep == total  # what schedules go by
        assert result["agent_timesteps_total"] == 40

    def test_acting_without_a_policy_id(self):
        with self.make() as trainer:
            with pytest.raises(PolicyError, match=r"'left', 'right', 'spare'(.|\n)*fix: +pass policy_id"):
                trainer.compute_single_action(0)

    @pytest.mark.parametrize("given", [["spare", "left"], {"spare", "left"}])
    def test_policies_learn_in_their_own_order(self, given):
        with self.make(multiagent={**self.CONFIG["multiagent"], "policies_to_train": given}) as trainer:
            assert list(trainer.optimizer.policies) == ["left", "spare"]

    def test_an_opponent_may_replace_a_trained_policy_in_evaluation(self):
        policies = {"policies": {"left": None, "fixed": (Right, None, None, {})}}
        mapping = {"left": "left", "right": "fixed"}
        evaluation = {"multiagent": {**policies, "policy_mapping_fn": mapping.get}}
        with self.make(evaluation_config=evaluation) as trainer:
            trainer.train()
            assert Right.calls == 0
            assert trainer.evaluate(3)["policy_reward_mean"] == {"left": 5, "fixed": 50}
        assert Right.calls > 0

    def test_no_policy_to_train(self):
        with pytest.raises(ConfigError, match=r"policies_to_train'(.|\n)*lef(.|\n)*'left'"):
            self.make(multiagent={**self.CONFIG["multiagent"], "policies_to_train": ["lef"]})


def test_weights_are_copied_between_trainers():
    multiagent = {"policies": {"a": None, "b": None}, "policy_mapping_fn": lambda agent: "a"}
    one, other = (PPOTrainer("CartPole-v1", {"seed": seed, "multiagent": multiagent}) for seed in (1, 2))
    other.set_weights(one.get_weights(["b"]))
    mine, theirs = one.get_weights(), other.get_weights()
    np.testing.assert_equal(theirs["b"], mine["b"])
    assert any((theirs["a"][name] != values).any() for name, values in mine["a"].items())
    assert set(one.get_weights(["b"])) == set(one.get_weights("b")) == {"b"}
