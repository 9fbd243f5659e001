"""An entry of the zoo: an experiment file with two more sections.

The author writes the section `zoo`, and `rollax zoo measure` writes the section `measured`.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollax.config.json_form import missing_code
from rollax.core.atomic_files import replace_file
from rollax.core.importing import StoredCode
from rollax.core.plain_yaml import read_yaml
from rollax.errors import ConfigError, page
from rollax.runs.experiment import Experiment, read_experiment
from rollax.runs.results import to_json

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer

_MEASURED = "measured:\n"
_WIDTH = 120
INSTALLED = Path(__file__).parent / "entries"
"""The folder of the entries that are installed with rollax."""
SUFFIXES = (".yaml", ".yml")
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
"""128 bits of a SHA-256, in hexadecimal."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


_AnyPart = TypeVar("_AnyPart", bound=_Part)


class Published(_Part):
    """A score that others published for the same task, as a number to compare with."""

    score: float
    steps: int = Field(gt=0, description="environment steps of training")
    source: str = Field(min_length=1)


class About(_Part):
    """What the author of an entry writes about it.

    `target` is the reward that the best evaluations of the seeds must reach on average; it is the dashed line in the
    curves of the docs.
    """

    tags: tuple[str, ...] = Field(min_length=1)
    target: float
    published: Published | None = None
    note: str | None = None


class FirstPart(_Part):
    """The first iterations of a seed: steps, mean reward of the training episodes so far, hash of the weights."""

    steps: int
    reward: float | None
    weights: Hash


class TrainedSeed(_Part):
    """The result of training with one seed.

    Args:
        seed: the config key `seed`.
        score: mean reward of the greedy episodes after training.
        steps: environment steps of training.
        seconds: duration of training, with its evaluations.
        cpu_seconds: CPU time of training in this process, over all cores; other programs do not lengthen it.
        weights: hash of the weights after training.
        curve: (steps, mean reward) of the greedy evaluations during training; the last point is the score.
    """

    seed: int
    score: float
    steps: int
    seconds: float
    cpu_seconds: float
    weights: Hash
    curve: tuple[tuple[int, float], ...] = Field(min_length=1)


class SeedResult(TrainedSeed):
    """The result of training with one seed, and its first part."""

    first: FirstPart


class Measured(_Part):
    """What `rollax zoo measure` writes: the conditions of the measurement, and the result of each seed.

    Args:
        command: the command that measured.
        settings: hash of the settings, so that scores of other settings are noticed.
        date: day on which the last seed was trained, in UTC.
        machine: kind of machine; see `rollax.zoo.conditions`.
        versions: package -> version.
        episodes: number of greedy episodes of each score.
        first_iterations: number of iterations in the first part of each seed.
        seeds: the results, by seed.
    """

    command: str
    settings: Hash
    date: datetime.date
    machine: Mapping[str, str | int]
    versions: Mapping[str, str]
    episodes: int = Field(gt=0)
    first_iterations: int = Field(gt=0)
    seeds: tuple[SeedResult, ...] = Field(min_length=1)

    @property
    def scores(self) -> list[float]:
        return [result.score for result in self.seeds]

    @property
    def score(self) -> float:
        """The mean score of the seeds."""
        return fmean(self.scores)

    @property
    def best(self) -> float:
        """The mean over the seeds of their best points of the curve."""
        return fmean(max(reward for _, reward in result.curve) for result in self.seeds)

    @property
    def learned(self) -> float:
        """The difference between the score and the mean reward at the beginning."""
        return self.score - fmean(
            result.curve[0][1] if result.first.reward is None else result.first.reward for result in self.seeds
        )


