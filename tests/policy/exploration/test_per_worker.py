"""How much each of many workers explores, by hand."""

from __future__ import annotations

import pytest

from rollax.policy.exploration.per_worker import worker_scale


def test_the_ladder_of_five():
    # 0.5^(1 + 4 i/4), i = 0..4
    found = [worker_scale(0.5, 4.0, index, 5) for index in range(1, 6)]
    assert found == pytest.approx([0.5, 0.25, 0.125, 0.0625, 0.03125])


def test_its_ends_are_those_of_the_paper():
    assert worker_scale(0.4, 7.0, 1, 360) == pytest.approx(0.4)
    assert worker_scale(0.4, 7.0, 360, 360) == pytest.approx(0.4**8)


@pytest.mark.parametrize(("index", "workers"), [(1, 1), (0, 0), (0, 8)])
def test_an_only_worker_and_the_driver_take_the_middle(index, workers):
    assert worker_scale(0.4, 7.0, index, workers) == pytest.approx(0.4**4.5)
