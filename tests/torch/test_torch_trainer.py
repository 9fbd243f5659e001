"""Policies in PyTorch in whole runs: without JAX, restored, with workers, and with policies in JAX."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from examples.multi_agent_cartpole import MultiAgentCartPole
from examples.torch_dqn import TorchDQN, TorchDQNTrainer
from examples.torch_pg import TorchPGTrainer
from examples.torch_ppo import TorchPPO, TorchPPOTrainer
from examples.torch_sac import TorchSACTrainer
from rollax import PPOTrainer, SyncReplayOptimizer, TorchAlgorithm, TorchConfig, Trainer, export_policy, load_policy
from rollax.config.replay_groups import ReplayFields
from rollax.errors import CheckpointError, ConfigError, PolicyError
from rollax.optimizers.async_gradients import AsyncGradientsOptimizer
from rollax.processes.settings import TORCH_DEVICE
from rollax.torch.losses import masked_mean
from tests.algorithms.checkpoints import continue_training
from tests.env.refused import refused
from tests.pages import REPOSITORY
from tests.python_process import output_of
from tests.torch.made import same

SMALL = {"model": {"fcnet_hiddens": (8,)}, "seed": 0, "device": "cpu"}
PPO_CONFIG = {**SMALL, "num_envs_per_worker": 2, "train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 2}
REPLAY = {**SMALL, "learning_starts": 16, "train_batch_size": 8, "timesteps_per_iteration": 32}
REPLAY["store_buffer_in_checkpoints"] = True
RUNS = {
    "PG": (TorchPGTrainer, "CartPole-v1", {**SMALL, "train_batch_size": 64}),  # made of functions
    "PPO": (TorchPPOTrainer, "CartPole-v1", PPO_CONFIG),
    "PPO-LSTM": (TorchPPOTrainer, "CartPole-v1", {**PPO_CONFIG, "model": {"use_lstm": True, "lstm_cell_size": 4}}),
    "DQN": (TorchDQNTrainer, "CartPole-v1", REPLAY),
    "SAC": (TorchSACTrainer, "Pendulum-v1", {**REPLAY, "random_steps": 8}),
}


@pytest.mark.long
@pytest.mark.parametrize("run", RUNS)
def test_restoring_continues_exactly(run, tmp_path):
    trainer_class, env, config = RUNS[run]
    with trainer_class(env=env, config=config) as trainer:
        trainer.train()
        path = trainer.save(tmp_path, exact=True)
        expected = continue_training(trainer, 1)
    with trainer_class.from_checkpoint(path) as other:
        assert continue_training(other, 1) == expected


def test_files_of_torch_save_are_refused(tmp_path):
    """The code in the error message also loads tied weights, and sets the target parameters."""

    class Tied(TorchDQN):
        def make_model(self):
            model = super().make_model()
            model.tied = model.advantages
            return model

    spaces_of = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)
    policy, other = (Tied.make_policy(*spaces_of, {**SMALL, "seed": seed}) for seed in (1, 2))
    path = tmp_path / "model.pt"
    torch.save(other.model.state_dict(), path)
    with pytest.raises(CheckpointError, match=r"may run code(.|\n)*weights_only=True") as error:
        load_policy(path)
    exec(str(error.value).split("`")[1], {"torch": torch, "policy": policy})  # noqa: S102
    same(policy.get_weights(), other.get_weights())
    same(*({name: target.numpy() for name, target in one.targets.items()} for one in (policy, other)))
    with TorchPPOTrainer(env="CartPole-v1", config=PPO_CONFIG) as trainer:
        refused(CheckpointError, trainer.restore, path, says="pickle")


@pytest.mark.long
def test_policies_in_jax_and_pytorch_learn_together():
    policies = {"jax": None, "torch": (TorchPPO, None, None, {})}
    multiagent = {"policies": policies, "policy_mapping_fn": lambda agent: "jax" if agent else "torch"}
    config = {**PPO_CONFIG, "env_config": {"num_agents": 2}, "multiagent": multiagent}
    del config["device"]
    with PPOTrainer(env=MultiAgentCartPole, config=config) as trainer:
        before = trainer.get_weights()
        learned = trainer.train()["info"]["learner"]
        after = trainer.get_weights()
    for name in policies:
        assert np.isfinite(learned[name]["policy_loss"])
        assert any(not np.array_equal(value, after[name][key]) for key, value in before[name].items())
    assert any(key.endswith("kernel") for key in after["jax"])
    assert any(key.endswith("weight") for key in after["torch"])


def sharing(**policies):
    """A config of two agents whose policies share hidden layers."""
    multiagent = {
        "policies": policies,
        "policy_mapping_fn": lambda agent: list(policies)[agent],
        "shared_variables": {"hidden layers": {"parts": ["policy_trunk"]}},
    }
    return {**PPO_CONFIG, "env_config": {"num_agents": 2}, "multiagent": multiagent}


def shared_layers(trainer):
    weights = trainer.get_weights()
    return [{n: w for n, w in weights[id_].items() if n.startswith("policy_trunk")} for id_ in ("first", "second")]


@pytest.mark.long
def test_policies_share_variables(tmp_path):
    with TorchPPOTrainer(env=MultiAgentCartPole, config=sharing(first=None, second=None)) as trainer:
        same(*shared_layers(trainer))
        trainer.train()
        path = trainer.save(tmp_path, exact=True)
        trainer.train()
        first, second = shared_layers(trainer)
        weights = trainer.get_weights()
    assert first
    same(first, second)
    assert not np.array_equal(weights["first"]["policy_head.weight"], weights["second"]["policy_head.weight"])
    with TorchPPOTrainer(env=MultiAgentCartPole, config=sharing(first=None, second=None)) as again:
        again.restore(path)
        again.train()
        np.testing.assert_equal(again.get_weights(), weights)


def test_policies_in_jax_and_pytorch_cannot_share_variables():
    config = sharing(first=None, second=(TorchPPO, None, None, {}))
    del config["device"]
    refused(ConfigError, PPOTrainer, says="hidden layers", env=MultiAgentCartPole, config=config)


def test_features_of_jax_policies_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot act while it learns(.|\n)*TorchPPO"):
        TorchPPOTrainer(env="CartPole-v1", config={**PPO_CONFIG, "sample_async": True})
    with TorchPPOTrainer(env="CartPole-v1", config=PPO_CONFIG) as trainer:
        policy = load_policy(trainer.save(tmp_path), trainer_class=TorchPPOTrainer)
    with pytest.raises(PolicyError, match=r"not in JAX(.|\n)*TorchPPO(.|\n)*torch.export exports the module"):
        export_policy(policy, out=tmp_path / "policy.onnx")


class ReplayedConfig(ReplayFields, TorchConfig):
    pass


class ReplayedPolicy(TorchAlgorithm):
    config_class = ReplayedConfig

    def loss(self, model, out, batch, mask, coefficients):
        return -masked_mean(self.distribution.logp(out.policy, batch["actions"]), mask), {}


class ReplayedTrainer(Trainer):
    name = "Replayed"
    config_class = ReplayedConfig
    policy_class = ReplayedPolicy
    optimizer_class = SyncReplayOptimizer


def test_replay_of_single_rows_requires_a_model_without_memory():
    with pytest.raises(PolicyError, match=r"model has memory(.|\n)*ReplayedPolicy(.|\n)*SyncSamplesOptimizer"):
        ReplayedTrainer(env="CartPole-v1", config={**REPLAY, "model": {"use_lstm": True}})
    with ReplayedTrainer(env="CartPole-v1", config=REPLAY) as trainer:
        assert trainer.train()["info"]["learner"]["default_policy"]["total_loss"] > 0


class TorchA3CTrainer(TorchPPOTrainer):
    """Applies the gradients that workers compute."""

    name = "TorchA3C"
    optimizer_class = AsyncGradientsOptimizer


@pytest.mark.long
@pytest.mark.usefixtures("small_ray")
@pytest.mark.parametrize("trainer_class", [TorchPPOTrainer, TorchA3CTrainer])
def test_workers_in_other_processes(trainer_class):
    with trainer_class(env="CartPole-v1", config={**PPO_CONFIG, "num_workers": 2}) as trainer:
        results = [trainer.train() for _ in range(2)]
    assert results[-1]["timesteps_total"] > results[0]["timesteps_total"]


@pytest.mark.long
def test_a_run_of_policies_in_pytorch_imports_no_jax(tmp_path):
    script = f"""
