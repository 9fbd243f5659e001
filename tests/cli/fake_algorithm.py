"""An algorithm that learns nothing and returns at once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rollax.config import TrainerConfig
from rollax.core.storage import from_json_bytes, read_directory, to_json_bytes, write_directory
from rollax.errors import EnvError, NonFiniteError
from rollax.runs.fit import FitResult, fit
from rollax.runs.run_folder import newest_checkpoint


class FakeKeys(TrainerConfig):
    """The keys of a sweep, and the other keys of `FakeTrainer`."""

    slope: float = 1.0
    best_at: int = 1000
    pause: float = 0.0
    diverges_above: float = 1e9
    fail_at: int | None = None


class FakeConfig:
    """A config with attributes from a dict."""

    evaluation_num_episodes = 3
    steps_the_env = False  # so that the final evaluation does not depend on ended episodes

    def __init__(self, config: dict[str, Any]) -> None:
        self.env = config.get("env", "Fake-v0")
        self.evaluation_interval = config.get("evaluation_interval")
        self._config = config

    def to_json(self) -> dict[str, Any]:
        return {"env": self.env, **self._config, "multiagent": {"policies": {}}}


class FakeTrainer:
    """Iteration n takes 100 steps and `pause` seconds and has the reward 10·n, greedily 20·n + 1, each times `slope`;
    iteration 1 has no episode.

    Config keys: `pause`; `slope`; `diverges_above`, a slope above which iteration 2 has numbers that are not finite;
    `best_at`, the last iteration with a higher reward; `hangs_at`, an iteration that does not
    end; `fail_at`, one that raises; `bug_at`, one that raises an error that is not rollax's; `done_at`, one whose
    result ends the run; `interrupted`, whether Ctrl-C interrupts evaluations.
    """

    name = "FAKE"
    config_class = FakeKeys
    can_evaluate = True
    evaluates_while_training = False

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = FakeConfig(config)
        self.settings = config
        self.stops_at = math.inf
        self.iteration = 0
        self.time_total_s = 0.0
        self.stopped = False
        self.recorded_in: tuple[Path, int] | None = None
        self._interval = self.config.evaluation_interval

    def __enter__(self) -> FakeTrainer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def optimizer(self) -> SimpleNamespace:
        return SimpleNamespace(steps=100 * self.iteration)

    def fit(self, stop: Mapping[str, float], out: Path | None = None, **options: Any) -> FitResult:
        # Not Trainer.fit itself, which would load JAX in every process of the tests.
        trainer: Any = self
        return fit(trainer, self.name, stop, out, **options)

    @contextmanager
    def stopping_at(self, timesteps_total: float, evaluation_interval: int | None = None) -> Iterator[None]:
        before = self._interval
        self.stops_at, self._interval = timesteps_total, before or evaluation_interval
        yield
        self.stops_at, self._interval = math.inf, before

    def stop_waiting(self) -> None:
        """Does nothing, as it never waits."""

    def train(self) -> dict[str, Any]:
        self.iteration += 1
        time.sleep(self.settings.get("pause", 0))
        if self.iteration == self.settings.get("hangs_at"):
            print("hangs", flush=True)
            time.sleep(600)
        if self.iteration == self.settings.get("fail_at"):
            try:
                raise ValueError("the wheel fell off")
            except ValueError as error:
                raise EnvError("A sub-environment raised.", where="sub-environment 3") from error
        if self.iteration == self.settings.get("bug_at"):
            raise ZeroDivisionError("a bug")
        slope = self.settings.get("slope", 1.0)
        if self.iteration == 2 and slope > self.settings.get("diverges_above", math.inf):
            raise NonFiniteError.not_finite("The loss", "iteration 2", math.nan)
        best = min(self.iteration, self.settings.get("best_at", math.inf))
        reward = math.nan if self.iteration == 1 else slope * 10.0 * best
        result = {
            "training_iteration": self.iteration,
            "timesteps_total": 100 * self.iteration,
            "time_total_s": 2.0 * self.iteration,
            "env_steps_per_s": 50.0,
            "episode_reward_mean": reward,
            "episode_len_mean": reward,
            "info": {"learner": {"default_policy": {"kl": 0.5, "total_loss": math.inf}}},
        }
        due = self._interval and self.iteration % self._interval == 0
        result["evaluation"] = self.evaluate() if due else None
        if self.iteration == self.settings.get("done_at"):
            result["done"] = True
        return result

    def save(self, directory: str | Path) -> Path:
        path = Path(directory) / f"checkpoint_{self.iteration:06d}"
        files = {"state.json": to_json_bytes({"iteration": self.iteration, "settings": self.settings})}
        return write_directory(path, files, kind="checkpoint", format_version=1)

    def evaluate(self, num_episodes: int | None = None, record_dir: str | None = None) -> dict[str, Any]:
        if self.settings.get("interrupted"):
            raise KeyboardInterrupt
        slope = self.settings.get("slope", 1.0)
        rewards = [slope * (20.0 * self.iteration + episode) for episode in range(num_episodes or 3)]
        return {
            "episode_reward_mean": sum(rewards) / len(rewards),
            "episode_reward_min": min(rewards),
            "episode_reward_max": max(rewards),
            "episode_len_mean": 1.0,
            "episodes": len(rewards),
            "episode_rewards": rewards,
            **({} if record_dir is None else {"videos": [f"{record_dir}/episode-0.mp4"]}),
        }

    def stop(self) -> None:
        self.stopped = True


def open_fake(checkpoint: Path, *, run: str | None, trust_code: bool, **changes: Any) -> FakeTrainer:
    """Opens a checkpoint in the place of `open_trainer`."""
    checkpoint = newest_checkpoint(checkpoint)
    state = from_json_bytes(read_directory(checkpoint, kind="checkpoint", format_version=1)["state.json"])
    trainer = FakeTrainer({**state["settings"], **changes})
    trainer.iteration = state["iteration"]
    trainer.recorded_in = checkpoint.resolve().parent.parent, trainer.iteration
    return trainer
