"""Learns from a data set four times as large as the allowed memory, and checks that memory does not grow.

`python -m benchmarks.larger_than_memory --gigabytes 1` writes the data set, learns from it with a quarter of its size
as `input_memory_gb`, and stores the result in the machine's table. The exit code is 1 if memory grew.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.protocol import versions
from benchmarks.tables import hardware, store

_WIDTH, _EPISODE = 256, 1000
_OBS = gym.spaces.Box(-np.inf, np.inf, (_WIDTH,), np.float32)
_ACTIONS = gym.spaces.Discrete(4)
_ITERATIONS, _WARM_UP = 40, 5
_ALLOWED_PERCENT = 3.0


class Spaces(gym.Env):
    """An environment that is never stepped: it has the spaces of the data."""

    observation_space, action_space = _OBS, _ACTIONS

    def __init__(self, env_config: Any = None) -> None:
        del env_config


def main() -> int:
    """Writes the data, learns, and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollax-bench-") as folder:
        report = measured(Path(folder), args.gigabytes)
    store(report)
    print(json.dumps(report, indent=1))
    return 0 if report["flat"] else 1


def measured(folder: Path, gigabytes: float) -> dict[str, Any]:
    """Returns the memory of the process while it learns from `gigabytes` GiB of observations.

    It first learns from a sixteenth of the data, so that memory of JAX and of the draws is already allocated.
    """
    small = _learned(folder / "small", gigabytes / 16, gigabytes / 4)
    large = _learned(folder / "large", gigabytes, gigabytes / 4)
    growth = 100 * (large["end_mb"] / large["warm_mb"] - 1)
    more = large["end_mb"] - small["end_mb"]
    return {
        "name": "larger_than_memory",
        "data_mb": round(1024 * gigabytes),
        "allowed_mb": round(1024 * gigabytes / 4),
        "sixteenth": small,
        "whole": large,
        "more_than_sixteenth_mb": more,
        "growth_percent": round(growth, 2),
        "flat": growth <= _ALLOWED_PERCENT and more <= 1024 * gigabytes / 4,
        "hardware": hardware(),
        "versions": versions("rollax", "jax", "numpy", "pyarrow"),
    }


def _learned(folder: Path, gigabytes: float, allowed: float) -> dict[str, Any]:
    """Returns the process's own memory in MiB and the speed of learning from a data set of this size."""
    from rollax import BCTrainer

    rows = int(gigabytes * 2**30 / (4 * _WIDTH))
    started = time.perf_counter()
    _write(folder / "data", rows)
    written_s = time.perf_counter() - started
    started = time.perf_counter()
    config = {
        "input": str(folder / "data"),
        "input_folder": str(folder / "decoded"),
        "input_memory_gb": allowed,
        "train_batch_size": 1024,
        "updates_per_step": 100,
        "model": {"fcnet_hiddens": [64, 64]},
        "seed": 0,
    }
    with BCTrainer(env=Spaces, config=config) as trainer:
        decoded_s = time.perf_counter() - started
        memory = []
        started = time.perf_counter()
        for _ in range(_ITERATIONS):
            trainer.train()
            memory.append(_own_memory())
        learned_s = time.perf_counter() - started
    return {
        "rows": rows,
        "written_s": round(written_s, 1),
        "decoded_s": round(decoded_s, 1),
        "rows_learned_per_s": round(_ITERATIONS * 100 * 1024 / learned_s),
        "warm_mb": round(max(memory[_WARM_UP : 2 * _WARM_UP])),
        "end_mb": round(max(memory[-_WARM_UP:])),
    }


def _write(folder: Path, rows: int) -> None:
    from rollax import DatasetWriter, RecordedTrajectory

    rng, spaces = np.random.default_rng(0), ({"default_policy": _OBS}, {"default_policy": _ACTIONS})
    with DatasetWriter(folder, *spaces) as writer:
        for number in range(rows // _EPISODE):
            columns = {
                "obs": rng.standard_normal((_EPISODE + 1, _WIDTH), np.float32),
                "actions": rng.integers(4, size=_EPISODE),
                "rewards": np.ones(_EPISODE, np.float32),
            }
            writer.write(RecordedTrajectory(columns, True, False, f"e{number}", "agent0", "default_policy"))


def _own_memory() -> float:
    """Returns MiB of resident memory without pages of files, which the kernel can reclaim."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise SystemExit("this measure needs Linux")


if __name__ == "__main__":
    sys.exit(main())
