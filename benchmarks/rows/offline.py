"""Learning from recorded data, and reading it."""

from __future__ import annotations

import json

from benchmarks.measure import Against, Row
from benchmarks.processes import Side
from benchmarks.rows.commands import flags, own, peer

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
    read = flags(work="read", rows=1_000_000)
    return (
        *(_updates(algorithm) for algorithm in ("BC", "IQL", "CQL", "TD3BC")),
        Row(
            name="offline_read",
            work="read a D4RL file of 1M rows of Pendulum's shapes in episodes of 200",
            unit="rows/s",
            better="more",
            sides=(
                Side("rollax", own("rollax_offline", *read)),
                Side("d3rlpy", peer("d3rlpy_offline", *read), peer="d3rlpy"),
            ),
            targets=(Against("d3rlpy", 1.0),),
        ),
    )


def _updates(algorithm: str) -> Row:
    common = flags(work="updates", algorithm=algorithm, rows=_ROWS)
    ours = (*common, *flags(config=json.dumps({"model": _NETWORKS})))
    return Row(
        name=f"offline_{algorithm.lower()}",
        work=f"{algorithm} from a D4RL file of 100,000 rows of Pendulum's shapes: batch 256, 256×256 relu",
        unit="updates/s",
        better="more",
        sides=(
            Side("rollax", own("rollax_offline", *ours)),
            Side("d3rlpy", peer("d3rlpy_offline", *common), peer="d3rlpy"),
        ),
        targets=(Against("d3rlpy", 2.0),),
        notes="each library's own defaults beside batch and networks, which are equal; the draw of the batch included"
        + _DEPENDS.get(algorithm, ""),
    )
