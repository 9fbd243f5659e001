"""The experiment to train, from a file and the command line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from rollax.cli.yaml_files import parse_yaml, read_yaml
from rollax.config.stored import decode_config, missing_code
from rollax.errors import ConfigError
from rollax.runs.stopping import StopConditions, refuse_unknown_keys


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One training run.

    Args:
        run: the algorithm's name; None if a checkpoint names it.
        env: a Gymnasium id, a registered name or `module:Class`; None if the config or a checkpoint names it.
        config: the algorithm's settings.
        stop: the stop conditions.
    """

    run: str | None = None
    env: str | None = None
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stop: StopConditions = dataclasses.field(default_factory=StopConditions)


def read_experiment(path: Path, *, trust_code: bool = False) -> Experiment:
    """Returns the experiment of a YAML or JSON file with the keys run, env, config and stop, such as a `config.json`.

    Args:
        path: the file.
        trust_code: import all code that it names; otherwise only the code of the fields that hold code.
    Raises:
        ConfigError: the file cannot be read or parsed, or a key or its type is wrong.
    """
    try:
        content = read_yaml(path)
    except OSError as error:
        raise ConfigError("An experiment file that cannot be read.", where=str(path), got=error.strerror) from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError("An experiment file that is not valid YAML.", where=str(path), got=str(error)) from error
    where = str(path)
    if not isinstance(content, dict):
        raise ConfigError(
            "An experiment file without keys.", where=where, got=content, expected="keys run, env, config, stop"
        )
    refuse_unknown_keys(content, [field.name for field in dataclasses.fields(Experiment)], where)
    for key, kind in (("run", str), ("env", str), ("config", dict), ("stop", dict)):
        if content.get(key) is not None and not isinstance(content[key], kind):
            raise ConfigError(
                "A section of the wrong type.", where=f"{where}: {key}", got=content[key], expected=kind.__name__
            )
    return Experiment(
        run=content.get("run"),
        env=content.get("env"),
        config=decode_config(content.get("config") or {}, trust="everything" if trust_code else "code fields"),
        stop=StopConditions.from_mapping(content.get("stop") or {}, f"{where}: stop"),
    )


def parse_config(text: str, option: str = "--config") -> dict[str, Any]:
    """Returns the dict of an option's JSON object; the fields that hold code accept "module:Name".

    Raises:
        ConfigError: it is not a JSON object.
    """
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"Not valid JSON: {error}.",
            where=option,
            got=text,
            expected="a JSON object",
            fix=f"""quote it for the shell, as in {option}='{{"key": 4000}}'""",
        ) from error
    if not isinstance(config, dict):
        raise ConfigError("Not a JSON object.", where=option, got=text, expected='as in {"key": 4000}')
    return decode_config(config, trust="code fields")


def parse_settings(texts: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """Returns the config of settings such as `lr=1e-4` or `model.fcnet_hiddens=[64,64]`: dotted keys, YAML values.

    The fields that hold code accept "module:Name".

    Raises:
        ConfigError: a setting is not KEY=VALUE, its value is not YAML, or a key is repeated.
    """
    config: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        *outer, last = key.split(".")
        if not equals or not last or not all(outer):
            expected = "KEY=VALUE, as in lr=1e-4 or model.fcnet_hiddens=[64,64]"
            raise ConfigError("Not a setting.", where=option, got=text, expected=expected)
        inside: Any = config
        for part in outer:
            inside = inside.setdefault(part, {}) if isinstance(inside, dict) else None
        if not isinstance(inside, dict) or last in inside:
            raise ConfigError(f"{key} is given twice.", where=option, got=text, fix="leave one of them out")
        try:
            inside[last] = parse_yaml(value)
        except (yaml.YAMLError, ValueError) as error:
            raise ConfigError("A value that is not valid YAML.", where=option, got=f"{text} ({error})") from error
    return decode_config(config, trust="code fields")


def override(
    base: Experiment, *, run: str | None, env: str | None, config: Mapping[str, Any], stop: StopConditions
) -> Experiment:
    """Returns `base` updated by the command line; nested config sections are merged key by key.

    Raises:
        ConfigError: code remains that was not imported, because its field holds no code or it has no path.
    """
    config = merged(base.config, config)
    for code in missing_code(config):
        raise code.error()
    return Experiment(
        run=base.run if run is None else run,
        env=base.env if env is None else env,
        config=config,
        stop=dataclasses.replace(base.stop, **stop.given),
    )


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `base` updated by `over`, recursively."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result
