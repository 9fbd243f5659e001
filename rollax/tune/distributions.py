"""Distributions of a search, written as in the section `search` of a file, such as `{log: [1e-5, 1e-2]}`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollax.core.importing import path_of
from rollax.core.numbers import is_finite, is_whole
from rollax.errors import ConfigError, nearest

EXAMPLES = "{log: [1e-5, 1e-2]}, {uniform: [0.9, 1]}, {int: [1, 8]} or {choice: [0.9, 0.99]}"
_RANGES = ("log", "uniform", "int")
_KINDS = (*_RANGES, "choice")
_OPTIONS = {"log": (), "uniform": ("step",), "int": ("step", "log"), "choice": ()}
_DIGITS, _DIGITS_OF_STEPS = 5, 10
_OTHER_NAMES = {
    **dict.fromkeys(("loguniform", "log_uniform", "reallog", "log_float"), "log"),
    **dict.fromkeys(("float", "quniform", "real", "range"), "uniform"),
    **dict.fromkeys(("randint", "integer", "qrandint", "lograndint"), "int"),
    **dict.fromkeys(("categorical", "choices", "values", "grid_search", "one_of"), "choice"),
}
"""Names in Optuna, Ray Tune, Weights & Biases and others."""


@dataclass(frozen=True)
class Choice:
    """One of several values, which have no order."""

    values: tuple[Any, ...]

    @property
    def labels(self) -> tuple[str | int | float | bool | None, ...]:
        """A label for each value: a scalar itself, the path of a class, a list or dict as JSON."""
        return tuple(_label(value) for value in self.values)

    def value_of(self, label: Any) -> Any:
        return self.values[self.labels.index(label)]

    def examples(self) -> tuple[Any, ...]:
        """The values that the field of a config must accept."""
        return self.values

    def in_words(self) -> dict[str, Any]:
        return {"choice": list(self.values)}


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, both included; optionally whole ones, in steps from `low`, or log-uniform."""

    low: float
    high: float
    whole: bool = False
    log: bool = False
    step: float | None = None

    def value_of(self, drawn: float) -> float:
        """Returns a drawn number, rounded to the digits that files show."""
        if self.whole:
            return int(drawn)
        digits = _DIGITS if self.step is None else _DIGITS_OF_STEPS
        return min(max(float(f"{drawn:.{digits}g}"), self.low), self.high)

    def examples(self) -> tuple[Any, ...]:
        """Values that the field of a config must accept: both ends, and one between them unless numbers are whole."""
        if self.whole:
            return self.low, self.high
        between = self.low + (self.step if self.step is not None else (self.high - self.low) / math.pi)
        return self.low, between, self.high

    def in_words(self) -> dict[str, Any]:
        ends = [self.low, self.high]
        if not self.whole:
            return {"log" if self.log else "uniform": ends, **({} if self.step is None else {"step": self.step})}
        return {"int": ends, **({"log": True} if self.log else {} if self.step is None else {"step": self.step})}


Distribution = Choice | Range
Space = Mapping[str, Distribution]
"""Config key, with dots for the keys of parts -> distribution of its values."""


def parse_space(words: Any, where: str) -> dict[str, Distribution]:
    """Returns the distributions of a section `search`: config key -> distribution in words.

    Raises:
        ConfigError: a distribution is unknown or malformed.
    """
    if not isinstance(words, Mapping) or not words:
        raise ConfigError.is_not("The search", "a mapping of config keys", where, words).expected(
            "at least one key with its distribution", f"as in `lr: {{log: [1e-5, 1e-2]}}`; distributions: {EXAMPLES}"
        )
    return {str(key): parse_distribution(value, f"{where}: {key}") for key, value in words.items()}


def parse_distribution(words: Any, where: str) -> Distribution:
    """Returns the distribution that a mapping describes, such as `{"int": [32, 512], "log": True}`."""
    if not isinstance(words, Mapping):
        fix = f"write a range or a choice: {EXAMPLES}"
        if isinstance(words, list):
            fix = f"write {{choice: {words}}} for these values, or a range such as {{uniform: [low, high]}}"
        raise ConfigError.is_not("The distribution", "a mapping", where, words).expected("a distribution", fix)
    kinds = [key for key in words if key in _KINDS]
    # {int: [8, 64], log: true} has two of these keys.
    kind = "int" if "int" in kinds else kinds[0] if kinds else None
    if kind is None:
        name = str(next(iter(words), ""))
        ours = _OTHER_NAMES.get(name)
        fix = f"in rollax it is {ours!r}" if ours else f"{nearest(name, _KINDS)}, as in {EXAMPLES}"
        if any(isinstance(value, Mapping) for value in words.values()):
            fix = f"keys of parts have dots: `{where.rpartition(': ')[2]}.{name}: {{...}}`"
        raise ConfigError("Unknown distribution.", where, dict(words)).expected(f"one of {', '.join(_KINDS)}", fix)
    further = [key for key in words if key != kind and key not in _OPTIONS[kind]]
    if further:
        allowed = f"only {' and '.join(_OPTIONS[kind])}" if _OPTIONS[kind] else "no further key"
        raise ConfigError("The distribution has a further key.", where, dict(words)).expected(
            f"{allowed} beside {kind!r}", f"leave {further[0]!r} out"
        )
    return _choice(words[kind], where) if kind == "choice" else _range(kind, words, where)


def _choice(values: Any, where: str) -> Choice:
    if not isinstance(values, list | tuple) or len(values) < 2:
        raise ConfigError.is_not("The choice", "a list of values", where, values).expected(
            "two values or more", "list them, as in {choice: [0.9, 0.99]}; a fixed value belongs in config"
        )
    choice = Choice(tuple(values))
    twice = [label for label in choice.labels if choice.labels.count(label) > 1]  # 1, 1.0 and true are equal
    if twice:
        raise ConfigError.twice("A value of the choice", where, twice)
    return choice


def _range(kind: str, words: Mapping[str, Any], where: str) -> Range:
    ends, step, whole = words[kind], words.get("step"), kind == "int"
    log = kind == "log" or words.get("log", False)
    right = is_whole if whole else is_finite
    if not (isinstance(ends, list | tuple) and len(ends) == 2 and all(map(right, ends)) and ends[0] < ends[1]):
        kinds = "whole numbers" if whole else "numbers"
        raise ConfigError.is_not("The range", "its lowest and highest value", where, dict(words)).expected(
            f"two {kinds}, the lower one first", f"correct it, as in {EXAMPLES}"
        )
    if not isinstance(log, bool):
        raise ConfigError.is_not("The key log", "a boolean", where, log).expected("true or false", "correct it")
    if log and ends[0] <= 0:
        raise ConfigError.out_of_range("The lowest value", where, ends[0], "more than 0, for its logarithm")
    if step is not None and not (right(step) and 0 < step <= ends[1] - ends[0] and not log):
        raise ConfigError.out_of_range(
            "step", where, step, f"more than 0, at most {ends[1] - ends[0]:.6g}, and without log"
        )
    number = int if whole else float
    return Range(number(ends[0]), number(ends[1]), whole, log, None if step is None else number(step))


def _label(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return path_of(value) if isinstance(value, type) else json.dumps(value, default=repr)
