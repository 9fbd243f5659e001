"""PG in PyTorch on CartPole-v1, by functions instead of a class: 475 of 500 steps after at most 200,000 steps.

Source: Williams (1992), REINFORCE. Each action is weighted by its discounted return, standardized over the batch.
"""

from __future__ import annotations

from rollax import SyncSamplesOptimizer, TorchConfig, Trainer, torch_algorithm
from rollax.ops.advantages import discounted_returns, standardized
from rollax.torch.losses import masked_mean, policy_gradient_loss


class TorchPGConfig(TorchConfig):
    defaults = {"train_batch_size": 1000, "lr": 4e-3, "batch_mode": "complete_episodes"}
    requires = {"model.vf_share_layers": "there is no value function"}


def postprocess(pg, fragment, values):
    fragment["advantages"] = discounted_returns(fragment, None, gamma=pg.config.gamma)
    return fragment


def loss_columns(pg, batch, rng):
    return {"obs": batch["obs"], "actions": batch["actions"], "advantages": standardized(batch["advantages"])}


def loss(pg, model, out, batch, mask, coefficients):
    logp = pg.distribution.logp(out.policy, batch["actions"])
    policy_loss = policy_gradient_loss(logp, batch["advantages"], mask)
    entropy = masked_mean(pg.distribution.entropy(out.policy).detach(), mask)
    return policy_loss, {"policy_loss": policy_loss, "entropy": entropy}


TorchPG = torch_algorithm(
    loss,
    postprocess=postprocess,
    reads=("obs", "actions", "advantages"),
    loss_columns=loss_columns,
    statistics=("policy_loss", "entropy"),
    config_class=TorchPGConfig,
    name="TorchPG",
)


class TorchPGTrainer(Trainer):
    name = "TorchPG"
    config_class = TorchPGConfig
    policy_class = TorchPG
    optimizer_class = SyncSamplesOptimizer


def main(iterations: int = 200) -> float:
    """Trains and returns the mean reward of a greedy evaluation."""
    config = {"num_envs_per_worker": 8, "evaluation_interval": 5, "seed": 0}
    with TorchPGTrainer(env="CartPole-v1", config=config) as trainer:
        stop = {"evaluation_reward_mean": 475, "training_iteration": iterations}
        trainer.fit(stop, evaluate=False)
        return trainer.evaluate()["episode_reward_mean"]


if __name__ == "__main__":
    assert main() >= 475
