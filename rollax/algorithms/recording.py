"""Evaluations whose episodes become files: videos, or a data set."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from rollax.algorithms.evaluator import Evaluator, evaluation_result
from rollax.core.atomic_files import absolute
from rollax.env.recording import RecordedEnv, RecordingCreator
from rollax.errors import ConfigError
from rollax.rollout.metrics import EvaluationResult
from rollax.rollout.whole_episodes import check_count


def evaluate_recorded(evaluator: Evaluator, num_episodes: int | None, folder: str | Path) -> EvaluationResult:
    """Like `Evaluator.evaluate`, and writes a video of each episode into a folder."""
    total = evaluator.count_of(num_episodes)

    def counts(episode: int, env_id: int, num_envs: int) -> bool:
        return episode * num_envs + env_id < total  # each sub-environment's share of an evaluation

    config = evaluator.config()
    recorded = RecordingCreator(config.env, Path(folder), counts)
    with evaluator.further_worker(config.changed(num_envs_per_worker=1, env=recorded)) as worker:
        result = evaluator.result_of(worker.evaluate(total))
        assert isinstance(worker.env, RecordedEnv)
        result["videos"] = sorted(map(str, worker.env.paths))
    return result


def record(evaluator: Evaluator, num_episodes: int, out: str | Path, *, explore: bool, infos: bool) -> EvaluationResult:
    """Writes this many episodes as a data set into a folder; returns their summary and the files."""
    check_count(num_episodes, "record(num_episodes=...)")
    folder, existing = absolute(out, ConfigError), 0
    with suppress(OSError):  # no folder yet; a folder that cannot be read is refused when episodes are written
        existing = len(os.listdir(folder))
    # Existing files may be from an earlier call; the same seeds would repeat its episodes.
    config = evaluator.config(existing, explore, int(num_episodes)).for_recording(folder, infos=infos)
    with evaluator.further_worker(config) as worker:
        result = evaluation_result(worker.write_episodes(num_episodes))
        recorder = worker.sampler.recorder
    assert recorder is not None
    result["files"] = list(map(str, recorder.paths))  # complete after the worker has stopped
    return result
