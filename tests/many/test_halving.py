"""Successive halving: its rungs, and which runs go on."""

from __future__ import annotations

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
    ],
)
def test_rungs(halving, limit, rungs):
    assert list(halving.rungs(limit)) == rungs


def test_rungs_without_a_limit():
    assert list(islice(Halving(100).rungs(math.inf), 3)) == [100, 200, 400]


@pytest.mark.parametrize(
    ("scores", "kept", "stopped"),
    [
        ({"a": 1.0, "b": 4.0, "c": 3.0, "d": 2.0}, ["b", "c"], ["d", "a"]),
        ({"a": 1.0, "b": 4.0, "c": 3.0}, ["b", "c"], ["a"]),  # half of three, rounded up
        ({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}, ["a", "b"], ["c", "d"]),
        ({"a": None, "b": -5.0, "c": None, "d": -6.0}, ["b", "d"], ["a", "c"]),
        ({"a": None, "b": None}, ["a"], ["b"]),
    ],
)
def test_the_better_half_goes_on(scores, kept, stopped):
    assert Halving(1).ranked(scores) == (kept, stopped)


def test_a_factor_of_three_keeps_a_third():
    assert Halving(1, factor=3).ranked({"a": 1.0, "b": 2.0, "c": 3.0, "d": 0.0}) == (["c", "b"], ["a", "d"])
