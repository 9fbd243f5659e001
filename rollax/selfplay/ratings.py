"""Elo ratings, and the chances with which opponents are drawn, as pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Rule = Literal["prioritized", "uniform", "latest"]
"""How opponents are drawn; see `chances`."""


def expected_score(rating: float, opponent: float) -> float:
    """Returns the score that the ratings predict: the chance of a win plus half the chance of a draw.

    Source: Elo (1978), The Rating of Chessplayers, section 1.4, with the logistic curve of chess federations:
    E = 1 / (1 + 10^((R_opponent - R) / 400)).
    """
    return 1 / (1 + 10 ** ((opponent - rating) / 400))


def rated(rating: float, opponent: float, score: float, k_factor: float) -> tuple[float, float]:
    """The ratings of both players after a game; what one gains, the other loses.

    Source: Elo (1978), section 1.6: R' = R + K · (S - E).

    Args:
        rating: the rating of the player.
        opponent: the rating of the other player.
        score: the player's score: 1 for a win, 1/2 for a draw, 0 for a loss.
        k_factor: K, the most points that a game can move.
    """
    gain = k_factor * (score - expected_score(rating, opponent))
    return rating + gain, opponent - gain


def chances(win_rates: Mapping[str, float], rule: Rule) -> dict[str, float]:
    """Opponent -> its probability to be drawn.

    Source of "prioritized": Vinyals et al. (2019), doi:10.1038/s41586-019-1724-z, prioritized fictitious self-play with
    the weighting f_hard: p ∝ (1 - w)². Deviations: uniform if every w is 1.

    Args:
        win_rates: opponent -> w, the learner's score against it, from the oldest opponent to the latest.
        rule: "prioritized", "uniform", or "latest": the last opponent alone.
    """
    if rule == "latest":
        return {opponent: float(opponent == [*win_rates][-1]) for opponent in win_rates}
    weights = {opponent: (1 - rate) ** 2 if rule == "prioritized" else 1.0 for opponent, rate in win_rates.items()}
    total = sum(weights.values())
    return {opponent: weight / total if total else 1 / len(weights) for opponent, weight in weights.items()}
