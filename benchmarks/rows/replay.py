"""Adding to replay buffers and sampling from them."""

from __future__ import annotations

from benchmarks.measure import Against, Row
from benchmarks.rows.commands import own, peer


def replay_rows() -> tuple[Row, ...]:
    """Returns the benchmarks of the prioritized buffer, with and without adding rows."""
    return (_prioritized(adds=True), _prioritized(adds=False))


def _prioritized(*, adds: bool) -> Row:
    settings = {"adds": adds}
    return Row(
        name="replay_prioritized" if adds else "replay_prioritized_sample",
        work="a full prioritized buffer of 1M transitions of CartPole's shapes: "
        + ("add 512, sample 512, " if adds else "sample 512, ")
        + "update the priorities of 512",
        unit="transitions/s",
        better="more",
        sides=(
            own("rollax", "rollax_replay.prioritized", settings),
            peer("Tianshou", "tianshou.replay", settings),
            peer("RLlib, episodes", "rllib.replay", {**settings, "buffer": "episodes"}),
            peer("RLlib, timesteps", "rllib.replay", {**settings, "buffer": "timesteps"}),
        ),
        # Without adding rows, Numba's tree and NumPy's are equally fast, so the ratio is only reported.
        targets=(
            Against("Tianshou", 1.0 if adds else None),
            Against("RLlib, episodes", 5.0),
            Against("RLlib, timesteps", 5.0),
        ),
        notes="α 0.6, β 0.4, one step. rollax adds the 512 rows as one batch, 8 episodes of 64 steps; Tianshou (Numba "
        "sum tree) as one step of 512 sub-envs, RLlib as 8 episodes (`PrioritizedEpisodeReplayBuffer`) or as one batch "
        "(`PrioritizedReplayBuffer`). RLlib's buffer of episodes returns 512 episode objects of one step, the others "
        "return arrays.",
    )
