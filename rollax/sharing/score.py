"""The score of a shared run: the rewards of its greedy episodes, which others can measure again."""

from __future__ import annotations

import importlib.metadata
import math
import platform
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import TypeAdapter, ValidationError

import rollax
from rollax.core.atomic_files import read_regular
from rollax.core.storage import from_json_bytes, to_json_bytes
from rollax.errors import CheckpointError, RollaxError
from rollax.sharing.contents import SCORE, limit_of

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer

_PACKAGES = ("gymnasium", "jax", "numpy")
_STANDARD_ERRORS = 3.0
Agreement = Literal["equal", "close", "different"]


@dataclass(frozen=True)
class Score:
    """The rewards of greedy episodes, and how they were measured.

    Args:
        env: the environment.
        seed: the config key `seed` of the evaluation.
        rewards: the sum of rewards of each episode.
        timesteps: the environment steps of training before the measurement.
        versions: the versions of Python, rollax and the packages that determine the episodes.
        date: the day of the measurement, in UTC.
    """

    env: str
    seed: int
    rewards: tuple[float, ...]
    timesteps: int
    versions: Mapping[str, str]
    date: str

    @property
    def mean(self) -> float:
        return statistics.fmean(self.rewards)

    @property
    def deviation(self) -> float:
        """The standard deviation over episodes."""
        return statistics.pstdev(self.rewards)

    def __str__(self) -> str:
        return f"{self.mean:.2f} +/- {self.deviation:.2f}"

    def agreement(self, other: Score) -> Agreement:
        """Returns "equal" for equal rewards, "close" for means within 3 standard errors, else "different".

        The standard error of the difference is sqrt(s₁²/n₁ + s₂²/n₂).
        """
        if self.rewards == other.rewards:
            return "equal"
        variance = sum(score.deviation**2 / len(score.rewards) for score in (self, other))
        close = abs(self.mean - other.mean) <= _STANDARD_ERRORS * math.sqrt(variance)
        return "close" if close else "different"


def measure(trainer: Trainer, env: str, episodes: int) -> Score:
    """Returns the score of `episodes` greedy episodes, which depend on the `seed` in the config of the trainer.

    Raises:
        RollaxError: no episode has ended, or the reward of an episode is not finite.
    """
    rewards = tuple(map(float, trainer.evaluate(episodes)["episode_rewards"]))
    if not rewards or not all(map(math.isfinite, rewards)):
        raise RollaxError("The policy has no score.", env, f"the rewards {list(rewards)}").expected(
            "episodes that end, with finite rewards", "limit the length of the episodes, or correct the rewards"
        )
    return Score(
        env=env,
        seed=int(trainer.config.seed or 0),
        rewards=rewards,
        timesteps=int(trainer.optimizer.env_steps),
        versions=versions(),
        date=datetime.now(UTC).date().isoformat(),
    )


def versions() -> dict[str, str]:
    """Returns the versions of Python, rollax and the packages that determine the episodes."""
    packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), "rollax": rollax.__version__, **packages}


def write_score(score: Score, run: Path) -> None:
    (run / SCORE).write_bytes(to_json_bytes(asdict(score)))


def read_score(run: Path) -> Score | None:
    """Returns the score in a shared run; None if there is no score. CheckpointError for a damaged file."""
    path = run / SCORE
    if not path.exists():
        return None
    try:
        data = from_json_bytes(read_regular(path, limit_of(SCORE) or 0), str(path))
        score = TypeAdapter(Score).validate_python(data)
    except (OSError, ValidationError) as error:
        raise CheckpointError.damaged(path, str(error), "the score that `rollax share` wrote") from error
    if not score.rewards:
        raise CheckpointError.damaged(path, "no rewards", "the reward of each episode")
    return score
