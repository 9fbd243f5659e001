"""PPO iterations of a policy in PyTorch: examples/torch_ppo.py with the KL penalty and value clipping of RLlib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field

from benchmarks.protocol import Link, run, versions
from examples.torch_ppo import TorchPPO, TorchPPOConfig, TorchPPOTrainer
from rollax.torch.losses import clipped_surrogate, masked_mean, value_loss


class Config(TorchPPOConfig):
    """The fields of RLlib's loss in addition."""

    kl_coeff: float = Field(default=0.0, ge=0)
    vf_clip_param: float | None = Field(default=None, gt=0)


class OwnPPO(TorchPPO):
    """The KL penalty has a constant weight instead of an adaptive one."""

    config_class = Config

    def loss(self, model, out, batch, mask, coefficients):
        config, d = self.config, self.distribution
        logp = d.logp(out.policy, batch["actions"])
        policy_loss = clipped_surrogate(logp, batch["action_logp"], batch["advantages"], mask, clip=config.clip_param)
        vf_loss = value_loss(out.value, batch["value_targets"], mask, vf_clip_param=config.vf_clip_param)
        entropy = masked_mean(d.entropy(out.policy), mask)
        kl = masked_mean(d.kl(batch["action_dist_inputs"], out.policy), mask)
        loss = policy_loss + config.vf_loss_coeff * vf_loss - coefficients["entropy_coeff"] * entropy
        stats = {"policy_loss": policy_loss, "vf_loss": vf_loss, "entropy": entropy, "kl": kl}
        return loss + config.kl_coeff * kl, stats


class OwnTrainer(TorchPPOTrainer):
    """Trains that policy."""

    config_class = Config
    policy_class = OwnPPO


def iterations(link: Link, env: str, config: Mapping[str, Any]) -> None:
    """Durations of iterations."""
    trainer = OwnTrainer(env=env, config={**config, "seed": 0, "device": "cpu"})
    link.serve_durations(
        trainer.train,
        warm_up=1,
        threads=torch.get_num_threads(),
        versions=versions("rollax", "torch", "gymnasium", "numpy"),
    )
    trainer.stop()


if __name__ == "__main__":
    run(iterations)
