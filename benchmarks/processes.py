"""The processes of the sides of a benchmark: kept alive between rounds, or restarted for each."""

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

import psutil

from benchmarks.peers import ROOT, peer_python


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Args:
        name: its name in the tables.
        arguments: the arguments of `python`; "{folder}" stands for a new folder in every round.
        peer: the library whose virtual environment runs it; None for the Python that runs the benchmarks.
        until: for a side with a new process per round, the pattern of the output line that ends the measured time,
            which starts with the process; None for a side that is kept alive.
        cache: whether a new process starts with an empty compilation cache of JAX or that of an earlier run.
        gpus: how many GPUs it sees; 0: it uses the CPU alone.
    """

    name: str
    arguments: tuple[str, ...]
    peer: str | None = None
    until: str | None = None
    cache: Literal["cold", "warm"] = "cold"
    gpus: int = 0

    @property
    def command(self) -> list[str]:
        """The command line; a peer's virtual environment is created if it is missing."""
        return [str(peer_python(self.peer)) if self.peer else sys.executable, *self.arguments]


@dataclass
class _Process:
    """A running side: its pipes, and the file of its standard error, which is shown if the process dies."""

    side: Side
    extra_env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        command = self.side.command
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 `stop` closes it
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env=_environment(self.side.gpus) | self.extra_env,
            start_new_session=True,
        )

    def read_line(self) -> str:
        """Waits for the next line of output and returns it; raises an error if the side has ended."""
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

    def cpu_seconds(self) -> float:
        """Returns the processor time of the side and its child processes so far."""
        total = 0.0
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._process.pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = one.cpu_times()
                    total += times.user + times.system
        return total

    def stop(self) -> None:
        """Closes the side's input and kills the process if it does not exit."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20)
        self.kill()

    def kill(self) -> None:
        """Kills the side and its child processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class AliveSide:
    """A side whose process is set up once and then runs one round per request.

    Attributes:
        facts: what the side reported about itself; {} before `set_up`.
        values: the figure of each round.
        cores: the number of processor cores that it used on average in each round, with its child processes.
    """

    def __init__(self, side: Side) -> None:
        self.side = side
        self.facts: dict[str, Any] = {}
        self.values: list[float] = []
        self.cores: list[float] = []
        self._process = _Process(side)

    def set_up(self) -> None:
        """Waits until the process, which was started at once, is ready for its first round."""
        self.facts = self._read("ready")["facts"]

    def round(self, seconds: float) -> None:
        """Runs a round of about `seconds`."""
        start, before = time.perf_counter(), self._process.cpu_seconds()
        self._process.write_line(json.dumps({"seconds": seconds}))
        value = self._read("round")["value"]
        self.cores.append((self._process.cpu_seconds() - before) / (time.perf_counter() - start))
        self.values.append(value)

    def stop(self) -> None:
        """Ends the process."""
        self._process.stop()

    def kill(self) -> None:
        """Ends the process, whatever it does."""
        self._process.kill()

    def _read(self, event: str) -> dict[str, Any]:
        message = json.loads(self._process.read_line())
        if message["event"] != event:
            raise RuntimeError(f"side {self.side.name!r} sent {message} where {event!r} was expected")
        return message


class FreshSide:
    """A side that is a new process in every round; the time from its start to the final line is measured.

    Attributes: as for `AliveSide`.
    """

    def __init__(self, side: Side) -> None:
        self.side = side
        self.facts: dict[str, Any] = {}
        self.values: list[float] = []
        self.cores: list[float] = []
        self._kept_cache = tempfile.TemporaryDirectory()

    def set_up(self) -> None:
        """Runs a round that does not count."""
        # The first start after an installation compiles bytecode and reads the disk; a warm cache must be filled.
        self.round(0.0)
        self.facts, self.values, self.cores = {}, [], []

    def round(self, seconds: float) -> None:
        """Runs a process; the figure is the seconds from its start to its final line. `seconds` is not used."""
        del seconds
        with tempfile.TemporaryDirectory() as folder:
            arguments = tuple(argument.replace("{folder}", folder) for argument in self.side.arguments)
            start = time.perf_counter()
            process = _Process(replace(self.side, arguments=arguments), self._cache_environment(folder))
            try:
                while not re.search(self.side.until or "", line := process.read_line()):
                    pass
                took = time.perf_counter() - start
                self.cores.append(process.cpu_seconds() / took)
                if line.startswith("{"):
                    self._note(json.loads(process.read_line())["facts"])
                self.values.append(took)
            finally:
                process.kill()

    def stop(self) -> None:
        """Removes the warm cache."""
        self._kept_cache.cleanup()

    def kill(self) -> None:
        """Removes the warm cache; no process is left between rounds."""
        self.stop()

    def _note(self, facts: dict[str, Any]) -> None:
        """Stores the facts of the last round, and the greedy reward of every round if there are some."""
        if "greedy_reward" in facts:
            rewards = [*self.facts.get("greedy_rewards", []), facts.pop("greedy_reward")]
            facts = facts | {"greedy_rewards": rewards}
        self.facts = facts

    def _cache_environment(self, folder: str) -> dict[str, str]:
        """Returns the cache variables: an empty cache and the library's defaults, or JAX's cache enabled and warm."""
        if self.side.cache == "cold":
            return {"XDG_CACHE_HOME": folder}
        kept = self._kept_cache.name
        return {
            "XDG_CACHE_HOME": kept,
            "JAX_COMPILATION_CACHE_DIR": f"{kept}/compiled",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        }


def answer(side: Side) -> Any:
    """Runs a side that sends one answer, and returns it. Its standard error is shown."""
    done = subprocess.run(side.command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)["answer"]


def start(side: Side) -> AliveSide | FreshSide:
    """Starts a side and returns it; it has to be set up before its first round."""
    return AliveSide(side) if side.until is None else FreshSide(side)


def _environment(gpus: int) -> dict[str, str]:
    """Returns the environment variables of a side: its devices, default thread counts, the repository importable."""
    device = _gpu_environment(gpus) if gpus else {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return os.environ | device | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def _gpu_environment(gpus: int) -> dict[str, str]:
    """Returns the variables of a side that sees the first of the GPUs that this process sees."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else map(str, range(gpus))
    # All sides are alive at once, and by default JAX reserves most of a GPU's memory.
    return {"CUDA_VISIBLE_DEVICES": ",".join([*names][:gpus]), "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.15"}