import sys
from examples.torch_dqn import TorchDQNTrainer
from examples.torch_ppo import TorchPPOTrainer
from rollax import load_policy

for trainer_class, config in ((TorchPPOTrainer, {PPO_CONFIG}), (TorchDQNTrainer, {REPLAY})):
    with trainer_class(env="CartPole-v1", config=config) as trainer:
        trainer.train()
        path = trainer.save({str(tmp_path)!r} + trainer_class.name)
        trainer.evaluate(1)
    load_policy(path, trainer_class=trainer_class).compute_single_action([0.0, 0.0, 0.0, 0.0])
print([name for name in ("jax", "flax", "optax") if name in sys.modules])
"""
    assert output_of("-c", script, cwd=REPOSITORY) == "[]\n"


def test_a_policy_of_a_gpu_is_loaded_without_one(tmp_path, monkeypatch):
    monkeypatch.setenv(TORCH_DEVICE, "cpu")  # in the place of a GPU
    with TorchPPOTrainer(env="CartPole-v1", config={"device": "cuda", "seed": 0}) as trainer:
        checkpoint = trainer.save(tmp_path)
    monkeypatch.delenv(TORCH_DEVICE)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    policy = load_policy(checkpoint, trainer_class=TorchPPOTrainer, policy_class=TorchPPO)
    assert policy.policy.device.type == "cpu"