@dataclass(frozen=True)
class Entry:
    """An experiment with its description and its measured results.

    Args:
        path: the file. Its name without suffix is the name of the entry.
        experiment: algorithm (`run`), environment (`env`), `config` and `stop`.
        about: tags, target and the published score.
        measured: None for an entry that nobody has measured yet.
        settings: a hash of algorithm, environment, config and stop conditions.
    """

    path: Path
    experiment: Experiment
    about: About
    measured: Measured | None
    settings: str

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def in_commands(self) -> str:
        """The arguments that name the entry: environment and algorithm, or its file if it is not installed."""
        return f"{self.env} --algo {self.algorithm}" if is_installed(self.path) else shlex.quote(str(self.path))

    @property
    def algorithm(self) -> str:
        return str(self.experiment.run)

    @property
    def env(self) -> str:
        return str(_with_paths(self.experiment.env))

    @property
    def config(self) -> Mapping[str, Any]:
        return self.experiment.config

    @property
    def figures(self) -> Measured:
        """The section `measured`, if it belongs to the settings of the entry.

        Raises:
            ConfigError: the entry has not been measured, or its settings have changed since.
        """
        if self.measured is None:
            raise ConfigError("The entry has not been measured.", str(self.path), "no section measured").fix(
                f"measure it: rollax zoo measure {shlex.quote(str(self.path))}"
            )
        if self.measured.settings != self.settings:
            raise ConfigError(
                "The scores of the entry belong to other settings.",
                f"{self.path}: measured.settings",
                self.measured.settings,
            ).expected(self.settings, f"measure it again: rollax zoo measure {shlex.quote(str(self.path))}")
        return self.measured

    def make_trainer(self, **changes: Any) -> Trainer:
        """Returns a new trainer with the settings of the entry; `changes` are config keys, such as `seed=3`.

        Raises:
            ConfigError: the file names code, and was read without trust.
        """
        from rollax.algorithms.named_trainers import trainer_class_named
        from rollax.config import resolve_config

        config = {**self.config, "env": self.experiment.env}
        for code in missing_code({**config, **changes}):
            raise code.error()
        run: Any = self.experiment.run
        trainer_class: Any = trainer_class_named(run, f"{self.path}: run")
        return trainer_class(config=resolve_config(trainer_class.config_class, config, **changes))

    def with_measured(self, measured: Measured) -> Entry:
        """Replaces the section `measured` of the file, and returns the new entry; the rest of the file stays.

        Raises:
            ConfigError: other sections follow.
        """
        kept, _, replaced = f"\n{self.path.read_text(encoding='utf-8')}".partition(f"\n{_MEASURED}")
        after = next((line for line in replaced.splitlines() if line.strip() and not line.startswith((" ", "-"))), None)
        if after is not None:
            raise ConfigError("Other lines follow the section measured.", str(self.path), after).expected(
                "measured as the last section, because it is replaced", "move these lines up, above measured"
            )
        values = measured.model_dump(mode="json")
        for result in values["seeds"]:
            result["curve"] = _OneLine(result["curve"])
        content = yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=_WIDTH, default_flow_style=None)
        indented = "".join(f"  {line}" for line in content.splitlines(keepends=True))
        replace_file(self.path, f"{kept[1:].rstrip()}\n\n{_MEASURED}{indented}".encode())
        return replace(self, measured=measured)


class _OneLine(list):
    """A list that is written without a line for each element."""


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(
    _OneLine, lambda dumper, values: dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)
)


def short_hash(content: bytes) -> str:
    """Returns the first 128 bits of the SHA-256 of `content`, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()[:32]


def read_entry(path: str | Path, *, trust_code: bool = False) -> Entry:
    """Returns the entry of a YAML file.

    Args:
        path: the file.
        trust_code: whether a trainer of the entry may import code that the file names. Entries that are installed with
            rollax are trusted.
    Raises:
        ConfigError: the file cannot be read, is no experiment, or a section is wrong.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ConfigError.is_not("The entry", "a YAML file", "entry", str(path)).expected(
            f"a name that ends with {' or '.join(SUFFIXES)}", "rename the file"
        )
    untrusted = read_experiment(path)
    experiment = read_experiment(path, trust_code=True) if trust_code or is_installed(path) else untrusted
    for key in ("run", "env", "stop"):
        if not getattr(experiment, key):
            raise ConfigError.missing(key, f"{path}: {key}", f"{key}, as in an experiment file")
    for key in ("preset", "loggers"):
        if getattr(experiment, key) is not None:
            raise ConfigError.no_effect(key, "an entry states its settings in full", f"{path}: {key}", key)
    if "seed" in experiment.config:
        raise ConfigError("An entry has no seed.", f"{path}: config.seed", experiment.config["seed"]).expected(
            "no such key", "leave it out: `rollax zoo measure` trains with several seeds"
        )
    content = read_yaml(path)
    measured = content.get("measured")
    return Entry(
        path,
        experiment,
        _section(About, content.get("zoo"), f"{path}: zoo"),
        None if measured is None else _section(Measured, measured, f"{path}: measured"),
        _hash_of(untrusted),
    )


def _hash_of(experiment: Experiment) -> str:
    """A hash of settings that were read without trust, in which code has the path that the file names."""
    parts = [_with_paths(part) for part in (experiment.run, experiment.env, experiment.config, experiment.stop)]
    return short_hash(json.dumps(json.loads(to_json(parts)), sort_keys=True).encode())


def is_installed(path: Path) -> bool:
    """Whether the entry is installed with rollax."""
    return path.parent.resolve() == INSTALLED.resolve()


def _with_paths(value: Any) -> Any:
    """Values with the paths of code that was not imported, as in a file that was read with trust."""
    if isinstance(value, StoredCode):
        return value.path
    if isinstance(value, Mapping):
        return {name: _with_paths(part) for name, part in value.items()}
    return [_with_paths(part) for part in value] if isinstance(value, list | tuple) else value


def _section(kind: type[_AnyPart], values: Any, where: str) -> _AnyPart:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(
            "The section of the entry is not valid.", f"{where}.{place}".rstrip("."), first["input"]
        ).expected(
            first["msg"], f"the section has {', '.join(kind.model_fields)}; {page('zoo')} shows an entry"
        ) from error
