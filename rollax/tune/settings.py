"""What a study does: its experiment, its space, and how it searches; and the files of its folder."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import yaml

from rollax.algorithms.named_trainers import trainer_class_named
from rollax.algorithms.registry import run_name
from rollax.config import json_form
from rollax.config.field_group import refuse_two_envs
from rollax.config.json_form import Trust, decode_config, encode_values, missing_code
from rollax.config.presets import preset
from rollax.core.atomic_files import read_regular, replace_file
from rollax.core.importing import named_by_caller
from rollax.core.numbers import is_whole
from rollax.core.plain_yaml import read_yaml
from rollax.errors import ConfigError
from rollax.runs.experiment import Experiment, merged, override, read_experiment
from rollax.runs.run_folder import check_empty
from rollax.runs.stopping import LIMITS, checked_stop
from rollax.tune.distributions import Choice, Distribution, Space, parse_space
from rollax.tune.space import check_space, default_space, nested
from rollax.tune.trial import Score, Task

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer

Sampler = Literal["tpe", "random", "cmaes", "grid"]
Pruner = Literal["median", "halving", "none"]

EXPERIMENT, OPTIONS, JOURNAL, BEST = "experiment.yaml", "study.json", "journal.jsonl", "best.yaml"
_SUFFIXES = (".yaml", ".yml", ".json")
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Options:
    """How a study searches. The fields are arguments of `run_study`."""

    sampler: Sampler = "tpe"
    pruner: Pruner = "median"
    seeds: int = 1
    seed: int = 1000
    evaluations: int = 5
    score: Score = "evaluation"

    def check(self) -> None:
        for name, kind in (("sampler", Sampler), ("pruner", Pruner), ("score", Score)):
            if getattr(self, name) not in get_args(kind):
                raise ConfigError.unknown(name, getattr(self, name), get_args(kind), f"tune: {name}")
        for name, least in (("seeds", 1), ("seed", 0), ("evaluations", 1)):
            if not (is_whole(value := getattr(self, name)) and value >= least):
                raise ConfigError.out_of_range(name, f"tune: {name}", value, f"a whole number of at least {least}")


@dataclass(frozen=True)
class Settings:
    """A study without its trials.

    Args:
        trainer_class: the algorithm.
        env: the environment, as `run_study` got it.
        config: config keys that are not searched, without `env` and `seed`.
        stop: all stop conditions of the experiment; trials have only the limits among them.
        space: what is searched.
        options: how it is searched.
    """

    trainer_class: type[Trainer]
    env: Any
    config: Mapping[str, Any]
    stop: Mapping[str, float]
    space: Space
    options: Options

    @property
    def task(self) -> Task:
        """What all trials have in common."""
        options = self.options
        # Trials are evaluated at equal shares of their limits, not after a number of iterations.
        config = {**self.config, "env": self.env, "evaluation_interval": None}
        return Task(
            self.trainer_class,
            config,
            {name: limit for name, limit in self.stop.items() if name in LIMITS},
            tuple(range(options.seed, options.seed + options.seeds)),
            options.evaluations,
            options.score,
        )

    def experiment(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the sections of an experiment file with this config."""
        encoded = encode_values({**config, "env": self.env})
        env = encoded.pop("env")
        if not isinstance(env, str):  # a class or function that cannot be imported
            env, encoded["env"] = None, env
        sections = {"run": run_name(self.trainer_class), "env": env, "config": encoded, "stop": dict(self.stop)}
        return {name: section for name, section in sections.items() if section}


def requires_trust(sections: Mapping[str, Any]) -> bool:
    """Returns whether a run of an experiment file with these sections requires `--trust-code`."""
    values = {"env": sections.get("env"), **sections.get("config", {})}
    return ":" in sections["run"] or json_form.requires_trust(values)


