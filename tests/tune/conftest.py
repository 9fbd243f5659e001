from typing import Any

import pytest

from rollax.algorithms.registry import ALGORITHMS
from rollax.tune import StudyResult, run_study
from tests.tune.fake import FakeTrainer

LR = {"lr": {"log": [1e-5, 1e-1]}}


@pytest.fixture
def search(tmp_path, monkeypatch):
    """Runs studies of `FakeTrainer`, by default with 10 iterations of each trial, and returns the result."""
    monkeypatch.setitem(ALGORITHMS, "FAKE", f"{FakeTrainer.__module__}:FakeTrainer")
    monkeypatch.setattr(FakeTrainer, "made", 0)
    monkeypatch.setattr(FakeTrainer, "running", 0)
    monkeypatch.setattr(FakeTrainer, "evaluations", 0)

    def run(folder: str | None = None, *, env_config: dict[str, Any] | None = None, **arguments: Any) -> StudyResult:
        arguments = {"stop": {"timesteps_total": 1000}, "search": LR, "pruner": "none", **arguments}
        study = None if folder is None else tmp_path / folder
        fake: Any = FakeTrainer
        config = {"env_config": env_config or {}}
        result = run_study(fake, "CartPole-v1", config, study=study, show=lambda line: None, **arguments)
        assert FakeTrainer.running == 0, "every trainer is stopped"
        return result

    return run
