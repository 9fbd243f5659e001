"""The protocol between a side and the harness: JSON lines on standard output, one round per line of input.

Only the standard library is used: this module also runs in the peers' virtual environments.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any


class Link:
    """The pipe to the harness. Other output of the process goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def send(self, **message: Any) -> None:
        """Writes one message to the harness."""
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()

    def rounds(self) -> Iterator[dict[str, Any]]:
        """Yields the settings of each requested round, until the harness closes the pipe."""
        for line in sys.stdin:
            yield json.loads(line)


def serve_rates(collect: Callable[[], float], *, lead_in: Callable[[], Any] | None = None, **facts: Any) -> None:
    """Serves rounds that measure a rate: calls `collect` for the requested time and reports steps per second.

    Args:
        collect: does one unit of work (a fragment, an iteration) and returns its number of steps.
        lead_in: called before the clock of a round starts; consumes data that other processes prepared between rounds.
        facts: settings and thread counts that the harness records.
    """
    _serve(collect, lambda amount, seconds: amount / seconds, lead_in, facts)


def serve_costs(collect: Callable[[], float], **facts: Any) -> None:
    """Serves rounds like `serve_rates`, but reports microseconds per unit."""
    _serve(collect, lambda amount, seconds: 1e6 * seconds / amount, None, facts)


def _serve(
    collect: Callable[[], float],
    figure: Callable[[float, float], float],
    lead_in: Callable[[], Any] | None,
    facts: dict[str, Any],
) -> None:
    link = Link()
    collect()
    link.send(event="ready", facts=facts)
    for settings in link.rounds():
        if lead_in is not None:
            lead_in()
        amount, start = 0.0, time.perf_counter()
        deadline = start + settings["seconds"]
        while time.perf_counter() < deadline:
            amount += collect()
        link.send(event="round", value=figure(amount, time.perf_counter() - start))


def serve_durations(work: Callable[[], Any], *, warm_up: int, **facts: Any) -> None:
    """Serves rounds that measure the seconds of one call of `work`, after `warm_up` unmeasured calls."""
    link = Link()
    for _ in range(warm_up):
        work()
    link.send(event="ready", facts=facts)
    for _ in link.rounds():
        start = time.perf_counter()
        work()
        link.send(event="round", value=time.perf_counter() - start)


def versions(*distributions: str) -> dict[str, str]:
    """Returns the versions of Python and of the named distributions that are installed."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
