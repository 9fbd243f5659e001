"""Replay of images: updates, the share of sampling in them, and memory."""

from __future__ import annotations

from benchmarks.measure import Against, Bound, Row
from benchmarks.rows.commands import own, peer

_KEPT = 20_000  # transitions in the buffer of the learning benchmarks


def frames_rows(*, quick: bool) -> tuple[Row, ...]:
    """Returns the benchmarks of DQN with Atari's shapes: an update of 32 transitions, the memory of a million."""
    return dqn_updates(), _sampling(), _memory(10_000 if quick else 1_000_000)


def dqn_updates(*, gpus: int = 0) -> Row:
    """Returns the benchmark of updates, with both sides on the CPU or on a GPU."""
    settings = {"transitions": _KEPT, "batch": 32}
    work = "DQN on 84×84×4 frames, the network of Mnih et al. (2015), batch 32, sampling included"
    return Row(
        name="gpu_dqn_frames" if gpus else "dqn_frames",
        work=f"{work}, on a GPU" if gpus else work,
        unit="updates/s",
        better="more",
        sides=(
            own("rollax", "rollax_replay.frames", {**settings, "measure": "updates"}, gpus=gpus),
            peer("Stable-Baselines3", "sb3.frames", settings, gpus=gpus),
        ),
        targets=(Against("Stable-Baselines3", 3.0 if gpus else None),),
        rounds=3 if gpus else 5,
        seconds=5.0,
        notes="One update in each call. Without double or dueling networks, which Stable-Baselines3 does not have. "
        "Both keep each observation once; rollax each image.",
    )


def _sampling() -> Row:
    return Row(
        name="dqn_frames_sampling",
        work="the share of sampling in such an update",
        unit="%",
        better="less",
        sides=(own("rollax", "rollax_replay.frames", {"measure": "sampling", "transitions": _KEPT, "batch": 32}),),
        targets=(Bound("rollax", "at most", 10.0),),
        rounds=5,
    )


def _memory(transitions: int) -> Row:
    return Row(
        name="replay_memory",
        work=f"resident memory of a replay buffer with {transitions:,} Atari transitions, for a million of them",
        unit="GB",
        better="less",
        sides=(own("rollax", "rollax_replay.frames", {"measure": "memory", "transitions": transitions}),),
        targets=(Bound("rollax", "at most", 8.0),),
        rounds=1,
        notes="84×84×4 frames, episodes of 500 steps. The images alone are 7.06 GB.",
    )
