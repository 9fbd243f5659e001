"""The space that a study searches: checked against the fields of a config, or by default derived from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo

from rollax.config.trainer import TrainerConfig, resolve_config
from rollax.config.validation_errors import nested_models, range_text
from rollax.core.frozen import FrozenModel, fields_by_key
from rollax.core.numbers import is_number, is_whole
from rollax.errors import ConfigError, RollaxError
from rollax.runs.experiment import merged
from rollax.tune.distributions import Choice, Distribution, Range, Space

_FIXED = {
    "env": "scores in different environments cannot be compared",
    "seed": "each trial trains the same seeds; pass --seeds",
    "multiagent": "the policies of all trials are the same",
    **dict.fromkeys(
        ("evaluation_interval", "evaluation_num_episodes", "evaluation_config"), "it changes how trials are scored"
    ),
}
_OF_PARTS_WITH_ANY_KEY = ("env_config", "input_config")
_MOST_KEYS = 6


_Rule = Callable[[Any], Distribution | None]


def _around(factor: float, highest: float = float("inf")) -> _Rule:
    """Numbers from the value divided by `factor` to the value times `factor`, uniform in their logarithm."""

    def range_around(value: Any) -> Range | None:
        if not is_number(value) or value <= 0:
            return None
        low, high = value / factor, min(value * factor, highest)
        if is_whole(value):
            return Range(max(1, round(low)), round(high), whole=True, log=True)
        return Range(_rounded(low), _rounded(high), log=True)

    return range_around


def _always(distribution: Distribution) -> _Rule:
    return lambda value: None if value is None else distribution


SEARCHED_BY_DEFAULT: Mapping[str, _Rule] = {
    "lr": _around(10),
    "gamma": _always(Choice((0.9, 0.95, 0.98, 0.99, 0.995, 0.999))),
    "lambda": _always(Choice((0.8, 0.9, 0.95, 0.98, 1.0))),
    "entropy_coeff": _always(Range(1e-6, 0.1, log=True)),
    "clip_param": _always(Choice((0.1, 0.2, 0.3))),
    "tau": _around(5, highest=1.0),
    "target_network_update_freq": _around(5),
    "final_epsilon": _always(Range(0.01, 0.2, log=True)),
    "noise_stdev": _around(5),
    "beta": _around(5),
    "min_q_weight": _around(5),
    "train_batch_size": lambda value: Choice((max(1, value // 2), value, 2 * value)),
}
"""Config key -> its distribution, from the value in the config; the keys that matter most come first."""


def default_space(config_class: type[TrainerConfig], config: Mapping[str, Any]) -> dict[str, Distribution]:
    """Returns the first six of `SEARCHED_BY_DEFAULT` that the algorithm has and that have an effect with `config`."""
    base = resolve_config(config_class, config)
    names, space = fields_by_key(config_class), {}
    for key, distribution_of in SEARCHED_BY_DEFAULT.items():
        distribution = distribution_of(getattr(base, names[key])) if key in names else None
        if distribution is not None and _resolve(config_class, config, key, distribution):
            space[key] = distribution
    return dict(list(space.items())[:_MOST_KEYS])


def check_space(space: Space, config_class: type[TrainerConfig], where: str) -> None:
    """Refuses keys that are unknown or may not be searched, and distributions with values that a field does not accept.

    Combinations of keys are not checked: a trial fails if it draws one that the algorithm refuses.

    Raises:
        ConfigError: names the key.
    """
    for key, distribution in space.items():
        outer = key.partition(".")[0]
        if outer in _FIXED:
            raise ConfigError(f"The key cannot be searched: {_FIXED[outer]}.", f"{where}: {key}", key).fix(
                "leave it out, and set it under config"
            )
        field = _field(config_class, key)
        if field is None:
            if outer in _OF_PARTS_WITH_ANY_KEY and "." in key:
                continue
            try:  # this error suggests a similar key
                resolve_config(config_class, nested({key: distribution.examples()[0]}))
            except ConfigError as error:
                raise error from None
            raise ConfigError.unknown("config key", key, fields_by_key(config_class), f"{where}: {key}")
        _check_values(field, key, distribution, where)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config of dotted keys: `{"model.fcnet_hiddens": [64]}` -> `{"model": {"fcnet_hiddens": [64]}}`."""
    config: dict[str, Any] = {}
    for key, value in values.items():
        *outer, last = key.split(".")
        part = {last: value}
        for name in reversed(outer):
            part = {name: part}
        config = merged(config, part)
    return config


def with_values(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config with some dotted keys replaced."""
    return merged(config, nested(values))


def _check_values(field: FieldInfo, key: str, distribution: Distribution, where: str) -> None:
    name = key.rpartition(".")[2]
    fields: dict[str, Any] = {"value": (field.annotation, _without_alias(field))}
    model = create_model("OneField", __base__=_OneField, **fields)
    for value in distribution.examples():
        try:
            model.model_validate({"value": value})
        except ValidationError as mistake:
            problem = mistake.errors()[0]["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
            fix = "correct the values"
            if isinstance(distribution, Range) and not distribution.whole and isinstance(field.default, int):
                whole = Range(int(distribution.low), int(distribution.high), True, distribution.log)
                fix = f"for whole numbers write {whole.in_words()}"
            if problem.startswith(("greater", "less")):
                problem = range_text(field, name) or problem
            error = ConfigError(f"{key} does not accept a value that is searched.", f"{where}: {key}", value)
            raise error.expected(problem, f"{fix}. {name}: {field.description or 'see its docs'}") from None


class _OneField(FrozenModel):
    """Base of a model with the field of one key, which checks its values as the config does."""

    model_config = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False, defer_build=False)


def _without_alias(field: FieldInfo) -> FieldInfo:
    found = copy(field)
    found.alias = found.validation_alias = found.serialization_alias = None
    return found


def _field(config_class: type[TrainerConfig], key: str) -> FieldInfo | None:
    """Returns the field of a key, such as `lambda` or `model.fcnet_hiddens`."""
    model: type[BaseModel] | None = config_class
    field = None
    for part in key.split("."):
        name = None if model is None else fields_by_key(model).get(part)
        if model is None or name is None:
            return None
        field = model.model_fields[name]
        model = nested_models(field.annotation)[0]
    return field


def _resolve(config_class: type[TrainerConfig], config: Mapping[str, Any], key: str, values: Distribution) -> bool:
    """Whether the config accepts the values of a key, and all of them have an effect."""
    try:
        for value in values.examples():
            resolve_config(config_class, with_values(config, {key: value}))
    except RollaxError:
        return False
    return True


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
