"""Ape-X DQN and DDPG: many workers with different exploration fill replay shards, from which one learner samples.

Source: Horgan et al. (2018), arXiv:1803.00933. Deviations, in addition to the deviations of DQN and DDPG:
`training_intensity` fixes the number of updates per sampled step, while learner and actors of the paper run
independently. `AsyncReplayOptimizer`, `ApexPolicy` and `worker_scale` describe further deviations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rollax.algorithms.ddpg import DDPG, DDPGConfig, DDPGTrainer
from rollax.algorithms.dqn import DQN, EPSILON, GREEDY, DQNConfig, DQNTrainer
from rollax.batch import Fragment, SampleBatch
from rollax.config.off_policy_groups import AsyncReplayFields
from rollax.optimizers.async_replay import AsyncReplayOptimizer
from rollax.policy.exploration import Exploration
from rollax.policy.jax_policy import JaxPolicy


def worker_scale(base: float, alpha: float, worker_index: int, num_workers: int) -> float:
    """The exploration scale ε^(1 + α · i / (N - 1)) of worker i of N, from i = 0; `base` is ε, `worker_index` is i + 1.

    Source: section 4.1. Deviations: i / (N - 1) is ½ for a single worker, and for the driver (`worker_index` 0).
    """
    place = 0.5 if worker_index == 0 or num_workers < 2 else (worker_index - 1) / (num_workers - 1)
    return base ** (1 + alpha * place)


class ApexPolicy(JaxPolicy):
    """Explores on the scale of its worker, and computes the initial priorities of rows with the acting network.

    Source: Algorithm 1, line 10. Deviations: for a row whose n steps exceed the fragment, the initial priority uses
    only the steps inside the fragment; updates use all n steps. With memory, new rows have the largest priority so far.
    """

    def make_exploration(self) -> Exploration:
        base, alpha = self.config.worker_epsilon, self.config.worker_epsilon_alpha
        # The index of the worker is set later.
        return self.algorithm.exploration_of(lambda: worker_scale(base, alpha, self.worker_index, self.num_workers))

    def _describe(self, model: Any) -> None:
        super()._describe(model)
        of_rows = self.replayed.sequence_length is None
        if self.config.prioritized_replay and of_rows and self.config.steps_the_env:
            self.replayed_columns = (*self.replayed_columns, SampleBatch.PRIORITIES)

    def postprocess_rows(self, fragment: Fragment) -> SampleBatch:
        rows = super().postprocess_rows(fragment)
        # A batch that is no fragment is refused by the buffer.
        if isinstance(rows, Fragment) and SampleBatch.PRIORITIES in self.replayed_columns:
            errors = self.td_errors(rows.transitions(self.config.n_step, self.config.gamma))
            rows[SampleBatch.PRIORITIES] = np.abs(errors).astype(np.float32)
        return rows


class ApexDQNConfig(AsyncReplayFields, DQNConfig):
    """The fields of DQN with the defaults of Ape-X, for Atari games and many workers."""

    defaults = {"lr": 1e-4, "grad_clip": 40.0, "adam_epsilon": 1.5e-4, "target_network_update_freq": 2500}
    requires = {
        EPSILON: "each worker has a constant ε: set worker_epsilon and worker_epsilon_alpha",
        ("worker_epsilon", "worker_epsilon_alpha"): GREEDY,
    }


class ApexDQN(DQN):
    """DQN with one ε per worker."""

    config_class = ApexDQNConfig
    policy_class = ApexPolicy

    def exploration_of(self, scale: Callable[[], float]) -> Exploration:
        """Returns the exploration of a worker with ε = `scale()`, or ε = 0 with noisy layers."""
        return self.exploration_with(self.epsilon() if self.config.noisy else lambda _: scale())


class ApexDQNTrainer(DQNTrainer):
    """Ape-X DQN: many workers with different exploration fill replay shards, from which one learner samples.

    Source: Horgan et al. (2018), arXiv:1803.00933. Its config is `ApexDQNConfig`.
    """

    name = "APEX"
    config_class = ApexDQNConfig
    policy_class = ApexDQN
    optimizer_class = AsyncReplayOptimizer


class ApexDDPGConfig(AsyncReplayFields, DDPGConfig):
    """The fields of DDPG with the defaults of Ape-X."""

    defaults = {"noise_scale": 1.0}


class ApexDDPG(DDPG):
    """DDPG with one noise scale per worker."""

    config_class = ApexDDPGConfig
    policy_class = ApexPolicy

    def exploration_of(self, scale: Callable[[], float]) -> Exploration:
        """Returns the exploration of a worker, in which `scale()` is a factor of the noise."""
        factor = self.noise_scale()
        return self.exploration_with(lambda timestep: scale() * factor(timestep))


class ApexDDPGTrainer(DDPGTrainer):
    """Ape-X DDPG: DDPG with asynchronous workers, replay shards and learner.

    Source: Horgan et al. (2018), arXiv:1803.00933, section 4.2. Its config is `ApexDDPGConfig`.
    """

    name = "APEX_DDPG"
    config_class = ApexDDPGConfig
    policy_class = ApexDDPG
    optimizer_class = AsyncReplayOptimizer
