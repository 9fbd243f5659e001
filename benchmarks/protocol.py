"""The protocol between a side and the harness: JSON lines on standard output, one round per line of input.

A side is a function of a module in `sides` or `peer_scripts`, called with the link to the harness and its settings:

    python -m benchmarks.sides.raw loop '{"env": "CartPole-v1", "num_envs": 64, "fragment": 128}'

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

    def serve(self, measure: Callable[[float], float], **facts: Any) -> None:
        """Serves rounds whose figure is the result of `measure`, which gets the duration of a round in seconds.

        Args:
            measure: does one round.
            facts: settings, versions and thread counts that the harness records.
        """
        self.send(event="ready", facts=facts)
        for settings in self.rounds():
            self.send(event="round", value=measure(settings["seconds"]))

    def serve_rates(
        self, collect: Callable[[], float], *, lead_in: Callable[[], Any] = lambda: None, **facts: Any
    ) -> None:
        """Serves rounds that measure a rate: calls `collect` for the requested time and reports steps per second.

        Args:
            collect: does one unit of work (a fragment, an iteration) and returns its number of steps.
            lead_in: called before the clock of a round starts; consumes data that other processes prepared between
                rounds.
            facts: as for `serve`. The seconds of the first call, with what is compiled in it, are added to them.
        """
        start = time.perf_counter()
        collect()
        first_call_s = round(time.perf_counter() - start, 3)

        def rate(seconds: float) -> float:
            lead_in()
            amount, took = _repeated(collect, seconds)
            return amount / took

        self.serve(rate, first_call_s=first_call_s, **facts)

    def serve_costs(self, collect: Callable[[], float], **facts: Any) -> None:
        """Serves rounds like `serve_rates`, but reports microseconds per unit."""
        collect()

        def cost_us(seconds: float) -> float:
            amount, took = _repeated(collect, seconds)
            return 1e6 * took / amount

        self.serve(cost_us, **facts)

    def serve_durations(self, work: Callable[[], Any], *, warm_up: int, **facts: Any) -> None:
        """Serves rounds that measure the seconds of one call of `work`, after `warm_up` unmeasured calls."""
        for _ in range(warm_up):
            work()

        def duration(_: float) -> float:
            start = time.perf_counter()
            work()
            return time.perf_counter() - start

        self.serve(duration, **facts)


def _repeated(collect: Callable[[], float], seconds: float) -> tuple[float, float]:
    """Returns the amount of work of repeated calls, and the time that they took."""
    amount, start = 0.0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        amount += collect()
    return amount, time.perf_counter() - start


def run(*sides: Callable[..., None]) -> None:
    """Runs the side that the command line names, with its settings as a JSON object."""
    link = Link()
    name, settings = sys.argv[1:]
    {side.__name__: side for side in sides}[name](link, **json.loads(settings))


def versions(*distributions: str) -> dict[str, str]:
    """Returns the versions of Python and of the named distributions that are installed."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
