"""The tables of results in `benchmarks/results`: one for each machine, and one of learning curves.

A table is a file of JSON lines, one for each result, sorted by the name of the result:

    {"name": "sampling_cartpole_64", "unit": "env steps/s", "sides": {"rollax": {"median": 117365.97, ...}, ...}, ...}

| name | result |
|---|---|
| that of a benchmark | the rounds of each side, and the verdict of each target |
| `offline/ENV/UPDATES/SEED` | data sets of one seed, and the scores of what learned from them |
| `mujoco/ENV/METHOD/SIDE/SEED` | one learning curve of an algorithm on MuJoCo |
| `search/ENV/SIDE/SEED` | one learning curve of augmented random search |
| `larger_than_memory` | memory while learning from more data than fit in it |
| `soak`, `soak_restarts`, `soak_serving`, `soak_serving_learn` | a long run of `tests/faults` |

`date` is the day on which a result was stored. Learning curves are in a table of their own, because their scores
depend on the seeds alone. Only the standard library is imported.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

TABLES = Path(__file__).parent / "results"
LEARNING = TABLES / "learning.jsonl"

Result = dict[str, Any]


def read_table(table: Path) -> dict[str, Result]:
    """Returns the results of one table by name; none if the file does not exist."""
    if not table.exists():
        return {}
    results = map(json.loads, table.read_text(encoding="utf-8").splitlines())
    return {result["name"]: result for result in results}


def read_results(folder: Path = TABLES) -> dict[str, Result]:
    """Returns the newest result of each name, whichever machine it is from."""
    newest: dict[str, Result] = {}
    for table in sorted(folder.glob("*-cores*.jsonl")):
        for name, result in read_table(table).items():
            if name not in newest or result["date"] >= newest[name]["date"]:
                newest[name] = result
    return newest


def store(result: Mapping[str, Any], table: Path | None = None) -> None:
    """Puts a result into a table, in place of an older one of its name. Several processes may store at the same time.

    Args:
        result: has a `name`, and the `hardware` unless a table is given.
        table: default: the table of the result's machine.
    """
    table = table or machine_table(result["hardware"])
    table.parent.mkdir(parents=True, exist_ok=True)
    with _locked(table.parent):
        results = read_table(table)
        results[result["name"]] = {**result, "date": datetime.now(UTC).date().isoformat()}
        lines = (json.dumps(results[name], ensure_ascii=False) + "\n" for name in sorted(results))
        new = table.with_suffix(".new")
        new.write_text("".join(lines), encoding="utf-8")
        new.replace(table)


def machine_table(hardware: Mapping[str, Any]) -> Path:
    """Returns the table of a machine, such as `linux-x86_64-2-cores.jsonl`."""
    words = [hardware["system"], hardware["architecture"], hardware["cores"], "cores"]
    if "gpu" in hardware:
        words.append(hardware["gpu"].replace(" ", "-"))
    return TABLES / f"{'-'.join(map(str, words)).lower()}.jsonl"


def hardware(*, gpus: int = 0) -> dict[str, Any]:
    """Returns a description of the hardware without the name of the machine.

    Args:
        gpus: how many GPUs are used; their model is named if there are some.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {
        "cores": cores,
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }
    if gpus:
        found |= {"gpu": gpu_models()[0], "gpus": gpus}
    return found


def gpu_models() -> list[str]:
    """Returns the model of each NVIDIA GPU; none without the driver's tools."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder, so that no result is lost between reading a table and writing it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
