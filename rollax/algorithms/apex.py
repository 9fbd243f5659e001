"""Ape-X DQN and DDPG: many workers with different exploration fill replay shards, from which one learner samples.

Source: Horgan et al. (2018), arXiv:1803.00933. Deviations, besides those of DQN and DDPG: Adam instead of RMSProp;
`training_intensity` fixes the number of updates per sampled step, where learner and actors of the paper run
independently; see `AsyncReplayOptimizer` and `worker_scale`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rollax.algorithms.ddpg import DDPGConfig, DDPGPolicy, DDPGTrainer
from rollax.algorithms.dqn import EPSILON, GREEDY, DQNConfig, DQNPolicy, DQNTrainer
from rollax.batch import Fragment, SampleBatch
from rollax.config.groups import AsyncReplayFields
from rollax.optimizers.async_replay import AsyncReplayOptimizer
from rollax.policy.jax_policy import JaxPolicy


def worker_scale(base: float, alpha: float, worker_index: int, num_workers: int) -> float:
    """The exploration scale ε^(1 + α i / (N - 1)) of one of N workers; `base` is ε, `worker_index` i + 1.

    Source: section 4.1. Deviations: i = (N - 1) / 2 for a single worker and for the driver's process, whose index is 0.
    """
    place = 0.5 if worker_index == 0 or num_workers < 2 else (worker_index - 1) / (num_workers - 1)
    return base ** (1 + alpha * place)


class _InitialPriorities(JaxPolicy):
    """Computes the initial priorities of rows where they are sampled, with the network that acts.

    Source: Algorithm 1, line 10. Deviations: for a row whose n steps exceed the fragment, the error has only the steps
    inside of it; the buffer draws the row with all n.
    """

    def postprocess_rows(self, fragment: Fragment) -> SampleBatch:
        super().postprocess_rows(fragment)
        if self.config.prioritized_replay:
            errors = self.td_errors(fragment.transitions(self.config.n_step, self.config.gamma))
            fragment[SampleBatch.PRIORITIES] = np.abs(errors).astype(np.float32)
        return fragment

    @property
    def exploration_scale(self) -> float:
        config = self.config
        return worker_scale(config.worker_epsilon, config.worker_epsilon_alpha, self.worker_index, self.num_workers)


class ApexDQNConfig(AsyncReplayFields, DQNConfig):
    """The fields of DQN with the defaults of Ape-X, for Atari games and many workers."""

    defaults = {"lr": 1e-4, "grad_clip": 40.0, "adam_epsilon": 1.5e-4, "target_network_update_freq": 2500}
    requires = {
        EPSILON: "each worker has a constant ε: set worker_epsilon and worker_epsilon_alpha",
        ("worker_epsilon", "worker_epsilon_alpha"): GREEDY,
    }


class ApexDQNPolicy(_InitialPriorities, DQNPolicy):
    """The policy of DQN with one ε per worker."""

    config_class = ApexDQNConfig

    def epsilon(self) -> Callable[[float], float]:
        return super().epsilon() if self.config.noisy else lambda _: self.exploration_scale


class ApexDQNTrainer(DQNTrainer):
    """Ape-X DQN: many workers with different exploration fill replay shards, from which one learner samples.

    Source: Horgan et al. (2018), arXiv:1803.00933. Its config is `ApexDQNConfig`.
    """

    name = "APEX"
    config_class = ApexDQNConfig
    policy_class = ApexDQNPolicy
    optimizer_class = AsyncReplayOptimizer


class ApexDDPGConfig(AsyncReplayFields, DDPGConfig):
    """The fields of DDPG with the defaults of Ape-X."""

    defaults = {"noise_scale": 1.0}


class ApexDDPGPolicy(_InitialPriorities, DDPGPolicy):
    """The policy of DDPG with one noise scale per worker."""

    config_class = ApexDDPGConfig

    def noise_scale(self) -> Callable[[float], float]:
        scale = super().noise_scale()
        return lambda timestep: self.exploration_scale * scale(timestep)


class ApexDDPGTrainer(DDPGTrainer):
    """Ape-X DDPG: DDPG with asynchronous workers, replay shards and learner.

    Source: Horgan et al. (2018), arXiv:1803.00933, section 4.2. Its config is `ApexDDPGConfig`.
    """

    name = "APEX_DDPG"
    config_class = ApexDDPGConfig
    policy_class = ApexDDPGPolicy
    optimizer_class = AsyncReplayOptimizer