def settings_of(
    run: str | Path | type[Trainer],
    env: Any,
    config: Mapping[str, Any],
    stop: Mapping[str, float],
    search: Mapping[str, Any] | None,
    options: Options,
    *,
    trust_code: bool,
) -> Settings:
    """Returns the settings of a study; `run_study` describes the arguments.

    Raises:
        ConfigError: something is missing or wrong, such as a key that the algorithm does not have.
    """
    options.check()
    base, space = Experiment(), {}
    file = Path(run) if isinstance(run, Path) or (isinstance(run, str) and run.endswith(_SUFFIXES)) else None
    if file is not None:
        base = read_experiment(file, trust_code=trust_code)
        if (words := read_yaml(file).get("search")) is not None:
            space = _decoded(parse_space(words, f"{file}: search"), "everything" if trust_code else "nothing")
    elif isinstance(run, str):
        base = Experiment(run=named_by_caller(run))
    if search is not None:
        space |= _decoded(parse_space(search, "search"), "code fields")
    refuse_two_envs(env, config, "tune: env, config")
    whole = override(base, run=None, env=env, config=config, stop=checked_stop(stop, "tune: stop"))
    where = "tune: run" if file is None else f"{file}: run"
    trainer_class = run if isinstance(run, type) else _trainer_class(whole.run, where)
    values = dict(whole.config)
    if whole.given is not None:  # a stored config has all keys
        values = {key: value for key, value in values.items() if key in whole.given}
    if whole.preset is not None:
        values = merged(preset(whole.preset, trainer_class.name), values)
    used_env = values.pop("env", None) if whole.env is None else whole.env
    values.pop("env", None)
    if "seed" in values:
        raise ConfigError.no_effect(
            "seed", "trials have the seeds of the study", f"{file or 'tune'}: config.seed", values["seed"]
        ).fix("leave it out, and pass the first seed as --seed")
    if used_env is None and values.get("input") is None:
        raise ConfigError.missing("environment", "tune: env", "a Gymnasium id, a registered name, or module:Class")
    if not any(name in whole.stop for name in LIMITS):
        raise ConfigError("The trials have no limit.", "tune: stop", dict(whole.stop)).expected(
            f"one of {', '.join(LIMITS)}", "set it in the section stop, or pass --stop-timesteps"
        )
    if space:
        check_space(space, trainer_class.config_class, "search" if file is None else f"{file}: search")
    else:
        space = default_space(trainer_class.config_class, {**values, "env": used_env})
    return Settings(trainer_class, used_env, values, whole.stop, space, options)


def _decoded(space: Space, trust: Trust) -> dict[str, Distribution]:
    """Returns a space in which import paths, in the values of keys that hold code, are imported or refused."""
    found: dict[str, Distribution] = {}
    for key, distribution in space.items():
        if isinstance(distribution, Choice):
            values = []
            for value in distribution.values:
                config: Any = decode_config(nested({key: value}), trust=trust)
                for part in key.split("."):
                    config = config[part]
                for code in missing_code(config):
                    raise code.error()
                values.append(config)
            distribution = Choice(tuple(values))
        found[key] = distribution
    return found


def _trainer_class(run: str | None, where: str) -> type[Trainer]:
    if run is None:
        raise ConfigError.missing("algorithm", where, "an algorithm that `rollax list` shows, or module:Class")
    return trainer_class_named(run, where)


def write_settings(folder: Path, settings: Settings) -> None:
    """Stores the settings in a new folder of a study, or compares them with the settings in the folder.

    Raises:
        ConfigError: the folder has other files, or a study with other settings.
    """
    search = {key: _stored(key.rpartition(".")[2], distribution) for key, distribution in settings.space.items()}
    sections = settings.experiment(settings.config)
    written = {
        OPTIONS: json.dumps(dataclasses.asdict(settings.options), indent=2) + "\n",
        EXPERIMENT: as_yaml({**sections, "search": search}),  # written last: a folder with this file has both files
    }
    if not (folder / EXPERIMENT).exists():
        check_empty(folder, "--study", "", held=True)
        for name, content in written.items():
            replace_file(folder / name, content.encode())
        return
    for name, content in written.items():
        if read_regular(folder / name, _MOST_BYTES) != content.encode():
            raise ConfigError("The folder has a study with other settings.", "--study", str(folder)).expected(
                f"the settings of {folder / name}",
                f"choose another folder, or go on with these: rollax tune --resume {shlex.quote(str(folder))}",
            )


def _stored(name: str, distribution: Distribution) -> dict[str, Any]:
    """Returns a distribution of a key in words, whose values are stored as the values of this key in a config."""
    words = distribution.in_words()
    if isinstance(distribution, Choice):
        words["choice"] = [encode_values({name: value})[name] for value in distribution.values]
    return words


def is_study(path: str | Path) -> bool:
    """Returns whether a path is the folder of a study."""
    return (Path(path) / EXPERIMENT).exists()


def read_options(folder: Path) -> Options:
    """Returns the options of a study in a folder.

    Raises:
        ConfigError: the folder has no options, or they are damaged.
    """
    try:
        options = Options(**json.loads(read_regular(folder / OPTIONS, _MOST_BYTES)))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError("The folder has no study.", "--resume", f"{folder} ({error})").expected(
            f"a folder that `rollax tune` has written, with {EXPERIMENT} and {OPTIONS}", "check the path"
        ) from error
    options.check()
    return options


def as_yaml(sections: Mapping[str, Any]) -> str:
    """Returns the text of an experiment file, with a line for each key of a section."""
    texts = []
    for name, section in sections.items():
        if isinstance(section, Mapping):
            texts.append("".join([f"{name}:\n", *(f"  {_line(key, value)}" for key, value in section.items())]))
        else:
            texts.append(_line(name, section))
    return "\n".join(texts)


def _line(key: str, value: Any) -> str:
    text = yaml.safe_dump(value, sort_keys=False, width=math.inf, default_flow_style=True)
    plain = text.removesuffix("...\n").strip()  # a scalar is a document that ends with dots
    return f"{key}: {plain}\n"
