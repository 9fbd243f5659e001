"""Exact numbers of whole episodes, for evaluations and recordings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollax.core.numbers import is_whole
from rollax.errors import ConfigError
from rollax.rollout.episodes import EpisodeTable
from rollax.rollout.long_episodes import LongEpisodes
from rollax.rollout.metrics import EpisodeMetrics
from rollax.rollout.sampler import Sampler
from rollax.rollout.step_recorder import StepRecorder

OR_DEFAULT = ", or leave it out to use evaluation_num_episodes"
"""The end of the fix for a wrong number of episodes to evaluate."""


def play_episodes(sampler: Sampler, num_episodes: int, recorder: StepRecorder | None = None) -> list[EpisodeMetrics]:
    """Plays whole episodes, and returns their metrics; running episodes are dropped, before and after.

    Each sub-environment has a fixed share, so short episodes are not counted more often than long ones. Callbacks get
    only the counted episodes. A very long one logs a warning. The metrics of earlier episodes are kept.

    Args:
        sampler: no other thread samples with it meanwhile.
        num_episodes: 1 or more.
        recorder: records the episodes.
    Raises:
        ConfigError: `num_episodes` is not a positive whole number.
    """
    check_count(num_episodes, "evaluate(num_episodes=...)", OR_DEFAULT)
    sampler.restart()
    kept = sampler.record, sampler.recorder
    sampler.record, sampler.recorder = False, recorder
    episodes = sampler.episodes
    episodes.left = _shares(sampler, num_episodes)
    long_episodes = LongEpisodes("An evaluation or a recording waits for all of its episodes.")
    played: list[EpisodeMetrics] = []
    try:
        with episodes.apart():
            while len(played) < num_episodes:
                sampler.step()
                long_episodes.after_poll(lambda: np.where(_counting(episodes), episodes["length"], 0))
                played += sampler.take_metrics()
        return played
    finally:
        sampler.recorder = episodes.left = None
        sampler.restart()
        sampler.record, sampler.recorder = kept


def check_count(num_episodes: Any, where: str, otherwise: str = "") -> None:
    """Raises ConfigError unless it is a positive whole number."""
    if not (is_whole(num_episodes) and num_episodes >= 1):
        raise ConfigError("`num_episodes` is invalid.", where, num_episodes).expected(
            "a whole number, 1 or more", f"pass a number of episodes{otherwise}"
        )


def write_episodes(sampler: Sampler, num_episodes: int) -> list[EpisodeMetrics]:
    """As `play_episodes`, and writes these episodes with the sampler's recorder; ConfigError without one."""
    recorder = sampler.recorder
    if recorder is None:
        raise ConfigError("There is no folder to write episodes into.", "config key 'output'").expected(
            "a folder", "set output to a new folder"
        )
    try:
        return play_episodes(sampler, num_episodes, recorder)
    finally:
        recorder.write_finished()
        recorder.restart()  # the uncounted parts of running episodes


def _shares(sampler: Sampler, num_episodes: int) -> NDArray[np.int64]:
    """The number of episodes of each sub-environment."""
    shares = np.full(sampler.env.num_envs, num_episodes // sampler.env.num_envs)
    shares[: num_episodes % sampler.env.num_envs] += 1
    return shares


def _counting(episodes: EpisodeTable) -> NDArray[np.bool_]:
    """[rows] whether a sub-environment has a running episode that would count if it ended next."""
    return (episodes["id"] >= 0) & episodes.counting(np.arange(episodes.rows))
