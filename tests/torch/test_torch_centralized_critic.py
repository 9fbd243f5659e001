"""A centralized critic of policies in PyTorch: its inputs, acting without it, and refused models."""

import numpy as np
import pytest
import torch
from torch import nn

from examples.torch_ppo import TorchPPO, TorchPPOConfig, TorchPPOTrainer
from rollax import Outputs
from rollax.config.groups import CentralizedCriticFields
from rollax.errors import ConfigError, PolicyError
from tests.algorithms.checkpoints import continue_training
from tests.algorithms.test_centralized_critic import COIN, ONE_EACH, Secrets, worker

CONFIG = {"num_envs_per_worker": 4, "train_batch_size": 256, "sgd_minibatch_size": 64, "num_sgd_iter": 5, "lr": 2e-2}
CONFIG |= {"gamma": 0.0, "seed": 0, "model": {"fcnet_hiddens": (32,)}, "centralized_critic": True}


class CentralConfig(CentralizedCriticFields, TorchPPOConfig):
    """PPO, with a centralized critic if configured."""


class CentralPolicy(TorchPPO):
    config_class = CentralConfig

    def loss_columns(self, batch, rng):
        seen = {"critic_obs": batch["critic_obs"]} if "critic_obs" in batch else {}
        return {**super().loss_columns(batch, rng), **seen}


class CentralTrainer(TorchPPOTrainer):
    config_class = CentralConfig
    policy_class = CentralPolicy


class OwnCritic(nn.Module):
    """The actor observes its coin, the critic the other's coin and action."""

    def __init__(self, observation_space, num_outputs):
        super().__init__()
        self.actor, self.hidden, self.out = nn.Linear(1, num_outputs), nn.Linear(2, 32), nn.Linear(32, 1)

    def forward(self, obs):
        return Outputs(self.actor(obs[:, None].float()))

    def critic(self, critic_obs):
        (part,) = critic_obs["other"]["parts"]
        seen = torch.stack([part["obs"][:, 0], part["actions"][:, 0]], dim=1).float()
        return self.out(torch.relu(self.hidden(seen)))[:, 0]


class Unsqueezed(OwnCritic):
    def critic(self, critic_obs):
        return super().critic(critic_obs)[:, None]


def explained(**changes):
    """The correlation of values with rewards, which depend only on the other agent's observation and action."""
    with CentralTrainer(Secrets, {**CONFIG, **changes}) as trainer:
        for _ in range(4):
            trainer.train()
        batch = trainer.worker.sample()
    return np.corrcoef(batch["vf_preds"], batch["rewards"])[0, 1]


MEMORY = {"fcnet_hiddens": (32,), "use_lstm": True, "max_seq_len": 5, "lstm_cell_size": 8}


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "least"), [(CONFIG["model"], 0.95), ({"custom_model": OwnCritic}, 0.95), (MEMORY, 0.9)]
)
def test_critic_explains_what_only_others_observe(model, least):
    assert explained(model=model) > least


@pytest.mark.long
def test_critic_of_own_observations_does_not_explain_it():
    assert explained(centralized_critic=False) < 0.5


def test_acting_does_not_call_it_and_its_loss_does_not_train_the_actor():
    made = worker(policy_class=CentralPolicy, **CONFIG)
    policy, batch = made.policies["a"], made.sample()["a"]
    batch["advantages"] = np.zeros(len(batch), np.float32)
    gradients, _ = policy.compute_gradients(batch)
    assert np.abs(gradients["critic.head.weight"]).max() > 0
    assert all(not gradient.any() for name, gradient in gradients.items() if not name.startswith("critic."))
    weights = policy.get_weights()
    policy.set_weights({n: np.full_like(w, np.nan) if n.startswith("critic.") else w for n, w in weights.items()})
    assert len(policy.compute_actions(np.array([0, 1]))[0]) == 2
    assert np.isnan(made.sample()["a"]["vf_preds"]).all()


@pytest.mark.long
def test_restoring_continues_exactly(tmp_path):
    config = {**CONFIG, "multiagent": ONE_EACH}
    with CentralTrainer(Secrets, config) as trainer:
        trainer.train()
        assert any(name.startswith("critic.") for name in trainer.get_weights()["a"])
        path = trainer.save(tmp_path, exact=True)
        expected = continue_training(trainer, 1)
    with CentralTrainer(Secrets, config) as again:
        again.restore(path)
        assert continue_training(again, 1) == expected


def test_a_policy_made_on_its_own_is_refused():
    with pytest.raises(ConfigError, match=r"critic_space(.|\n)*CentralPolicy(.|\n)*RolloutWorker"):
        CentralPolicy.make_policy(COIN, COIN, CONFIG)


def test_a_model_without_a_critic_is_refused():
    class Without(CentralPolicy):
        def make_model(self):
            return nn.Linear(1, 2)

    with pytest.raises(PolicyError, match=r"model has no centralized critic(.|\n)*critic\(critic_obs\)"):
        worker(policy_class=Without, **CONFIG)


def test_a_critic_with_an_axis_too_many_is_refused():
    with pytest.raises(PolicyError, match=r"Unsqueezed\.critic(.|\n)*, 1\)(.|\n)*squeeze\(-1\)"):
        worker(policy_class=CentralPolicy, **{**CONFIG, "model": {"custom_model": Unsqueezed}}).sample()
