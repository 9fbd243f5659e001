"""Searches for good settings of an algorithm, with Optuna. The search itself requires the extra `tune`.

    from rollax import tune

    study = tune.run_study("PPO", "CartPole-v1", stop={"timesteps_total": 20_000}, trials=20, study="runs/study")
    print(study.best.score, study.best.values)

Nothing else of rollax imports this package; `rollax tune` is its command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollax.tune.record import TrialResult as TrialResult
    from rollax.tune.study import StudyResult as StudyResult
    from rollax.tune.study import run_study as run_study

__all__ = ["StudyResult", "TrialResult", "run_study"]

_MODULE_OF: Mapping[str, str] = {
    "StudyResult": "rollax.tune.study",
    "TrialResult": "rollax.tune.record",
    "run_study": "rollax.tune.study",
}


def __getattr__(name: str) -> Any:
    """Imports a name on first use, because only a search needs Optuna; the default spaces do not."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
