"""Kills a policy server that learns repeatedly, and checks that its clients and its run continue.

`python -m tests.faults.soak_server_restarts --minutes 5` plays with clients over HTTP and WebSockets on a server that
learns. Every `--kill-every` seconds the server gets SIGKILL and is started again on the same port and folder. As
docs/serving.md states, clients get an error for their lost running episode, and training continues from the newest
checkpoint; the exit code is 1 for any other behavior. The result is stored in the machine's table of benchmarks.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.protocol import versions
from benchmarks.tables import hardware, store
from rollax.core.storage import newest
from rollax.errors import EpisodeLostError, RollaxError
from rollax.serving.client import PolicyClient

UPDATES = {"train_batch_size": 500, "sgd_minibatch_size": 100, "num_sgd_iter": 2}
CONFIG = {**UPDATES, "env_config": {"spaces_of": "CartPole-v1"}, "min_time_s_per_iteration": 0}
_STEPS = 20
_END_WITHIN_S = 120.0


class Server:
    """`rollax serve --run` in a process that is restarted repeatedly.

    Attributes:
        address: the same after each start.
        wrong: unexpected events.
        starts: the iteration from which each start continued.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, 0
        self.address, self.wrong = "", list[str]()
        self.starts: list[int] = []

    def start(self) -> None:
        """Starts the server; returns when it listens."""
        saved = newest(self._folder / "checkpoints", "checkpoint_")
        expected = 0 if saved is None else int(saved.name.rpartition("_")[2])
        options = [f"--config={json.dumps(CONFIG)}", f"--out={self._folder}", f"--port={self._port}"]
        command = [sys.executable, "-m", "rollax", "serve", "--run=PPO", "--checkpoint-frequency-s=2", *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if found is None:
            raise RuntimeError(f"the server has not started: {line}")
        self.address, self._port = found[0], int(found[1])
        goes_on = re.search(r"from iteration (\d+)", line)
        self.starts.append(int(goes_on[1]) if goes_on else 0)
        if self.starts[-1] != expected:
            self.wrong.append(f"goes on from iteration {self.starts[-1]} instead of {expected}")

    def kill(self) -> None:
        """Ends the process with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Ends the process with SIGTERM, so that it saves."""
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = None
        if code != 128 + signal.SIGTERM:
            self.wrong.append(f"SIGTERM: exit code {code}")


class Player:
    """Plays episodes until the end; counts completed episodes and those that the server lost."""

    def __init__(self, address: str) -> None:
        self._client = PolicyClient(address, timeout=300.0)
        self.completed = self.lost = 0
        self.wrong: list[str] = []

    def play(self, ended: threading.Event) -> None:
        """Plays one episode after another."""
        while not ended.is_set():
            try:
                episode = self._client.episode()
                for _ in range(_STEPS):
                    episode.get_action([0.0, 0.1, 0.0, -0.1])
                    episode.log_returns(1.0)
                episode.end([0.0, 0.0, 0.0, 0.0])
                self.completed += 1
            except EpisodeLostError:
                self.lost += 1
            except (RollaxError, OSError) as error:
                self.wrong.append(f"a client failed: {error}")
                return


def main() -> int:
    """Plays and kills; returns 1 if anything was lost unexpectedly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--kill-every", type=float, default=20.0, metavar="SECONDS", help="after each start")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = _soak(Path(folder) / "run", args)
    store(report)
    print(json.dumps({name: report[name] for name in ("kills", "iterations", "completed", "lost", "wrong")}))
    return 1 if report["wrong"] else 0


def _soak(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    server, ended = Server(folder), threading.Event()
    server.start()
    stream = f"ws{server.address.removeprefix('http')}"
    players = [Player(address) for address in (server.address, stream) for _ in range(2)]
    threads = [threading.Thread(target=player.play, args=(ended,)) for player in players]
    for thread in threads:
        thread.start()
    until, kills = time.monotonic() + 60 * args.minutes, 0
    while True:
        time.sleep(args.kill_every)
        if time.monotonic() >= until:
            break
        server.kill()
        server.start()
        kills += 1
        print(f"kill {kills}: goes on from iteration {server.starts[-1]}", file=sys.stderr, flush=True)
    ended.set()
    for thread in threads:
        thread.join()
    server.end()
    wrong = [*server.wrong, *(text for player in players for text in player.wrong), *_wrong_results(folder)]
    if kills and server.starts[-1] == 0:
        wrong.append("no checkpoint was saved between two kills")
    return {
        "name": "soak_restarts",
        "minutes": args.minutes,
        "kills": kills,
        "iterations": server.starts,
        "completed": sum(player.completed for player in players),
        "lost": sum(player.lost for player in players),
        "wrong": wrong,
        "versions": versions("rollax", "starlette", "uvicorn", "websockets", "msgspec"),
        "hardware": hardware(),
    }


def _wrong_results(folder: Path) -> list[str]:
    """Errors in the results of the run: iterations must increase by one, and steps must not fall."""
    results = [json.loads(line) for line in (folder / "result.jsonl").read_text().splitlines()]
    iterations = [result["training_iteration"] for result in results]
    steps = [result["timesteps_total"] for result in results]
    wrong = [] if iterations == list(range(1, len(results) + 1)) else [f"iterations {iterations}"]
    return [*wrong, *([] if steps == sorted(steps) else [f"steps {steps}"])]


if __name__ == "__main__":
    raise SystemExit(main())
