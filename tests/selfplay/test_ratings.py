"""Elo ratings and the chances of opponents, against numbers derived by hand."""

import pytest

from rollax.selfplay.ratings import chances, expected_score, rated


@pytest.mark.parametrize(
    ("rating", "opponent", "expected"),
    [
        (1500, 1500, 1 / 2),
        (1900, 1500, 10 / 11),  # 1 / (1 + 10^-1)
        (1500, 1900, 1 / 11),  # 1 / (1 + 10^1)
        (2300, 1500, 100 / 101),  # 1 / (1 + 10^-2)
    ],
)
def test_the_expected_score(rating, opponent, expected):
    assert expected_score(rating, opponent) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("score", "after"),
    [
        # The favourite is expected to score 10/11; with K = 22 it gains 22 (S - 10/11).
        (1, (1902, 1498)),
        (0.5, (1891, 1509)),
        (0, (1880, 1520)),
    ],
)
def test_the_ratings_after_a_game(score, after):
    assert rated(1900, 1500, score, k_factor=22) == pytest.approx(after, rel=1e-12)


def test_equal_players_who_win_in_turn():
    # K = 20: first 1000 + 20 (1 - 1/2) = 1010 and 990. Then E = 1 / (1 + 10^(-20/400)) = 0.528751, so a loss costs
    # 20 · 0.528751 = 10.575020 points.
    player, opponent = rated(1000, 1000, 1, k_factor=20)
    assert (player, opponent) == (1010, 990)
    assert rated(player, opponent, 0, k_factor=20) == pytest.approx((999.424980, 1000.575020), abs=1e-5)


def test_chances():
    # (1 - w)² is 1/4, 1/16 and 1/16, together 3/8.
    win_rates = {"a": 0.5, "b": 0.75, "c": 0.75}
    assert chances(win_rates, "prioritized") == pytest.approx({"a": 2 / 3, "b": 1 / 6, "c": 1 / 6})
    assert chances(win_rates, "uniform") == pytest.approx(dict.fromkeys("abc", 1 / 3))
    assert chances(win_rates, "latest") == {"a": 0, "b": 0, "c": 1}
    assert chances({"a": 1.0, "b": 1.0}, "prioritized") == {"a": 0.5, "b": 0.5}
    assert chances({}, "latest") == chances({}, "prioritized") == {}
