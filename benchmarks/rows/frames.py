"""Learning from images that are kept: updates, the part of them that sampling takes, and memory."""

from __future__ import annotations

from benchmarks.measure import Against, Bound, Row
from benchmarks.processes import Side
from benchmarks.rows.commands import flags, own, peer

_KEPT = 20_000  # transitions, of the rows that learn


def frames_rows(*, quick: bool) -> tuple[Row, ...]:
    """DQN's update of 32 transitions of Atari's shapes, and a million of them."""
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
        notes="One update in each call. Without double or dueling networks, which Stable-Baselines3 has not. Both keep "
        "each observation once; rollax each image. On a GPU at least 3 × is asked, where both sides use it.",
    )


def _sampling() -> Row:
    return Row(
        name="dqn_frames_sampling",
        work="the part of such an update that is sampling",
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
