"""`JaxPolicy`: joins an algorithm, an actor and a learner behind the interface of policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import jax
import numpy as np
from flax import nnx

from rollax.batch import Columns, Fragment, SampleBatch
from rollax.config import TrainerConfig
from rollax.core import trees
from rollax.core.introspection import overrides
from rollax.core.runtime import first_equal, trace_count
from rollax.core.stored_values import read_count, read_dict
from rollax.models.catalog import check_model, check_module
from rollax.models.outputs import is_noisy
from rollax.policy.actor import Actor
from rollax.policy.checks import check_finite, check_gradients, check_weights, naming_missing_columns
from rollax.policy.devices import ActingDevice, cpu_beside_gpu
from rollax.policy.learner import Learner
from rollax.policy.model_policy import ModelPolicy
from rollax.policy.objective import AlgorithmObjective
from rollax.policy.packed_acting import PackedActing
from rollax.policy.policy import ActionsResult
from rollax.policy.split_model import SplitModel, owners_of
from rollax.policy.update_plan import acting_bucket, check_every, check_parts, check_rates, part_of, training_bucket
from rollax.policy.wide_integers import WideIntegers, check_columns

if TYPE_CHECKING:
    from rollax.policy.algorithm import Algorithm

_MIN_VALUES = 32
_ROWS_FOR_EXPLORATION = 256
_checked: WeakSet[Algorithm] = WeakSet()
"""Algorithms whose models have been checked; equal algorithms make equal models."""


class JaxPolicy(ModelPolicy):
    """A policy in JAX: an `Actor` chooses actions and a `Learner` learns, each in compiled calls.

    Args:
        algorithm: an `Algorithm`.
        config: the whole config, of `algorithm.config_class`.
    """

    custom_state_attributes = frozenset({"params", "extra", "exploration"})
    acts_while_learning = True  # learning replaces all arrays at once
    learner: Learner

    def __init__(self, algorithm: Algorithm, config: TrainerConfig) -> None:
        super().__init__(algorithm, config)
        self.wide_integers = WideIntegers(self.observation_space)
        self._check_model_size()
        model = algorithm.make_model(nnx.Rngs(self._seed_of_model()))
        self._check_model(model)
        self.noisy = is_noisy(model)
        self._describe(model)
        self._check_parts(model)
        self.split = SplitModel(model)
        params, extra = self.split.arrays_of(model)
        state_parts = len(self.memory.initial_state) if self._in_sequences else None
        self._objective = first_equal(AlgorithmObjective(algorithm, self.split, state_parts))
        if algorithm.overrides("make_optimizer"):
            from rollax.policy.own_optimizer import check_own_optimizer  # loaded only where it is used

            check_own_optimizer(self._objective, params)
        self.learner = Learner(self._objective, params, extra)
        self._acting_device = None if (cpu := cpu_beside_gpu()) is None else ActingDevice(cpu)

    @cached_property
    def actor(self) -> Actor:
        """The `Actor` of this policy; made at the first use, when the columns to fetch are known."""
        return first_equal(Actor(self.algorithm, self.split, self._fetched_columns, self.noisy))

    def _weight_shapes(self) -> dict[str, tuple[int, ...]]:
        def arrays() -> Columns:
            model = self.algorithm.make_model(nnx.Rngs(0))
            params, extra = SplitModel(model).arrays_of(model)
            return {**params, **extra}

        return {name: array.shape for name, array in jax.eval_shape(arrays).items()}

    def _check_model(self, model: Any) -> None:
        """Raises PolicyError unless the model is a module with the right outputs."""
        check_module(model, f"{self.algorithm.label}, make_model")
        if self.algorithm not in _checked and not self.algorithm.overrides("forward"):
            check_model(
                model,
                *(self.observation_space, self.action_space, self.exploration.num_inputs),
                needs_value=self._needs_value(model),
                value_shape=self.algorithm.value_shape,
            )
            _checked.add(self.algorithm)

    def _check_parts(self, model: Any) -> None:
        """Raises PolicyError unless targets, learning rates and intervals by part fit the parts of the model."""
        owners, rates, label = owners_of(model), self.algorithm.learning_rates(0.0), self.algorithm.label
        check_parts(owners, self.plan.updated_targets, label)
        parts = set(map(part_of, owners))
        check_rates(parts, rates, label)
        check_every(parts, self.plan.every, rates, label)

    def _check_observations(self, obs_batch: Any) -> None:
        super()._check_observations(obs_batch)
        self.wide_integers.check(obs_batch, self.name)

    def _checked_columns(self, batch: SampleBatch) -> dict[str, Any]:
        columns = super()._checked_columns(batch)
        check_columns(columns, self.label)
        return columns

    def _arrays_for(self, function: Any, columns: Columns) -> tuple[Columns, Columns]:
        """`params` and `extra` on the device where the compiled `function` is to run on padded columns."""
        arrays = self.params, self.extra
        return arrays if self._acting_device is None else self._acting_device.arrays(function, *arrays, columns)

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

    def current_model(self) -> Any:
        """The model with the current weights, in evaluation mode, for outputs outside of the loss.

        The model is a new object, so that changes to it do not change the policy. `forward(current_model(), fragment)`
        returns the outputs for the rows of a fragment; `forward(current_model(), fragment.after)` returns the outputs
        for the observations after its segments.
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
        # Random numbers of the host are cheaper than random numbers of the device.
        noise, noise_seed = None, None
        params, extra = self._arrays_for(self.actor.outputs, columns)
        if explore:
            noise = self.exploration.noise(self.acting_rng, size, self.timestep)
            if exploring:
                noise, exploring = self.exploration.advance(noise[:rows], exploring)
                noise = trees.pad(noise, size)
            params = self.exploration.acting_params(params, self.acting_rng)
            # The model's own random streams are part of the weights, and therefore equal in every process.
            noise_seed = self._draw_noise_seed()
        actions, states, fetches = self.actor.actions(params, extra, columns, noise, rows, noise_seed)
        check_finite(fetches[self.checked_fetch], self.name, self.timestep)
        return actions, [*states, *exploring], fetches

    def packed_acting(self) -> PackedActing | None:
        own = overrides(type(self), JaxPolicy, "compute_actions") or self.exploration.overrides("acting_params")
        if own or self.get_initial_state() or self._acting_device is not None:
            return None
        return PackedActing(self)

    def _draw_noise_seed(self) -> np.uint32 | None:
        return self.acting_rng.integers(2**32, dtype=np.uint32) if self.noisy else None

    def greedy_actions(self, params: Columns, extra: Columns, columns: Columns) -> tuple[Any, tuple]:
        """`(actions, state_out)` of `compute_actions` without exploration, for B rows; traced by JAX.

        Args:
            params, extra: arrays like the attributes of these names.
            columns: `obs` [B, ...], and with memory its columns, as for `run_model`.
        """
        actions, _, state = self.actor.traced_greedy(params, extra, columns)
        return actions, state

    def behaviour(self, actions: Any, fetches: Mapping[str, Any], explore: bool) -> dict[str, Any]:
        # A noisy model acted with random parameters that are not recorded.
        return {} if self.noisy else super().behaviour(actions, fetches, explore)

    def act_greedily(self, obs_batch: Any) -> Any:
        """The greedy actions of `compute_actions` without fetches, in half of the time; for a policy without memory."""
        rows = self._checked_rows(obs_batch)
        size = acting_bucket(rows)
        obs = obs_batch if size == rows else trees.pad(obs_batch, size)
        params, extra = self._arrays_for(self.actor.outputs, {SampleBatch.OBS: obs})
        actions = self.actor.modes(params, extra, obs, rows)
        # If the outputs define no action, `compute_actions` raises the error.
        return self.compute_actions(obs_batch, explore=False)[0] if actions is None else actions

    def postprocess_rows(self, fragment: Fragment) -> SampleBatch:
        def outputs_of(params: Columns) -> np.ndarray:
            columns = {SampleBatch.OBS: fragment[SampleBatch.OBS], **self.memory.of(fragment)}
            return self._outputs(params, trees.index(columns, slice(_ROWS_FOR_EXPLORATION)))[0]

        self.exploration.after_fragment(fragment, self.params, outputs_of, self.timestep)
        return super().postprocess_rows(fragment)

    def _model_outputs(self, columns: Columns) -> tuple[np.ndarray, Sequence[np.ndarray]]:
        return self._outputs(self.params, columns)

    def _outputs(self, params: Columns, columns: Columns) -> tuple[np.ndarray, Sequence[np.ndarray]]:
        rows = trees.length(columns[SampleBatch.OBS])
        outputs, states = self.actor.outputs(params, self.extra, trees.pad(dict(columns), acting_bucket(rows)))
        return np.asarray(outputs)[:rows], [np.asarray(part)[:rows] for part in states]

    def _logp(self, inputs: np.ndarray, actions: Any) -> jax.Array:
        return self.actor.logp(inputs, actions)

    def compute_values(self, obs_batch: Any, memory: Mapping[str, Any] = MappingProxyType({})) -> np.ndarray:
        columns = self._inputs_of_values(obs_batch, memory)
        rows = trees.length(obs_batch)
        if rows == 0:
            return np.empty((0, *self.algorithm.value_shape), np.float32)
        # The number of segments varies between fragments; small numbers share one compiled version.
        columns = trees.pad(columns, max(acting_bucket(rows), _MIN_VALUES))
        params, extra = self._arrays_for(self.actor.values, columns)
        return np.asarray(self.actor.values(params, extra, columns))[:rows]

    def run_method(self, method: str, *columns: Any) -> np.ndarray:
        rows = trees.length(columns[0])
        padded = trees.pad(columns, max(acting_bucket(rows), _MIN_VALUES))
        return np.asarray(self.actor.method(method, self.params, self.extra, *padded))[:rows]

    @naming_missing_columns
    def td_errors(self, batch: SampleBatch) -> np.ndarray:
        """[N] the loss's statistic `td_error` for N transitions, with the parameters in place of the targets."""
        columns, size = self._checked_columns(batch), training_bucket(len(batch))
        # Padded by real rows, as in updates, because zeros would count in batch statistics.
        columns = trees.index(columns, np.resize(np.arange(len(batch)), size))
        mask = (np.arange(size) < len(batch)).astype(np.float32)
        coefficients = {**self.coefficients(), "num_updates": self.learner.num_updates}
        return np.asarray(self._objective.td_errors(self.params, self.extra, columns, mask, coefficients))[: len(batch)]

    @naming_missing_columns
    def compute_gradients(self, batch: SampleBatch) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """`(arrays, statistics)`; `arrays`: name -> gradient over the whole batch, or new value of other changed state.

        The policy's own weights do not change.
        """
        columns, _, plan = self._planned(batch, None, 1)
        gradients, stats = self.learner.gradients(columns, plan, self.coefficients())
        arrays = {name: np.array(value) for name, value in gradients.items()}
        return arrays, {**stats, "cur_lr": self.reported_lr()}

    def apply_gradients(self, gradients: Any) -> None:
        """One optimizer step with the arrays of `compute_gradients`, from this or another process.

        Raises NonFiniteError, without a change, if an array, the norm of the gradient or a new weight is not finite.
        """
        check_gradients(gradients, f"policy {self.name!r}")
        self._share()
        known = {**self.params, **{name: value for name, value in self.extra.items() if name in gradients}}
        shapes = {name: tuple(value.shape) for name, value in known.items()}
        check_weights(gradients, shapes, f"policy {self.name!r}, apply_gradients")
        self.learner.apply(gradients, self.learning_rates(), where=f"policy {self.name!r}")
        self._share()

    def get_weights(self) -> dict[str, np.ndarray]:
        # The caller may change these copies.
        return {name: np.array(value) for name, value in {**self.params, **self.extra}.items()}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Sets weights that `get_weights` of an equal policy returned, and copies them to the target parameters."""
        params, extra = self.learner.devices.first(self.split.checked(weights, where=f"policy {self.name!r}"))
        self.learner.variables = self.learner.variables._replace(params=params, extra=extra, targets=None)
        self._share()

    @property
    def targets(self) -> Columns:
        """Name -> target parameter; empty if the plan has no target parameters."""
        return self.learner.targets

    def set_state(self, state: Mapping[str, Any]) -> None:
        where = f"policy {self.name!r}"
        num_updates = read_count(state, "num_updates", where, below=2**30)  # later counts must fit into an int32
        targets = read_dict(state, "targets", where)
        super().set_state(state)
        if targets:
            targets, _ = self.split.checked({**targets, **self.extra}, f"{where}, target parameters")
        self.learner.set_state(read_dict(state, "optimizer", where), num_updates, targets, where)

    def compilations(self) -> int:
        """The number of versions that JAX has compiled; it is bounded, because batches are padded to few sizes.

        Equal policies share compiled functions; the number of each policy includes all versions of these functions.
        """
        return sum(map(trace_count, (self.actor, self.learner.steps, self._objective)))
