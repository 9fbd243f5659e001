"""Ape-X DDPG: DDPG with asynchronous workers, replay shards and learner.

Source: Horgan et al. (2018), arXiv:1803.00933, section 4.2 and appendix D. Deviations: see DDPG and Ape-X DQN; each
worker has its own noise scale, in the place of the ε of Ape-X DQN.
"""

from __future__ import annotations

from collections.abc import Callable

from rollax.algorithms.ddpg import DDPGConfig, DDPGPolicy, DDPGTrainer
from rollax.batch import Fragment, SampleBatch
from rollax.config.groups import AsyncReplayFields
from rollax.evaluation.initial_priorities import add_priorities
from rollax.optimizers.async_replay import AsyncReplayOptimizer
from rollax.policy.exploration.per_worker import worker_scale


class ApexDDPGConfig(AsyncReplayFields, DDPGConfig):
    """The fields of DDPG with the defaults of Ape-X; each worker scales its noise by ε^(1 + α (i - 1)/(N - 1))."""

    defaults = {"noise_scale": 1.0}


class ApexDDPGPolicy(DDPGPolicy):
    """The policy of DDPG with one noise scale per worker and initial priorities for its rows."""

    config_class = ApexDDPGConfig

    def noise_scale(self) -> Callable[[float], float]:
        base, alpha, scale = self.config.worker_epsilon, self.config.worker_epsilon_alpha, super().noise_scale()
        return lambda timestep: worker_scale(base, alpha, self.worker_index, self.num_workers) * scale(timestep)

    def postprocess_rows(self, fragment: Fragment) -> SampleBatch:
        super().postprocess_rows(fragment)
        if not self.config.prioritized_replay:
            return fragment
        return add_priorities(fragment, self.td_errors, n_step=self.config.n_step, gamma=self.config.gamma)


class ApexDDPGTrainer(DDPGTrainer):
    """DDPG with asynchronous workers, replay shards and learner."""

    name = "APEX_DDPG"
    config_class = ApexDDPGConfig
    policy_class = ApexDDPGPolicy
    optimizer_class = AsyncReplayOptimizer
