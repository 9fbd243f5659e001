"""Callbacks: a user's own code at the stations of sampling and training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer
    from rollax.batch import MultiAgentBatch, SampleBatch
    from rollax.env.base_env import BaseEnv
    from rollax.evaluation.episode import Episode
    from rollax.evaluation.rollout_worker import RolloutWorker


class Callbacks:
    """Override what is needed; only overridden methods cost anything. Given to a config as a class.

    A class of one's own that is no subclass, and has only some of the methods, does as well.
    """

    def on_episode_start(self, *, worker: RolloutWorker, base_env: BaseEnv, episode: Episode) -> None:
        """An episode has begun; its first observations have not been acted on."""

    def on_episode_step(self, *, worker: RolloutWorker, base_env: BaseEnv, episode: Episode) -> None:
        """A step of an episode has been taken (`episode.last_infos` holds its infos)."""

    def on_episode_end(self, *, worker: RolloutWorker, base_env: BaseEnv, episode: Episode) -> None:
        """An episode has ended; numbers put into `episode.custom_metrics` are averaged into the results."""

    def on_sample_end(self, *, worker: RolloutWorker, samples: SampleBatch | MultiAgentBatch) -> None:
        """A fragment is complete and postprocessed."""

    def on_train_result(self, *, trainer: Trainer, result: dict[str, Any]) -> None:
        """An iteration has ended; `result` may be added to."""


def make_callbacks(given: type | None) -> Callbacks:
    """An instance of the class in a config; None is one that does nothing."""
    if given is None:
        return Callbacks()
    if isinstance(given, type) and not issubclass(given, Callbacks):
        given = type(given.__name__, (given, Callbacks), {})
    return given()


def overrides(callbacks: Callbacks, method: str) -> bool:
    """True where the user's class has its own version of a method."""
    return getattr(type(callbacks), method) is not getattr(Callbacks, method)
