"""Attacks a policy server for a long time, and checks that nothing grows and that valid clients are served.

`python -m tests.faults.soak_server --minutes 15` leaves thousands of episodes open, kills client processes, and runs
the attacks of `server_attacks.py`, all at once. Every minute the attackers pause, and memory, threads, files and
sockets of the server are recorded. `--learn` attacks a server that learns with PPO. The result is stored in the
machine's table of benchmarks; the exit code is 1 if something grew or a valid request failed.
"""

import argparse
import json
import random
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from benchmarks.protocol import versions
from benchmarks.tables import hardware, store
from rollax.errors import RollaxError
from rollax.serving.client import PolicyClient
from tests.faults.growth import compare, print_verdicts
from tests.faults.server_attacks import Attacker

IDLE_TIMEOUT_S = 20.0
_OPEN_EPISODES = 10_000
_ATTACKERS = 4
_STEPS = 20
_QUIET_WITHIN_S = 60.0
# Allowed differences between the medians of the two halves: resident memory in percent, the others are counts.
_ALLOWED = {"server_mb": 5.0, "threads": 2.0, "files": 3.0, "sockets": 3.0}


class Troop:
    """Threads that repeat work, and can be paused together."""

    def __init__(self) -> None:
        self._go, self._ended = threading.Event(), threading.Event()
        self._go.set()
        self._threads: list[threading.Thread] = []
        self._pausing = 0
        self._paused = threading.Semaphore(0)

    def add(self, work: Callable[[], None], *, pauses: bool = True) -> None:
        """Starts a thread that calls `work` until the end."""

        def loop() -> None:
            while not self._ended.is_set():
                if pauses and not self._go.is_set():
                    self._paused.release()
                    self._go.wait()
                else:
                    work()

        thread = threading.Thread(target=loop, daemon=True)
        self._threads.append(thread)
        self._pausing += pauses
        thread.start()

    def pause(self) -> None:
        """Returns when the pausable threads are paused."""
        self._go.clear()
        for _ in range(self._pausing):
            self._paused.acquire()

    def resume(self) -> None:
        """Resumes all threads."""
        self._go.set()

    def end(self) -> None:
        """Ends all threads."""
        self._ended.set()
        self._go.set()
        for thread in self._threads:
            thread.join()


class Honest:
    """Plays whole episodes, over HTTP or a stream, and counts failures."""

    def __init__(self, client: PolicyClient) -> None:
        self._client = client
        self.episodes = self.failed = 0
        self.latencies: list[float] = []

    def __call__(self) -> None:
        try:
            episode = self._client.start_episode()
            for _ in range(_STEPS):
                started = time.perf_counter()
                self._client.get_action(episode, [0.0, 0.1, 0.0, -0.1])
                self.latencies.append(time.perf_counter() - started)
                self._client.log_returns(episode, 1.0)
            self._client.end_episode(episode, [0.0, 0.0, 0.0, 0.0])
        except (RollaxError, OSError) as error:
            self.failed += 1
            print(f"an honest client has failed: {error}", file=sys.stderr, flush=True)
        self.episodes += 1


class Opener:
    """Starts episodes and leaves them open, at the rate at which they expire."""

    def __init__(self, client: PolicyClient) -> None:
        self._client = client
        self.opened = 0

    def __call__(self) -> None:
        started = time.monotonic()
        for _ in range(100):
            try:
                self._client.start_episode()
            except RollaxError:
                break
            self.opened += 1
        time.sleep(max(0.0, 100 * IDLE_TIMEOUT_S / _OPEN_EPISODES - (time.monotonic() - started)))


class Killer:
    """Starts client processes and kills them during their episodes."""

    def __init__(self, address: str, token: str) -> None:
        self._command = [sys.executable, "-m", "tests.faults.soak_server", "--client", address, "--token", token]
        self._rng = random.Random(0)
        self.killed = 0

    def __call__(self) -> None:
        process = subprocess.Popen(self._command)
        time.sleep(self._rng.uniform(1.0, 5.0))
        process.kill()
        process.wait()
        self.killed += 1


