"""Settings of the command line, parsed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rollax.errors import ConfigError

_QUANTITIES = {
    "stop_reward": "episode_reward_mean",
    "stop_evaluation_reward": "evaluation_reward_mean",
    "stop_timesteps": "timesteps_total",
    "stop_iterations": "training_iteration",
    "stop_time": "time_total_s",
    "stop_plateau": "iterations_without_improvement",
}
"""Option -> the quantity of a result that it limits."""


def parse_config(text: str, option: str = "--config") -> dict[str, Any]:
    """Returns the JSON object of an option as a dict; "module:Name" is imported in fields for classes and functions."""
    from rollax.config.json_form import decode_config

    config = parse_json(text, option, "a JSON object", '{"key": 4000}')
    if not isinstance(config, dict):
        fix = f"""put keys and values into braces, as in {option}='{{"key": 4000}}'"""
        raise ConfigError("The option is not a JSON object.", where=option, got=text, expected="an object", fix=fix)
    return decode_config(config, trust="code fields")


def parse_json(text: str, option: str, expected: str, example: str) -> Any:
    """Returns the JSON value of an option; the error shows an example of what is expected."""
    from rollax.core.storage import parsed_json

    try:
        return parsed_json(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"The option is not valid JSON: {error}.", option, text).expected(
            expected, f"quote it for the shell, as in {option}='{example}'"
        ) from error


def parse_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Returns the config of settings such as `lr=1e-4` or `model.fcnet_hiddens=[64,64]`: dotted keys, YAML values."""
    from rollax.config.json_form import decode_config

    config: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        *outer, last = key.split(".")
        if not equals or not last or not all(outer):
            raise ConfigError.is_not("The setting", "a key and a value", "--set", text).expected(
                "KEY=VALUE", "write --set lr=1e-4 or --set 'model.fcnet_hiddens=[64, 64]'"
            )
        inside: Any = config
        for part in outer:
            inside = inside.setdefault(part, {}) if isinstance(inside, dict) else None
        if not isinstance(inside, dict) or last in inside:
            raise ConfigError(f"{key} is given twice.", where="--set", got=text, fix="leave one of them out")
        inside[last] = _value(value, "--set", text)
    return decode_config(config, trust="code fields")


def parse_stop(options: Mapping[str, Any]) -> dict[str, float]:
    """Returns the stop conditions among options by name; None is not set. ConfigError for a wrong value."""
    from rollax.runs.stopping import checked_stop

    flags = {quantity: f"--{option.replace('_', '-')}" for option, quantity in _QUANTITIES.items()}
    return checked_stop({quantity: options.get(option) for option, quantity in _QUANTITIES.items()}, flags)


def parse_loggers(texts: Iterable[str]) -> list[dict[str, Any]]:
    """Returns `{name: settings}` for each text, as in `csv`, `wandb:project=me,tags=[a,b]` and `module:Class:key=1`."""
    loggers = []
    for text in texts:
        head, equals, rest = text.partition("=")
        name, _, first = head.rpartition(":") if equals else (text, "", "")
        # A comma ends a setting only if another setting follows it, because a value may be a list.
        settings = [] if not equals else re.split(r",(?=[A-Za-z_]\w*=)", f"{first}={rest}")
        if not name:
            raise ConfigError.is_not("The logger", "a name, or a name with settings", "--logger", text).expected(
                "NAME or NAME:KEY=VALUE,...", "write --logger csv or --logger wandb:project=mine"
            )
        loggers.append({name: parse_pairs(settings, "--logger", text)})
    return loggers


def parse_pairs(pairs: Iterable[str], where: str, option: str | None = None) -> dict[str, Any]:
    """Returns key -> value of texts KEY=VALUE, whose values are YAML; errors show `option`, or without it the text."""
    values: dict[str, Any] = {}
    for pair in pairs:
        text = pair if option is None else option
        key, _, value = pair.partition("=")
        if key in values:
            raise ConfigError.twice(key, where, text)
        values[key] = _value(value, where, text)
    return values


def _value(text: str, where: str, option: str) -> Any:
    import yaml

    from rollax.core.plain_yaml import parse_yaml

    try:
        return parse_yaml(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError("The value of the setting is not valid YAML.", where, f"{option} ({error})").fix(
            "quote the setting for the shell, and a text with special characters inside it: 'KEY=\"VALUE\"'"
        ) from error
