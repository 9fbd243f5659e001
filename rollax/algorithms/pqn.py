"""PQN: Q-learning on the policy's own experience, without a replay buffer or a target network.

Source: Gallici et al. (2024), "Simplifying deep temporal difference learning", arXiv:2407.04811, algorithm 1: many
sub-environments act ε-greedily, and several epochs of minibatches minimize ½ (Q(s, a) - G)², with the λ-returns
    G_t = r_t + γ (λ G_{t+1} + (1 - λ) max_a Q(s_{t+1}, a))
computed from the values at the time of acting. This is Peng's Q(λ), whose returns are not cut at exploring actions: G
are the value targets of generalized advantage estimation with V(s) = max_a Q(s, a). Normalized layers replace the
target network. The optimizer is RAdam (Liu et al., 2020, arXiv:1908.03265). Deviations: the value after a time limit is
bootstrapped; kernels are initially orthogonal. With memory, sequences begin with the recurrent state at the time of
acting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from pydantic import Field

from rollax.algorithms.action_values import ActionValues
from rollax.algorithms.exploration_bonus import ExplorationBonus
from rollax.algorithms.normalized_rewards import NormalizedRewards
from rollax.algorithms.trainer import Trainer
from rollax.batch import Columns, Fragment, SampleBatch
from rollax.config.groups import ExplorationBonusFields, LambdaFields, MinibatchFields, NormalizedRewardFields
from rollax.config.off_policy_groups import EpsilonGreedyFields
from rollax.models.config import ModelConfig
from rollax.models.outputs import Outputs
from rollax.models.q_network import CustomQNetwork, QNetwork, logits_of, make_q_network
from rollax.ops.mean_over_rows import masked_mean
from rollax.ops.q_learning import chosen
from rollax.ops.values import traced_advantages
from rollax.optimizers.sync_samples import SyncSamplesOptimizer
from rollax.policy.add_advantages import add_advantages
from rollax.policy.base_algorithm import Values
from rollax.policy.exploration import Exploration
from rollax.policy.exploration.epsilon_greedy import EpsilonGreedy
from rollax.policy.update_plan import UpdatePlan

if TYPE_CHECKING:
    from rollax.policy.traced_columns import Steps


class PQNConfig(LambdaFields, ExplorationBonusFields, NormalizedRewardFields, EpsilonGreedyFields, MinibatchFields):
    """The fields of PQN, in addition to the common fields."""

    defaults = {
        "num_envs_per_worker": 32,
        "train_batch_size": 2048,
        "sgd_minibatch_size": 128,
        "num_sgd_iter": 4,
        "lr": 1e-4,
        "grad_clip": 10.0,
        "lambda_": 0.95,
        "final_epsilon": 0.05,
        "epsilon_timesteps": 100_000,
        "model": ModelConfig(
            fcnet_hiddens=(256, 256),
            fcnet_activation="relu",
            normalization="layer",
            normalize_before_activation=True,
        ),
    }
    places = {"reward_scale": ("policy",)}

    reward_scale: float = Field(default=1.0, gt=0, description="factor of the rewards in the returns")


class PQN(ActionValues, NormalizedRewards, ExplorationBonus):
    """Values of discrete actions, trained on λ-returns of fresh experience."""

    config_class = PQNConfig
    reads = (SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.VALUE_TARGETS)

    def make_model(self, rngs: nnx.Rngs) -> QNetwork | CustomQNetwork:
        model = make_q_network(self.observation_space, self.discrete, self.config.model, dueling=False, rngs=rngs)
        return self.with_distillation(model, rngs)

    def make_exploration(self) -> Exploration:
        return EpsilonGreedy(self.discrete, self.config.epsilon())

    def make_plan(self) -> UpdatePlan:
        return UpdatePlan(self.config.sgd_minibatch_size, self.config.num_sgd_iter)

    def make_optimizer(self) -> optax.GradientTransformation:
        return optax.scale_by_radam(eps=self.config.adam_epsilon)

    def postprocess(self, fragment: Fragment, values: Values) -> SampleBatch:
        gamma, lambda_ = self.config.gamma, self.config.lambda_
        rewards = self.config.reward_scale * fragment[SampleBatch.REWARDS]
        return add_advantages(fragment, values, gamma=gamma, lambda_=lambda_, rewards=rewards)

    def traced_columns(self, steps: Steps) -> Columns:
        steps = steps._replace(rewards=self.config.reward_scale * steps.rewards)
        advantages, targets = traced_advantages(*steps, gamma=self.config.gamma, lambda_=self.config.lambda_)
        return {SampleBatch.ADVANTAGES: advantages, SampleBatch.VALUE_TARGETS: targets}

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        targets = batch[SampleBatch.VALUE_TARGETS]
        every = logits_of(out, f"{self.label}, make_model")[..., 0]  # unmasked: a logged action may be invalid
        values = chosen(every, self.indices(batch[SampleBatch.ACTIONS]))
        loss = 0.5 * masked_mean(jnp.square(values - targets), mask)
        stats = {
            "q_loss": loss,
            "mean_q": masked_mean(values, mask),
            "mean_target": masked_mean(targets, mask),
            "mean_td_error": masked_mean(jnp.abs(values - targets), mask),
        }
        return self.with_predictor_loss(loss, stats, model, batch, mask, coefficients)


class PQNTrainer(Trainer):
    """PQN: Q-learning on the policy's own experience, without a replay buffer or a target network.

    Source: Gallici et al. (2024), arXiv:2407.04811. Its config is `PQNConfig`.
    """

    name = "PQN"
    config_class = PQNConfig
    policy_class = PQN
    optimizer_class = SyncSamplesOptimizer
