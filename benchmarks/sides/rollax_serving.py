"""A policy server under load: actions per second, or a quantile of the latencies in milliseconds.

The server is a separate process on one core; this process has all clients, on the other core.
"""

import argparse
import statistics
import subprocess
import sys

from benchmarks.protocol import Link, versions
from benchmarks.serving_load import Load
from benchmarks.serving_server import keep_to_core

_WARM_UP_S = 1.0
_PERCENT = 100


def main() -> None:
    """Serves rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--service", choices=("policy", "echo", "learn", "pickled"), required=True)
    parser.add_argument("--transport", choices=("http", "json", "msgpack", "pickled"), required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--episodes", type=int, default=1, help="of each client, in one message")
    parser.add_argument("--percentile", type=int, help="report this percentile of the latencies, not actions/s")
    parser.add_argument("--play", type=int, default=0, help="1: whole episodes with rewards, as learning needs")
    args = parser.parse_args()
    keep_to_core(1)
    command = [sys.executable, "-m", "benchmarks.serving_server", "--service", args.service, "--core", "0"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    link = Link()
    load = Load(server.stdout.readline().strip(), args.transport, args.clients, args.episodes, play=bool(args.play))
    load.run(_WARM_UP_S)
    link.send(event="ready", facts={"versions": versions("rollax", "uvicorn", "websockets", "msgspec", "uvloop")})
    for settings in link.rounds():
        rate, latencies = load.run(settings["seconds"])
        if args.percentile is not None:
            rate = 1e3 * statistics.quantiles(latencies, n=_PERCENT)[args.percentile - 1]
        link.send(event="round", value=rate)
    load.close()
    server.stdin.close()
    server.wait()


if __name__ == "__main__":
    main()
