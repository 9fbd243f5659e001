"""`WandbLogger`: Weights & Biases. Requires the extra `wandb`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollax.errors import not_installed
from rollax.runs.loggers.logger import LoggedRun, Logger, Outcome

try:
    import wandb
except ImportError as error:
    raise not_installed("The logger wandb", error, where="loggers", package="wandb", extra="wandb") from error

_STEP = "timesteps_total"
_VIDEOS = (".mp4", ".gif")


class WandbLogger(Logger):
    """A run of Weights & Biases with the config, the numbers over environment steps, pictures and videos.

    Args:
        settings: arguments of `wandb.init`, such as `project`, `group`, `tags` and `mode="offline"`.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def begin(self, run: LoggedRun) -> bool:
        defaults = {
            "id": run.earlier_id,  # None: W&B makes one
            "resume": "allow",
            "name": run.folder.name,
            "dir": str(run.folder),
            "config": {"run": run.algorithm, "env": run.env, **run.config},
            "allow_val_change": True,  # a run that continues another one may have another config
            "reinit": "create_new",  # so that a run of the user's own is neither ended nor written into
        }
        self._run = wandb.init(**{**defaults, **self._settings})
        self.id = self._run.id
        # Not W&B's own step, which only grows: a run may continue from an older checkpoint.
        self._run.define_metric("*", step_metric=_STEP)
        return self.id != run.earlier_id

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log({**numbers, _STEP: step})

    def media(self, name: str, path: Path, step: int) -> None:
        suffix = path.suffix.lower()
        made = wandb.Video(str(path), format=suffix[1:]) if suffix in _VIDEOS else wandb.Image(str(path))  # type: ignore[arg-type]
        self._run.log({f"media/{name}": made, _STEP: step})

    def close(self, outcome: Outcome) -> None:
        self._run.finish(exit_code=int(outcome == "failed"))
