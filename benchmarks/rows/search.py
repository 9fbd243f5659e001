"""Augmented random search in one process."""

from __future__ import annotations

from benchmarks.measure import Against, Row
from benchmarks.rows.commands import own, peer

_DIRECTIONS = 32


def search_rows(*, quick: bool) -> tuple[Row, ...]:
    """Returns the benchmarks of ARS on CartPole and, against the raw environment, on HalfCheetah."""
    return _cartpole(2 if quick else 25), _half_cheetah()


def _cartpole(warm_up: int) -> Row:
    settings = {"env": "CartPole-v1", "directions": _DIRECTIONS, "warm_up": warm_up}
    return Row(
        name="ars_cartpole",
        work="ARS V2 on CartPole-v1, linear policy, 32 directions, whole iterations, one process",
        unit="env steps/s",
        better="more",
        sides=(
            own("rollax", "rollax_search.iterations", {**settings, "num_envs": 64}),
            peer("bare loop", "sb3.bare_search", settings),
            peer("sb3-contrib", "sb3.ars", settings),
        ),
        targets=(Against("bare loop", 4.0), Against("sb3-contrib", 3.0)),
        rounds=5,
        seconds=5.0,
        notes="The bare loop has the design of early RLlib: one environment, and for each step a filter of one row and "
        "a PyTorch forward pass. sb3-contrib steps one environment too. After 25 iterations most episodes have 500 "
        "steps on all sides. rollax has 64 sub-environments, one for each candidate.",
    )


def _half_cheetah() -> Row:
    settings = {"env": "HalfCheetah-v5", "num_envs": 64}
    return Row(
        name="ars_halfcheetah",
        work="ARS V2 on HalfCheetah-v5, linear policy, 32 directions, whole iterations, one process",
        unit="env steps/s",
        better="more",
        sides=(
            own("rollax", "rollax_search.iterations", {**settings, "directions": _DIRECTIONS, "warm_up": 1}),
            own("raw loop", "raw.loop", {**settings, "fragment": 250}),
        ),
        targets=(Against("raw loop", 0.7),),
        rounds=5,
        seconds=8.0,
        notes="The raw loop steps `gym.make` copies in turn with actions drawn beforehand.",
    )
