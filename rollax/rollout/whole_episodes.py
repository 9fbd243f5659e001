"""Exact numbers of whole episodes, for evaluations and recordings; warnings and errors about endless episodes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rollax.core.numbers import is_whole
from rollax.errors import ConfigError, EnvError
from rollax.rollout.episodes import EpisodeTable
from rollax.rollout.metrics import EpisodeMetrics
from rollax.rollout.sampler import Sampler

if TYPE_CHECKING:
    from rollax.rollout.step_recorder import StepRecorder

log = logging.getLogger("rollax.sampling")
_LONG_EPISODE = 100_000  # steps
_ENDLESS_EPISODE = 1_000_000
_POLLS_BETWEEN_CHECKS = 1000
OR_DEFAULT = ", or leave it out to use evaluation_num_episodes"
"""The end of the fix for a wrong number of episodes to evaluate."""


def play_episodes(sampler: Sampler, num_episodes: int, recorder: StepRecorder | None = None) -> list[EpisodeMetrics]:
    """Plays whole episodes, and returns their metrics; running episodes are dropped, before and after.

    Each sub-environment has a fixed share, so short episodes are not counted more often than long ones. Callbacks get
    only the counted episodes. An episode of 100,000 steps logs a warning. The metrics of earlier episodes are kept.

    Args:
        sampler: plays the episodes; no other thread may sample with it meanwhile.
        num_episodes: 1 or more.
        recorder: records the episodes.
    Raises:
        ConfigError: `num_episodes` is not a positive whole number.
        EnvError: an episode has not ended after 1,000,000 steps.
    """
    check_count(num_episodes, "evaluate(num_episodes=...)", OR_DEFAULT)
    sampler.restart()
    kept, episodes = (sampler.record, sampler.recorder), sampler.episodes
    waits = f"An evaluation or a recording waits for all of its episodes, up to {_ENDLESS_EPISODE:,} steps of each."
    long_episodes = LongEpisodes(waits, most=_ENDLESS_EPISODE)
    played: list[EpisodeMetrics] = []
    try:
        sampler.record, sampler.recorder = False, recorder
        episodes.left = _shares(sampler, num_episodes)
        with episodes.apart():
            while len(played) < num_episodes:
                sampler.step()
                long_episodes.after_poll(lambda: np.where(_counting(episodes), episodes["length"], 0))
                played += sampler.take_metrics()
        return played
    finally:
        sampler.recorder = episodes.left = None
        try:
            sampler.restart()
        except BaseException:  # a signal; without a restart, the next sample would go on in dropped episodes
            sampler.restart()
            raise
        finally:
            sampler.record, sampler.recorder = kept


def check_count(num_episodes: Any, where: str, otherwise: str = "") -> None:
    """Raises ConfigError unless `num_episodes` is a positive whole number."""
    if not (is_whole(num_episodes) and num_episodes >= 1):
        raise ConfigError("`num_episodes` is invalid.", where, num_episodes).expected(
            "a whole number, 1 or more", f"pass a number of episodes{otherwise}"
        )


def write_episodes(sampler: Sampler, num_episodes: int) -> list[EpisodeMetrics]:
    """Like `play_episodes`, but the sampler's recorder writes the episodes; ConfigError without a recorder."""
    recorder = sampler.recorder
    if recorder is None:
        raise ConfigError("There is no folder to write episodes into.", "config key 'output'").expected(
            "a folder", "set output to a new folder"
        )
    try:
        return play_episodes(sampler, num_episodes, recorder)
    finally:
        recorder.drop_running()  # the uncounted parts of running episodes


def _shares(sampler: Sampler, num_episodes: int) -> NDArray[np.int64]:
    """The number of episodes of each sub-environment."""
    shares = np.full(sampler.env.num_envs, num_episodes // sampler.env.num_envs)
    shares[: num_episodes % sampler.env.num_envs] += 1
    return shares


def _counting(episodes: EpisodeTable) -> NDArray[np.bool_]:
    """[rows] whether a sub-environment has a running episode that would count if it ended next."""
    return (episodes["id"] >= 0) & episodes.counting(np.arange(episodes.rows))


class LongEpisodes:
    """Warns once if a running episode is very long.

    Args:
        waits: a sentence about the code that waits for the ends of episodes.
        most: the number of steps after which a running episode is an error; None: no limit.
    """

    def __init__(self, waits: str, most: int | None = None) -> None:
        self._waits, self._most = waits, most
        self._polls = 0
        self._has_warned = False

    def after_poll(self, lengths: Callable[[], NDArray]) -> None:
        """Counts a poll; `lengths` returns the steps of each sub-environment's running episode, 0 without one.

        Raises:
            EnvError: a running episode has `most` steps; tested every 1000 polls.
        """
        self._polls += 1
        if self._polls % _POLLS_BETWEEN_CHECKS or (self._has_warned and self._most is None):
            return
        longest = lengths()
        slot = int(longest.argmax())
        if self._most is not None and longest[slot] >= self._most:
            raise EnvError("An episode does not end.", f"sub-environment {slot}", f"{longest[slot]:,} steps").expected(
                f"an end within {self._most:,} steps",
                "return truncated=True from step() at a time limit, or wrap the environment in "
                "gymnasium.wrappers.TimeLimit; for evaluations with a Gymnasium id, set "
                "evaluation_config={'env_config': {'max_episode_steps': 1000}}",
            )
        if longest[slot] >= _LONG_EPISODE and not self._has_warned:
            self._has_warned = True
            log.warning(
                "An episode has not ended after %d steps (sub-environment %d). %s If it never ends, limit its "
                "length: gymnasium.make(..., max_episode_steps=...), or wrap the environment in "
                "gymnasium.wrappers.TimeLimit.",
                longest[slot],
                slot,
                self._waits,
            )
