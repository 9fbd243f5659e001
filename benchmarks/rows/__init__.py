"""All benchmarks: their sides, shared settings and targets."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.measure import Row
from benchmarks.rows.compiled import compiled_rows
from benchmarks.rows.frames import frames_rows
from benchmarks.rows.gpu import gpu_rows
from benchmarks.rows.jax_envs import jax_env_rows
from benchmarks.rows.off_policy import off_policy_rows
from benchmarks.rows.offline import offline_rows
from benchmarks.rows.replay import replay_rows
from benchmarks.rows.sampling import sampling_rows
from benchmarks.rows.search import search_rows
from benchmarks.rows.serving import serving_rows
from benchmarks.rows.training import training_rows
from benchmarks.rows.workers import worker_rows


def make_rows(*, quick: bool = False) -> dict[str, Row]:
    """Returns every benchmark by its name; `quick` reduces the work, to check that they run."""
    rows = (
        *sampling_rows(),
        *jax_env_rows(),
        *compiled_rows(),
        *training_rows(quick=quick),
        *worker_rows(),
        *replay_rows(),
        *off_policy_rows(),
        *offline_rows(),
        *frames_rows(quick=quick),
        *search_rows(quick=quick),
        *serving_rows(),
        *gpu_rows(),
    )
    if quick:
        rows = tuple(replace(row, rounds=min(row.rounds, 2), seconds=min(row.seconds, 0.5)) for row in rows)
    return {row.name: row for row in rows}
