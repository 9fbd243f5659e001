"""Bonuses for observations that are new: `exploration_bonus` of on-policy algorithms and DQN."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx

from rollax.batch import Columns, Fragment, SampleBatch
from rollax.core import trees
from rollax.core.running_statistics import RunningMoments
from rollax.ops.mean_over_rows import masked_mean
from rollax.policy.add_advantages import add_advantages
from rollax.policy.algorithm import Algorithm
from rollax.policy.base_algorithm import Values

if TYPE_CHECKING:
    from rollax.models.random_network_distillation import ScaledObservations

BONUSES = "bonuses"
_PREDICTED, _LOSS = "predicted", "predictor_loss"
_OBSERVATIONS, _RETURNS = "bonus_observations", "bonus_returns"
_ROWS_AT_ONCE = 256  # limits the memory for images


class ExplorationBonus(Algorithm):
    """An algorithm that can add bonuses to its rewards.

    Source: random network distillation, Burda et al. (2018), arXiv:1810.12894. The bonus of a step is the error, at
    the next observation s', of a predictor f̂ that learns the outputs of a fixed random network f:
        e = mean((f̂(x) - f(x))²),  x = clip((s' - μ) / σ, -5, 5),  R ← γ R + e,  b = e / std(R).
    R is not set back to 0 when an episode ends.
    Deviations: the observations and errors of a fragment are added to the running μ, σ and std(R) before its bonuses
    are computed; there are no random steps before training, because the first policies are almost uniform.
    """

    @property
    def gives_bonuses(self) -> bool:
        """Whether the config asks for bonuses."""
        return self.config.exploration_bonus is not None

    @cached_property
    def scaled_observations(self) -> ScaledObservations:
        """How observations become inputs of the networks."""
        from rollax.models.random_network_distillation import ScaledObservations  # loaded only where it is used

        return ScaledObservations.of(self.observation_space)

    @property
    def samples(self) -> frozenset[str] | None:
        columns = super().samples
        if columns is None or not self.gives_bonuses:
            return columns
        # A replay buffer has the next observations anyway.
        return columns | {SampleBatch.SLOT} | (set() if self.config.replays else {SampleBatch.NEW_OBS})

    @property
    def reported(self) -> tuple[str, ...]:
        return (*super().reported, _LOSS) if self.gives_bonuses else super().reported

    def make_model(self, rngs: nnx.Rngs) -> Any:
        return self.with_distillation(super().make_model(rngs), rngs)

    def with_distillation(self, model: Any, rngs: nnx.Rngs) -> Any:
        """The model, with the networks of the bonus as a further part."""
        if self.gives_bonuses:
            from rollax.models.random_network_distillation import RandomNetworkDistillation

            space, widths = self.scaled_observations.space, self.config.bonus_hiddens
            model.distillation = RandomNetworkDistillation(space, self.config.model, widths, rngs=rngs)
        return model

    def make_running_statistics(self) -> dict[str, RunningMoments]:
        if not self.gives_bonuses:
            return super().make_running_statistics()
        from rollax.policy.running_returns import RunningReturns  # loaded only where it is used

        observations = RunningMoments((self.scaled_observations.size,))
        returns = RunningReturns(self.bonus_gamma, episodic=False)
        return {**super().make_running_statistics(), _OBSERVATIONS: observations, _RETURNS: returns}

    @property
    def bonus_gamma(self) -> float:
        """γ of the bonuses."""
        return self.config.gamma

    def changes_rows(self) -> bool:
        return self.gives_bonuses

    def prepare(self, fragment: Fragment, values: Values) -> None:
        super().prepare(fragment, values)
        if self.gives_bonuses:
            self.add_bonuses(fragment, self._new_bonuses(fragment, values))

    def add_bonuses(self, fragment: Fragment, bonuses: np.ndarray) -> None:
        """Adds [N] bonuses to a fragment: here to its rewards."""
        rewards = fragment[SampleBatch.REWARDS] + self.config.bonus_coeff * bonuses
        fragment[SampleBatch.REWARDS] = rewards.astype(np.float32)

    def _new_bonuses(self, fragment: Fragment, values: Values) -> np.ndarray:
        """[N] float32 bonuses of a fragment, whose rows are added to the running statistics first."""
        observations, returns = values.statistics[_OBSERVATIONS], values.statistics[_RETURNS]
        following, scaling = fragment.following(SampleBatch.OBS), self.scaled_observations
        starts = range(0, max(len(fragment), 1), _ROWS_AT_ONCE)
        parts = [trees.index(following, slice(start, start + _ROWS_AT_ONCE)) for start in starts]
        for part in parts:
            observations.update(scaling.numbers(part))
        moments = observations.summary()
        errors = np.concatenate([values.run("prediction_errors", scaling.scaled(part, moments)) for part in parts])
        returns.add_rewards(fragment, errors)
        return (errors / returns.deviation).astype(np.float32)

    def prediction_errors(self, model: Any, observations: Any) -> jax.Array:
        """[B] the errors of the predictor for scaled observations."""
        return model.distillation(observations)

    def bonuses_of(self, model: Any, obs: Any, coefficients: Columns) -> jax.Array:
        """[B] the bonuses of observations by the current networks and statistics, for rows from a replay buffer."""
        return self._errors_of(model, obs, coefficients) / coefficients["running_statistics"][_RETURNS]["deviation"]

    def _errors_of(self, model: Any, obs: Any, coefficients: Columns) -> jax.Array:
        moments = coefficients["running_statistics"][_OBSERVATIONS]
        return self.prediction_errors(model, self.scaled_observations.scaled(obs, moments))

    def loss_columns(self, batch: SampleBatch, rng: np.random.Generator) -> dict[str, Any]:
        columns = super().loss_columns(batch, rng)
        if not self.gives_bonuses:
            return columns
        predicted = (rng.random(len(batch)) < self.config.predictor_share).astype(np.float32)
        following = {} if self.config.replays else {SampleBatch.NEW_OBS: batch[SampleBatch.NEW_OBS]}
        return {**columns, **following, _PREDICTED: predicted}

    def with_predictor_loss(
        self,
        loss: jax.Array,
        statistics: dict[str, Any],
        model: Any,
        batch: Columns,
        mask: jax.Array,
        coefficients: Columns,
    ) -> tuple[jax.Array, dict]:
        """`(loss, statistics)` with the error of the predictor, if there are bonuses; arguments as for `loss`."""
        if not self.gives_bonuses:
            return loss, statistics
        errors = self._errors_of(model, self.next_observations(batch), coefficients)
        predictor_loss = masked_mean(errors, mask * batch[_PREDICTED])
        return loss + predictor_loss, {**statistics, _LOSS: predictor_loss}

    def next_observations(self, batch: Columns) -> Any:
        """The observations after the rows of a batch."""
        return batch[SampleBatch.NEW_OBS]


class BonusAdvantages(ExplorationBonus):
    """An actor-critic that can learn from bonuses, with a value head for them.

    Source: Burda et al. (2018), section 2.3: bonuses have a γ of their own, and their returns go on after the end of an
    episode. Advantages are A + c · A_b, with c = `bonus_coeff`.
    """

    @property
    def value_shape(self) -> tuple[int, ...]:  # users' classes set `value_heads`
        return (2,) if self.gives_bonuses else super().value_shape

    @property
    def bonus_gamma(self) -> float:
        return self.config.bonus_gamma

    def add_bonuses(self, fragment: Fragment, bonuses: np.ndarray) -> None:
        fragment[BONUSES] = bonuses

    def add_advantages(self, fragment: Fragment, values: Values) -> Fragment:
        """Fills `advantages` and `value_targets` by generalized advantage estimation, with γ and λ of the config."""
        gamma, lambda_ = self.config.gamma, self.config.lambda_
        if not self.gives_bonuses:
            return add_advantages(fragment, values, gamma=gamma, lambda_=lambda_)
        rewards = np.stack([fragment[SampleBatch.REWARDS], fragment[BONUSES]], axis=1)
        gammas = gamma, self.bonus_gamma
        add_advantages(fragment, values, gamma=gammas, lambda_=lambda_, rewards=rewards, episodic=(True, False))
        advantages, of_bonuses = fragment[SampleBatch.ADVANTAGES].T
        fragment[SampleBatch.ADVANTAGES] = advantages + np.float32(self.config.bonus_coeff) * of_bonuses
        return fragment
