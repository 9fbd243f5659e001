"""DQN on synthetic Atari transitions: updates with sampling, the share of sampling, or the memory of a million."""

import argparse
import time

import numpy as np
import psutil
from gymnasium import spaces

from benchmarks.frames import ACTIONS, EPISODE, SIDE, STACK, stacks
from benchmarks.protocol import Link, serve_rates, versions


def main() -> None:
    """Serves rounds of the requested measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("measure", choices=["updates", "sampling", "memory"])
    parser.add_argument("--transitions", type=int, required=True)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()

    from rollax.algorithms.dqn import DQN
    from rollax.replay.frames import StackedFrames
    from rollax.replay.uniform import UniformReplay

    process = psutil.Process()
    before = process.memory_info().rss
    # The buffer also stores the three images before the first one of an episode.
    slots = args.transitions + (STACK + 1) * (args.transitions // EPISODE + 1)
    buffer = UniformReplay(slots, frames=StackedFrames(STACK, axis=-1))
    _fill(buffer, args.transitions)
    installed = versions("rollax", "jax", "flax", "gymnasium", "numpy")
    if args.measure == "memory":
        _serve_memory(process.memory_info().rss - before, len(buffer), installed)
        return

    shape = (SIDE, SIDE, STACK)
    config = {"train_batch_size": args.batch, "double_q": False, "dueling": False, "seed": 0}
    policy = DQN.make_policy(spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(ACTIONS), config)
    rng = np.random.default_rng(0)

    def update() -> tuple[float, float]:
        started = time.perf_counter()
        batch = buffer.sample(args.batch, rng)
        sampled = time.perf_counter()
        policy.learn_on_batch(batch)
        return sampled - started, time.perf_counter() - started

    if args.measure == "updates":
        serve_rates(lambda: (update(), 1)[1], versions=installed)
    else:
        # A round consists of updates only.
        serve_rates(lambda: 100 * update()[0], versions=installed)


def _fill(buffer, transitions: int) -> None:
    """Adds whole episodes."""
    from rollax.batch import Fragment

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


def _serve_memory(grown: int, transitions: int, installed: dict[str, str]) -> None:
    """Reports the growth of resident memory, in gigabytes (10⁹ bytes), for a million transitions."""
    link = Link()
    link.send(event="ready", facts={"versions": installed, "transitions": transitions})
    for _ in link.rounds():
        link.send(event="round", value=grown / transitions * 1e6 / 1e9)


if __name__ == "__main__":
    main()
