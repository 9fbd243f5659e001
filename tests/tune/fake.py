"""An algorithm whose score depends on its settings alone, at once."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from rollax.config.trainer import TrainerConfig, resolve_config
from rollax.errors import NonFiniteError

BEST_LR = 1e-3


class FakeTrainer:
    """Iteration n takes 100 steps. The score grows with n, and is the higher the nearer `lr` is to `BEST_LR`.

    With a limit of 1000 steps it is 10 - |log10(lr / BEST_LR)| at the end, plus `bonus` for odd seeds. Keys of
    `env_config`: `diverges_above`, a step size; `breaks`, an error of every training; `kill`, the number of the trainer
    that sends a Ctrl-C to its process, and with `dies` raises then; `exits`, the number of the one that ends its
    process; `fails_to_stop`.
    """

    config_class = TrainerConfig
    name = "FAKE"
    made: ClassVar[int] = 0
    running: ClassVar[int] = 0
    evaluations: ClassVar[int] = 0

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = resolve_config(TrainerConfig, config)
        self.iteration = 0
        self.can_evaluate = self.config.env_config.get("evaluates", True)
        FakeTrainer.made += 1
        FakeTrainer.running += 1
        self.number = FakeTrainer.made

    def stop(self) -> None:
        FakeTrainer.running -= 1
        if self.config.env_config.get("fails_to_stop"):
            raise RuntimeError("the simulator does not close")

    @contextmanager
    def stopping_at(self, timesteps_total: float) -> Iterator[None]:
        yield

    def train(self) -> dict[str, Any]:
        self.iteration += 1
        wanted = self.config.env_config
        if self.number == wanted.get("kill") and self.iteration == 2:
            os.kill(os.getpid(), signal.SIGINT)
            if wanted.get("dies"):
                raise RuntimeError("the simulator has got the signal too")
        if self.number == wanted.get("exits"):
            os._exit(7)
        if self.config.lr > wanted.get("diverges_above", math.inf):
            raise NonFiniteError("The loss is not finite.", "policy default_policy, step 3")
        if wanted.get("breaks"):
            raise RuntimeError("the simulator is gone")
        counts = {"training_iteration": self.iteration, "timesteps_total": 100 * self.iteration}
        return {**counts, "time_total_s": 1.0 * self.iteration, "episode_reward_mean": self._score - 100}

    def evaluate(self) -> dict[str, Any]:
        FakeTrainer.evaluations += 1
        return {"episode_reward_mean": self._score}

    @property
    def _score(self) -> float:
        bonus = self.config.env_config.get("bonus", 0) * ((self.config.seed or 0) % 2)
        return self.iteration - abs(math.log10(self.config.lr / BEST_LR)) + bonus
