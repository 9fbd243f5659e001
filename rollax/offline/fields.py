"""The config fields for recorded data: for learning, and for estimates."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, field_validator

from rollax.config.field_group import ENABLED, NotIn, Predicate
from rollax.config.hooks import ConfigHooks
from rollax.core.numbers import is_finite
from rollax.errors import ConfigError

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer
    from rollax.offline.estimators.in_training import TrainingEstimates
    from rollax.optimizers.optimizer import Optimizer

SAMPLER = "sampler"
"""The name of fresh experience among the sources of `input`."""


def takes_settings(source: Any) -> bool:
    """Whether a source has a path or a function, which take settings; a reader takes none."""
    if isinstance(source, list | tuple):
        return any(map(takes_settings, source))
    return source is not None and not hasattr(source, "trajectories")


def is_recorded_alone(source: Any) -> bool:
    """Whether a source is recorded data without fresh experience."""
    return source is not None and not (isinstance(source, Mapping) and SAMPLER in source)


def paths_as_text(sources: Any) -> Any:
    """Sources with each `Path` as a string, as in checkpoints."""
    if isinstance(sources, os.PathLike):
        return os.fspath(sources)
    if isinstance(sources, Mapping):
        return {paths_as_text(source): weight for source, weight in sources.items()}
    return type(sources)(map(paths_as_text, sources)) if type(sources) in (list, tuple) else sources


def wrong_input(got: Any, fix: str) -> ConfigError:
    """The error for a value that is no source."""
    expected = "a path, a list of paths, {source: weight, ...}, a DatasetReader, or a function that returns one"
    return ConfigError.is_not("The value", "a source of recorded data", "config key 'input'", got).expected(
        expected, fix
    )


_TAKES_SETTINGS = Predicate(takes_settings, "a path or a function")
_RECORDED_ALONE = Predicate(is_recorded_alone, f"recorded data without {SAMPLER!r}")


class DataInputFields(ConfigHooks):
    """Where recorded data comes from, where it is kept, and whether the environment is stepped too.

    See `BatchReplayOptimizer`.
    """

    requires = {
        "input_config": [{"input": _TAKES_SETTINGS}, {"off_policy_estimation_input": _TAKES_SETTINGS}],
        ("input_folder", "then_online"): {"input": ENABLED},
        "input_memory_gb": {"input": ENABLED, "input_folder": None},
        "updates_per_step": [{"input": _RECORDED_ALONE}, {"then_online": True}],
        "offline_timesteps": {"then_online": True},
    }
    further_requires = {("initial_epsilon", "epsilon_timesteps", "random_steps"): {"then_online": False}}
    places = {
        ("input", "input_config", "input_folder", "input_memory_gb", "updates_per_step", "offline_timesteps"): (),
    }
    folders = {"input_folder": "None to keep recorded data in memory"}
    passed_again = ("input", "input_config")

    input: Any = Field(
        default=None,
        description="recorded data to learn from: a folder or file, a pattern such as 'runs/*', a DatasetReader, a "
        "function that returns one, a list of these, or {path: weight, ...}, with 'sampler' for fresh experience; "
        "None: fresh experience only",
    )
    input_config: dict[str, Any] = Field(
        default={}, description="settings for reading the data, the arguments of open_dataset, such as its format"
    )
    input_folder: str | None = Field(
        default=None,
        description="folder for the columns of data that is larger than memory: decoded once, then read from there by "
        "every run; None keeps the data in memory",
    )
    input_memory_gb: float | None = Field(
        default=None,
        gt=0,
        description="GiB of memory that recorded data may take without an input_folder; None: half of the machine's "
        "memory",
    )
    updates_per_step: int = Field(
        default=200,
        ge=1,
        le=2**20,
        description="updates from recorded data in one step of the optimizer; an iteration has at least that many",
    )
    then_online: bool = Field(
        default=False,
        description="whether the environment is stepped after offline_timesteps, to learn from recorded data and fresh "
        "experience: half of each, or by the weights of input",
    )
    offline_timesteps: int = Field(
        default=100_000, ge=1, description="rows of recorded data to learn from before the environment is stepped"
    )

    @field_validator("input", mode="before")
    @classmethod
    def _input_as_text(cls, value: Any) -> Any:
        return paths_as_text(value)

    def check(self) -> None:
        super().check()
        self._check_input()

    def _check_input(self) -> None:
        """Refuses weights that are not positive numbers, and sources without recorded data."""
        if not isinstance(self.input, Mapping):
            if isinstance(self.input, str) and self.input == SAMPLER:
                raise wrong_input(self.input, "leave input out to learn from fresh experience only")
            if self.input == "" or isinstance(self.input, bool | int | float):
                raise wrong_input(self.input, "name the folder or file")
            return
        for source, weight in self.input.items():
            if not isinstance(source, str) or not source:
                raise wrong_input(source, "name each source by a string, and its weight")
            if not is_finite(weight) or weight <= 0:
                raise wrong_input(f"{source!r}: {weight!r}", "give each source a weight above 0, or leave it out")
        if not set(self.input) - {SAMPLER}:
            raise wrong_input(dict(self.input), "name some recorded data, or leave input out")
        if not math.isfinite(sum(map(float, self.input.values()))):
            raise wrong_input(dict(self.input), "give weights whose sum is finite, such as 1 and 3")

    @property
    def learns_offline(self) -> bool:
        """Whether a run begins with recorded data alone, without stepping an environment."""
        return is_recorded_alone(self.input) or (self.input is not None and self.then_online)

    @property
    def steps_the_env(self) -> bool:
        return self.then_online or not is_recorded_alone(self.input)

    @property
    def is_pretrained(self) -> bool:
        return self.then_online

    def optimizer_for(self, trainer_class: type[Trainer]) -> type[Optimizer]:
        """The optimizer class of an algorithm; with recorded data, the class that learns from such data.

        Raises:
            ConfigError: the algorithm requires recorded data and has none, or cannot learn from its data.
        """
        own, has_data = trainer_class.optimizer_class, self.input is not None
        needs_data = getattr(own, "needs_recorded_data", False)
        if not needs_data and not has_data:
            return own
        from rollax.offline.batch_replay import BatchReplayOptimizer, missing_input

        if not has_data:
            raise missing_input(trainer_class.name)
        if needs_data:
            return own
        from rollax.optimizers.async_replay import AsyncReplayOptimizer
        from rollax.optimizers.sync_replay import SyncReplayOptimizer

        # Subclasses are excluded, because they may draw in another way.
        if own is SyncReplayOptimizer or (own is AsyncReplayOptimizer and not self.steps_the_env):
            return BatchReplayOptimizer
        what = f"{trainer_class.name} cannot learn from recorded data with these settings."
        got = f"{own.__name__}, with {'fresh experience beside the data' if self.steps_the_env else 'data alone'}"
        raise ConfigError(what, "config key 'input'", got).expected(
            "an algorithm with one replay buffer, such as DQN, SAC or TD3; Ape-X on data alone; or a "
            "BatchReplayOptimizer",
            "use DQN in place of Ape-X, or learn from the data alone (without 'sampler' in input, then_online=False)",
        )

    def with_spaces(self, where: str) -> Self:
        config: Any = self
        if config.env is not None or self.input is None or self.steps_the_env:
            return super().with_spaces(where)
        from rollax.offline.spaces_of_data import with_spaces_of_data

        return with_spaces_of_data(config)

    def weights_of_sources(self) -> tuple[list[tuple[Any, float]], float]:
        """The recorded sources with their weights, and the weight of fresh experience; the weights add up to 1."""
        if isinstance(self.input, Mapping):
            recorded = [(source, float(weight)) for source, weight in self.input.items() if source != SAMPLER]
            of_recorded = sum(weight for _, weight in recorded)
            fresh = float(self.input.get(SAMPLER, of_recorded if self.then_online else 0.0))
        else:
            recorded, fresh = [(self.input, 1.0)], 1.0 if self.then_online else 0.0
        total = fresh + sum(weight for _, weight in recorded)
        return [(source, weight / total) for source, weight in recorded], fresh / total


class OffPolicyEstimationFields(ConfigHooks):
    """Which estimates of the policies are made from recorded data at each evaluation; see `TrainingEstimates`."""

    requires = {
        "off_policy_estimation_methods": [{"off_policy_estimation_input": ENABLED}, {"input": ENABLED}],
        "off_policy_estimation_input": {"off_policy_estimation_methods": NotIn(())},
    }
    places = {("off_policy_estimation_methods", "off_policy_estimation_input"): ()}
    passed_again = ("off_policy_estimation_input",)

    off_policy_estimation_methods: tuple[Literal["is", "pdis", "wis", "wpdis", "dm", "dr"], ...] = Field(
        default=(),
        description="methods by which each evaluation estimates the value of each policy from recorded data, such "
        "as ['wis', 'dm']; see [estimates.md](estimates.md)",
    )
    off_policy_estimation_input: Any = Field(
        default=None,
        description="data set to estimate from: a path, a list of them, a reader or a function, without weights; "
        "None: the data of input",
    )

    @field_validator("off_policy_estimation_input", mode="before")
    @classmethod
    def _estimation_input_as_text(cls, value: Any) -> Any:
        if isinstance(value, Mapping | bool | int | float) or value == "":
            raise ValueError("a path, a list of them, a reader or a function; all episodes count the same")
        return paths_as_text(value)

    def estimates(self, trainer: Trainer) -> TrainingEstimates | None:
        """The estimates of the policies at each evaluation, with their data in memory; None if no method is set."""
        methods = self.off_policy_estimation_methods
        if not methods:
            return None
        from rollax.offline.estimators.in_training import TrainingEstimates
        from rollax.offline.reader import reading
        from rollax.rollout.policy_mapping import policy_mapping

        config: Any = self
        source, worker = self.off_policy_estimation_input, trainer.worker
        if source is None:
            recorded = [one for one, _ in config.weights_of_sources()[0]]
            source = recorded[0] if len(recorded) == 1 else recorded
        with reading(source, **config.input_config) as reader:
            runners = {policy_id: worker.runners[policy_id] for policy_id in trainer.optimizer.policies}
            policy_of = policy_mapping(config.multiagent.policy_mapping_fn, list(worker.policies))
            return TrainingEstimates(reader, runners, methods, policy_of)
