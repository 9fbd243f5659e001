"""Whether something grows during a long run."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def compare(
    looks: Sequence[Mapping[str, Any]], allowed: Mapping[str, float], percent: frozenset[str]
) -> dict[str, dict[str, Any]]:
    """Returns whether the median of the second half exceeds the median of the first by more than the allowed
    difference; nothing for fewer than two records.

    Args:
        looks: the records in order.
        allowed: name -> difference; in percent for the names in `percent`.
    """
    half = len(looks) // 2
    if not half:
        return {}
    verdicts = {}
    for name, tolerance in allowed.items():
        first, second = (statistics.median(look[name] for look in part) for part in (looks[:half], looks[half:]))
        grown = 100 * (second / first - 1) if name in percent else second - first
        verdicts[name] = {"first_half": first, "second_half": second, "flat": grown <= tolerance}
    return verdicts


def print_verdicts(verdicts: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints a line for each name."""
    for name, verdict in verdicts.items():
        word = "flat" if verdict["flat"] else "GROWS"
        print(f"{name:16s}{verdict['first_half']:>10.1f} -> {verdict['second_half']:>10.1f}  {word}")
