"""`Algorithm`: what the author of an algorithm in JAX writes: a model, a loss, and how a batch becomes updates."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import jax
import optax
from flax import nnx
from gymnasium import Space

from rollax.batch import Columns, SampleBatch
from rollax.config.groups import critic_space_of
from rollax.core import runtime
from rollax.core.introspection import overrides
from rollax.core.spaces import ACTION_MASK, is_parametric
from rollax.errors import ConfigError
from rollax.models.catalog import make_model
from rollax.models.distributions import ActionDistribution, Normals
from rollax.models.distributions.factory import make_distribution
from rollax.models.outputs import Outputs, run_model, values_of_critic
from rollax.policy.base_algorithm import BaseAlgorithm
from rollax.policy.gradient_transforms import adam, by_part
from rollax.policy.jax_policy import JaxPolicy


class Algorithm(BaseAlgorithm):
    """A frozen, hashable, stateless algorithm, whose functions JAX traces with the algorithm as a static argument.

    A subclass implements `loss`, and names the columns that it `reads`. It may override each of the other methods; all
    have defaults. Equal algorithms share compiled functions.
    """

    policy_class: ClassVar[Any] = JaxPolicy

    def __init__(self, observation_space: Space, action_space: Space, config: Any = None, **misplaced: Any) -> None:
        runtime.configure_jax()
        super().__init__(observation_space, action_space, config, **misplaced)

    @classmethod
    def overrides(cls, method: str) -> bool:
        """Whether the class, or a base class below `Algorithm`, overrides this method."""
        return overrides(cls, Algorithm, method)

    @cached_property
    def distribution(self) -> ActionDistribution:
        """The action distribution whose inputs the model returns."""
        return make_distribution(self.action_space)

    def make_model(self, rngs: nnx.Rngs) -> Any:
        """Returns `model(obs) -> Outputs`, by default an actor-critic; its `critic` is the centralized critic, if any.

        Raises ConfigError for `free_log_std` without Gaussian actions, or a centralized critic without a space.
        """
        spaces, sizes = (self.observation_space, self.action_space), self.config.model
        if sizes.custom_model is None:
            if sizes.free_log_std and not isinstance(self.distribution, Normals):
                raise ConfigError(
                    "free_log_std requires actions that all have a standard deviation.",
                    where="config key 'model.free_log_std'",
                    got=self.action_space,
                    expected="a Box action space",
                    fix="leave free_log_std out for this action space",
                )
            if is_parametric(self.observation_space):
                from rollax.models.action_embeddings import check_parametric  # loaded only where it is used

                check_parametric(*spaces)
        critic_space = critic_space_of(self.config, self.label)
        needs_value, width = self.learns_values or self.samples is None, self.distribution.num_inputs
        shape = self.value_shape
        if critic_space is None:
            return make_model(*spaces, width, sizes, rngs, needs_value=needs_value, value_shape=shape)
        # The actor's own values are not used, so they need no layers.
        actor = sizes.model_copy(update={"vf_share_layers": True})
        model = make_model(*spaces, width, actor, rngs, needs_value=False, value_shape=shape)
        if not hasattr(model, "critic"):
            from rollax.models.centralized_critic import CentralCritic  # loaded only where it is used

            model.critic = CentralCritic(critic_space, sizes, rngs=rngs, value_shape=shape)
        return model

    def make_optimizer(self) -> optax.GradientTransformation:
        """Returns an optimizer without learning rate and clipping: by default Adam, one per part in `learning_rates`.

        An update subtracts `lr` times its steps: return `optax.scale_by_rms()`, for example, not `optax.rmsprop(lr)`.
        If the plan has `every`, an override returns `by_part(optimizers, self.plan.every)`.
        """
        rates = self.learning_rates(0.0)
        if not isinstance(rates, dict):
            return adam(self.config)
        return by_part({part: adam(self.config) for part in rates}, self.plan.every)

    def forward(self, model: Any, columns: Columns) -> Outputs:
        """One forward pass, with invalid actions masked; with `critic_obs`, `value` is `model.critic(critic_obs)`.

        Other columns are as for `run_model`; the rows of a `burn_in` advance the recurrent state first.
        """
        if SampleBatch.BURN_IN in columns:
            from rollax.policy.burn_in import after_burn_in  # loaded only where it is used

            columns = after_burn_in(model, columns)
        out = run_model(model, columns)
        if SampleBatch.CRITIC_OBS in columns:
            out = out._replace(value=values_of_critic(model, columns[SampleBatch.CRITIC_OBS], self.value_shape))
        out = out._replace(policy=_precise(out.policy), value=None if out.value is None else _precise(out.value))
        if self.masks.present:
            out = out._replace(policy=self.distribution.mask(out.policy, columns[SampleBatch.OBS][ACTION_MASK]))
            if self.exploration.outputs_are_values:
                out = out._replace(value=out.policy.max(axis=-1))
        return out


def _precise(output: jax.Array) -> jax.Array:
    """Returns an array of half precision as float32, because log-probabilities and errors would be inexact."""
    return output.astype(jax.numpy.float32) if output.dtype.itemsize < 4 else output
