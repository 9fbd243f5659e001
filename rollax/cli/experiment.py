"""The experiment to train, from a file and the command line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from rollax.config import TrainerConfig
from rollax.config.field_group import refuse_two_envs
from rollax.config.json_form import GIVEN, Trust, cluster_in, decode_config, given_fields, missing_code
from rollax.core.importing import StoredCode, named_by_caller
from rollax.core.storage import parsed_json
from rollax.errors import ConfigError, corrected, nearest
from rollax.runs.stopping import checked_stop

_OTHER_NAMES = {
    **dict.fromkeys(("algo", "algorithm", "trainer"), "it is 'run' here"),
    **dict.fromkeys(("checkpoint_freq", "checkpoint_frequency"), "give --checkpoint-frequency on the command line"),
}
_MAX_BYTES = 1_000_000
_MAX_DEPTH = 50
_MAX_NODES = 100_000


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One training run; `run` and `env` are None if the config or a checkpoint has them.

    `preset` is the name of a preset, some of whose keys the config replaces. `given`: for a config with all keys, such
    as `config.json` of a run, the fields that the run had set; else None.
    """

    run: str | None = None
    env: str | StoredCode | None = None
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stop: Mapping[str, float] = dataclasses.field(default_factory=dict)
    preset: str | None = None
    loggers: Sequence[Any] | None = None
    given: Collection[str] | None = None


def read_experiment(path: Path, *, trust_code: bool = False) -> Experiment:
    """Returns the experiment of a YAML or JSON file; without `trust_code`, it imports only rollax's own policies.

    Other code that the file names is then `StoredCode`, or a plain string, which is not imported either.
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
        given=given_fields(config, TrainerConfig) if GIVEN in config else None,
    )


def read_stop(path: Path) -> dict[str, float]:
    """Returns the stop conditions of a YAML or JSON file, such as the `config.json` of a run."""
    return checked_stop(_read_sections(path).get("stop") or {}, f"{path}: stop")


def _read_sections(path: Path) -> dict[str, Any]:
    """Returns the sections of an experiment file, each of its type or None."""
    try:
        content = _read_yaml(path)
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
        if key in known:
            continue
        fix = _OTHER_NAMES.get(key)
        if fix is None and isinstance(value, Mapping) and "run" in value:
            fix = f"a file has one experiment: move the keys of {key!r} to the top"
        if fix is None and (key in TrainerConfig.model_fields or corrected(str(key), known) is None):
            fix = f"use one of: {', '.join(known)}; keys of the algorithm go under config"
        raise ConfigError("Unknown key.", where=where, got=key, fix=fix or nearest(str(key), known))


def parse_config(text: str, option: str = "--config") -> dict[str, Any]:
    """Returns the dict of an option's JSON object; the fields for code accept "module:Name"."""
    try:
        config = parsed_json(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"The option is not valid JSON: {error}.", option, text).expected(
            "a JSON object", f"""quote it for the shell, as in {option}='{{"key": 4000}}'"""
        ) from error
    if not isinstance(config, dict):
        fix = f"""put keys and values into braces, as in {option}='{{"key": 4000}}'"""
        raise ConfigError("The option is not a JSON object.", where=option, got=text, expected="an object", fix=fix)
    return decode_config(config, trust="code fields")


def parse_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Returns the config of settings such as `lr=1e-4` or `model.fcnet_hiddens=[64,64]`: dotted keys, YAML values."""
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
        try:
            inside[last] = _parse_yaml(value)
        except (yaml.YAMLError, ValueError) as error:
            raise ConfigError("The value of the setting is not valid YAML.", "--set", f"{text} ({error})").fix(
                "quote it for the shell, as in --set 'KEY=VALUE', and text with special characters once more"
            ) from error
    return decode_config(config, trust="code fields")


def parse_loggers(texts: Iterable[str]) -> list[dict[str, Any]]:
    """Returns the loggers of texts such as `csv`, `wandb:project=mine,tags=[a,b]` and `module:Class:key=value`."""
    loggers = []
    for text in texts:
        head, equals, rest = text.partition("=")
        name, _, first = head.rpartition(":") if equals else (text, "", "")
        # A comma ends a setting only where another one follows it: a value may be a list.
        settings = [] if not equals else re.split(r",(?=[A-Za-z_]\w*=)", f"{first}={rest}")
        if not name:
            raise ConfigError.is_not("The logger", "a name with settings", "--logger", text).expected(
                "NAME or NAME:KEY=VALUE,...", "write --logger csv or --logger wandb:project=mine"
            )
        loggers.append({name: _parsed_pairs(settings, "--logger", text)})
    return loggers


def _parsed_pairs(pairs: Iterable[str], where: str, text: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key in values:
            raise ConfigError.twice(key, where, text)
        try:
            values[key] = _parse_yaml(value)
        except (yaml.YAMLError, ValueError) as error:
            raise ConfigError("The value of the setting is not valid YAML.", where, f"{text} ({error})").fix(
                "quote it for the shell, and text with special characters once more"
            ) from error
    return values


def override(
    base: Experiment,
    *,
    run: str | None,
    env: str | None,
    config: Mapping[str, Any],
    stop: Mapping[str, float],
    preset: str | None = None,
) -> Experiment:
    """Returns `base` updated by the command line; nested config sections are merged key by key."""
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


def _read_yaml(path: Path) -> Any:
    """Returns the plain values of a YAML or JSON file of at most 1 MB."""
    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"more than {_MAX_BYTES} bytes")
    return _parse_yaml(content.decode())


def _parse_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)


class _Loader(yaml.SafeLoader):
    """A YAML loader without code, which accepts 3e-4 as a number and refuses repeated keys, depth and alias bombs."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._depth = 0
        self._nodes = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ComposerError(
                problem=f"nested more than {_MAX_DEPTH} deep", problem_mark=self.peek_event().start_mark
            )
        is_alias, before = self.check_event(yaml.AliasEvent), self._nodes
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._sizes:
            raise ComposerError(problem="an alias inside its own anchor")
        self._nodes = before + self._sizes[id(node)] if is_alias else self._nodes + 1
        self._sizes[id(node)] = self._nodes - before
        if self._nodes > _MAX_NODES:
            raise ComposerError(problem=f"more than {_MAX_NODES} nodes")
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (AttributeError, IndexError, KeyError) as error:  # of PyYAML, for text that does not fit an explicit tag
            problem = f"the value does not fit its tag {node.tag!r}"
            raise ConstructorError(problem=problem, problem_mark=node.start_mark) from error

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in seen:
                raise ConstructorError(problem=f"repeated key {key.value!r}", problem_mark=key.start_mark)
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep=deep)


# PyYAML follows YAML 1.1, where a float requires a dot and a signed exponent, and reads 3e-4 as a string.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)
