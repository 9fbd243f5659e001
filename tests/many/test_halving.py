"""Successive halving: its rungs, and which runs go on."""

import math
from itertools import islice

import pytest

from rollax.many.halving import Halving


@pytest.mark.parametrize(
    ("halving", "limit", "rungs"),
    [
        (Halving(100), 1000, [100, 200, 400, 800]),
        (Halving(100), 800, [100, 200, 400]),  # no rung at the limit itself
        (Halving(100), 100, []),
        (Halving(1, factor=3), 10, [1, 3, 9]),
        (Halving(100), math.inf, [100, 200, 400, 800, 1600]),
    ],
)
def test_rungs(halving, limit, rungs):
    assert list(islice(halving.rungs(limit), 5)) == rungs


@pytest.mark.parametrize(
    ("factor", "scores", "kept", "stopped"),
    [
        (2, {"a": 1.0, "b": 4.0, "c": 3.0, "d": 2.0}, ["b", "c"], ["d", "a"]),
        (2, {"a": 1.0, "b": 4.0, "c": 3.0}, ["b", "c"], ["a"]),  # half of three, rounded up
        (2, {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}, ["a", "b"], ["c", "d"]),
        (2, {"a": None, "b": -5.0, "c": None, "d": -6.0}, ["b", "d"], ["a", "c"]),
        (2, {"a": None, "b": None}, ["a"], ["b"]),
        (3, {"a": 1.0, "b": 2.0, "c": 3.0, "d": 0.0}, ["c", "b"], ["a", "d"]),
    ],
)
def test_the_better_part_goes_on(factor, scores, kept, stopped):
    assert Halving(1, factor=factor).ranked(scores) == (kept, stopped)
