"""`JaxPolicy`: the base of the built-in algorithms: a model, a loss and an optimizer, all compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import jax
import numpy as np
import optax
from flax import nnx
from gymnasium import Space
from jax import lax

from rollax.batch import Columns, SampleBatch
from rollax.config.groups import critic_space_of
from rollax.core import runtime, trees
from rollax.core.overrides import overrides
from rollax.core.sharing import cached_compilation
from rollax.core.stored_values import read_count, read_dict
from rollax.errors import ConfigError
from rollax.models.catalog import check_model, check_module, make_model
from rollax.models.distributions.base import ActionDistribution
from rollax.models.distributions.factory import make_distribution
from rollax.models.distributions.gaussian import DiagGaussian
from rollax.models.embeddings import check_parametric
from rollax.models.networks import with_critic
from rollax.models.outputs import Outputs, has_critic, is_noisy
from rollax.policy.acting import Acting
from rollax.policy.acting_device import ActingDevice, cpu_beside_gpu
from rollax.policy.finite import check_finite
from rollax.policy.learned_columns import naming_missing_columns
from rollax.policy.learner import Learner
from rollax.policy.learning import Learning, constants_of, learning_of, logp_of
from rollax.policy.loss_result import checked_loss
from rollax.policy.minibatches import acting_bucket, training_bucket
from rollax.policy.model_policy import ModelPolicy
from rollax.policy.optimizers import adam, by_part, check_optimizer, clipped
from rollax.policy.policy import ActionsResult
from rollax.policy.recurrent_columns import as_rows
from rollax.policy.split_model import SplitModel, owners_of
from rollax.policy.update_plan import check_parts, check_rates, part_of
from rollax.policy.weights import check_gradients, check_weights
from rollax.policy.wide_integers import WideIntegers, check_columns

_MIN_VALUES = 32
_ROWS_FOR_EXPLORATION = 256


class JaxPolicy(ModelPolicy):
    """A policy whose acting, gradients and multi-epoch updates are each one compiled call.

    A subclass implements `loss`, which JAX traces; see `ModelPolicy` for what it may override.
    """

    custom_state_attributes = frozenset({"params", "extra", "exploration"})
    per_policy: ClassVar[frozenset[str]] = frozenset(
        {
            *("name", "timestep", "worker_index", "num_workers", "acting_rng", "learning_rng", "learner"),
            *("on_new_variables", "_schedules", "_acting", "_acting_device", "_learning", "_logps", "_initial"),
        }
    )
    """Attributes that differ between policies of one kind or change, which compiled functions cannot read."""

    acts_while_learning = True  # learning replaces all arrays at once
    learner: Learner

    def __init__(self, observation_space: Space, action_space: Space, config: Any = None) -> None:
        runtime.configure_jax()
        super().__init__(observation_space, action_space, config)
        self.wide_integers = WideIntegers(observation_space)
        self._check_model_size()
        model = self.make_model(nnx.Rngs(self._seed_of_model()))
        self._check_model(model)
        self._noisy = is_noisy(model)
        self._describe(model)
        owners, where = owners_of(model), type(self).__name__
        check_parts(owners, self.plan.targets, where)
        check_rates(set(map(part_of, owners)), self.learning_rates(), where)
        self.split = SplitModel(model)
        params, extra = self.split.arrays_of(model)
        optimizer = self.make_optimizer()
        if not self.make_optimizer.__module__.startswith("rollax."):
            check_optimizer(optimizer, params, self.label)
        each_part = isinstance(self.learning_rates(), Mapping)
        self._optimizer = clipped(optimizer, self.config.grad_clip, each_part=each_part)
        has_targets = self.plan.targets is not None
        self.learner = Learner(lambda: self._learning.steps, self._optimizer, params, extra, has_targets=has_targets)

    def _weight_shapes(self) -> dict[str, tuple[int, ...]]:
        def arrays() -> Columns:
            model = self.make_model(nnx.Rngs(0))
            params, extra = SplitModel(model).arrays_of(model)
            return {**params, **extra}

        return {name: array.shape for name, array in jax.eval_shape(arrays).items()}

    def _check_model(self, model: Any) -> None:
        """PolicyError unless it is a module, with the right outputs if it is of an override of `make_model`."""
        check_module(model, f"policy class {type(self).__name__}, make_model")
        needs_value = self._needs_value(model)
        # A custom model has been checked, but not whether its `critic` is used.
        own = not self.make_model.__module__.startswith("rollax.")
        if (own or (needs_value and has_critic(model))) and not overrides(type(self), JaxPolicy, "forward"):
            spaces = self.observation_space, self.action_space
            check_model(model, *spaces, self.exploration.num_inputs, needs_value=needs_value)

    def _check_observations(self, obs_batch: Any) -> None:
        super()._check_observations(obs_batch)
        self.wide_integers.check(obs_batch, self.name)

    def _checked_columns(self, batch: SampleBatch) -> dict[str, Any]:
        columns = super()._checked_columns(batch)
        check_columns(columns, self.label)
        return columns

    # Compiled functions are looked up at first use, when the policy is complete: a subclass may set attributes after
    # `super().__init__`.

    @cached_property
    def _acting(self) -> Acting:
        masks = self.distribution if self.masks.present else None
        forward = self.forward if overrides(type(self), JaxPolicy, "forward") else None
        parts = self.split, self.exploration.traced, masks, self._fetched_columns, self._noisy, forward
        return cached_compilation(Acting, *parts) or Acting(*parts)

    @cached_property
    def _acting_device(self) -> ActingDevice | None:
        cpu = cpu_beside_gpu()
        return None if cpu is None else ActingDevice(cpu)

    def _arrays_for(self, function: Any, columns: Columns) -> tuple[Columns, Columns]:
        """`params` and `extra` on the device where the compiled `function` is to run on padded columns."""
        arrays = self.params, self.extra
        return arrays if self._acting_device is None else self._acting_device.arrays(function, *arrays, columns)

    @cached_property
    def _learning(self) -> Learning:
        devices = self.learner.devices
        return cached_compilation(learning_of, type(self), constants_of(self), devices) or Learning(self, devices)

    @cached_property
    def _logps(self) -> Any:
        return cached_compilation(logp_of, self.distribution) or logp_of(self.distribution)

    @property
    def params(self) -> Columns:
        """Name -> trained array; replaced as a whole, never changed in place."""
        return self.learner.variables.params

    @params.setter
    def params(self, params: Columns) -> None:
        self.learner.variables = self.learner.variables._replace(params=params)

    @property
    def extra(self) -> Columns:
        """Name -> array, for the model's other state; replaced as a whole, never changed in place."""
        return self.learner.variables.extra

    @extra.setter
    def extra(self, extra: Columns) -> None:
        self.learner.variables = self.learner.variables._replace(extra=extra)

    @cached_property
    def distribution(self) -> ActionDistribution:
        """The action distribution whose inputs the model returns."""
        return make_distribution(self.action_space)

    def make_model(self, rngs: nnx.Rngs) -> Any:
        """Returns `model(obs) -> Outputs`, by default an actor and critic; a centralized critic is its `critic`.

        Raises ConfigError for `free_log_std` without Gaussian actions, or a centralized critic without a space.
        """
        spaces, sizes = (self.observation_space, self.action_space), self.config.model
        if sizes.custom_model is None:
            if sizes.free_log_std and not isinstance(self.distribution, DiagGaussian):
                raise ConfigError(
                    "free_log_std requires actions that all have a standard deviation.",
                    where="config key 'model.free_log_std'",
                    got=self.action_space,
                    expected="a Box action space",
                    fix="leave free_log_std out for this action space",
                )
            check_parametric(*spaces)
        critic_space = critic_space_of(self.config, type(self).__name__)
        needs_value, width = self._learning_reads_values or self.batch_columns is None, self.distribution.num_inputs
        if critic_space is None:
            return make_model(*spaces, width, sizes, rngs, needs_value=needs_value)
        # The actor's own values are not used, so they need no layers.
        actor = sizes.model_copy(update={"vf_share_layers": True})
        model = make_model(*spaces, width, actor, rngs, needs_value=False)
        return with_critic(model, critic_space, sizes, rngs=rngs)

    def make_optimizer(self) -> optax.GradientTransformation:
        """Returns the optimizer without learning rate and `grad_clip`: Adam, one for each part in `learning_rates`.

        An update subtracts `lr` times its steps: return `optax.scale_by_rms()`, for example, not `optax.rmsprop(lr)`.
        """
        rates = self.learning_rates()
        return by_part({part: adam(self.config) for part in rates}) if isinstance(rates, dict) else adam(self.config)

    def forward(self, model: Any, columns: Columns) -> Outputs:
        """One forward pass, with invalid actions masked; with `critic_obs`, `value` is `model.critic(critic_obs)`.

        Other columns are as for `run_model`.
        """
        return self._acting.forward(model, self.memory.without_noise(columns))

    def current_model(self) -> Any:
        """The model with the current weights, in evaluation mode, for outputs outside of the loss.

        It is a new object: changes of it do not change the policy. `forward(current_model(), fragment)` returns the
        outputs for the rows of a fragment, and with `fragment.after` those for what came next.
        """
        return self.split.merge(self.params, self.extra)

    def compute_actions(  # type: ignore[override]  the library passes what is accepted
        self,
        obs_batch: Any,
        state_batches: Sequence[Any] = (),
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        explore: bool = True,
    ) -> ActionsResult:
        rows, columns, exploring = self._inputs_of(obs_batch, state_batches, prev_action_batch, prev_reward_batch)
        size = acting_bucket(rows)
        if size != rows:
            columns = trees.pad(columns, size)
        # The host's random numbers are cheaper than the device's.
        noise, noise_seed = None, None
        params, extra = self._arrays_for(self._acting.outputs, columns)
        if explore:
            noise = self.exploration.noise(self.acting_rng, size, self.timestep)
            if exploring:
                noise, exploring = self.exploration.advance(noise[:rows], exploring)
                noise = trees.pad(noise, size)
            params = self.exploration.acting_params(params, self.acting_rng)
            # The model's own streams are the same in every process, because they are part of the weights.
            noise_seed = self._draw_noise_seed()
        actions, states, fetches = self._acting.actions(params, extra, columns, noise, rows, noise_seed)
        check_finite(fetches[self._checked_fetch], self.name, self.timestep)
        return actions, [*states, *exploring], fetches

    def _draw_noise_seed(self) -> np.uint32 | None:
        return self.acting_rng.integers(2**32, dtype=np.uint32) if self._noisy else None

    def greedy_actions(self, params: Columns, extra: Columns, columns: Columns) -> tuple[Any, tuple]:
        """`(actions, state_out)` of `compute_actions` without exploration, for B rows; traced by JAX.

        Args:
            params, extra: arrays like the attributes of these names.
            columns: `obs` [B, ...], and with memory its columns, as for `run_model`.
        """
        actions, _, state = self._acting.greedy(params, extra, columns)
        return actions, state

    def behaviour(self, actions: Any, fetches: Mapping[str, Any], explore: bool) -> dict[str, Any]:
        # The parameters that acted are not known.
        return {} if self._noisy else super().behaviour(actions, fetches, explore)

    def act_greedily(self, obs_batch: Any) -> Any:
        """Only the greedy actions of `compute_actions`, in half of the time; for a policy without memory."""
        rows = self._checked_rows(obs_batch)
        size = acting_bucket(rows)
        obs = obs_batch if size == rows else trees.pad(obs_batch, size)
        params, extra = self._arrays_for(self._acting.outputs, {SampleBatch.OBS: obs})
        actions, finite = self._acting.modes(params, extra, obs, rows)
        if not finite:
            return self.compute_actions(obs_batch, explore=False)[0]  # raises the error, if it is one
        return actions

    def adapt_exploration(self, batch: SampleBatch) -> None:
        """Adapts the exploration to a fragment; for policies without memory."""

        def outputs_of(params: Columns) -> np.ndarray:
            obs = trees.index(batch[SampleBatch.OBS], slice(_ROWS_FOR_EXPLORATION))
            return self._outputs(params, {SampleBatch.OBS: obs})[0]

        self.exploration.after_fragment(batch, self.params, outputs_of, self.timestep)

    def _model_outputs(self, columns: Columns) -> tuple[np.ndarray, Sequence[np.ndarray]]:
        return self._outputs(self.params, columns)

    def _outputs(self, params: Columns, columns: Columns) -> tuple[np.ndarray, Sequence[np.ndarray]]:
        rows = trees.length(columns[SampleBatch.OBS])
        outputs, states = self._acting.outputs(params, self.extra, trees.pad(dict(columns), acting_bucket(rows)))
        return np.asarray(outputs)[:rows], [np.asarray(part)[:rows] for part in states]

    def _logp(self, inputs: np.ndarray, actions: Any) -> jax.Array:
        return self._logps(inputs, actions)

    def compute_values(self, obs_batch: Any, memory: Mapping[str, Any] = MappingProxyType({})) -> np.ndarray:
        columns = self._inputs_of_values(obs_batch, memory)
        rows = trees.length(obs_batch)
        if rows == 0:
            return np.empty(0, np.float32)
        # The number of trajectory ends varies between fragments: small numbers share one compiled version.
        columns = trees.pad(columns, max(acting_bucket(rows), _MIN_VALUES))
        params, extra = self._arrays_for(self._acting.values, columns)
        return np.asarray(self._acting.values(params, extra, columns))[:rows]

    @naming_missing_columns
    def td_errors(self, batch: SampleBatch) -> np.ndarray:
        """[N] the loss's statistic `td_error` for N transitions, with the online parameters as targets."""
        columns, size = self._checked_columns(batch), training_bucket(len(batch))
        columns, mask = trees.pad(columns, size), (np.arange(size) < len(batch)).astype(np.float32)
        coefficients = {**self.coefficients(), "num_updates": self.learner.num_updates}
        return np.asarray(self._learning.errors(self.params, self.extra, columns, mask, coefficients))[: len(batch)]

    @naming_missing_columns
    def compute_gradients(self, batch: SampleBatch) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """`(arrays, statistics)`: name -> gradient over the whole batch, or the new value of other state that changes.

        The policy's own weights do not change.
        """
        columns, _, plan = self._planned(batch, None, 1)
        gradients, stats = self.learner.gradients(columns, plan, self.coefficients())
        arrays = {name: np.array(value) for name, value in gradients.items()}
        return arrays, {**stats, "cur_lr": self.reported_lr()}

    def apply_gradients(self, gradients: Mapping[str, Any]) -> None:
        """One optimizer step with the arrays of `compute_gradients`, from this or another process.

        Raises NonFiniteError, without a change, if one of them, their norm or a new weight is not finite.
        """
        check_gradients(gradients, f"policy {self.name!r}")
        self._share()
        known = {**self.params, **{name: value for name, value in self.extra.items() if name in gradients}}
        shapes = {name: tuple(value.shape) for name, value in known.items()}
        check_weights(gradients, shapes, f"policy {self.name!r}, apply_gradients")
        self.learner.apply(gradients, self.learning_rates(), where=f"policy {self.name!r}")
        self._share()

    def _count_rows(self, batch: Columns, mask: jax.Array) -> jax.Array:
        return (as_rows(batch, mask)[1] if self._in_sequences else mask).sum()

    def _loss_of_arrays(
        self, params: Columns, targets: Columns, extra: Columns, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, tuple[dict, Columns]]:
        if self._in_sequences:
            batch, mask = as_rows(batch, mask)
        if self.plan.targets is not None:
            # Separate random streams make the targets of a noisy model independent of its outputs.
            fixed = self.split.merge(lax.stop_gradient(dict(params)), extra, noise_seed=np.uint32(1))
            target_model = self.split.merge(targets, extra, noise_seed=np.uint32(2))
            batch = {**batch, **self.target_columns(fixed, target_model, batch, mask, coefficients)}
        model = self.split.merge(params, extra, learning=True)
        result = self.loss(model, self.forward(model, batch), batch, mask, coefficients)
        loss, stats = checked_loss(result, type(self), jax.Array)
        return loss, ({**stats, "total_loss": loss}, self.split.extra_of(model))

    def get_weights(self) -> dict[str, np.ndarray]:
        # Copies, which the caller may change.
        return {name: np.array(value) for name, value in {**self.params, **self.extra}.items()}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Sets the weights to those of `get_weights` of an equal policy, and copies them to the target parameters."""
        params, extra = self.learner.devices.first(self.split.checked(weights, where=f"policy {self.name!r}"))
        self.learner.variables = self.learner.variables._replace(params=params, extra=extra, targets=None)
        self._share()

    @property
    def targets(self) -> Columns:
        """Name -> target parameter; empty if there are none."""
        return self.learner.targets

    def set_state(self, state: Mapping[str, Any]) -> None:
        where = f"policy {self.name!r}"
        num_updates = read_count(state, "num_updates", where)
        targets = read_dict(state, "targets", where)
        super().set_state(state)
        if targets:
            targets, _ = self.split.checked({**targets, **self.extra}, f"{where}, target parameters")
        self.learner.set_state(read_dict(state, "optimizer", where), num_updates, targets, where)

    def compilations(self) -> int:
        """The number of versions that JAX has compiled; bounded, because batches are padded to few sizes.

        Equal policies have the same compiled functions, whose versions count for each of them.
        """
        acting, learning, logp = (vars(self).get(name) for name in ("_acting", "_learning", "_logps"))
        functions = [*(acting.functions() if acting else ()), *(learning.functions() if learning else ()), logp]
        return sum(function._cache_size() for function in functions if function is not None)
