"""Checkpoints of trainers with code of the user: its state, and its import with trust only."""

import gymnasium as gym
import numpy as np
import pytest

from rollax import PolicySpec, PPOTrainer
from rollax.errors import CheckpointError
from tests.algorithms.checkpoints import CONFIG
from tests.algorithms.own_code import Lean, Linear, Pole

OWN_MODEL = {"model": {"custom_model": Linear}}


class TestOwnCode:
    MULTI = {"policies": {"default_policy": (Lean, None, None, {})}}

    def test_state_of_a_user_defined_policy(self, tmp_path):
        with PPOTrainer("CartPole-v1", {**CONFIG, "sgd_minibatch_size": 32, "multiagent": self.MULTI}) as trainer:
            assert trainer.train()["info"]["learner"]["default_policy"] == {"limit": 16.0}
            path = trainer.save(tmp_path)
            with PPOTrainer(config=trainer.config) as fresh:
                fresh.restore(path)
                policy = fresh.get_policy()
        assert isinstance(policy, Lean)
        assert (policy.limit, policy.updates) == (16.0, 1)
        assert policy.restored["list"] == [1, "two", None, [3.5]]
        assert (policy.restored["best"], policy.restored["worst"]) == (float("inf"), -float("inf"))
        # Both paths read the same as text.
        np.testing.assert_array_equal(policy.restored["a/b"]["c"], [0, 1, 2])
        np.testing.assert_array_equal(policy.restored["a"]["b/c"], [0, 0])

    def test_state_that_cannot_be_stored_is_refused(self, tmp_path):
        with PPOTrainer("CartPole-v1", {**CONFIG, "sgd_minibatch_size": 32, "multiagent": self.MULTI}) as trainer:
            policy = trainer.get_policy()
            for state in ({1: "a key that JSON would turn into text"}, {"x": object()}, {"x": np.array([object()])}):
                policy.get_state = lambda state=state: state
                with pytest.raises(CheckpointError, match="cannot be stored"):
                    trainer.save(tmp_path)
            assert list(tmp_path.iterdir()) == []

    @pytest.mark.short(every=3)
    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"env": "tests.algorithms.own_code:Pole"}, "'env'\n.*own_code:Pole(.|\n)*pass env="),
            ({"env": Pole}, "'env'\n.*own_code:Pole"),
            (OWN_MODEL, "'model.custom_model'\n.*own_code:Linear(.|\n)*pass model="),
            ({"multiagent": MULTI}, "'multiagent.policies.default_policy.0.'\n.*own_code:Lean(.|\n)*pass multiagent="),
            (
                {"multiagent": {"policies": {"default_policy": (None, None, None, OWN_MODEL)}}},
                "'multiagent.policies.default_policy.3..model.custom_model'\n.*own_code:Linear(.|\n)*pass multiagent=",
            ),
            (
                {"evaluation_config": {"env": "tests.algorithms.own_code:Pole", "env_config": {"env": "not:code"}}},
                "'evaluation_config.env'\n.*own_code:Pole(.|\n)*pass evaluation_config=",
            ),
        ],
    )
    def test_is_imported_only_with_trust_code(self, tmp_path, changes, named):
        config = {"env": "CartPole-v1", **CONFIG, "sgd_minibatch_size": 32, **changes}
        with PPOTrainer(config=config) as trainer:
            path = trainer.save(tmp_path)
        with pytest.raises(CheckpointError, match=named + r"(.|\n)*trust_code=True"):
            PPOTrainer.from_checkpoint(path)
        for known in ({"trust_code": True}, changes):
            with PPOTrainer.from_checkpoint(path, **known) as trainer:
                trainer.train()

    def test_class_without_an_import_path_must_be_passed(self, tmp_path):
        class Local(Linear):
            pass

        config = {**CONFIG, "sgd_minibatch_size": 32, "model": {"custom_model": Local}}
        with PPOTrainer(lambda context: gym.make("CartPole-v1"), config) as trainer:
            path = trainer.save(tmp_path)
        given = {}
        for key, value in {"env": "CartPole-v1", "model": {"custom_model": Local}}.items():
            with pytest.raises(CheckpointError, match=rf"without an import path(.|\n)*pass {key}=") as error:
                PPOTrainer.from_checkpoint(path, trust_code=True, **given)
            assert "trust_code" not in str(error.value)
            given[key] = value
        with PPOTrainer.from_checkpoint(path, **given) as trainer:
            trainer.train()

    def test_a_section_takes_the_keys_that_are_left_out_from_the_checkpoint(self, tmp_path):
        policies = {"left": None, "right": PolicySpec(config={"gamma": 0.5})}
        multiagent = {"policies": policies, "policy_mapping_fn": lambda agent_id: "left", "policies_to_train": ["left"]}
        model = {"custom_model": Linear, "custom_model_config": {"scale": 2.0}}
        config = {**CONFIG, "sgd_minibatch_size": 32, "model": model, "multiagent": multiagent}
        with PPOTrainer("CartPole-v1", config) as trainer:
            path = trainer.save(tmp_path)
        with pytest.raises(CheckpointError, match=r"multiagent=\{'policy_mapping_fn': ...\}, model=\{'custom_"):
            PPOTrainer.from_checkpoint(path)
        changes = {"multiagent": {"policy_mapping_fn": lambda agent_id: "right"}, "model": {"custom_model": Linear}}
        with PPOTrainer.from_checkpoint(path, **changes) as trainer:
            assert trainer.config.multiagent.policies_to_train == ("left",)
            assert trainer.get_policy("right").config.gamma == 0.5
            assert trainer.config.model.custom_model_config == {"scale": 2.0}
            assert set(trainer.evaluate(1)["policy_reward_mean"]) == {"right"}
        everyone = {**changes["multiagent"], "policies_to_train": None}
        with PPOTrainer.from_checkpoint(path, **{**changes, "multiagent": everyone}) as trainer:
            assert trainer.config.multiagent.policies_to_train is None
