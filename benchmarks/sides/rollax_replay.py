"""rollax's replay buffers: a full prioritized one, and one of images from which DQN learns."""

from __future__ import annotations

import time

import numpy as np
import psutil
from gymnasium import spaces

from benchmarks.data import (
    ACTIONS,
    ALPHA,
    BATCH,
    BETA,
    CAPACITY,
    EPISODE,
    SIDE,
    STACK,
    STEPS,
    errors,
    segments,
    stacks,
)
from benchmarks.protocol import Link, run, versions
from rollax.algorithms.dqn import DQN
from rollax.batch import Fragment
from rollax.replay.frames import StackedFrames
from rollax.replay.prioritized import PrioritizedReplay
from rollax.replay.uniform import UniformReplay


def prioritized(link: Link, adds: bool) -> None:
    """A million transitions: sample 512 rows and update their priorities; with `adds`, add 512 before."""
    episodes = segments()
    columns = {name: np.concatenate([segment[name][:STEPS] for segment in episodes]) for name in episodes[0]}
    columns["truncateds"] = np.zeros(BATCH, np.bool_)
    ends = np.flatnonzero(columns["terminateds"])
    after = {"obs": columns["obs"][ends]}
    buffer, rng, next_errors = PrioritizedReplay(CAPACITY, alpha=ALPHA), np.random.default_rng(0), errors()
    trajectories = 0

    def add() -> None:
        nonlocal trajectories
        trajectory = trajectories + np.arange(BATCH) // STEPS
        trajectories += len(episodes)
        buffer.add(Fragment({**columns, "trajectory_id": trajectory}, ends, after))

    def work() -> int:
        if adds:
            add()
        batch = buffer.sample(BATCH, rng, beta=BETA)
        buffer.update_priorities(batch["indices"], next_errors())
        return BATCH

    while len(buffer) < CAPACITY:
        add()
    link.serve_rates(work, versions=versions("rollax", "numpy"))


def frames(link: Link, measure: str, transitions: int, batch: int = 32) -> None:
    """DQN on synthetic Atari transitions.

    Args:
        measure: "updates", sampling included; the share of "sampling" in them; or the "memory" of a million transitions
            in gigabytes (10⁹ bytes), from the growth of resident memory.
    """
    process = psutil.Process()
    before = process.memory_info().rss
    # The buffer also stores the three images before the first one of an episode.
    slots = transitions + (STACK + 1) * (transitions // EPISODE + 1)
    buffer = UniformReplay(slots, frames=StackedFrames(STACK, axis=-1))
    _fill(buffer, transitions)
    installed = versions("rollax", "jax", "flax", "gymnasium", "numpy")
    if measure == "memory":
        gigabytes = (process.memory_info().rss - before) / len(buffer) * 1e6 / 1e9
        link.serve(lambda _: gigabytes, versions=installed, transitions=len(buffer))
        return

    config = {"train_batch_size": batch, "double_q": False, "dueling": False, "seed": 0}
    policy = DQN.make_policy(spaces.Box(0, 255, (SIDE, SIDE, STACK), np.uint8), spaces.Discrete(ACTIONS), config)
    rng = np.random.default_rng(0)

    def update() -> tuple[float, float]:
        started = time.perf_counter()
        rows = buffer.sample(batch, rng)
        sampled = time.perf_counter()
        policy.learn_on_batch(rows)
        return sampled - started, time.perf_counter() - started

    # A round consists of updates only, so that the time of sampling per second is its share.
    link.serve_rates(lambda: (update(), 1)[1] if measure == "updates" else 100 * update()[0], versions=installed)


def _fill(buffer: UniformReplay, transitions: int) -> None:
    """Adds whole episodes."""
    columns = {
        "obs": stacks(EPISODE),
        "actions": np.arange(EPISODE) % ACTIONS,
        "rewards": np.ones(EPISODE, np.float32),
        "terminateds": np.arange(EPISODE) == EPISODE - 1,
        "truncateds": np.zeros(EPISODE, np.bool_),
    }
    for trajectory in range(transitions // EPISODE):
        columns["trajectory_id"] = np.full(EPISODE, trajectory)
        buffer.add(Fragment(columns, [EPISODE - 1], {"obs": columns["obs"][-1:]}))


if __name__ == "__main__":
    run(prioritized, frames)
