"""SAC in PyTorch on Pendulum-v1: -200 after at most 10,000 steps. Source: Haarnoja et al. (2018), arXiv:1812.05905."""

from functools import cached_property

from gymnasium.spaces import Box
from pydantic import Field

from rollax import SyncReplayOptimizer, TorchAlgorithm, TorchFields, Trainer
from rollax.config.replay_groups import ReplayFields
from rollax.models.config import ModelConfig
from rollax.policy.exploration.action_noise import RandomAtFirst
from rollax.policy.replayed import TRANSITION
from rollax.policy.targets import polyak_average
from rollax.policy.update_plan import UpdatePlan
from rollax.torch.distributions import make_distribution
from rollax.torch.losses import masked_mean, td_target, temperature_loss, twin_errors
from rollax.torch.networks import ActionValue, Actor, ActorWithCritics, Ensemble, check_own_networks, frozen


class TorchSACConfig(TorchFields, ReplayFields):
    defaults = {"train_batch_size": 256, "rollout_fragment_length": 8, "training_intensity": 1.0, "lr": 3e-4}
    model: ModelConfig = ModelConfig(fcnet_hiddens=(256, 256), fcnet_activation="relu")
    tau: float = Field(default=5e-3, gt=0, le=1, description="Polyak coefficient of the target critics")
    random_steps: int = Field(default=1500, ge=0, description="steps at first whose actions are uniformly random")


class TorchSAC(TorchAlgorithm):
    action_space: Box
    statistics = ("critic_loss", "actor_loss", "alpha")
    config_class, learns_off_policy, reads = TorchSACConfig, True, TRANSITION

    def check_spaces(self):
        check_own_networks(self, Box)

    distribution = cached_property(lambda self: make_distribution(self.action_space, squash=True))

    def make_plan(self):
        return UpdatePlan(self.config.train_batch_size, updated_targets=polyak_average(self.config.tau, ("critics",)))

    def make_exploration(self):
        return RandomAtFirst(super().make_exploration(), self.action_space, self.config.random_steps)

    def make_model(self):
        space, actions, layers = self.observation_space, self.action_space, self.config.model
        actor = Actor(space, self.exploration.num_inputs, layers)
        return ActorWithCritics(actor, Ensemble(lambda: ActionValue(space, actions, layers), 2), initial_alpha=1.0)

    def loss_columns(self, batch, rng):
        noise = rng.random((2, len(batch), self.distribution.num_noise), "float32")
        return {**super().loss_columns(batch, rng), "noise": noise[0], "next_noise": noise[1]}

    def targets(self, model, target_model, batch, mask, coefficients):
        actions, logp = self.distribution.sample_and_logp(model(batch["new_obs"]).policy, batch["next_noise"])
        soft_values = target_model.critics(batch["new_obs"], actions).amin(dim=0) - model.log_alpha.exp() * logp
        return {"target": td_target(batch["rewards"], batch["discounts"], soft_values)}

    def loss(self, model, out, batch, mask, coefficients):
        taken = model.critics(batch["obs"], batch["actions"])
        squares, errors = twin_errors(taken, batch["target"], batch["weights"], mask)
        actions, logp = self.distribution.sample_and_logp(out.policy, batch["noise"])
        with frozen(model.critics):
            values, alpha = model.critics(batch["obs"], actions).amin(dim=0), model.log_alpha.detach().exp()
        actor = masked_mean(alpha * logp - values, mask)
        loss = squares / 2 + actor + temperature_loss(model.log_alpha, logp, -self.distribution.num_noise, mask)
        return loss, {"critic_loss": squares / 2, "actor_loss": actor, "alpha": alpha, "td_error": errors}


class TorchSACTrainer(Trainer):
    name, config_class, policy_class, optimizer_class = "TorchSAC", TorchSACConfig, TorchSAC, SyncReplayOptimizer


def main(iterations: int = 10) -> float:
    """Trains and returns the mean reward of a greedy evaluation."""
    config = {"lr": 1e-3, "learning_starts": 500, "random_steps": 500, "evaluation_interval": 1, "seed": 0}
    with TorchSACTrainer(env="Pendulum-v1", config=config) as trainer:
        trainer.fit({"evaluation_reward_mean": -200, "training_iteration": iterations}, evaluate=False)
        return trainer.evaluate()["episode_reward_mean"]


if __name__ == "__main__":
    assert main() >= -200
