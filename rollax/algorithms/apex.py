"""Ape-X DQN: many workers with different exploration fill replay shards, from which one learner samples.

Source: Horgan et al. (2018), arXiv:1803.00933. Deviations, besides those of DQN: Adam instead of RMSProp;
`training_intensity` fixes the number of updates per sampled step, where learner and actors of the paper run
independently; see `AsyncReplayOptimizer` and `worker_scale`.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rollax.algorithms.dqn import DQNConfig, DQNPolicy, DQNTrainer
from rollax.batch import SampleBatch
from rollax.config.asynchronous import AsyncReplayFields
from rollax.config.exploration import EpsilonFields
from rollax.config.overruling import Overrules
from rollax.errors import ConfigError
from rollax.evaluation.initial_priorities import add_priorities
from rollax.optimizers.async_replay import AsyncReplayOptimizer, async_replay_settings
from rollax.policy.exploration.parameter_noise import ParameterNoise
from rollax.policy.exploration.per_worker import worker_scale
from rollax.policy.exploration.q_values import EpsilonGreedy
from rollax.policy.policy import Segments
from rollax.schedules import Schedule


class ApexDQNConfig(AsyncReplayFields, DQNConfig):
    """The fields of DQN with the defaults of Ape-X, for Atari games and many workers."""

    lr: float = Field(default=1e-4, ge=0, description="α, the step size of Adam")
    grad_clip: float | None = Field(
        default=40.0, gt=0, description="bound on the global norm of the gradient; None for none"
    )
    adam_epsilon: float = Field(default=1.5e-4, gt=0, description="ε of Adam")
    target_network_update_freq: int = Field(
        default=2500, ge=1, description="updates after which the target network becomes a copy of the model"
    )

    overrules: ClassVar[Overrules] = {("noisy",): ("worker_epsilon", "worker_epsilon_alpha")}

    def check(self) -> None:
        super().check()
        for key in EpsilonFields.model_fields:
            if getattr(self, key) != DQNConfig.model_fields[key].default:
                raise ConfigError(
                    "An ε that falls with time.",
                    where=f"config key '{key}'",
                    got=getattr(self, key),
                    expected="its default: each worker has an ε of its own, which stays what it is",
                    fix="leave it out, and set worker_epsilon and worker_epsilon_alpha",
                )


class ApexDQNPolicy(DQNPolicy):
    """The policy of DQN with one ε per worker and initial priorities for its rows."""

    config_class = ApexDQNConfig

    def in_worker(self, worker_index: int, num_workers: int) -> None:
        config, exploration = self.config, self.exploration
        greedy = exploration.inner if isinstance(exploration, ParameterNoise) else exploration
        if isinstance(greedy, EpsilonGreedy) and not config.noisy:
            epsilon = worker_scale(config.worker_epsilon, config.worker_epsilon_alpha, worker_index, num_workers)
            greedy.epsilon = Schedule(epsilon)

    def postprocess_rows(self, batch: SampleBatch, segments: Segments) -> SampleBatch:
        batch = super().postprocess_rows(batch, segments)
        if not self.config.prioritized_replay:
            return batch
        return add_priorities(batch, self.td_errors, n_step=self.config.n_step, gamma=self.config.gamma)


class ApexDQNTrainer(DQNTrainer):
    """DQN with asynchronous workers, replay shards and learner."""

    name = "APEX"
    config_class = ApexDQNConfig
    policy_class = ApexDQNPolicy

    def make_optimizer(self) -> AsyncReplayOptimizer:
        return AsyncReplayOptimizer(**self.optimizer_settings(), **async_replay_settings(self.config))
