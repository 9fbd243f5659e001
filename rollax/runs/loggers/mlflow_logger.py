"""`MlflowLogger`: MLflow Tracking. Requires the extra `mlflow`."""

from __future__ import annotations

import os
import posixpath
import re
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollax.errors import not_installed
from rollax.runs.loggers.logger import LoggedRun, Logger, Outcome

try:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param
except ImportError as error:
    raise not_installed("The logger mlflow", error, where="loggers", package="mlflow", extra="mlflow") from error

_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_MOST_METRICS, _MOST_PARAMS, _LONGEST_PARAM, _LONGEST_NAME = 1000, 100, 6000, 250
"""Limits of MLflow, for one request, for the text of one parameter, and for a name."""


class MlflowLogger(Logger):
    """A run of MLflow with the config as parameters, the numbers over environment steps, and files as artifacts.

    Args:
        tracking_uri: the server or the store, such as `sqlite:///mlflow.db`; None for MLflow's own choice, which the
            environment variable MLFLOW_TRACKING_URI sets.
        experiment: the name of the experiment, which is created if it does not exist; None for the environment variable
            MLFLOW_EXPERIMENT_NAME, or `rollax`.
        run_name: the name of the run; None for the name of the run folder.
        tags: tags of the run.
    """

    def __init__(
        self,
        *,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        run_name: str | None = None,
        tags: Mapping[str, Any] | None = None,
    ) -> None:
        self._uri, self._run_name, self._tags = tracking_uri, run_name, dict(tags or {})
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "rollax"

    def begin(self, run: LoggedRun) -> bool:
        # A client, because the functions of the package `mlflow` have one active run in each process.
        self._client = MlflowClient(self._uri)
        if run.earlier_id is not None:
            self._client.update_run(run.earlier_id, status="RUNNING")
            self.id = run.earlier_id
        else:
            experiment = self._client.get_experiment_by_name(self._experiment)
            experiment_id = (
                self._client.create_experiment(self._experiment) if experiment is None else experiment.experiment_id
            )
            name = self._run_name or run.folder.name
            self.id = self._client.create_run(experiment_id, tags=self._tags, run_name=name).info.run_id
            config = {"run": run.algorithm, "env": run.env, **run.config}
            params = [Param(_named(name), str(value)[:_LONGEST_PARAM]) for name, value in _flat(config)]
            for some in _parts(params, _MOST_PARAMS):
                self._client.log_batch(self._record, params=some)
        # The parameters of a run cannot be changed; a run that continues another one may have another config.
        self._client.log_dict(self._record, dict(run.config), f"config/{run.folder.name}.json")
        return run.earlier_id is None

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(_named(name), number, now, step) for name, number in numbers.items()]
        for some in _parts(metrics, _MOST_METRICS):
            self._client.log_batch(self._record, metrics=some)

    def media(self, name: str, path: Path, step: int) -> None:
        self._client.log_artifact(self._record, str(path), f"media/step_{step}")

    def close(self, outcome: Outcome) -> None:
        self._client.set_terminated(self._record, _STATUS[outcome])

    @property
    def _record(self) -> str:
        assert self.id is not None
        return self.id


def _named(name: str) -> str:
    """The name as MLflow accepts it: a short relative path, with `_` for characters that MLflow refuses."""
    name = re.sub(r"[^\w\-. /:]", "_", name)
    if len(name) > _LONGEST_NAME:  # different names stay different
        name = f"{name[:120]}_{zlib.crc32(name.encode()):08x}_{name[-120:]}"
    return re.sub(r"^\.\.", "_", posixpath.normpath("/" + name.strip("/"))[1:]) or "_"


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
