"""`Sweep`: the settings of many runs that differ in numbers, such as step sizes, as a grid over some config keys."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rollax.core.numbers import is_finite
from rollax.errors import ConfigError

FORMS = "lr=1e-4..1e-2:log:16, gamma=0.9..0.99:5 or lr=1e-3,3e-3"
_WHERE = "--sweep"
_DIGITS = 5
"""Digits of the values of a range, so that the names of folders are short and exact."""
_RANGE = re.compile(r"(?P<low>.+?)\.\.(?P<high>.+?):(?P<log>log:)?(?P<count>[^:]+)")
_KEY = re.compile(r"\w+(\.\w+)*")


@dataclass(frozen=True)
class Setting:
    """One point of a sweep: config key (with dots for nested parts) -> number. Without keys, the config as it is."""

    values: tuple[tuple[str, int | float], ...] = ()

    @property
    def name(self) -> str:
        """The name of the run folder, such as "lr=0.001,gamma=0.9"; "" without keys."""
        return ",".join(self.texts)

    @property
    def texts(self) -> tuple[str, ...]:
        """KEY=VALUE for each key, as for the option `--set`."""
        return tuple(f"{key}={number_text(value)}" for key, value in self.values)


@dataclass(frozen=True)
class Sweep:
    """A grid of settings.

    Args:
        axes: config key -> its values.
    """

    axes: Mapping[str, tuple[int | float, ...]]

    @property
    def settings(self) -> list[Setting]:
        """All combinations, in which the last key changes fastest; a sweep without keys has one empty setting."""
        points = itertools.product(*self.axes.values())
        return [Setting(tuple(zip(self.axes, point, strict=True))) for point in points]


def parse_sweep(texts: Iterable[str]) -> Sweep:
    """Returns the sweep of texts: `KEY=LOW..HIGH:N`, `KEY=LOW..HIGH:log:N` or `KEY=VALUE,VALUE,...`.

    A range has N values from LOW to HIGH, both included, at equal distances, or with `log` at equal ratios. The values
    between are rounded to five digits; if LOW and HIGH are integers, whole values are then integers too.

    Raises:
        ConfigError: a text has another form, a value is not a finite number, or a key or value occurs twice.
    """
    axes: dict[str, tuple[int | float, ...]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise ConfigError.is_not("The sweep", "a key with values", _WHERE, text).expected(
                "KEY=LOW..HIGH:N, KEY=LOW..HIGH:log:N or KEY=VALUE,VALUE", f"write it as in {FORMS}"
            )
        if key in axes:
            raise ConfigError.twice(key, _WHERE, text)
        axes[key] = _range(values, text) if ".." in values else tuple(_number(part, text) for part in values.split(","))
        value, times = Counter(axes[key]).most_common(1)[0]  # 1 and 1.0 are equal, and 0 and -0.0
        if times > 1:
            fewer = "use fewer values, or a wider range" if ".." in values else "name each value once"
            raise ConfigError.twice("A value of the sweep", _WHERE, f"{text}: {number_text(value)}").fix(fewer)
    return Sweep(axes)


def number_text(value: int | float) -> str:
    """Returns the shortest text that has the value, without the `.0` of whole numbers."""
    return repr(value).removesuffix(".0")


def _range(values: str, text: str) -> tuple[int | float, ...]:
    found = _RANGE.fullmatch(values)
    if found is None:
        raise ConfigError.is_not("The range", "LOW..HIGH:N or LOW..HIGH:log:N", _WHERE, text).fix(
            f"say how many values there are, as in {FORMS}"
        )
    low, high = (_number(found[end], text) for end in ("low", "high"))
    count = int(found["count"]) if found["count"].isdecimal() else 0
    if not (low < high and count >= 2):
        raise ConfigError("The range has no values.", _WHERE, text).expected(
            "the lower number first, and two values or more", f"correct it, as in {FORMS}"
        )
    if found["log"] and low <= 0:
        raise ConfigError.out_of_range("The lowest value", _WHERE, text, "more than 0, for its logarithm")
    shares = [number / (count - 1) for number in range(count)]
    if found["log"]:
        between = [math.exp(math.log(low) + share * (math.log(high) - math.log(low))) for share in shares]
    else:
        between = [low + share * (high - low) for share in shares]
    rounded = [min(max(float(f"{value:.{_DIGITS}g}"), low), high) for value in between[1:-1]]
    whole = isinstance(low, int) and isinstance(high, int)
    return (low, *(int(value) if whole and value == int(value) else value for value in rounded), high)


def _number(text: str, whole_text: str) -> int | float:
    value: Any = None
    for number in (int, float):
        try:
            value = number(text)
            break
        except ValueError:
            continue
    if not is_finite(value):
        raise ConfigError("A value of the sweep is not a finite number.", _WHERE, whole_text).expected(
            "numbers", f"correct {text!r}; set values of other kinds with --set, one run for each"
        )
    return value
