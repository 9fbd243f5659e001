"""The fields that all algorithms share, and how a plain dict becomes a config."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from gymnasium.spaces import Space
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, StrictBool, ValidationError, model_validator

from rollax.config.contributed import FieldsOfEveryConfig
from rollax.config.field_group import ENABLED, SCHEDULE, inherited, refuse_out_of_place, refuse_without_effect
from rollax.config.field_types import EnvWrappers, OwnClass, OwnClasses, SchedulePoints, written_by_caller
from rollax.config.multiagent import MultiAgentConfig
from rollax.config.workers import WorkerFields
from rollax.core.frozen import FrozenModel, fields_by_key, too_deep
from rollax.core.other_names import OtherNamesOfConfig
from rollax.core.schedules import Schedule
from rollax.core.spaces import check_space
from rollax.errors import ConfigError
from rollax.models.config import ModelConfig

_ABSENT = object()
_OF_ANY_MODEL = ("custom_model", "max_seq_len")  # may stand beside a custom model, which may have memory
_LAYERS = tuple(f"model.{name}" for name in ModelConfig.model_fields if name not in _OF_ANY_MODEL)
_RECURRENT = ({"model.use_lstm": True}, {"model.use_gru": True})
_OF_ATTENTION = tuple(name for name in _LAYERS if name.startswith("model.attention_"))


class TrainerConfig(OtherNamesOfConfig, WorkerFields, FieldsOfEveryConfig, FrozenModel):
    """The fields that all algorithms share. Wrong values raise ConfigError, from a dict and from keywords alike."""

    model_config = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False, populate_by_name=True)

    requires = {
        ("remote_env_batch_wait_ms", "remote_env_timeout_s"): {"remote_worker_envs": True},
        # A centralized critic has the default layers, also if the actor is a custom model.
        _LAYERS: [{"model.custom_model": None}, {"centralized_critic": True}],
        "model.vf_share_layers": {"model.custom_model": None, "centralized_critic": (None, False)},
        "model.log_std_init": {"model.free_log_std": True},
        "model.lstm_cell_size": _RECURRENT,
        _OF_ATTENTION: {"model.use_attention": True},
        "model.normalize_before_activation": {"model.normalization": ENABLED},
        "model.custom_model_config": {"model.custom_model": ENABLED},
    }

    places = {
        (
            *("env", "env_config", "env_wrappers", "observation_space", "action_space"),
            *("explore", "seed", "callbacks", "sampler"),
            *("remote_worker_envs", "remote_env_batch_wait_ms", "remote_env_timeout_s", "multiagent"),
            "restart_failed_sub_environments",
        ): ("evaluation",),
        (
            *("gamma", "lr", "lr_schedule", "adam_epsilon", "grad_clip", "accept_off_policy_actions"),
            "observation_filter",  # policies act on the observations that they were trained on
        ): ("policy",),
        (
            *("action_repeat", "frame_stack"),  # policies act on the steps and observations that they were trained on
            *("rollout_fragment_length", "batch_mode", "count_steps_by", "sample_async", "max_policy_lag"),
            *("evaluation_interval", "evaluation_num_episodes", "evaluation_num_workers", "evaluation_config"),
            "evaluation_parallel_to_training",
            *("train_batch_size", "metrics_num_episodes_for_smoothing"),
            *("timesteps_per_iteration", "min_time_s_per_iteration"),
        ): (),
    }

    in_evaluation = {
        "num_workers": 0,
        "evaluation_config": {},
        "evaluation_interval": None,
        "evaluation_num_workers": 0,
        "evaluation_parallel_to_training": False,
    }

    # Environment
    env: Any = Field(
        default=None,
        description="the environment: a Gymnasium id, a registered name, 'module:Class', an environment class, or a "
        "function of one EnvContext",
    )
    env_config: dict[str, Any] = Field(
        default={}, description="settings of the environment, which gets them as an EnvContext"
    )
    env_wrappers: EnvWrappers = Field(
        default=(),
        description="wrappers of each sub-environment, the innermost first: classes or functions of one environment, "
        "or their paths 'module:Class', each alone or in a list with its keyword arguments, [wrapper, {...}]",
    )
    observation_space: Space | None = Field(
        default=None, description="space of one agent's observations; None: the environment's"
    )
    action_space: Space | None = Field(
        default=None, description="space of one agent's actions; None: the environment's"
    )
    action_repeat: int = Field(
        default=1,
        ge=1,
        description="environment steps for which each action is taken, or until the episode ends; together they count "
        "as one step, with the sum of their rewards",
    )
    frame_stack: int = Field(
        default=1,
        ge=1,
        description="number of latest observations that a policy sees at once, the newest last; an episode begins with "
        "copies of its first observation",
    )
    clip_rewards: StrictBool | PositiveFloat | None = Field(
        default=None,
        description="a number c clips the rewards used for learning to [-c, c]; true keeps only their sign; results "
        "report the rewards of the environment",
    )
    normalize_actions: bool = Field(
        default=True,
        description="scale actions from the policy's [-1, 1] to [low, high] where a Box action space has both bounds",
    )
    clip_actions: bool = Field(
        default=True, description="clip actions to the bounds of a Box action space before they reach the environment"
    )
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = Field(
        default="NoFilter",
        description="MeanStdFilter standardizes observations by their running mean and standard deviation before the "
        "policy sees them",
    )

    # Sampling
    remote_worker_envs: bool = Field(
        default=False,
        description="whether each sub-environment runs in its own Ray actor, so that they step in parallel",
    )
    remote_env_batch_wait_ms: float = Field(
        default=0.0,
        ge=0,
        description="milliseconds to wait for further remote sub-environments once one is ready: 0 acts in those that "
        "are ready, a large number steps all in lockstep",
    )
    remote_env_timeout_s: float | None = Field(
        default=None,
        gt=0,
        description="seconds after which a remote step or reset counts as hung and its process is replaced; None: no "
        "limit",
    )
    restart_failed_sub_environments: bool = Field(
        default=False,
        description="whether a sub-environment that raises is recreated and its episode dropped; false: the error is "
        "raised",
    )
    rollout_fragment_length: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto",
        description="steps of each sub-environment in one fragment; auto: as many as fill train_batch_size",
    )
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = Field(
        default="truncate_episodes",
        description="truncate_episodes: a fragment may end inside an episode; "
        "complete_episodes: fragments contain whole episodes only",
    )
    explore: bool = Field(
        default=True, description="whether actions explore, by sampling or noise; false: greedy actions"
    )
    count_steps_by: Literal["env_steps", "agent_steps"] = Field(
        default="env_steps", description="what counts as a step in train_batch_size, timesteps_total and schedules"
    )
    seed: int | None = Field(
        default=None, ge=0, description="seed of environments, weights and sampling; None: a different one in every run"
    )
    accept_off_policy_actions: bool = Field(
        default=False,
        description="whether an on-policy algorithm learns from actions that the environment logged, as if its policy "
        "had chosen them; false: they are an error",
    )
    sample_async: bool | None = Field(
        default=None,
        description="whether a separate thread samples while the trainer learns; samples that arrive faster than it "
        "learns are dropped; None: only for a PolicyServerEnv, whose clients then do not wait for updates",
    )
    max_policy_lag: int | None = Field(
        default=2,
        ge=0,
        description="an on-policy algorithm learns only from actions of weights that are at most so many updates old; "
        "older ones, from a background thread or from clients with local inference, are dropped; None: no limit",
    )
    callbacks: OwnClasses | None = Field(
        default=None,
        description="a class whose methods are called at the start, step and end of episodes, and for each fragment "
        "and result, or a list of such classes",
    )
    sampler: OwnClass | None = Field(
        default=None, description="a subclass of rollax.Sampler that replaces the sampling loop; None: the default loop"
    )

    # Learning
    train_batch_size: int = Field(default=200, ge=1, description="steps that one update learns from")
    timesteps_per_iteration: int = Field(
        default=0,
        ge=0,
        le=10**9,
        description="minimum number of steps that one train() adds to timesteps_total; 0: one call of the optimizer",
    )
    min_time_s_per_iteration: float = Field(default=0.0, ge=0, description="minimum number of seconds of one train()")
    gamma: float = Field(default=0.99, ge=0, le=1, description="γ, the discount of rewards per step")
    lr: float = Field(default=1e-3, ge=0, description="α, step size of the optimizer")
    lr_schedule: SchedulePoints | None = Field(
        default=None, description="[[timestep, lr], ...], linear in between, constant outside; replaces lr"
    )
    adam_epsilon: float = Field(
        default=1e-8, gt=0, description="ε of Adam, added to the root of the mean squared gradient"
    )
    grad_clip: float | None = Field(
        default=None,
        gt=0,
        description="bound on the global norm of the gradient; in SAC, DDPG, TD3, IQL, CQL and their variants on the "
        "norm of each part, such as the actor or all critics together; None: no bound",
    )
    model: ModelConfig = Field(default=ModelConfig(), description="keys of the network of every policy")
    multiagent: MultiAgentConfig = Field(
        default=MultiAgentConfig(), description="the policies, and which policy acts for which agent"
    )

    # Evaluation and reporting
    evaluation_interval: int | None = Field(
        default=None, ge=1, description="training iterations between two greedy evaluations; None: no evaluation"
    )
    evaluation_num_episodes: int = Field(default=10, ge=1, description="episodes of one evaluation")
    evaluation_num_workers: int = Field(
        default=0,
        ge=0,
        le=2**15 - 1,
        description="number of processes that evaluate, as further Ray actors; 0: the trainer's process evaluates",
    )
    evaluation_parallel_to_training: bool = Field(
        default=False,
        description="evaluate while an iteration trains, with the policies that it begins with; false: after it",
    )
    evaluation_config: dict[str, Any] = Field(
        default={}, description="config keys that differ in evaluation; explore is false unless it is set here"
    )
    metrics_num_episodes_for_smoothing: int = Field(
        default=100,
        ge=1,
        description="number of latest episodes that means, minima and maxima of a result summarize; all episodes of "
        "its iteration if there are more",
    )

    # Type checkers see the constructor that the fields imply.
    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            self._fill(written_by_caller(values))
            refuse_without_effect(self, self.model_fields_set, {})
            self._refuse_out_of_place(self.model_fields_set)

    def _fill(self, values: Mapping[str, Any]) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            from rollax.config.validation_errors import config_error

            raise config_error(type(self), error) from None
        except RecursionError:
            keys = [key for key, value in values.items() if too_deep(value)]
            if not keys:
                raise  # from a `check` or validator of the user
            raise ConfigError(
                "The value has too many levels, or contains itself.",
                f"config key {', '.join(map(repr, keys))} ({type(self).__name__})",
            ).expected("a value of fewer levels, which does not contain itself", "correct the value") from None

    @classmethod
    def _derived(cls, values: Mapping[str, Any], given: Collection[str], changes: Mapping[str, Any]) -> Self:
        """The config of `values`, some replaced by `changes`; `given` names the values that were set.

        A change without effect is refused.
        """
        changes, values = by_name(cls, changes), by_name(cls, values)
        config = cls.__new__(cls)
        config._fill({**values, **changes})
        refuse_without_effect(config, changes, values)
        config._refuse_out_of_place(changes)
        config.model_fields_set.intersection_update({*given, *changes})
        return config

    def _refuse_out_of_place(self, given: Collection[str]) -> None:
        """Refuses keys without effect in `evaluation_config` and in the specs of policies, if these are `given`."""
        if self.evaluation_config and "evaluation_config" in given:
            given_there, resolved = by_name(type(self), self.evaluation_config), self.for_evaluation()
            fixed = inherited(type(self), "in_evaluation")
            changes = {
                key: value if key in fixed else getattr(resolved, key)
                for key, value in given_there.items()
                if value != fixed.get(key, _ABSENT)
            }
            refuse_out_of_place(self, "evaluation", changes, "evaluation_config")
        if "multiagent" in given:
            for policy_id, spec in self.multiagent.policies.items():
                if isinstance(spec, tuple) and len(spec) == 4 and isinstance(spec[3], Mapping):
                    where = f"multiagent.policies[{policy_id!r}]"
                    refuse_out_of_place(self, "policy", by_name(type(self), spec[3]), where)

    @model_validator(mode="after")
    def _checked_together(self) -> Self:
        self.check()
        return self

    def check(self) -> None:
        """Refuses values that contradict each other, and spaces that no policy can use; a subclass extends it."""
        super().check()
        for name in ("observation_space", "action_space"):
            if (space := getattr(self, name)) is not None:
                check_space(space, f"config key '{name}'")
        self.multiagent.check()
        # Not among `requires`, so that both keys of a stored config can be changed at once.
        if self.evaluation_parallel_to_training and not self.evaluation_num_workers:
            where = "config keys 'evaluation_parallel_to_training' and 'evaluation_num_workers'"
            raise ConfigError("No process evaluates while this one trains.", where, "True and 0").expected(
                "evaluation_num_workers of 1 or more", "set it, or leave evaluation_parallel_to_training out"
            )
        if self.evaluation_config:
            try:
                self.for_evaluation()
            except ConfigError as error:
                raise ConfigError(f"evaluation_config is invalid. {error}") from None

    def refuse_larger(self, part: str, whole: str) -> None:
        if getattr(self, part) > getattr(self, whole):
            raise ConfigError(
                f"{part} is larger than {whole}.",
                f"config keys '{part}' and '{whole}'",
                f"{part}={getattr(self, part)}, {whole}={getattr(self, whole)}",
            ).expected(f"{part} <= {whole}", f"lower {part}, or raise {whole}")

    @property
    def fragment_length(self) -> int:
        """Env steps of each sub-environment in one fragment."""
        if self.rollout_fragment_length == "auto":
            return -(-self.train_batch_size // (self.num_envs_per_worker * self._workers_of_a_batch))
        return self.rollout_fragment_length

    @property
    def _workers_of_a_batch(self) -> int:
        """The number of workers whose fragments together fill a train batch."""
        return max(self.num_workers, 1)

    @classmethod
    def scheduled_fields(cls) -> list[str]:
        """The fields that a schedule may replace: each `x` for which a field `x_schedule` exists."""
        names = (name.removesuffix(SCHEDULE) for name in cls.model_fields if name.endswith(SCHEDULE))
        return [name for name in names if name in cls.model_fields]

    def schedule(self, name: str) -> Schedule:
        """The value of the field `name` over the sampled steps: its `_schedule` if it is set, else constant."""
        points = getattr(self, name + SCHEDULE, None)
        return Schedule(getattr(self, name) if points is None else points, where=f"config key '{name}{SCHEDULE}'")

    def changed(self, **changes: Any) -> Self:
        """The same config with some keys replaced; it is checked again."""
        return resolve_config(type(self), self, **changes)

    def _with(self, changes: Mapping[str, Any]) -> Self:
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return self._derived(values, self.model_fields_set, changes)

    def for_policy(self, config_class: type[TrainerConfig] | None, **changes: Any) -> TrainerConfig:
        """The config of one policy, with some keys changed.

        A policy with another `config_class` takes over only the keys that all algorithms have and that were set here.
        With None, the policy has this whole config.
        """
        if config_class is None or config_class is type(self):
            return self._with(changes) if changes else self
        # Not taken over: `train_batch_size`, which is the trainer's and is compared with fields of the trainer's
        # algorithm, and `evaluation_config`, which may have keys of that algorithm.
        others = {"train_batch_size", "evaluation_config"}
        common = (self.model_fields_set & TrainerConfig.model_fields.keys()) - others
        return config_class._derived({name: getattr(self, name) for name in common}, common, changes)

    def for_evaluation(self, explore: bool | None = None) -> Self:
        """The config of evaluation: greedy, with the changes of `evaluation_config`, without evaluation and output.

        `explore` replaces the value in `evaluation_config`.
        """
        values = {name: getattr(self, name) for name in type(self).model_fields}
        changes = {**self.evaluation_config, **inherited(type(self), "in_evaluation")}
        values["explore"] = False  # not in `changes`, which must have an effect
        if explore is not None:
            values["explore"] = changes["explore"] = explore
        return self._derived(values, {*self.model_fields_set, "explore"}, changes)

    def to_json(self) -> dict[str, Any]:
        """Every field as plain JSON values, and "given", the names of the fields that were set.

        Classes and functions are stored by their import path; {"$code": null} is one without a path.
        """
        from rollax.config.json_form import encode_config

        return encode_config(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, trust_code: bool = False, **changes: Any) -> Self:
        """The config that `to_json` stored, with some keys replaced.

        Args:
            data: what `to_json` returned.
            trust_code: import stored classes and functions. Without it only rollax's own policies are imported, and a
                `StoredCode`, which raises when it is called, replaces the rest.
        Raises:
            ConfigError: unknown keys, wrong values, a change without effect, or code that does not import.
        """
        return cls.of_stored(data, written_by_caller(changes), trust_code=trust_code)

    @classmethod
    def of_stored(cls, data: Mapping[str, Any], changes: Mapping[str, Any], *, trust_code: bool) -> Self:
        """As `from_json`; strings in `changes` are never imported, because they may come from a stored config."""
        from rollax.config.json_form import decode_config, given_fields

        values = decode_config(data, trust="everything" if trust_code else "nothing")
        return cls._derived(values, given_fields(data, cls), changes)


Config = TypeVar("Config", bound=TrainerConfig)


def resolve_config(
    config_class: type[Config], config: Mapping[str, Any] | TrainerConfig | None = None, /, **overrides: Any
) -> Config:
    """Returns a checked config of the class `config_class`.

    Args:
        config: a plain dict; or a config of this class or a subclass, whose class is kept; or None for the defaults.
        overrides: keys that replace keys of `config`; a nested dict such as `model` is replaced as a whole.
    Raises:
        ConfigError: an unknown key, a wrong type or range, values that contradict each other, or a key without effect
            (if `config` is a config object, an override without effect).
    """
    if isinstance(config, config_class):
        return config._with(written_by_caller(overrides)) if overrides else config
    if config is None or (isinstance(config, Mapping) and all(isinstance(key, str) for key in config)):
        values = dict(config or {})
    else:
        raise ConfigError(
            "This is not a config of this algorithm.", None, f"{type(config).__name__}: {config!r}"
        ).expected(
            f"a {config_class.__name__}, or a dict with strings as keys", "pass one of these, such as {'gamma': 0.99}"
        )
    return config_class(**{**by_name(config_class, values), **by_name(config_class, overrides)})


def config_of_values(config_class: type[Config], values: Mapping[str, Any], given: Collection[str]) -> Config:
    """A checked config of all `values`; a key counts as set if it is `given` or differs from its default.

    Policies of another algorithm do not take over what was not set; see `TrainerConfig.for_policy`.
    """
    config, given = resolve_config(config_class, values), by_name(config_class, dict.fromkeys(given))
    defaults = {name: field.default for name, field in config_class.model_fields.items() if name not in given}
    config.model_fields_set.difference_update(name for name in defaults if getattr(config, name) == defaults[name])
    return config


def by_name(config_class: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values by the names of their fields: the key `lambda` becomes `lambda_`."""
    names = fields_by_key(config_class)
    return {names.get(key, key): value for key, value in values.items()}
