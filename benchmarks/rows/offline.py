"""Learning from recorded data, and reading it."""

from __future__ import annotations

from benchmarks.measure import Against, Row
from benchmarks.rows.commands import own, peer

_ROWS = 100_000
_NETWORKS = {"fcnet_hiddens": [256, 256], "fcnet_activation": "relu"}
_DEPENDS = {
    "CQL": ". 6 GFlop of each update are products of the critics' hidden layers with 30 sampled actions for each row, "
    "so the ratio depends on the processor: 1.36 on one where XLA multiplies at 185 GFlop/s and these products are 34 "
    "of 49 ms; 2.37 on one where XLA multiplies at 310 to 400 GFlop/s and PyTorch at 213",
}
"""Algorithm -> note on its ratio."""


def offline_rows() -> tuple[Row, ...]:
    """Returns the benchmarks against d3rlpy: updates of four algorithms from the same file, and reading it."""
    read = {"rows": 1_000_000}
    return (
        *(_updates(algorithm) for algorithm in ("BC", "IQL", "CQL", "TD3BC")),
        Row(
            name="offline_read",
            work="read a D4RL file of 1M rows of Pendulum's shapes in episodes of 200",
            unit="rows/s",
            better="more",
            sides=(own("rollax", "rollax_training.reading", read), peer("d3rlpy", "d3rlpy.reading", read)),
            targets=(Against("d3rlpy", 1.0),),
        ),
    )


def _updates(algorithm: str) -> Row:
    common = {"algorithm": algorithm, "rows": _ROWS}
    return Row(
        name=f"offline_{algorithm.lower()}",
        work=f"{algorithm} from a D4RL file of 100,000 rows of Pendulum's shapes: batch 256, 256×256 relu",
        unit="updates/s",
        better="more",
        sides=(
            own("rollax", "rollax_training.recorded_updates", {**common, "config": {"model": _NETWORKS}}),
            peer("d3rlpy", "d3rlpy.recorded_updates", common),
        ),
        targets=(Against("d3rlpy", 2.0),),
        notes="each library's own defaults beside batch and networks, which are equal; the draw of the batch included"
        + _DEPENDS.get(algorithm, ""),
    )
