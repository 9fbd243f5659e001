"""DQN in PyTorch on CartPole-v1: 475 of 500 steps after at most 50,000 steps.

Source: Mnih et al. (2015), doi:10.1038/nature14236; van Hasselt et al. (2016), arXiv:1509.06461.
"""

from gymnasium.spaces import Discrete

from rollax import SyncReplayOptimizer, TorchAlgorithm, TorchFields, Trainer
from rollax.config.off_policy_groups import QLearningFields
from rollax.config.replay_groups import ReplayFields
from rollax.policy.exploration.epsilon_greedy import EpsilonGreedy
from rollax.policy.replayed import TRANSITION
from rollax.policy.targets import periodic_copy
from rollax.policy.update_plan import UpdatePlan
from rollax.torch.losses import chosen, huber, masked_mean, q_target
from rollax.torch.networks import QNetwork, check_own_networks


class TorchDQNConfig(TorchFields, QLearningFields, ReplayFields):
    """The keys of DQN: replay, targets and ε-greedy exploration."""


class TorchDQN(TorchAlgorithm):
    action_space: Discrete
    statistics = ("q_loss", "mean_q", "mean_td_error")
    config_class, learns_off_policy, reads = TorchDQNConfig, True, TRANSITION

    def check_spaces(self):
        check_own_networks(self, Discrete)

    def make_plan(self):
        c = self.config
        return UpdatePlan(c.train_batch_size, updated_targets=periodic_copy(c.target_network_update_freq))

    def make_exploration(self):
        return EpsilonGreedy(self.action_space, self.config.epsilon())

    def make_model(self):
        return QNetwork(self.observation_space, int(self.action_space.n), self.config.model, dueling=False)

    def targets(self, model, target_model, batch, mask, coefficients):
        following = {"obs": batch["new_obs"]}
        values = self.forward(target_model, following).policy
        selector = self.forward(model, following).policy if self.config.double_q else values
        return {"target": q_target(batch["rewards"], batch["discounts"], values, selector)}

    def loss(self, model, out, batch, mask, coefficients):
        values = chosen(out.policy, batch["actions"] - int(self.action_space.start))
        errors = values - batch["target"]
        loss = masked_mean(huber(errors) * batch["weights"], mask)
        return loss, {
            "q_loss": loss,
            "mean_q": masked_mean(values, mask),
            "mean_td_error": masked_mean(errors.abs(), mask),
            "td_error": errors,
        }


class TorchDQNTrainer(Trainer):
    name = "TorchDQN"
    config_class = TorchDQNConfig
    policy_class = TorchDQN
    optimizer_class = SyncReplayOptimizer


def main(iterations: int = 45) -> float:
    """Trains and returns the mean reward of a greedy evaluation."""
    config = {"rollout_fragment_length": 256, "training_intensity": 0.5, "train_batch_size": 64, "lr": 2.3e-3}
    config |= {"target_network_update_freq": 128, "epsilon_timesteps": 8000, "final_epsilon": 0.04, "double_q": False}
    config |= {"model": {"fcnet_hiddens": (256, 256), "fcnet_activation": "relu"}}
    config |= {"evaluation_interval": 4, "evaluation_num_episodes": 20, "seed": 0}
    with TorchDQNTrainer(env="CartPole-v1", config=config) as trainer:
        stop = {"evaluation_reward_mean": 475, "training_iteration": iterations}
        trainer.fit(stop, evaluate=False)
        return trainer.evaluate()["episode_reward_mean"]


if __name__ == "__main__":
    assert main() >= 475
