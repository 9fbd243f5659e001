"""Which config keys leave others without effect, and the refusal of a key that is given and would have none."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from rollax.errors import ConfigError
from rollax.models.config import ModelConfig

Overrules = Mapping[tuple[str, ...], tuple[str, ...]]
"""Keys -> the keys without effect while all of the former are set. A key that is None or false is not set."""

FirstValues = Mapping[str, tuple[str, ...]]
"""Key of a first value -> keys that make it count anew where they change with it."""

SCHEDULE = "_schedule"
_OF_CUSTOM_MODELS = {"custom_model", "custom_model_config", "max_seq_len"}


def refuse_overruled(config: BaseModel, given: Collection[str]) -> None:
    """Refuses a key that is given while others overrule it.

    Every field `x_schedule` overrules `x`; a class adds its own in `overrules`, beside its fields.

    Args:
        config: the whole config.
        given: the fields that somebody has just given a value; the others may be overruled.
    Raises:
        ConfigError: the first such key, with those to unset.
    """
    for stronger, weaker in _rules(type(config)):
        if not all(map(_is_set, (getattr(config, name) for name in stronger))):
            continue
        for name in weaker:
            if name in given and getattr(config, name) is not None:
                raise _without_effect(config, name, stronger)


def refuse_overruled_layers(model: ModelConfig) -> None:
    """Refuses keys of the default layers beside a custom model, which replaces all of those.

    Raises:
        ConfigError: the first such key that is not left at its default.
    """
    for name, field in ModelConfig.model_fields.items():
        if name not in _OF_CUSTOM_MODELS and getattr(model, name) != field.default:
            raise ConfigError(
                f"{name} has no effect: custom_model overrules it.",
                where=f"config key 'model.{name}'",
                got=f"{name}={getattr(model, name)!r}, with custom_model={model.custom_model!r}",
                expected=f"{name} without a custom_model, or not at all",
                fix=f"leave {name} out, or hand it to the model: custom_model_config={{'{name}': ...}}",
            )


def refuse_first_values(config: BaseModel, given: Collection[str], stored: Mapping[str, Any], path: Any) -> None:
    """Refuses a new first value of what goes on from a checkpoint: a class names those fields in `first_values`.

    Args:
        config: with the changes.
        given: the fields that are changed.
        stored: the config's values in the checkpoint.
        path: of the checkpoint.
    Raises:
        ConfigError: the first such field that is another one than in the checkpoint, and not 0 in one of them.
    """
    rules = (rule for base in type(config).__mro__ for rule in vars(base).get("first_values", {}).items())
    for name, switches in rules:
        new, old = getattr(config, name), stored[name]
        begins_anew = not (new and old) or any(getattr(config, switch) != stored[switch] for switch in switches)
        if name in given and new != old and not begins_anew:
            raise ConfigError(
                f"{name} has no effect: it is a first value, and the checkpoint holds what has become of it.",
                where=f"config key '{name}' ({type(config).__name__}), for {path}",
                got=new,
                expected=f"{old!r}, as it was",
                fix=f"leave {name} out, or begin a new run with it",
            )


def _is_set(value: Any) -> bool:
    """Whether a key of this value overrules what it may overrule."""
    return value is not None and value is not False


def _rules(config_class: type[BaseModel]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    fields = config_class.model_fields
    for name in fields:
        if name.endswith(SCHEDULE) and name.removesuffix(SCHEDULE) in fields:
            yield (name,), (name.removesuffix(SCHEDULE),)
    for base in config_class.__mro__:
        yield from vars(base).get("overrules", {}).items()


def _without_effect(config: BaseModel, name: str, stronger: tuple[str, ...]) -> ConfigError:
    values = ", ".join(f"{other}={getattr(config, other)!r}" for other in stronger)
    unset = " or ".join(f"{other}={False if getattr(config, other) is True else None}" for other in stronger)
    return ConfigError(
        f"{name} has no effect: {' and '.join(stronger)} {'overrules' if len(stronger) == 1 else 'overrule'} it.",
        where=f"config key '{name}' ({type(config).__name__})",
        got=f"{name}={getattr(config, name)!r}, with {values}",
        expected=f"{name} alone, or not at all",
        fix=f"set {unset} as well, or leave {name} out",
    )
