"""Replay of images: updates, the share of sampling in them, and memory."""

from __future__ import annotations

from benchmarks.measure import Against, Bound, Row
from benchmarks.processes import Side
from benchmarks.rows.commands import flags, own, peer

_KEPT = 20_000  # transitions in the buffer of the learning benchmarks


def frames_rows(*, quick: bool) -> tuple[Row, ...]:
    """Returns the benchmarks of DQN with Atari's shapes: an update of 32 transitions, the memory of a million."""
    return _updates(), _sampling(), _memory(10_000 if quick else 1_000_000)


def _updates() -> Row:
    settings = flags(transitions=_KEPT, batch=32)
    return Row(
        name="dqn_frames",
        work="DQN on 84×84×4 frames, the network of Mnih et al. (2015), batch 32, sampling included",
        unit="updates/s",
        better="more",
        sides=(
            Side("rollax", own("rollax_frames", "updates", *settings)),
            Side("Stable-Baselines3", peer("sb3_frames", *settings), peer="sb3"),
        ),
        targets=(Against("Stable-Baselines3"),),
        rounds=5,
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
        sides=(Side("rollax", own("rollax_frames", "sampling", *flags(transitions=_KEPT, batch=32))),),
        targets=(Bound("rollax", "at most", 10.0),),
        rounds=5,
    )


def _memory(transitions: int) -> Row:
    return Row(
        name="replay_memory",
        work=f"resident memory of a replay buffer with {transitions:,} Atari transitions, for a million of them",
        unit="GB",
        better="less",
        sides=(Side("rollax", own("rollax_frames", "memory", *flags(transitions=transitions))),),
        targets=(Bound("rollax", "at most", 8.0),),
        rounds=1,
        notes="84×84×4 frames, episodes of 500 steps. The images alone are 7.06 GB.",
    )
