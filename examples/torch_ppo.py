"""PPO in PyTorch on CartPole-v1: 475 of 500 steps after at most 100,000 steps.

Source: Schulman et al. (2017), Eq. 7 and 9, arXiv:1707.06347.
"""

from __future__ import annotations

from pydantic import Field

from rollax import SyncSamplesOptimizer, TorchAlgorithm, TorchConfig, Trainer
from rollax.config.groups import StateValueFields
from rollax.ops.advantages import standardized
from rollax.policy.add_advantages import add_advantages
from rollax.policy.update_plan import UpdatePlan
from rollax.torch.losses import clipped_surrogate, masked_mean, value_loss


class TorchPPOConfig(StateValueFields, TorchConfig):
    defaults = {"train_batch_size": 2048, "lr": 3e-4, "grad_clip": 0.5, "lambda_": 0.95, "entropy_coeff": 0.0}

    sgd_minibatch_size: int = Field(default=128, ge=1, description="M, rows of one gradient step")
    num_sgd_iter: int = Field(default=10, ge=1, description="K, epochs over each train batch")
    clip_param: float = Field(default=0.2, ge=0, description="ε, how far the probability ratio may leave 1")


class TorchPPO(TorchAlgorithm):
    config_class = TorchPPOConfig
    statistics = ("policy_loss", "vf_loss", "kl", "entropy")
    reads = ("obs", "actions", "action_logp", "action_dist_inputs", "advantages", "value_targets")

    def make_plan(self):
        return UpdatePlan(self.config.sgd_minibatch_size, self.config.num_sgd_iter)

    def postprocess(self, fragment, values):
        return add_advantages(fragment, values, gamma=self.config.gamma, lambda_=self.config.lambda_)

    def loss_columns(self, batch, rng):
        return {**super().loss_columns(batch, rng), "advantages": standardized(batch["advantages"], batch.mask())}

    def loss(self, model, out, batch, mask, coefficients):
        config, logp = self.config, self.distribution.logp(out.policy, batch["actions"])
        policy_loss = clipped_surrogate(logp, batch["action_logp"], batch["advantages"], mask, clip=config.clip_param)
        vf_loss = value_loss(out.value, batch["value_targets"], mask)
        entropy = masked_mean(self.distribution.entropy(out.policy), mask)
        kl = self.distribution.kl(batch["action_dist_inputs"], out.policy.detach())
        loss = policy_loss + config.vf_loss_coeff * vf_loss - coefficients["entropy_coeff"] * entropy
        return loss, {"policy_loss": policy_loss, "vf_loss": vf_loss, "entropy": entropy, "kl": masked_mean(kl, mask)}


class TorchPPOTrainer(Trainer):
    name = "TorchPPO"
    config_class = TorchPPOConfig
    policy_class = TorchPPO
    optimizer_class = SyncSamplesOptimizer


def main(iterations: int = 97) -> float:
    """Trains and returns the mean reward of a greedy evaluation."""
    config = {"num_envs_per_worker": 8, "lr": 1e-3, "gamma": 0.98, "lambda": 0.8, "train_batch_size": 1024}
    config |= {"sgd_minibatch_size": 256, "num_sgd_iter": 20}
    config |= {"evaluation_interval": 5, "evaluation_num_episodes": 20, "seed": 0}
    with TorchPPOTrainer(env="CartPole-v1", config=config) as trainer:
        stop = {"evaluation_reward_mean": 475, "training_iteration": iterations}
        trainer.fit(stop, evaluate=False)
        return trainer.evaluate()["episode_reward_mean"]


if __name__ == "__main__":
    assert main() >= 475
