"""`JaxPolicy`: the base of the built-in algorithms: a model, a loss and an optimizer, all compiled."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from gymnasium import Space, spaces
from jax import lax

from rollax import runtime, trees
from rollax.batch import SampleBatch
from rollax.config import TrainerConfig, resolve_config
from rollax.models.distributions.base import ActionDistribution
from rollax.models.distributions.factory import make_distribution
from rollax.models.outputs import Outputs, is_noisy
from rollax.policy.acting import Acting, check_finite
from rollax.policy.action_masks import ActionMasks
from rollax.policy.exploration.exploration import Exploration, FromDistribution
from rollax.policy.learner import Learner
from rollax.policy.minibatches import Minibatches, acting_bucket, training_bucket
from rollax.policy.policy import ActionsResult, Policy
from rollax.policy.policy_model import check_sizes, make_policy_model
from rollax.policy.recurrent_columns import RecurrentColumns, as_rows
from rollax.policy.split_model import SplitModel
from rollax.policy.update_plan import UpdatePlan, adam, by_part
from rollax.schedules import Schedule
from rollax.state import count, generator_state, section

Columns = Mapping[str, Any]
_MIN_VALUES = 32
_ROWS_FOR_EXPLORATION = 256
_ARGUMENTS = frozenset({"obs_batch", "explore"})


class JaxPolicy(Policy):
    """A policy whose acting, gradients and multi-epoch updates are each one compiled call.

    A subclass implements `loss`. It may override the steps of construction, which read the config: `check_spaces`,
    `make_exploration`, `make_model`, `make_plan`, `make_optimizer`; and the steps for each batch: `check_masks`,
    `postprocess_rows`, `train_columns`, `coefficients`, `learning_rates`, and with target parameters `target_columns`.
    """

    stored_apart = frozenset({"params", "extra", "exploration"})
    acts_while_learning = True  # learning replaces all arrays at once

    def __init__(self, observation_space: Space, action_space: Space, config: Any = None) -> None:
        super().__init__(observation_space, action_space, resolve_config(self.config_class or TrainerConfig, config))
        self.statistics = (*self.statistics, "total_loss", "cur_lr")
        self.sees_all_agents = getattr(self.config, "centralized_critic", False)
        self.check_spaces()
        check_sizes(observation_space, action_space, self.config, f"policy class {type(self).__name__}")
        runtime.configure_jax()
        seed = self.config.seed
        # Separate streams: learning does not depend on which process acts.
        acting, learning, initial = np.random.SeedSequence(seed).spawn(3)
        self.acting_rng = np.random.Generator(np.random.SFC64(acting))
        self.learning_rng = np.random.Generator(np.random.SFC64(learning))
        if seed is None or seed >= 2**32:  # JAX reads the low 32 bits only
            seed = int(np.random.default_rng(initial).integers(2**31))
        self._schedules: dict[str, Schedule] = {}
        self.masks = ActionMasks(observation_space, action_space)
        self.exploration = self.make_exploration()
        self._exploration_state = self.exploration.initial_state()
        self._checked_fetch = next(iter(self.exploration.fetched))
        model = self.make_model(nnx.Rngs(seed))
        self._noisy = is_noisy(model)
        self.memory = RecurrentColumns(model, action_space, self.config.model.max_seq_len)
        carried = {"state_batches"} if self._exploration_state else frozenset()
        self.arguments = _ARGUMENTS | self.memory.arguments | carried
        self.split = SplitModel(model)
        self.plan = self.make_plan()
        self.minibatch_size = self.plan.minibatch_size
        loss = self._loss_of_arrays
        self.learner = Learner(
            loss,
            self.make_optimizer(),
            self.split.params,
            self.split.extra,
            updated_targets=self.plan.targets,
            stops=self.plan.stops,
            count_rows=self._count_rows,
        )
        self.on_new_variables: Callable[[], Any] | None = None
        wanted = self.sampled_columns
        if wanted is not None and self.config.output is not None:
            self.recorded_columns = self.exploration.recorded - wanted - {self._checked_fetch}
            wanted |= self.recorded_columns
        self._acting = Acting(self.split, self.exploration, self.masks.present, wanted, noisy=self._noisy)
        self._errors = jax.jit(lambda params, *rest: loss(params, params, *rest)[1][0][SampleBatch.TD_ERROR])
        self._logp = jax.jit(lambda inputs, actions: self.distribution.logp(inputs, actions))

    @property
    def sampled_columns(self) -> frozenset[str] | None:
        if self.batch_columns is None:
            return None
        # A centralized critic's values are computed in postprocessing.
        computed = {SampleBatch.VF_PREDS} if self.sees_all_agents else frozenset()
        return (self.batch_columns - computed) | self.memory.batch_columns

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

    def check_spaces(self) -> None:
        """Raises SpaceError or ConfigError if the algorithm does not support the spaces with this config."""

    @cached_property
    def distribution(self) -> ActionDistribution:
        """The action distribution whose inputs the model returns."""
        return make_distribution(self.action_space)

    def make_exploration(self) -> Exploration:
        """Returns the exploration: by default actions are drawn from `distribution`."""
        return FromDistribution(self.distribution)

    def make_plan(self) -> UpdatePlan:
        """Returns how a batch becomes gradient steps: by default it is one step."""
        return UpdatePlan()

    def make_model(self, rngs: nnx.Rngs) -> Any:
        """Returns `model(obs) -> Outputs`, an actor and critic by default."""
        spaces = self.observation_space, self.action_space
        return make_policy_model(*spaces, self.distribution, self.config, rngs, type(self).__name__)

    @abstractmethod
    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        """`(loss, statistics)` of one minibatch, traced by JAX.

        Args:
            model: the model in training mode.
            out: its outputs for the minibatch, from one forward pass; see `forward`.
            batch: the columns of `train_columns`, [B, ...]; with memory also `state_in`, one row for each sequence;
                with target parameters also those of `target_columns`.
            mask: [B] 1 for a real row, 0 for padding.
            coefficients: the result of `coefficients()`, with `num_updates`: gradient steps taken before this one.
        """

    def coefficients(self) -> dict[str, Any]:
        """Numbers that change between updates without recompilation: `lr`, and each field that can have a schedule."""
        return {**{name: self.scheduled(name) for name in self.config.scheduled_fields()}, "lr": self.learning_rates()}

    def learning_rates(self) -> Any:
        """The current learning rate: a number, or one for each part of the model with an optimizer of its own."""
        return self.scheduled("lr")

    def scheduled(self, key: str) -> float:
        """The current value of a config key, by its schedule if there is one."""
        if key not in self._schedules:
            self._schedules[key] = self.config.schedule(key)
        return self._schedules[key](self.timestep)

    def train_columns(self, batch: SampleBatch) -> dict[str, Any]:
        """The columns of a postprocessed batch that the loss reads."""
        return {name: batch[name] for name in (SampleBatch.OBS, SampleBatch.ACTIONS)}

    def target_columns(
        self, model: nnx.Module, target_model: nnx.Module, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> dict[str, jax.Array]:
        """Further columns [B, ...] for the loss, without gradient; traced by JAX if the plan has `targets`.

        Both models are in evaluation mode; `target_model` has the target parameters.
        """
        return {}

    def make_optimizer(self) -> optax.GradientTransformation:
        """Returns the optimizer without the learning rate: Adam, one for each part in `learning_rates`."""
        rates = self.learning_rates()
        return by_part({part: adam(self.config) for part in rates}) if isinstance(rates, dict) else adam(self.config)

    def forward(self, model: Any, columns: Columns) -> Outputs:
        """One forward pass, with invalid actions masked; with `critic_obs`, `value` is `model.critic(critic_obs)`.

        Other columns are as for `run_model`.
        """
        return self._acting.forward(model, columns)

    def get_initial_state(self) -> list[Any]:
        return [*self.memory.initial_state, *self._exploration_state]

    def memory_of(
        self, rows: int, states: Sequence[Any] | None, prev_actions: Any, prev_rewards: Any
    ) -> dict[str, Any]:
        # The exploration state is optional.
        if states is None:
            states = [np.repeat(np.asarray(part)[None], rows, axis=0) for part in self.memory.initial_state]
        return super().memory_of(rows, states, prev_actions, prev_rewards)

    def compute_actions(  # type: ignore[override]  the library passes what is accepted
        self,
        obs_batch: Any,
        state_batches: Sequence[Any] = (),
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        explore: bool = True,
    ) -> ActionsResult:
        rows = trees.length(obs_batch)
        size = acting_bucket(rows)
        columns = {SampleBatch.OBS: obs_batch}
        exploring: list[Any] = []
        if self._exploration_state:
            parts = len(self.memory.initial_state)
            initial = (np.repeat(part[None], rows, 0) for part in self._exploration_state)
            exploring = list(state_batches[parts:] or initial)
            state_batches = state_batches[:parts]
        if self.memory.present:
            where = f"policy {self.name!r}"
            columns |= self.memory.given(rows, state_batches, prev_action_batch, prev_reward_batch, where)
        if size != rows:
            columns = trees.pad(columns, size)
        self.check_masks(obs_batch)
        # The host's random numbers are cheaper than the device's.
        noise, noise_seed, params = None, None, self.params
        if explore:
            noise, exploring = self.exploration.noise(self.acting_rng, size, self.timestep, exploring)
            params = self.exploration.acting_params(params, self.acting_rng)
            # The model's own streams are the same in every process, because they are part of the weights.
            noise_seed = self.acting_rng.integers(2**32, dtype=np.uint32) if self._noisy else None
        actions, states, fetches = self._acting.actions(params, self.extra, columns, noise, rows, noise_seed)
        check_finite(fetches[self._checked_fetch], self.name, self.timestep)
        return actions, [*states, *exploring], fetches

    def greedy_actions(self, params: Columns, extra: Columns, columns: Columns) -> tuple[Any, tuple]:
        """`(actions, state_out)` of `compute_actions` without exploration, for any number of rows; traced by JAX.

        Args:
            params, extra: arrays like the attributes of these names.
            columns: `obs` [B, ...], and with memory its columns, as for `run_model`.
        """
        return self._acting.greedy(params, extra, columns)

    def behaviour(self, actions: Any, fetches: Mapping[str, Any], explore: bool) -> dict[str, Any]:
        noisy = self._noisy  # the parameters that have chosen are not known
        return {} if noisy or not explore else self.exploration.behaviour(actions, fetches, self.timestep)

    def act_greedily(self, obs_batch: Any) -> Any:
        """The greedy actions of `compute_actions` for a policy without memory, in half of the time: nothing else."""
        rows = trees.length(obs_batch)
        size = acting_bucket(rows)
        self.check_masks(obs_batch)
        obs = obs_batch if size == rows else trees.pad(obs_batch, size)
        actions, finite = self._acting.modes(self.params, self.extra, obs, rows)
        if not finite:
            return self.compute_actions(obs_batch, explore=False)[0]  # raises the error, if it is one
        return actions

    def check_masks(self, obs_batch: Any) -> None:
        """Raises EnvError if an action mask allows no action."""
        self.masks.check(obs_batch, self.name)

    def adapt_exploration(self, batch: SampleBatch) -> None:
        """Adapts the exploration to a fragment; for policies without memory."""

        def outputs_of(params: Columns) -> np.ndarray:
            return self._outputs(params, trees.index(batch[SampleBatch.OBS], slice(_ROWS_FOR_EXPLORATION)))

        self.exploration.after_fragment(batch, self.params, outputs_of, self.timestep)

    def action_probabilities(self, obs_batch: Any, *, explore: bool = True) -> np.ndarray:
        if not isinstance(self.action_space, spaces.Discrete) or self.memory.present:
            return super().action_probabilities(obs_batch, explore=explore)
        self.check_masks(obs_batch)
        outputs = self._outputs(self.params, obs_batch)
        check_finite(outputs, self.name, self.timestep)
        if not explore:
            return (np.arange(outputs.shape[1]) == outputs.argmax(axis=1)[:, None]).astype(np.float64)
        probabilities = self.exploration.probabilities(outputs, self.timestep)
        return super().action_probabilities(obs_batch) if probabilities is None else probabilities

    def _outputs(self, params: Columns, obs_batch: Any) -> np.ndarray:
        """[N, num_inputs] the model's outputs for N observations, those of invalid actions masked."""
        rows = trees.length(obs_batch)
        columns = trees.pad({SampleBatch.OBS: obs_batch}, acting_bucket(rows))
        return np.asarray(self._acting.outputs(params, self.extra, columns))[:rows]

    def fetches_of(self, actions: Any, fetches: Mapping[str, Any]) -> Mapping[str, Any]:
        if SampleBatch.ACTION_DIST_INPUTS not in fetches:
            return {}
        rows = trees.length(actions)
        inputs, padded = trees.pad((fetches[SampleBatch.ACTION_DIST_INPUTS], actions), acting_bucket(rows))
        logp = np.array(self._logp(inputs, padded))[:rows]
        check_finite(logp, self.name, self.timestep)
        return {SampleBatch.ACTION_LOGP: logp}

    def compute_values(self, obs_batch: Any, memory: Mapping[str, Any] = MappingProxyType({})) -> np.ndarray:
        """[N] state values for columns of N observations.

        `memory` has the columns that a policy with memory requires, as in `Fragment.after`, or `critic_obs`.
        """
        rows = trees.length(obs_batch)
        self.memory.check(memory, f"policy {self.name!r}")
        if rows == 0:
            return np.empty(0, np.float32)
        # The number of trajectory ends varies between fragments: small numbers share one compiled version.
        columns = {SampleBatch.OBS: obs_batch, **(memory if self.memory.present else {})}
        if SampleBatch.CRITIC_OBS in memory:
            columns = {SampleBatch.CRITIC_OBS: memory[SampleBatch.CRITIC_OBS]}
        columns = trees.pad(columns, max(acting_bucket(rows), _MIN_VALUES))
        return np.asarray(self._acting.values(self.params, self.extra, columns))[:rows]

    def learn_on_batch(self, batch: SampleBatch) -> dict[str, Any]:
        """Trains in one compiled call; statistics are means over the last epoch that began.

        Raises NonFiniteError if a loss, gradient or new weight is not finite; earlier gradient steps are kept.
        """
        self._share()  # completes what an interrupt may have left undone
        columns, plan = self._planned(batch, self.plan.minibatch_size, self.plan.epochs)
        update = self.learner.learn(columns, plan, self.coefficients(), where=f"policy {self.name!r}")
        self._share()
        if update.error is not None:
            raise update.error
        units = len(batch) // batch.max_seq_len  # number of sequences, if the batch consists of sequences
        rows = {name: column[:units] for name, column in update.rows.items()}
        return {**update.statistics, **rows, "cur_lr": self.scheduled("lr")}

    def td_errors(self, batch: SampleBatch) -> np.ndarray:
        """[N] the loss's statistic `td_error` for N transitions, with the online parameters as targets."""
        size = training_bucket(len(batch))
        columns, mask = trees.pad(self.train_columns(batch), size), (np.arange(size) < len(batch)).astype(np.float32)
        coefficients = {**self.coefficients(), "num_updates": self.learner.num_updates}
        return np.asarray(self._errors(self.params, self.extra, columns, mask, coefficients))[: len(batch)]

    def compute_gradients(self, batch: SampleBatch) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Name -> gradient over the whole batch, and statistics."""
        columns, plan = self._planned(batch, None, 1)
        gradients, stats = self.learner.gradients(columns, plan, self.coefficients())
        return {name: np.array(value) for name, value in gradients.items()}, stats

    def apply_gradients(self, gradients: Mapping[str, Any]) -> None:
        """One optimizer step with gradients from this or another process."""
        self._share()
        self.learner.apply(gradients, self.learning_rates(), where=f"policy {self.name!r}")
        self._share()

    def _planned(self, batch: SampleBatch, size: int | None, epochs: int) -> tuple[dict[str, Any], Minibatches]:
        """The padded columns to train on, and the rows (with memory the sequences) of each gradient step."""
        columns, count = self.train_columns(batch), len(batch)
        if self.memory.present:
            columns, count = self.memory.sequences(columns, batch)
        plan = Minibatches.draw(
            self.learning_rng,
            count,
            self._units(size),
            epochs,
            microbatch_size=self._units(self.plan.microbatch_size),
            few_sizes=self.memory.present,
            in_order=SampleBatch.INDICES in batch,
        )
        return trees.pad(columns, plan.capacity), plan

    def _units(self, rows: int | None) -> int | None:
        """Converts a number of rows to one of sequences for a policy with memory."""
        return None if rows is None else max(rows // self.memory.max_seq_len, 1)

    def _count_rows(self, batch: Columns, mask: jax.Array) -> jax.Array:
        return (as_rows(batch, mask)[1] if self.memory.present else mask).sum()

    def _loss_of_arrays(
        self, params: Columns, targets: Columns, extra: Columns, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, tuple[dict, Columns]]:
        if self.memory.present:
            batch, mask = as_rows(batch, mask)
        if self.learner.has_targets:
            # Separate random streams make the targets of a noisy model independent of its outputs.
            fixed = self.split.merge(lax.stop_gradient(dict(params)), extra, noise_seed=np.uint32(1))
            target_model = self.split.merge(targets, extra, noise_seed=np.uint32(2))
            batch = {**batch, **self.target_columns(fixed, target_model, batch, mask, coefficients)}
        model = self.split.merge(params, extra, learning=True)
        loss, stats = self.loss(model, self.forward(model, batch), batch, mask, coefficients)
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

    def _share(self) -> None:
        if self.on_new_variables is not None:
            self.on_new_variables()

    def get_state(self) -> dict[str, Any]:
        return {
            **super().get_state(),
            **self.learner.get_state(),
            "learning_rng": self.learning_rng.bit_generator.state,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        where = f"policy {self.name!r}"
        num_updates = count(state, "num_updates", where)
        learning_rng = generator_state(state, "learning_rng", where, self.learning_rng)
        targets = section(state, "targets", where)
        super().set_state(state)
        if targets:
            targets, _ = self.split.checked({**targets, **self.extra}, f"{where}, target parameters")
        self.learner.set_state(section(state, "optimizer", where), num_updates, targets, where)
        self.learning_rng.bit_generator.state = learning_rng

    def get_acting_state(self) -> dict[str, Any]:
        return {"rng": self.acting_rng.bit_generator.state, "exploration": self.exploration.get_state()}

    def set_acting_state(self, state: Mapping[str, Any]) -> None:
        where = f"policy {self.name!r}, acting"
        rng = generator_state(state, "rng", where, self.acting_rng)
        self.exploration.set_state(section({"exploration": {}, **state}, "exploration", where))
        self.acting_rng.bit_generator.state = rng

    def compilations(self) -> int:
        """The number of versions that JAX has compiled; bounded, because batches are padded to few sizes."""
        functions: tuple[Any, ...] = (*self._acting.functions(), *self.learner.functions(), self._errors, self._logp)
        return sum(function._cache_size() for function in functions)
