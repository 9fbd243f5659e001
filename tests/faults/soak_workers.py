"""Trains IMPALA for a long time while its workers are killed, and checks that nothing grows or is lost.

`python -m tests.faults.soak_workers --minutes 20` records the memory, threads and files of the processes every
minute, and stores the result in the machine's table of benchmarks. The exit code is 1 if an iteration was lost or
something grew.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.protocol import versions
from benchmarks.tables import hardware, store
from tests.faults.growth import compare, print_verdicts

if TYPE_CHECKING:
    from rollax import TrainResult
    from rollax.algorithms.trainer import Trainer

_CONFIG = {"num_workers": 2, "num_envs_per_worker": 16, "model": {"fcnet_hiddens": [64, 64]}, "ray_address": "local"}
# Allowed differences between the medians of the two halves: resident memory fluctuates, the others are counts.
_ALLOWED = {"driver_mb": 3.0, "driver_threads": 2.0, "driver_files": 3.0, "workers_mb": 3.0, "store_mb": 5.0}
_PERCENT = frozenset({"driver_mb", "workers_mb"})


class Killer(threading.Thread):
    """Kills a random worker process at intervals, with SIGKILL, as the kernel does when memory runs out.

    Args:
        every_s: seconds between two kills.
    """

    def __init__(self, every_s: float) -> None:
        super().__init__(name="killer", daemon=True)
        self._every_s = every_s
        self._rng = random.Random(0)
        self._ended = threading.Event()
        self.killed = 0

    def run(self) -> None:
        """Kills processes until `end` is called."""
        while not self._ended.wait(self._every_s):
            workers = worker_processes()
            if workers:
                os.kill(self._rng.choice(workers).pid, signal.SIGKILL)
                self.killed += 1

    def end(self) -> None:
        """Stops the thread."""
        self._ended.set()
        self.join()


def worker_processes() -> list[psutil.Process]:
    """Returns the processes of the rollout workers; Ray names them after the class and the running method."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "RolloutWorker" in process.name() + " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue  # it has just ended
    return found


def main() -> int:
    """Trains, kills and records; returns 1 if something was lost or grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--look-every", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--kill-every", type=float, default=20.0, metavar="SECONDS")
    parser.add_argument("--warm-up", type=float, default=2.0, metavar="MINUTES", help="not compared")
    args = parser.parse_args()

    from rollax.algorithms.impala import IMPALATrainer

    killer = Killer(args.kill_every)
    with IMPALATrainer(env="CartPole-v1", config=_CONFIG) as trainer:
        killer.start()
        looks, lost = _train(trainer, killer, args.minutes * 60, args.look_every)
        killer.end()
    verdicts = compare([look for look in looks if look["minute"] > args.warm_up], _ALLOWED, _PERCENT)
    report = {
        "name": "soak",
        "minutes": args.minutes,
        "kill_every_s": args.kill_every,
        "warm_up_minutes": args.warm_up,
        "lost_iterations": lost,
        "flat": all(verdict["flat"] for verdict in verdicts.values()),
        "verdicts": verdicts,
        "looks": looks,
        "versions": versions("rollax", "ray", "jax", "flax", "gymnasium", "numpy"),
        "hardware": hardware(),
    }
    store(report)
    print_verdicts(verdicts)
    print(f"lost iterations: {lost}; killed {killer.killed}, restarted {trainer.workers.health()['restarts']}")
    return 0 if report["flat"] and not lost else 1


def _train(trainer: Trainer, killer: Killer, seconds: float, look_every: float) -> tuple[list[dict[str, Any]], int]:
    """Trains for the given minutes; returns the records and the number of iterations without new steps."""
    started = time.monotonic()
    looks: list[dict[str, Any]] = []
    lost = iteration = steps = steps_at_look = 0
    looked = started
    while time.monotonic() - started < seconds:
        result = trainer.train()
        lost += result["training_iteration"] != iteration + 1 or result["timesteps_total"] <= steps
        iteration, steps = result["training_iteration"], result["timesteps_total"]
        now = time.monotonic()
        if now - looked >= look_every:
            rate = (steps - steps_at_look) / (now - looked)
            looks.append(_look((now - started) / 60, result, rate, killer.killed))
            looked, steps_at_look = now, steps
            print(json.dumps(looks[-1]), file=sys.stderr, flush=True)
    return looks, lost


def _look(minute: float, result: TrainResult, rate: float, killed: int) -> dict[str, Any]:
    """Returns the current memory, threads and files. Workers that have just started use less memory than later."""
    import ray

    driver, workers = psutil.Process(), worker_processes()
    used = ray.cluster_resources()["object_store_memory"] - ray.available_resources()["object_store_memory"]
    return {
        "minute": round(minute, 2),
        "iteration": result["training_iteration"],
        "timesteps": result["timesteps_total"],
        "steps_per_s": round(rate),
        "episode_reward_mean": result["episode_reward_mean"],
        "driver_mb": round(driver.memory_info().rss / 2**20, 1),
        "driver_threads": driver.num_threads(),
        "driver_files": driver.num_fds(),
        "workers": len(workers),
        "workers_mb": round(max((_resident(worker) for worker in workers), default=0) / 2**20, 1),
        "store_mb": round(used / 1e6, 1),
        "killed": killed,
        "restarts": result["info"]["workers"]["restarts"],
    }


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0  # it has just ended


if __name__ == "__main__":
    raise SystemExit(main())