def main() -> int:
    """Attacks and records; returns 1 if something grew or failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--look-every", type=float, default=45.0, metavar="SECONDS")
    parser.add_argument("--warm-up", type=float, default=3.0, metavar="MINUTES", help="not compared")
    parser.add_argument("--learn", action="store_true", help="attack a server that learns")
    parser.add_argument("--client", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--token", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        return _play_for_ever(args.client, args.token)
    report = attacked(args.minutes, look_every=args.look_every, warm_up=args.warm_up, learn=args.learn)
    store(report)
    print_verdicts(report["verdicts"])
    print(json.dumps(report["counts"]))
    return 0 if report["flat"] and not report["counts"]["failed"] else 1


def attacked(minutes: float, *, look_every: float, warm_up: float, learn: bool) -> dict[str, Any]:
    """Attacks a server in a process of its own, and returns what happened.

    Args:
        minutes: duration.
        look_every: seconds between two records of the server's resources.
        warm_up: minutes that are not compared.
        learn: whether the server learns with PPO.
    """
    token = secrets.token_urlsafe()
    service = "learn" if learn else "policy"
    command = [sys.executable, "-m", "benchmarks.serving.server", "--service", service, "--token", token]
    command += ["--idle-timeout-s", str(IDLE_TIMEOUT_S), "--max-episodes", str(3 * _OPEN_EPISODES)]
    # It ends when its standard input is closed.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        looks, counts = _soak(address, token, psutil.Process(server.pid), 60 * minutes, look_every)
    if server.returncode:
        raise RuntimeError(f"the server ended with code {server.returncode}")
    verdicts = compare([look for look in looks if look["minute"] > warm_up], _ALLOWED, frozenset({"server_mb"}))
    return {
        "name": "soak_serving_learn" if learn else "soak_serving",
        "minutes": minutes,
        "learns": learn,
        "flat": bool(verdicts) and all(verdict["flat"] for verdict in verdicts.values()),
        "verdicts": verdicts,
        "counts": counts,
        "looks": looks,
        "versions": versions("rollax", "starlette", "uvicorn", "websockets", "msgspec"),
        "hardware": hardware(),
    }


def _soak(
    address: str, token: str, server: psutil.Process, seconds: float, look_every: float
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the records of the server's resources, and the counts of what happened."""
    places = (address, f"ws{address.removeprefix('http')}")
    clients = [PolicyClient(place, token=token) for place in places for _ in range(2)]
    honest, openers = [Honest(client) for client in clients[::2]], [Opener(client) for client in clients[1::2]]
    attackers, killer = [Attacker(address, token, seed) for seed in range(_ATTACKERS)], Killer(places[1], token)
    troop = Troop()
    for work in honest:
        troop.add(work, pauses=False)
    for work in (*(attacker.attack for attacker in attackers), *openers, killer):
        troop.add(work)
    looks: list[dict[str, Any]] = []
    started = time.monotonic()

    def counts() -> dict[str, Any]:
        waited = sorted(latency for client in honest for latency in client.latencies[-10_000:])
        return {
            "attacks": sum(attacker.count for attacker in attackers),
            "opened": sum(opener.opened for opener in openers),
            "killed": killer.killed,
            "honest_episodes": sum(client.episodes for client in honest),
            "failed": sum(client.failed for client in honest),
            "p99_ms": round(1e3 * waited[int(0.99 * len(waited))], 2) if waited else None,
        }

    while time.monotonic() - started < seconds:
        time.sleep(min(look_every, seconds))
        troop.pause()
        looks.append({"minute": round((time.monotonic() - started) / 60, 2), **_look(server), **counts()})
        print(json.dumps(looks[-1]), file=sys.stderr, flush=True)
        troop.resume()
    troop.end()
    for client in clients:
        client.close()
    return looks, counts()


def _look(server: psutil.Process) -> dict[str, Any]:
    """Returns memory, threads, files and sockets of the server, after the attackers' connections have ended."""
    deadline, before = time.monotonic() + _QUIET_WITHIN_S, -1
    while time.monotonic() < deadline and (files := server.num_fds()) != before:
        before = files
        time.sleep(2.0)
    return {
        "server_mb": round(server.memory_info().rss / 2**20, 1),
        "threads": server.num_threads(),
        "files": server.num_fds(),
        "sockets": len(server.net_connections()),
    }


def _play_for_ever(address: str, token: str) -> int:
    """A client with many episodes at once, which is killed."""
    client = PolicyClient(address, token=token)
    while True:
        episodes = [client.start_episode() for _ in range(50)]
        for _ in range(_STEPS):
            client.get_actions({key: [0.0, 0.1, 0.0, -0.1] for key in episodes})
        for episode in episodes[:25]:
            client.end_episode(episode, [0.0, 0.0, 0.0, 0.0])


if __name__ == "__main__":
    raise SystemExit(main())
