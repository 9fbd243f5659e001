"""Experiment files: the training run that a YAML or JSON file describes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rollax.config import TrainerConfig
from rollax.config.field_group import refuse_two_envs
from rollax.config.json_form import GIVEN, Trust, cluster_in, decode_config, given_fields, missing_code
from rollax.core.importing import StoredCode, named_by_caller
from rollax.core.plain_yaml import read_yaml
from rollax.errors import ConfigError, corrected, nearest
from rollax.runs.stopping import checked_stop

_OTHER_NAMES = {
    **dict.fromkeys(("algo", "algorithm", "trainer"), "it is 'run' here"),
    **dict.fromkeys(("checkpoint_freq", "checkpoint_frequency"), "give --checkpoint-frequency on the command line"),
}


OTHER_SECTIONS = ("search", "zoo", "measured")
"""Sections that a file may have besides its experiment: of `rollax tune`, and of an entry of the zoo."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One training run; `run` and `env` are None if the config or a checkpoint has them.

    `preset` is the name of a preset; keys of `config` replace keys of the preset. For a config with all keys, such as
    the `config.json` of a run, `given` has the keys that the run had set; else it is None.
    """

    run: str | None = None
    env: str | StoredCode | None = None
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stop: Mapping[str, float] = dataclasses.field(default_factory=dict)
    preset: str | None = None
    loggers: Sequence[Any] | None = None
    given: Collection[str] | None = None


def read_experiment(path: Path, *, trust_code: bool = False) -> Experiment:
    """Returns the experiment of a YAML or JSON file; imports only rollax's own policies unless `trust_code`.

    Other code that the file names is not imported then: it is a `StoredCode` or a plain string.
    """
    content, where = _read_sections(path), str(path)
    refuse_two_envs(content.get("env"), content.get("config"), f"{where}: env, config.env")
    config, run = content.get("config") or {}, content.get("run")
    trust: Trust = "everything" if trust_code else "nothing"
    decoded = decode_config(config, trust=trust)
    if not trust_code and (cluster := cluster_in(decoded)) is not None:
        what = "The experiment file names a Ray cluster, which is not joined without trust in the file."
        raise ConfigError(what, f"{where}: config.{cluster[0]}", cluster[1]).expected(
            "no address, or --trust-code",
            "pass --set ray_address=... in its place; or --trust-code if you trust the file",
        )
    return Experiment(
        run=named_by_caller(run) if trust_code else run,
        env=decode_config({"env": content.get("env")}, trust=trust)["env"],
        config=decoded,
        stop=checked_stop(content.get("stop") or {}, f"{where}: stop"),
        preset=content.get("preset"),
        loggers=content.get("loggers"),
        # The field lambda_ is the key `lambda`.
        given=[name.rstrip("_") for name in given_fields(config, TrainerConfig)] if GIVEN in config else None,
    )


def override(
    base: Experiment,
    *,
    run: str | None,
    env: str | None,
    config: Mapping[str, Any],
    stop: Mapping[str, float],
    preset: str | None = None,
) -> Experiment:
    """Returns `base` updated by arguments or options; nested config sections are merged key by key."""
    whole = merged(base.config, config)
    used_env = base.env if env is None else env  # instead of the env in the config
    for code in missing_code(whole if used_env is None else {**whole, "env": used_env}):
        raise code.error()
    return Experiment(
        run=base.run if run is None else run,
        env=used_env,
        config=whole,
        stop={**base.stop, **stop},
        preset=base.preset if preset is None else preset,
        loggers=base.loggers,
        given=None if base.given is None else [*base.given, *config],
    )


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `base` updated by `over`, recursively."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def _read_sections(path: Path) -> dict[str, Any]:
    """Returns the sections of an experiment file, each of its type or None."""
    try:
        content = read_yaml(path)
    except OSError as error:
        fix = "check the path and the permissions of the file"
        raise ConfigError("The experiment file cannot be read.", str(path), error.strerror).fix(fix) from error
    except (yaml.YAMLError, ValueError) as error:
        fix = "correct it: indent with spaces, and put text with special characters into quotation marks"
        raise ConfigError("The experiment file is not valid YAML.", where=str(path), got=str(error), fix=fix) from error
    where = str(path)
    if not isinstance(content, dict):
        raise ConfigError.is_not("The experiment file", "a mapping of keys", where, content).expected(
            "keys run, env, config, stop, preset",
            "begin each line with one of these keys and a colon, as in `run: PPO`",
        )
    _refuse_unknown(content, where)
    sections = ("run", str), ("env", str), ("config", dict), ("stop", dict), ("preset", str), ("loggers", list)
    for key, kind in sections:
        if content.get(key) is not None and not isinstance(content[key], kind):
            raise ConfigError(
                "A section of the experiment file has the wrong type.", f"{where}: {key}", content[key]
            ).expected(
                kind.__name__,
                f"write one name after `{key}:`" if kind is str else f"write its items below `{key}:`, indented",
            )
    return content


def _refuse_unknown(content: Mapping[Any, Any], where: str) -> None:
    """Raises ConfigError for the first key that an experiment does not have."""
    known = [field.name for field in dataclasses.fields(Experiment) if field.name != GIVEN]
    for key, value in content.items():
        if key in known or key in OTHER_SECTIONS:
            continue
        fix = _OTHER_NAMES.get(key)
        if fix is None and isinstance(value, Mapping) and "run" in value:
            fix = f"a file has one experiment: move the keys of {key!r} to the top"
        if fix is None and (key in TrainerConfig.model_fields or corrected(str(key), known) is None):
            fix = f"use one of: {', '.join(known)}; keys of the algorithm go under config"
        raise ConfigError("Unknown key.", where=where, got=key, fix=fix or nearest(str(key), known))
