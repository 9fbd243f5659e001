"""CrossQ on Pendulum-v1: -200 after at most 20,000 steps. SAC without target networks, with batch renormalization.

The library has CrossQ too (`rollax.CrossQTrainer`): this is an algorithm of one's own, with public names only.

Source: Bhatt et al. (2024), arXiv:1902.05605: critics and actor normalize their input and each hidden layer. Critics
see (s, a) and (s', a') in one batch, [q, q'] = Q([s, s'], [a, a']), so that batch statistics are those of both halves,
and minimize ½ (q_i - y)² with y = r + γ (min_i q'_i - α log π(a'|s')), a constant. The actor that chooses a' is in
evaluation mode, and so are the critics in the loss of the actor. Actor and temperature make every third step only, and
Adam has β₁ = ½. All else is as in SAC. Deviations: the critics' hidden layers have 256 units, in the paper 2048; the
layers are plain batch normalization for `warm_up` steps as in the authors' code, here for a tenth of the run.
"""

import jax.numpy as jnp
from pydantic import Field

from rollax import SAC, SACConfig, SACTrainer
from rollax.models.actor_with_critics import frozen, values_of_both
from rollax.models.config import ModelConfig
from rollax.ops.actor_critic import td_target
from rollax.policy.gradient_transforms import adam, by_part
from rollax.policy.update_plan import UpdatePlan

LAYERS = ModelConfig(fcnet_hiddens=(256, 256), fcnet_activation="relu", normalization="batch_renorm")


class CrossQConfig(SACConfig):
    defaults = {"lr": 1e-3, "model": LAYERS, "policy_delay": 3}
    requires = {"tau": "CrossQ has no target networks"}
    warm_up: int = Field(default=100_000, ge=0, description="first calls of each layer with plain batch normalization")


class CrossQ(SAC):
    config_class = CrossQConfig

    def make_model(self, rngs):
        model = super().make_model(rngs)
        model.set_attributes(warm_up=self.config.warm_up, raise_if_not_found=False)
        return model

    def make_plan(self):
        return UpdatePlan(self.config.train_batch_size, every=self.delayed_parts)

    def make_optimizer(self):
        return by_part(dict.fromkeys(self.learning_rates(0.0), adam(self.config, b1=0.5)), self.plan.every)

    def critic_loss(self, model, batch, mask):
        outputs = self.forward(frozen(model), {"obs": batch["new_obs"]}).policy
        next_actions, logp = self.distribution.sample_and_logp(outputs, batch["next_noise"])
        taken, following = values_of_both(model.critics, batch, next_actions)
        soft_values = self.reduce_critics(following) - jnp.exp(model.log_alpha[...]) * logp
        return self.squared_errors(taken, td_target(batch["rewards"], batch["discounts"], soft_values), batch, mask)


class CrossQTrainer(SACTrainer):
    name, config_class, policy_class = "OwnCrossQ", CrossQConfig, CrossQ


CONFIG = {"learning_starts": 500, "random_steps": 500, "warm_up": 2000}


def main(iterations: int = 20, seed: int = 0) -> float:
    """Trains and returns the mean return of 20 greedy episodes."""
    with CrossQTrainer(env="Pendulum-v1", config={**CONFIG, "seed": seed}) as trainer:
        trainer.fit({"training_iteration": iterations})
        return trainer.evaluate(num_episodes=20)["episode_reward_mean"]


if __name__ == "__main__":
    assert main() >= -200
