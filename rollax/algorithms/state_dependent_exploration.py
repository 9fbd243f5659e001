"""Exploration that is a smooth function of the observation: `use_sde` of PPO, A2C, A3C and SAC."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from flax import nnx

from rollax.errors import ConfigError
from rollax.models.distributions import ActionDistribution
from rollax.models.distributions.factory import make_distribution
from rollax.models.networks import hidden_width
from rollax.policy.algorithm import Algorithm
from rollax.policy.exploration import Exploration

if TYPE_CHECKING:
    from rollax.models.state_dependent_head import StateDependentHead

_WHOLE_TRAJECTORY = 1e9  # steps; not infinity, which a replay buffer refuses in recurrent states


class StateDependentExploration(Algorithm):
    """An algorithm for continuous actions that can explore by gSDE; see `StateDependentGaussian`.

    For `sde_sample_freq` steps of a trajectory, by default for all, the noise of actions is the product of one random
    matrix and the last hidden features of the actor. In these steps the same observation leads to the same action.

    Source: Raffin, Kober and Stulp (2021), arXiv:2005.05719. Deviations: noise is drawn for each trajectory separately,
    and not for each rollout; a loss samples actions independently, without a matrix in common.
    """

    def gaussian(self, *, squash: bool) -> ActionDistribution:
        """Returns the action distribution of the space, or with `use_sde` a state-dependent Gaussian."""
        distribution = make_distribution(self.action_space, squash=squash)
        if not self.config.use_sde:
            return distribution
        # Modules of gSDE are loaded only where it is used.
        from rollax.models.distributions.gaussian import DiagGaussian
        from rollax.models.distributions.state_dependent import StateDependentGaussian

        if not isinstance(distribution, DiagGaussian):
            raise ConfigError(
                "State-dependent exploration requires continuous actions.",
                where="config key 'use_sde'",
                got=self.action_space,
                expected="a Box action space",
                fix="leave use_sde out for this action space",
            )
        return StateDependentGaussian(distribution, hidden_width(self.observation_space, self.config.model))

    @cached_property
    def distribution(self) -> ActionDistribution:
        return self.gaussian(squash=False)

    def make_exploration(self) -> Exploration:
        if not self.config.use_sde:
            return super().make_exploration()
        from rollax.policy.exploration.matrix_noise import MatrixNoise
        from rollax.policy.exploration.repeated_noise import RepeatedNoise

        distribution: Any = self.distribution
        steps = _WHOLE_TRAJECTORY if self.config.sde_sample_freq is None else self.config.sde_sample_freq
        return RepeatedNoise(MatrixNoise(distribution), np.array([steps]), np.ones(1))

    def make_model(self, rngs: nnx.Rngs) -> Any:
        model = super().make_model(rngs)
        if self.config.use_sde:
            model.policy_head = self.make_head(rngs)
        return model

    def make_head(self, rngs: nnx.Rngs, **options: Any) -> StateDependentHead:
        """The head of an actor that explores by gSDE; `options` as for `StateDependentHead`."""
        from rollax.models.state_dependent_head import StateDependentHead

        distribution: Any = self.distribution
        options = {"trains_features": False, **options}
        return StateDependentHead(distribution, log_std=self.config.sde_log_std_init, rngs=rngs, **options)
