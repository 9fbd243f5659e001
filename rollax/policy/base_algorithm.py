"""`BaseAlgorithm`: what algorithms in JAX and PyTorch have in common. This module imports neither library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
from gymnasium import Space

from rollax.batch import Columns, Fragment, SampleBatch
from rollax.config import TrainerConfig, resolve_config
from rollax.core.frozen import content_of
from rollax.core.running_statistics import RunningMoments
from rollax.core.spaces import space_text
from rollax.errors import ConfigError, PolicyError, SpaceError
from rollax.models.distributions import ActionDistribution
from rollax.models.outputs import Outputs
from rollax.policy.exploration import Exploration, FromDistribution
from rollax.policy.mask_checks import MaskChecks, refuse_nested_masks
from rollax.policy.recurrent_columns import RecurrentColumns
from rollax.policy.replayed import SINGLE_ROWS, TRANSITION_SAMPLED, Draw
from rollax.policy.size_checks import check_sizes
from rollax.policy.update_plan import UpdatePlan

if TYPE_CHECKING:
    from rollax.policy.group_masks import GroupMaskChecks

_COMMON = frozenset(
    {
        *("accept_off_policy_actions", "adam_epsilon", "gamma", "grad_clip", "model", "observation_filter"),
        *("clip_actions", "normalize_actions", "train_batch_size"),
    }
)
"""The fields of `TrainerConfig` that an algorithm may read; all others configure how a run samples and reports."""
_SAMPLED_FOR = {
    # For actions that the policy did not choose itself, it is computed from the inputs.
    SampleBatch.ACTION_LOGP: (SampleBatch.ACTION_LOGP, SampleBatch.ACTION_DIST_INPUTS),
    SampleBatch.ADVANTAGES: (SampleBatch.REWARDS,),
    SampleBatch.BOOTSTRAP: (),
    SampleBatch.CRITIC_OBS: (),
    SampleBatch.DISCOUNTS: (),
    SampleBatch.TARGET_STEPS: (),
    SampleBatch.VALUE_TARGETS: (SampleBatch.REWARDS, SampleBatch.VF_PREDS),
    SampleBatch.WEIGHTS: (),
}
"""A column that may be computed after sampling -> the sampled columns that it is, or is computed from."""
_SAMPLED = frozenset(
    {
        *(SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS, SampleBatch.VF_PREDS),
        *(SampleBatch.ACTION_DIST_INPUTS, SampleBatch.PREV_ACTIONS, SampleBatch.PREV_REWARDS, SampleBatch.INFOS),
        *(SampleBatch.TERMINATEDS, SampleBatch.TRUNCATEDS, SampleBatch.TRAJECTORY_ID, SampleBatch.AGENT_ID),
        *(SampleBatch.EPS_ID, SampleBatch.T, SampleBatch.SLOT),
    }
)


@dataclass(frozen=True)
class Values:
    """What `postprocess` may read from the policy; a call returns state values.

    Attributes:
        compute_values: `compute_values` of the policy.
        run: `run(name, *columns)` returns the result [N, ...] of the algorithm's method `name(model, *columns)` for
            columns of N rows. The method is compiled; the model is in evaluation mode.
        statistics: the running statistics of the policy, by name; see `make_running_statistics`.
    """

    compute_values: Callable[..., np.ndarray]
    run: Callable[..., np.ndarray]
    statistics: Mapping[str, Any]

    def __call__(self, obs: Any, columns: Mapping[str, Any] = MappingProxyType({})) -> np.ndarray:
        """[N] or [N, H] state values of N observations; `columns` has the columns of memory, or `critic_obs`."""
        return self.compute_values(obs, columns)


class BaseAlgorithm(ABC):
    """An algorithm: how a policy is made, what it reads, and its loss. See `Algorithm` for JAX.

    In a training iteration its methods run in this order:

    1. `prepare` and `postprocess`, for each fragment, in the worker that sampled it (NumPy).
    2. `loss_columns`, for each batch to learn from (NumPy). With replay, the `Draw` of `replayed` makes the batches.
    3. `targets`, the forward pass and `loss`, for each minibatch (compiled).
    4. `after_update`, after the last gradient step on the batch (Python).

    An algorithm has the spaces and its config as attributes, and no attribute is set later. Algorithms of one class
    with equal spaces and configs are equal, and share compiled functions; the results of their methods may therefore
    depend only on the spaces, the config and the arguments. `make_policy` makes the policy that acts and learns by the
    algorithm.

    Args:
        observation_space: space of one observation.
        action_space: space of one action.
        config: a config of `config_class`, or a dict. The attribute `config` lacks the fields that configure how a run
            samples and reports.
    Raises:
        SpaceError, ConfigError: the algorithm does not support the spaces with this config.
    """

    config_class: ClassVar[Any] = None
    """The class of the config; None for `TrainerConfig`."""

    policy_class: ClassVar[Any] = None
    """The class of the policies, called as `policy_class(algorithm, config)`."""

    reads: tuple[str, ...] = (SampleBatch.OBS, SampleBatch.ACTIONS)
    """The columns of a batch that `targets` and `loss` read; see also `loss_columns`."""

    reads_values: bool = False
    """Whether `loss` reads `Outputs.value` although `reads` has no column that is computed from values."""

    value_heads: int = 1
    """H, the number of state values that the models return: `Outputs.value` is [B] for one value head, else [B, H]."""

    own_columns: frozenset[str] = frozenset()
    """The columns among `obs`, `new_obs` and `actions` that `postprocess` changes, and that need not fit the spaces."""

    replayed_columns: tuple[str, ...] = ()
    """Columns that `postprocess` adds and a replay buffer stores, in addition to the columns of transitions."""

    statistics: ClassVar[tuple[str, ...]] = ()
    """The names of the statistics of updates; see also `reported`."""

    learns_off_policy: ClassVar[bool] = False
    """Whether the algorithm can learn from the actions of another policy."""

    observation_space: Space
    action_space: Space
    config: Any
    _content: Any

    def __init__(self, observation_space: Space, action_space: Space, config: Any = None, **misplaced: Any) -> None:
        if not (isinstance(observation_space, Space) and isinstance(action_space, Space)):
            raise SpaceError(
                "An algorithm is made from the spaces of one policy.",
                where=f"{type(self).__name__}(observation_space, action_space, config)",
                got=(observation_space, action_space),
                expected="two spaces of Gymnasium",
                fix=f"to train in an environment, use a trainer: {type(self).__name__}Trainer(env=...)",
            )
        if misplaced:
            raise ConfigError(
                "An algorithm takes its settings in one config.",
                where=f"{type(self).__name__}(observation_space, action_space, config)",
                got=f"arguments {', '.join(misplaced)}",
                expected="two spaces, and one config with all settings",
                fix="pass config={...}",
            )
        config = resolve_config(self.config_class or TrainerConfig, config)
        content = content_of((observation_space, action_space, own := _fields_for_policies(config)))
        vars(self).update(observation_space=observation_space, action_space=action_space, config=own, _content=content)
        self.check_spaces()
        check_sizes(observation_space, action_space, config, self.label)
        assert self.masks is not None  # raises SpaceError for masks that do not fit the choices

    @classmethod
    def make_policy(cls, observation_space: Space, action_space: Space, config: Any = None) -> Any:
        """The policy that acts and learns by this algorithm; arguments as for the constructor."""
        config = resolve_config(cls.config_class or TrainerConfig, config)
        return cls.policy_class(cls(observation_space, action_space, config), config)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise PolicyError(
            "An algorithm is immutable.",
            where=f"{type(self).__name__}.{name}",
            got=value,
            expected="values that follow from the config and the spaces",
            fix="write a functools.cached_property; keep what changes in a subclass of the policy, set as policy_class",
        )

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self._content == vars(other)["_content"])

    @cached_property
    def _hash(self) -> int:
        return hash((type(self), self._content))

    def __hash__(self) -> int:
        return self._hash

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Without cached properties, which follow from these attributes and may be functions.
        state = {name: vars(self)[name] for name in ("observation_space", "action_space", "config")}
        return _restored, (type(self), state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({space_text(self.observation_space)} -> {space_text(self.action_space)})"

    @property
    def label(self) -> str:
        """The name of the class, for errors."""
        return f"algorithm {type(self).__name__}"

    @property
    def reported(self) -> tuple[str, ...]:
        """The statistics with this config; results contain `None` for each before the first update."""
        return self.statistics

    @property
    def samples(self) -> frozenset[str] | None:
        """The columns to record while sampling; None records every column except `infos`.

        By default these are the columns in `reads`; for a column that rollax computes after sampling, such as
        advantages, they are the columns that rollax computes it from. With replay, those of transitions are added. If
        `reads` has a column that rollax does not define, every column except `infos` is recorded.
        """
        replayed = self.config.replays
        columns: set[str] = {*TRANSITION_SAMPLED} if replayed else set()
        for name in self.reads:
            if name == SampleBatch.NEW_OBS:  # a replay buffer has the observations after n steps
                columns.add(SampleBatch.OBS if replayed else name)
            elif name in _SAMPLED_FOR:
                columns.update(_SAMPLED_FOR[name])
            elif name in _SAMPLED:
                columns.add(name)
            else:
                return None
        return frozenset(columns)

    @property
    def learns_values(self) -> bool:
        """Whether learning is known to read values of the model: by `samples`, if it is not None, or `reads_values`."""
        return self.reads_values or SampleBatch.VF_PREDS in (self.samples or ())

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape of the values of one row: () for one value head, else (H,)."""
        return () if self.value_heads == 1 else (self.value_heads,)

    @property
    def sees_all_agents(self) -> bool:
        """Whether the critic's input is the column `critic_obs`, with the observations and actions of all agents."""
        return getattr(self.config, "centralized_critic", False)

    def check_spaces(self) -> None:  # noqa: B027  by default all spaces are supported
        """Raises SpaceError or ConfigError if the algorithm does not support the spaces with this config."""

    @cached_property
    def masks(self) -> MaskChecks | GroupMaskChecks:
        """The checks of action masks, by default for a mask at the top level of the observation."""
        if self.config.model.custom_model is None:  # a custom model may apply masks itself
            fix = "put one mask for all choices there; for a group of agents, use QMIX or VDN, which read the masks of "
            refuse_nested_masks(self.observation_space, self.action_space, "observation space", fix + "the members")
        return MaskChecks(self.observation_space, self.action_space)

    @cached_property
    @abstractmethod
    def distribution(self) -> ActionDistribution:
        """The action distribution whose inputs the model returns."""

    def make_exploration(self) -> Exploration:
        """Returns the exploration of one policy: by default actions are drawn from `distribution`."""
        return FromDistribution(self.distribution)

    @cached_property
    def exploration(self) -> Exploration:
        """The exploration that compiled functions call; it is immutable."""
        return self.make_exploration().traced

    def make_plan(self) -> UpdatePlan:
        """Returns how a batch becomes gradient steps: by default it is one step."""
        return UpdatePlan()

    @cached_property
    def plan(self) -> UpdatePlan:
        """The result of `make_plan`."""
        return self.make_plan()

    def check_model(self, model: Any) -> None:  # noqa: B027  by default all models are supported
        """Raises PolicyError if the loss cannot use the model; checks its `Outputs` unless `forward` is overridden."""

    def replayed(self, memory: RecurrentColumns) -> Draw:
        """Returns how batches are drawn from a replay buffer: by default as single transitions."""
        return SINGLE_ROWS

    def learning_rates(self, lr: float) -> Any:
        """Returns the learning rate: a number, or a dict, part of the model -> its learning rate.

        `lr` is the current value of the config key `lr`, which may have a schedule.
        """
        return lr

    def prepare(self, fragment: Fragment, values: Values) -> None:  # noqa: B027  by default there is nothing to do
        """Updates running statistics from a sampled fragment, and changes its rewards; then `postprocess` is called.

        `prepare` is a separate method so that a subclass that overrides `postprocess` keeps it. An override calls
        `super().prepare(fragment, values)`. Arguments as for `postprocess`.
        """

    def postprocess(self, fragment: Fragment, values: Values) -> SampleBatch:
        """Adds columns, such as advantages, to all trajectory segments of a fragment at once.

        Args:
            fragment: N rows, with the columns of `samples`, and the row after each segment.
            values: `values(obs)`, or with memory `values(obs, columns)`, returns state values of the current model;
                `values.run(name, columns)` calls another method of the algorithm; `values.statistics` has the running
                statistics, which may be updated.
        """
        return fragment

    def make_running_statistics(self) -> dict[str, RunningMoments]:
        """Returns name -> new running moments; by default none.

        `RunningReturns` with a `column` get the rows of each fragment before `prepare`. All others are updated by
        `prepare` or `postprocess`.

        Each worker has its own moments; they are merged like observation filters, and stored in checkpoints. The loss
        can read the current statistics from its coefficients, for example to scale the rewards of replayed rows.
        """
        return {}

    def loss_columns(self, batch: SampleBatch, rng: np.random.Generator) -> dict[str, Any]:
        """Returns the columns for `targets` and `loss`, from rows of a train batch or a replay buffer.

        By default these are the columns in `reads`, and `critic_obs` if the batch has it; replayed sequences have
        `target_steps` in the place of `new_obs`. An override may change columns and add others, such as noise.

        Args:
            batch: N rows that `postprocess` returned, or that a replay buffer returns.
            rng: the random generator of the policy for learning.
        """
        following = SampleBatch.TARGET_STEPS if SampleBatch.TARGET_STEPS in batch else SampleBatch.NEW_OBS
        names = (following if name == SampleBatch.NEW_OBS else name for name in self.reads)
        columns = {name: batch[name] for name in names}
        if SampleBatch.CRITIC_OBS in batch:
            columns[SampleBatch.CRITIC_OBS] = batch[SampleBatch.CRITIC_OBS]
        return {**columns, **self.noise_columns(len(batch), rng)}

    def changes_rows(self) -> bool:
        """Whether `prepare`, `postprocess` or `loss_columns` change rows, other than by noise.

        A class that defines one of these methods counts as changing rows, unless `traced_columns` replaces the method,
        or the class's own `changes_rows` returns False for the config. Where no class of the algorithm changes rows,
        replay may stay on the device.
        """
        return False

    def noise_columns(self, rows: int, rng: np.random.Generator) -> dict[str, Any]:
        """Random numbers for `targets` and `loss`, columns of `rows` rows that `loss_columns` adds; by default none."""
        return {}

    def targets(
        self, model: Any, target_model: Any, batch: Columns, mask: Any, coefficients: Columns
    ) -> dict[str, Any]:
        """Returns further columns [B, ...] for the loss, without gradient; called if the plan has `updated_targets`.

        Both models are in evaluation mode; `target_model` has the target parameters.
        """
        return {}

    @abstractmethod
    def loss(self, model: Any, out: Outputs, batch: Columns, mask: Any, coefficients: Columns) -> tuple[Any, dict]:
        """Returns `(loss, statistics)` of one minibatch.

        Two statistics are added, and replace any with the same name: `total_loss`, which is this loss, and `cur_lr`.

        Args:
            model: the model in training mode.
            out: the model's outputs for the minibatch, from one forward pass; see `forward`.
            batch: the columns of `loss_columns`, [B, ...], which the loss must not change; with memory also `state_in`,
                one row for each sequence; if the plan has `updated_targets`, also the columns that `targets` returns.
            mask: [B] 1 for a real row, 0 for padding.
            coefficients: numbers that change between updates: `lr`, each config key that can have a schedule, the
                numbers of `first_numbers`, and `num_updates`, the number of gradient steps before this one. If there
                are running statistics, `running_statistics` maps each name to a dict of `mean`, `deviation` and, for
                `RunningReturns`, `largest`. `parts` is a frozenset of the parts of the model that make this
                gradient step, by the plan's `every`; the loss may leave out the terms and statistics of other parts.
        """

    def first_numbers(self) -> dict[str, float]:
        """Returns the initial values of numbers that adapt between updates, such as the weight of a penalty."""
        return {}

    def after_update(
        self, numbers: Mapping[str, float], statistics: dict[str, Any]
    ) -> tuple[Mapping[str, float], dict[str, Any]]:
        """Returns the next values of the numbers, and the statistics to report, after the update of one batch.

        By default both are unchanged.
        """
        return numbers, statistics


def rates_by_part(lr: float, **rates: float | None) -> dict[str, float]:
    """Returns part of the model -> learning rate, for `learning_rates`; a rate of None becomes `lr`."""
    return {part: lr if rate is None else rate for part, rate in rates.items()}


def _fields_for_policies(config: TrainerConfig) -> TrainerConfig:
    own = config.model_copy()
    for name in TrainerConfig.model_fields.keys() - _COMMON:
        del vars(own)[name]
    return own


def _restored(kind: type[BaseAlgorithm], state: dict[str, Any]) -> BaseAlgorithm:
    algorithm = object.__new__(kind)
    vars(algorithm).update(state, _content=content_of(tuple(state.values())))
    return algorithm
