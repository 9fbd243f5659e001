"""TQC on Pendulum-v1: -200 after at most 20,000 steps. It is SAC with quantile critics, without the largest quantiles.

The library has TQC too (`rollax.TQCTrainer`): this is an algorithm of one's own, with public names only.

Source: Kuznetsov et al. (2020), arXiv:2005.04269: N critics have M quantiles θ of the return each, τ_m = (m - ½) / M.
The N M target quantiles of (s', a') are pooled, and the N d largest are left out. With the others, z_i, the targets are
y_i = r + γ (z_i - α log π(a'|s')). Critics minimize the mean of |τ_m - 1{y_i < θ_m}| huber(y_i - θ_m). The actor
maximizes the mean of all quantiles of (s, a), of which none is left out. All else is as in SAC.
"""

from functools import partial

import jax
import jax.numpy as jnp
from pydantic import Field

from rollax import SAC, SACConfig, SACTrainer
from rollax.models.actor_with_critics import make_critic, make_critics
from rollax.ops.mean_over_rows import masked_mean
from rollax.ops.q_learning import lowest_quantiles, quantile_huber


class TQCConfig(SACConfig):
    defaults = {"num_critics": 2, "actor_q": "mean"}
    num_quantiles: int = Field(default=25, ge=1, description="M, quantiles of each critic")
    dropped_quantiles: int = Field(default=2, ge=0, description="d, quantiles left out of targets for each critic")


class TQC(SAC):
    config_class = TQCConfig

    def make_critics(self, rngs):
        spaces, quantiles = (self.critic_space, self.action_space), self.config.num_quantiles
        one = partial(make_critic, *spaces, self.config.model, outputs=quantiles, rngs=rngs)
        return make_critics(self.config.num_critics, one)

    def expected_values(self, outputs):
        return outputs.mean(axis=-1)

    def targets(self, model, target_model, batch, mask, coefficients):
        outputs = self.forward(model, {"obs": batch["new_obs"]}).policy
        actions, logp = self.distribution.sample_and_logp(outputs, batch["next_noise"])
        quantiles = lowest_quantiles(target_model.critics(batch["new_obs"], actions), self.config.dropped_quantiles)
        soft = quantiles - (jnp.exp(model.log_alpha[...]) * logp)[:, None]
        return {"target": batch["rewards"][:, None] + batch["discounts"][:, None] * soft}

    def critic_loss(self, model, batch, mask):
        quantiles, target = model.critics(batch["obs"], batch["actions"]), batch["target"]
        losses = jax.vmap(quantile_huber, in_axes=(0, None))(quantiles, target).mean(axis=0)
        errors = jnp.abs(quantiles.mean(axis=(0, 2)) - target.mean(axis=1))
        means = {"mean_q": quantiles.mean(axis=(0, 2)), "mean_target": target.mean(axis=1), "mean_td_error": errors}
        statistics = {name: masked_mean(values, mask) for name, values in means.items()}
        return masked_mean(losses * batch["weights"], mask), {**statistics, "td_error": jax.lax.stop_gradient(errors)}


class TQCTrainer(SACTrainer):
    name, config_class, policy_class = "OwnTQC", TQCConfig, TQC


CONFIG = {"lr": 1e-3, "learning_starts": 500, "random_steps": 500}


def main(iterations: int = 10, seed: int = 0) -> float:
    """Trains and returns the mean return of 20 greedy episodes."""
    with TQCTrainer(env="Pendulum-v1", config={**CONFIG, "seed": seed}) as trainer:
        trainer.fit({"training_iteration": iterations})
        return trainer.evaluate(num_episodes=20)["episode_reward_mean"]


if __name__ == "__main__":
    assert main() >= -200
