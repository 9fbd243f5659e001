"""`SearchOptimizer`: which worker plays which directions, also after a worker is lost."""

from functools import partial

import numpy as np
import pytest

from rollax import ARSTrainer
from rollax.processes.actors import LocalActors, ProcessLostError
from rollax.rollout import remote_workers
from rollax.search.compiled_candidates import play_candidates
from tests.rollout.test_worker_set import workers_here
from tests.search.search_worlds import Drift
from tests.search.searches import SMALL, after, assert_same, state_after


class TestLostWorkers:
    """Another worker evaluates the directions of a lost worker."""

    @pytest.mark.short("False")
    @pytest.mark.parametrize("recreated", [True, False])
    def test_they_are_evaluated_again(self, monkeypatch, recreated):
        expected = after(ARSTrainer, 2)
        lost = []

        class Failing(LocalActors):
            def call(self, handle, method, *rest):
                if method == "perform" and handle.worker_index == 2 and not lost:
                    lost.append(rest[0].args[0].indices.tolist())
                    handle.perform(*rest)  # it fails before it answers
                    return super().call(LostWorker(), "raise_error")
                return super().call(handle, method, *rest)

        class LostWorker:
            def raise_error(self):
                raise ProcessLostError("killed")

        monkeypatch.setattr(remote_workers, "ray_workers", lambda *given: Failing(workers_here(*given)._start))
        rules = {} if recreated else {"recreate_failed_workers": False, "ignore_worker_failures": True}
        assert_same(after(ARSTrainer, 2, num_workers=3, **rules), expected)
        assert lost == [[2, 3]]

    def test_results_for_older_parameters_are_dropped(self, monkeypatch):
        class LastFirst(LocalActors):
            def wait(self, references, count, timeout_s):
                return list(references)[::-1]  # the older results arrive after the others

        monkeypatch.setattr(remote_workers, "ray_workers", lambda *given: LastFirst(workers_here(*given)._start))
        found = []
        for num_workers in (0, 2):
            with ARSTrainer(Drift, {**SMALL, "num_workers": num_workers}) as trainer:
                state_after(trainer, 1)
                if num_workers:  # as after an interrupt
                    optimizer = trainer.optimizer
                    task = partial(play_candidates, optimizer.request(np.arange(5)))
                    optimizer.remote.request(1, "perform", task)
                weights = trainer.get_weights()["default_policy"]
                trainer.set_weights({"default_policy": {name: 2 * value + 1 for name, value in weights.items()}})
                found.append(state_after(trainer, 1))
        assert_same(*found)


class TestRequests:
    """A worker plays two episodes in each of its sub-environments for one request."""

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("settings", "sizes"),
        [
            ({"num_envs_per_worker": 2, "num_workers": 1}, [2, 2, 2, 2, 2]),
            ({"num_envs_per_worker": 3, "num_workers": 2}, [3, 3, 3, 1]),
            ({"num_envs_per_worker": 4, "num_workers": 2, "episodes_per_candidate": 3}, [2, 2, 2, 2, 2]),
            ({"num_envs_per_worker": 1, "num_workers": 2, "episodes_per_candidate": 3}, [1] * 10),
            ({"num_envs_per_worker": 64, "num_workers": 3}, [4, 4, 2]),  # no worker is left without directions
        ],
    )
    def test_few_directions(self, monkeypatch, settings, sizes):
        played: list[list[int]] = []

        class Watched(LocalActors):
            def call(self, handle, method, *rest):
                if method == "perform":
                    played.append(rest[0].args[0].indices.tolist())
                return super().call(handle, method, *rest)

        monkeypatch.setattr(remote_workers, "ray_workers", lambda *given: Watched(workers_here(*given)._start))
        expected = after(ARSTrainer, 1, **{**settings, "num_workers": 0, "num_directions": 10})
        found = after(ARSTrainer, 1, **{**settings, "num_directions": 10})
        assert [len(indices) for indices in played] == sizes
        assert sorted(index for indices in played for index in indices) == list(range(10))
        assert_same(found, expected)
