"""`ModelPolicy`: the base of policies with a model and a loss, in JAX and PyTorch. It imports neither library."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from rollax.batch import Columns, Fragment, SampleBatch
from rollax.batch.columns import check_batch
from rollax.config import TrainerConfig
from rollax.core import trees
from rollax.core.introspection import overrides
from rollax.core.numbers import is_number
from rollax.core.running_statistics import RunningMoments
from rollax.core.schedules import Schedule
from rollax.core.spaces import path_text, space_text
from rollax.core.stored_values import generator_state, read_dict, read_number
from rollax.errors import BatchError, ConfigError, EnvError, PolicyError
from rollax.models.distributions import ActionDistribution
from rollax.models.outputs import Outputs, has_critic
from rollax.policy.base_algorithm import BaseAlgorithm, Values
from rollax.policy.checks import ColumnShapes, LearnedColumns, check_finite, naming_missing_columns
from rollax.policy.exploration import Exploration
from rollax.policy.policy import Policy
from rollax.policy.recurrent_columns import RecurrentColumns
from rollax.policy.size_checks import check_model_size
from rollax.policy.update_plan import Minibatches, UpdatePlan, acting_bucket

if TYPE_CHECKING:
    from rollax.policy.running_returns import RunningReturns

_ARGUMENTS = frozenset({"obs_batch", "explore"})


class ModelPolicy(Policy):
    """A policy that acts and learns by an algorithm with a model and a loss; see `JaxPolicy` and `TorchPolicy`.

    A subclass, named as `policy_class` of an algorithm, may override the methods of `Policy`.

    Args:
        algorithm: how the policy acts and learns.
        config: the whole config, of `algorithm.config_class`.
    """

    memory: RecurrentColumns
    learner: Any
    """The `Learner` of JAX or PyTorch, which holds the variables that gradient steps change."""
    noisy: bool
    """Whether the model explores with random numbers that it draws itself."""

    def __init__(self, algorithm: BaseAlgorithm, config: TrainerConfig) -> None:
        super().__init__(algorithm.observation_space, algorithm.action_space, config)
        self.algorithm: Any = algorithm
        self.statistics = (*algorithm.reported, "total_loss", "cur_lr")
        self.sees_all_agents = algorithm.sees_all_agents
        self.learns_off_policy = algorithm.learns_off_policy
        self.replayed_columns = algorithm.replayed_columns
        # Separate streams: learning does not depend on which process acts.
        acting, learning, self._initial = np.random.SeedSequence(self.config.seed).spawn(3)
        self.acting_rng = np.random.Generator(np.random.SFC64(acting))
        self.learning_rng = np.random.Generator(np.random.SFC64(learning))
        self._schedules: dict[str, Schedule] = {}
        self._shapes_of_obs = ColumnShapes(self.observation_space)
        self._learned_columns = LearnedColumns(self.observation_space, self.action_space, algorithm.own_columns)
        self.numbers: Mapping[str, float] = _floats(algorithm.first_numbers())
        self.running_statistics = self._checked_statistics(algorithm.make_running_statistics())
        self.exploration = self.make_exploration()
        self._exploration_state = self.exploration.initial_state()
        self.checked_fetch = next(iter(self.exploration.fetched))
        self.on_new_variables: Callable[[], Any] | None = None

    def __repr__(self) -> str:
        algorithm, spaces = self.algorithm, (self.observation_space, self.action_space)
        return f"{type(algorithm).__name__}({self.name!r}, {' -> '.join(map(space_text, spaces))})"

    @property
    def label(self) -> str:
        return f"policy {self.name!r}, {self.algorithm.label}"

    @property
    def made_by(self) -> type:
        return type(self.algorithm)

    @property
    def distribution(self) -> ActionDistribution:
        """The action distribution whose inputs the model returns."""
        return self.algorithm.distribution

    @property
    def plan(self) -> UpdatePlan:
        """How a batch becomes gradient steps."""
        return self.algorithm.plan

    def make_exploration(self) -> Exploration:
        """Returns the exploration of this policy, by default the algorithm's exploration."""
        return self.algorithm.make_exploration()

    def _describe(self, model: Any) -> None:
        """Sets the attributes that depend on the model: the memory, the arguments and the columns."""
        self.algorithm.check_model(model)
        self.memory = RecurrentColumns(model, self.action_space, self.config.model.max_seq_len)
        if self.config.model.has_memory and not self.memory.present:
            key = next(name for name in ("use_lstm", "use_gru", "use_attention") if getattr(self.config.model, name))
            why, where = "the model that make_model returned has no memory", f"{self.label}, config key 'model.{key}'"
            raise ConfigError.no_effect(key, why, where, type(model).__name__)
        carried = {"state_batches"} if self._exploration_state else frozenset()
        self.arguments = _ARGUMENTS | self.memory.arguments | carried
        self.replayed = self.algorithm.replayed(self.memory)
        self.minibatch_size = self.plan.minibatch_size
        if self.sampled_columns is not None and self.config.recording_key is not None:
            self.recorded_columns = self.exploration.recorded - self.sampled_columns - {self.checked_fetch}

    def _needs_value(self, model: Any) -> bool:
        """Whether the model must return values: learning reads values, and no centralized critic estimates them."""
        own_columns = overrides(type(self), Policy, "postprocess_trajectory")
        return self.algorithm.learns_values and not self.sees_all_agents and not (own_columns and has_critic(model))

    def _seed_of_model(self) -> int:
        """The seed of the initial weights."""
        seed = self.config.seed
        if seed is None or seed >= 2**32:  # generators read the low 32 bits only
            return int(np.random.default_rng(self._initial).integers(2**31))
        return seed

    def _checked_statistics(self, statistics: Any) -> dict[str, RunningMoments]:
        moments = isinstance(statistics, dict) and all(isinstance(one, RunningMoments) for one in statistics.values())
        if not moments or not all(isinstance(name, str) for name in statistics):
            raise PolicyError(
                "The running statistics are not moments by name.",
                where=f"{self.algorithm.label}, make_running_statistics",
                got=statistics,
                expected="a dict, name -> RunningMoments or RunningReturns",
                fix="return new ones at each call: {'returns': RunningReturns(self.config.gamma)}",
            )
        return statistics

    @property
    def _in_sequences(self) -> bool:
        """Whether the policy learns from padded sequences, not from single rows."""
        return self.memory.present or self.replayed.sequence_length is not None

    @property
    def _sequence_length(self) -> int:
        """The number of rows to learn from in a sequence, without burn-in; 1 for single rows."""
        return self.replayed.sequence_length or self.memory.max_seq_len

    @property
    def sampled_columns(self) -> frozenset[str] | None:
        samples = self.algorithm.samples
        if samples is None:
            return None
        # A centralized critic's values are computed in postprocessing.
        computed = {SampleBatch.VF_PREDS} if self.sees_all_agents else frozenset()
        summed = {one.column for one in self._running_returns.values() if one.column is not None}
        of_sums = summed | {SampleBatch.SLOT, SampleBatch.TRAJECTORY_ID} if summed else frozenset()
        return (samples - computed) | self.memory.batch_columns | of_sums

    @property
    def _fetched_columns(self) -> frozenset[str] | None:
        """The columns that acting returns; None: all columns."""
        wanted = self.sampled_columns
        return None if wanted is None else wanted | self.recorded_columns

    def _check_model_size(self) -> None:
        """Raises PolicyError if a loaded model is much larger than its stored weights; not for a custom model."""
        if self.config.model.custom_model is None:
            check_model_size(self._weight_shapes, self.label)

    @abstractmethod
    def _weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of the arrays that `make_model` would allocate; nothing is allocated."""

    def coefficients(self) -> dict[str, Any]:
        """Numbers that change between updates: each field that can have a schedule, `lr`, and `numbers`.

        If there are running statistics, `running_statistics` has them by name; see `BaseAlgorithm.loss`.
        """
        scheduled = {name: self.scheduled(name) for name in self.config.scheduled_fields()}
        return {**scheduled, **self.numbers, "lr": self.learning_rates(), **self.coefficients_of_statistics()}

    def coefficients_of_statistics(self) -> dict[str, Any]:
        """The entry `running_statistics` of `coefficients`; empty if the policy has no running statistics."""
        summaries = {name: one.summary() for name, one in self.running_statistics.items()}
        return {"running_statistics": summaries} if summaries else {}

    def learning_rates(self) -> Any:
        """The current learning rate: a number, or a dict, part of the model -> its learning rate."""
        return self.algorithm.learning_rates(self.scheduled("lr"))

    def reported_lr(self) -> float:
        """The statistic `cur_lr`: the learning rate; if parts have their own, the current `lr` of the config."""
        rates = self.learning_rates()
        return self.scheduled("lr") if isinstance(rates, Mapping) else rates

    def scheduled(self, key: str) -> float:
        """The current value of a config key, by its schedule if there is one."""
        if key not in self._schedules:
            self._schedules[key] = self.config.schedule(key)
        return self._schedules[key](self.timestep)

    def forward(self, model: Any, columns: Columns) -> Outputs:
        """One forward pass of the algorithm on the columns of a batch; see `forward` of the algorithm."""
        return self.algorithm.forward(model, self.memory.without_noise(columns))

    def get_initial_state(self) -> list[Any]:
        return [*self.memory.initial_state, *self._exploration_state]

    def memory_of(
        self, rows: int, states: Sequence[Any] | None, prev_actions: Any, prev_rewards: Any
    ) -> dict[str, Any]:
        # The exploration state is left out: it is optional in `compute_actions`.
        if states is None:
            states = [np.repeat(np.asarray(part)[None], rows, axis=0) for part in self.memory.initial_state]
        return super().memory_of(rows, states, prev_actions, prev_rewards)

    def _inputs_of(
        self, obs_batch: Any, state_batches: Sequence[Any], prev_action_batch: Any, prev_reward_batch: Any
    ) -> tuple[int, dict[str, Any], list[Any]]:
        """`(N, the model's checked columns for acting, the exploration state of the N rows)`."""
        rows = self._checked_rows(obs_batch)
        columns = {SampleBatch.OBS: obs_batch}
        exploring: list[Any] = []
        if self._exploration_state:
            parts = len(self.memory.initial_state)
            initial = (np.repeat(part[None], rows, 0) for part in self._exploration_state)
            exploring = [np.asarray(part) for part in state_batches[parts:] or initial]
            state_batches = state_batches[:parts]
        if self.memory.present:
            where = f"policy {self.name!r}"
            columns |= self.memory.given(rows, state_batches, prev_action_batch, prev_reward_batch, where)
        return rows, columns, exploring

    def _checked_rows(self, obs_batch: Any) -> int:
        """The number of rows; raises EnvError for observations that do not fit the space, or an empty action mask."""
        self._check_observations(obs_batch)
        self.check_masks(obs_batch)
        return self._shapes_of_obs.rows_of(obs_batch)

    def _check_observations(self, obs_batch: Any) -> None:
        if (misfit := self._shapes_of_obs.misfit(obs_batch)) is not None:
            raise EnvError(
                "The observations do not fit the observation space.",
                where=f"observations for policy {self.name!r}{path_text(misfit.path)}",
                got=misfit.got,
                expected=f"an array of numbers [{', '.join(map(str, misfit.shape))}]",
                fix="pass columns as in a batch, an array [N, ...] for each part of the space; "
                "Trainer.compute_actions also takes a list of observations",
            )

    def check_masks(self, obs_batch: Any) -> None:
        """Raises EnvError if an action mask allows no action."""
        self.algorithm.masks.check(obs_batch, self.name)

    def behaviour(self, actions: Any, fetches: Mapping[str, Any], explore: bool) -> dict[str, Any]:
        return self.exploration.behaviour(actions, fetches, self.timestep) if explore else {}

    def model_outputs(
        self,
        obs_batch: Any,
        state_batches: Sequence[Any] = (),
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
    ) -> tuple[np.ndarray, Sequence[np.ndarray]]:
        """`([N, num_inputs], states)`: what the model returns for N observations, with invalid actions masked.

        The arguments, and the states for the next step, are as in `compute_actions`.
        """
        _, columns, _ = self._inputs_of(obs_batch, state_batches, prev_action_batch, prev_reward_batch)
        outputs, states = self._model_outputs(columns)
        # A model of one's own may mask with minus infinity.
        check_finite(np.where(np.isneginf(outputs), 0.0, outputs), self.name, self.timestep)
        return outputs, states

    @abstractmethod
    def _model_outputs(self, columns: Columns) -> tuple[np.ndarray, Sequence[np.ndarray]]:
        """[N, num_inputs] the model's outputs, with invalid actions masked, and the states for the next step.

        `columns` are the inputs of `run_model` for N rows: `obs`, and for a model with memory its columns.
        """

    def fetches_of(self, actions: Any, fetches: Mapping[str, Any]) -> Mapping[str, Any]:
        if SampleBatch.ACTION_DIST_INPUTS not in fetches:
            return {}
        rows = trees.length(actions)
        padded = trees.pad((fetches[SampleBatch.ACTION_DIST_INPUTS], actions), acting_bucket(rows))
        logp = np.array(self._logp(*padded))[:rows]
        check_finite(logp, self.name, self.timestep)
        return {SampleBatch.ACTION_LOGP: logp}

    @abstractmethod
    def _logp(self, inputs: np.ndarray, actions: Any) -> Any:
        """[N] log-probabilities of actions."""

    @abstractmethod
    def compute_values(self, obs_batch: Any, memory: Mapping[str, Any] = MappingProxyType({})) -> np.ndarray:
        """[N] or [N, H] state values for columns of N observations.

        `memory` has `critic_obs`, or the columns that a policy with memory requires, as in `Fragment.after`.
        """

    def _inputs_of_values(self, obs_batch: Any, memory: Mapping[str, Any]) -> dict[str, Any]:
        """The model's checked columns for `compute_values`; raises PolicyError if columns of its memory are missing."""
        self.memory.check(memory, f"policy {self.name!r}")
        if SampleBatch.CRITIC_OBS in memory:
            return {SampleBatch.CRITIC_OBS: memory[SampleBatch.CRITIC_OBS]}
        self._check_observations(obs_batch)
        return {SampleBatch.OBS: obs_batch, **self.memory.of(memory)}

    def prepare_rows(self, fragment: Fragment) -> None:
        self.add_to_returns(fragment)
        self.algorithm.prepare(fragment, self._postprocessing_values)

    def add_to_returns(self, rows: SampleBatch) -> None:
        """Adds sampled rows to each of the running returns that has a `column`; PolicyError if rows lack it."""
        for name, returns in self._running_returns.items():
            if returns.column is not None:
                if returns.column not in rows:
                    raise PolicyError(
                        "Sampled rows have no such column.",
                        where=f"{self.algorithm.label}, make_running_statistics, {name!r}",
                        got=returns.column,
                        expected=f"one of {', '.join(map(repr, sorted(rows)))}",
                        fix='RunningReturns(gamma, column="rewards")',
                    )
                returns.add_rewards(rows, rows[returns.column])

    def postprocess_rows(self, fragment: Fragment) -> SampleBatch:
        check_batch(fragment, Fragment, f"{self.label}, postprocess")
        return self.algorithm.postprocess(fragment, self._postprocessing_values)

    @property
    def _postprocessing_values(self) -> Values:
        return Values(self.compute_values, self.run_method, self.running_statistics)

    @abstractmethod
    def run_method(self, method: str, *columns: Any) -> np.ndarray:
        """The result [N, ...] of the algorithm's method `method(model, *columns)` for columns of N rows.

        The model is in evaluation mode.
        """

    @naming_missing_columns
    def learn_on_batch(self, batch: SampleBatch) -> dict[str, Any]:
        """Trains on epochs of minibatches; statistics are means over the last epoch that began.

        Raises NonFiniteError if a loss, gradient or new weight is not finite; earlier gradient steps are kept.
        """
        self._share()  # completes what an interrupt may have left undone
        columns, count, plan = self._planned(batch, self.plan.minibatch_size, self.plan.epochs)
        before = self.learner.num_updates
        update = self.learner.learn(columns, plan, self.coefficients(), where=f"policy {self.name!r}")
        self._share()
        if update.error is not None:
            raise update.error
        by_row = {name: column[:count] for name, column in update.rows.items()}
        return self.reported_after({**update.statistics, **by_row}, self.learner.num_updates - before)

    def reported_after(self, statistics: dict[str, Any], steps: int) -> dict[str, Any]:
        """Adapts the algorithm's numbers after an update of `steps` gradient steps; returns the update's statistics."""
        taken = {name: steps for name in ("num_gradient_steps",) if name in self.statistics}
        # None: no gradient step of this batch had the statistic.
        found = {**dict.fromkeys(self.algorithm.reported), **statistics, **taken}
        numbers, statistics = self.algorithm.after_update(self.numbers, found)
        self.numbers = _floats(numbers)
        return {**statistics, "cur_lr": self.reported_lr()}

    def _planned(self, batch: SampleBatch, size: int | None, epochs: int) -> tuple[dict[str, Any], int, Minibatches]:
        """The padded columns to train on, their number of rows (or sequences), and the rows of each gradient step."""
        columns, count = self._checked_columns(batch), len(batch)
        if self._in_sequences:
            columns, count = self.memory.sequences(columns, batch, self._sequence_length)
        plan = Minibatches.draw(
            self.learning_rng,
            count,
            self._units(size),
            epochs,
            microbatch_size=self._units(self.plan.microbatch_size),
            few_sizes=self._in_sequences,
            in_order=SampleBatch.INDICES in batch,
        )
        return trees.pad(columns, plan.capacity), count, plan

    def _checked_columns(self, batch: SampleBatch) -> dict[str, Any]:
        """The columns that the loss reads.

        Raises BatchError if the batch has another class, no rows, padding for a policy that learns from single rows, or
        columns that do not fit the spaces.
        """
        check_batch(batch, SampleBatch, self.label)
        if batch.seq_lens is not None and not self._in_sequences:
            raise BatchError(
                "The batch is padded for a model with memory, and this model has none: padding would count as rows.",
                where=self.label,
                got=f"{len(batch.seq_lens)} sequences of {batch.max_seq_len} rows, {batch.agent_steps} of them real",
                expected="a batch without seq_lens",
                fix="pass the batch as it was before sequences()",
            )
        if not len(batch):
            raise BatchError(
                "The batch has no rows.",
                where=self.label,
                got=f"columns {sorted(batch)} of 0 rows",
                expected="1 row or more",
                fix="do not call it if nothing was sampled",
            )
        columns = self.algorithm.loss_columns(batch, self.learning_rng)
        self._learned_columns.check(columns, batch, self.label)
        return columns

    def _units(self, rows: int | None) -> int | None:
        """Converts a number of rows to a number of sequences for a policy that learns from sequences."""
        return None if rows is None else max(rows // self._sequence_length, 1)

    def _share(self) -> None:
        if self.on_new_variables is not None:
            self.on_new_variables()

    def get_state(self) -> dict[str, Any]:
        learning_rng = self.learning_rng.bit_generator.state
        own = {"numbers": dict(self.numbers), "learning_rng": learning_rng}
        return {**super().get_state(), **own, **self.learner.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        where = f"policy {self.name!r}"
        learning_rng = generator_state(state, "learning_rng", where, self.learning_rng)
        first = _floats(self.algorithm.first_numbers())  # also of numbers that the saved run did not use
        # Checkpoints of earlier versions have the numbers beside the other parts of the state.
        stored = read_dict(state, "numbers", where) if "numbers" in state else state
        bounds: dict[str, Any] = {"least": -math.inf, "accepts": is_number}
        numbers = {name: read_number({**first, **stored}, name, where, **bounds) for name in first}
        super().set_state(state)
        self.numbers = numbers
        self.learning_rng.bit_generator.state = learning_rng

    def get_acting_state(self) -> dict[str, Any]:
        state = {"rng": self.acting_rng.bit_generator.state, "exploration": self.exploration.get_state()}
        sums = {name: returns.get_sums() for name, returns in self._running_returns.items()}
        return {**state, "running_returns": sums} if sums else state

    def set_acting_state(self, state: Mapping[str, Any]) -> None:
        where = f"policy {self.name!r}, acting"
        rng = generator_state(state, "rng", where, self.acting_rng)
        sums = read_dict({"running_returns": {}, **state}, "running_returns", where)
        for name, returns in self._running_returns.items():
            returns.set_sums(read_dict(sums, name, where), f"{where}, running_returns, {name}")
        self.exploration.set_state(read_dict({"exploration": {}, **state}, "exploration", where))
        self.acting_rng.bit_generator.state = rng

    @property
    def _running_returns(self) -> dict[str, RunningReturns]:
        """The running statistics that also have one sum for each slot; the sums are not merged."""
        if not self.running_statistics:
            return {}
        from rollax.policy.running_returns import RunningReturns  # loaded only where it is used

        return {name: one for name, one in self.running_statistics.items() if isinstance(one, RunningReturns)}


def _floats(numbers: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an algorithm, which may be scalars of JAX: in checkpoints, arrays are state of another kind."""
    return {name: float(number) for name, number in numbers.items()}
