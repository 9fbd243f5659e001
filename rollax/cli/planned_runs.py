"""`PlannedRun`: one of many runs that `rollax train` makes with `--seeds` and `--sweep`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from rollax.cli.console import MISSED_GOAL
from rollax.many.sweep import Setting
from rollax.runs.results import SEED_FOLDER
from rollax.runs.run_folder import newest_saved
from rollax.runs.run_lock import refuse_used


@dataclass(frozen=True)
class PlannedRun:
    """A setting of a sweep with a seed, and the folder of all runs."""

    setting: Setting
    seed: int
    parent: Path

    @property
    def folder(self) -> Path:
        """The run folder, such as `lr=0.001/seed-0` in the folder of all runs; without a sweep `seed-0`."""
        return self.parent / self.setting.name / f"{SEED_FOLDER}{self.seed}"

    @property
    def label(self) -> str:
        """The name of the run in printed lines."""
        seed = f"seed {self.seed}"
        return f"{self.setting.name}, {seed}" if self.setting.values else seed.capitalize()


@dataclass
class Outcome:
    """How runs have ended.

    Args:
        codes: their exit codes.
        diverged: settings of a sweep with a run whose numbers are not finite.
    """

    codes: set[int] = field(default_factory=lambda: {0})
    diverged: set[Setting] = field(default_factory=set)

    def add(self, other: Outcome) -> None:
        """Adds how other runs have ended."""
        self.codes |= other.codes
        self.diverged |= other.diverged

    @property
    def goes_on(self) -> bool:
        """Whether further runs may begin."""
        return self.codes <= {0, MISSED_GOAL}


def resumed(run: Path) -> Path | None:
    """Returns the run folder if it has a checkpoint to continue from; else removes the folder and returns None."""
    if newest_saved(run) is not None:
        return run
    if run.exists():  # the run was interrupted before its first checkpoint
        refuse_used(run, "--out")
        shutil.rmtree(run)
    return None
