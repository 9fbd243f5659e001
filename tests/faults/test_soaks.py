"""The soak runs, in short: `python -m tests.faults.soak_server` and its siblings run for minutes."""

import pytest

from tests.faults import growth, soak_server


def test_growth_is_a_difference_of_the_medians_of_two_halves():
    # Medians of the halves: memory 100 and 104, which is 4 % more; files 7 and 9, which is 2 more.
    looks = [{"mb": mb, "files": files} for mb, files in ((99, 7), (100, 7), (180, 30), (104, 9), (90, 9), (104, 2))]
    verdicts = growth.compare(looks, {"mb": 5.0, "files": 1.0}, frozenset({"mb"}))
    assert verdicts == {
        "mb": {"first_half": 100, "second_half": 104, "flat": True},
        "files": {"first_half": 7, "second_half": 9, "flat": False},
    }
    assert growth.compare(looks[:1], {"mb": 4.0}, frozenset()) == {}


@pytest.mark.long
@pytest.mark.parametrize("learn", [False, True])
def test_a_server_under_attack_serves_honest_clients(learn):
    counts = soak_server.attacked(0.3, look_every=10, warm_up=0, learn=learn)["counts"]
    assert counts["failed"] == 0
    assert min(counts[name] for name in ("attacks", "opened", "killed", "honest_episodes")) > 0
