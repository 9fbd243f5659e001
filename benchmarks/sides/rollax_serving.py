"""A policy server under load: actions per second, or a quantile of the latencies in milliseconds.

The server is a separate process on one core; this process has all clients, on the other core.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.protocol import Link, run, versions
from benchmarks.serving.load import Load, Transport
from benchmarks.serving.server import keep_to_core

_WARM_UP_S = 1.0
_PERCENT = 100


def load(
    link: Link,
    service: str,
    transport: Transport,
    clients: int,
    episodes: int = 1,
    percentile: int | None = None,
    play: bool = False,
) -> None:
    """Puts a server under load.

    Args:
        service: "policy", "echo", "learn" or "pickled".
        episodes: of each client, in one message.
        percentile: report this percentile of the latencies, not actions/s.
        play: whole episodes with rewards, as learning needs.
    """
    keep_to_core(1)
    command = [sys.executable, "-m", "benchmarks.serving.server", "--service", service, "--core", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        sent = Load(server.stdout.readline().strip(), transport, clients, episodes, play=play)
        sent.run(_WARM_UP_S)

        def measure(seconds: float) -> float:
            rate, latencies = sent.run(seconds)
            if percentile is None:
                return rate
            return 1e3 * statistics.quantiles(latencies, n=_PERCENT)[percentile - 1]

        link.serve(measure, versions=versions("rollax", "starlette", "uvicorn", "websockets", "msgspec", "uvloop"))
        sent.close()


if __name__ == "__main__":
    run(load)
