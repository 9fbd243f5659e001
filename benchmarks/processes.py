"""The processes that the sides of a benchmark run in: kept alive between rounds, or started afresh for each."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from typing import IO, Any, Literal

from benchmarks.peers import ROOT, peer_python


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Args:
        name: what the tables call it.
        arguments: what follows `python` on its command line; "{folder}" in it is a new folder in every round.
        peer: whose virtual environment runs it; None is the Python that runs the benchmarks.
        until: for a side that is started afresh for each round, the pattern of the line of output that ends the
            measured time, which begins with the start of the process; None for a side that is kept alive.
        cache: whether a fresh process finds JAX's compilation cache empty, or as an earlier run left it.
    """

    name: str
    arguments: tuple[str, ...]
    peer: str | None = None
    until: str | None = None
    cache: Literal["cold", "warm"] = "cold"


@dataclass
class _Process:
    """A running side: its pipes, and where its standard error goes, to be shown if it dies."""

    side: Side
    extra_env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 `stop` closes it
        python = str(peer_python(self.side.peer)) if self.side.peer else sys.executable
        self._process = subprocess.Popen(
            [python, *self.side.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env=_environment() | self.extra_env,
            start_new_session=True,
        )

    def read_line(self) -> str:
        """Returns the next line of the side's output, waiting for it; raises with its last words if it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            words = self._errors.read().decode(errors="replace")[-3000:]
            raise RuntimeError(f"side {self.side.name!r} ended with code {self._process.returncode}:\n{words}")
        return line

    def write_line(self, line: str) -> None:
        """Sends one line to the side."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """Lets the side end by itself, at the end of its input, and ends it if it does not."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20)
        self.kill()

    def kill(self) -> None:
        """Ends the side and what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class AliveSide:
    """A side whose process is set up once and then runs one round each time it is asked."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._process = _Process(side)
        try:
            self.facts: dict[str, Any] = self._read("ready")["facts"]
        except BaseException:
            self.stop()
            raise

    def round(self, seconds: float) -> float:
        """Returns what one round of about `seconds` measured."""
        self._process.write_line(json.dumps({"seconds": seconds}))
        return self._read("round")["value"]

    def stop(self) -> None:
        """Ends the process."""
        self._process.stop()

    def _read(self, event: str) -> dict[str, Any]:
        message = json.loads(self._process.read_line())
        if message["event"] != event:
            raise RuntimeError(f"side {self.side.name!r} sent {message} where {event!r} was expected")
        return message


class FreshSide:
    """A side that is a new process in every round; measured is the time from its start to the line that ends it."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.facts: dict[str, Any] = {}
        self._kept_cache = tempfile.TemporaryDirectory()
        # The first start after an installation compiles bytecode and reads the disk; a warm cache has to be filled.
        self.round(0.0)
        self.facts = {}

    def round(self, seconds: float) -> float:
        """Returns how many seconds passed from the start of the process to its line; `seconds` is not used."""
        del seconds
        with tempfile.TemporaryDirectory() as folder:
            arguments = tuple(argument.replace("{folder}", folder) for argument in self.side.arguments)
            start = time.perf_counter()
            process = _Process(replace(self.side, arguments=arguments), self._cache_environment(folder))
            try:
                while not re.search(self.side.until or "", line := process.read_line()):
                    pass
                took = time.perf_counter() - start
                if line.startswith("{"):
                    self._note(json.loads(process.read_line())["facts"])
            finally:
                process.kill()
        return took

    def stop(self) -> None:
        """Removes the warm cache."""
        self._kept_cache.cleanup()

    def _note(self, facts: dict[str, Any]) -> None:
        """Keeps the facts of the last round, and every round's greedy reward."""
        rewards = [*self.facts.get("greedy_rewards", []), facts.pop("greedy_reward")]
        self.facts = facts | {"greedy_rewards": rewards}

    def _cache_environment(self, folder: str) -> dict[str, str]:
        """Each library as it is by itself, in an empty cache; or all with JAX's cache on, where it is to be warm."""
        if self.side.cache == "cold":
            return {"XDG_CACHE_HOME": folder}
        kept = self._kept_cache.name
        return {
            "XDG_CACHE_HOME": kept,
            "JAX_COMPILATION_CACHE_DIR": f"{kept}/compiled",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        }


def start(side: Side) -> AliveSide | FreshSide:
    """Sets a side up and returns it, ready for its first round."""
    return AliveSide(side) if side.until is None else FreshSide(side)


def _environment() -> dict[str, str]:
    """The environment of every side: on the CPU, each library's threads as it sets them, the repository importable."""
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONUNBUFFERED": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
