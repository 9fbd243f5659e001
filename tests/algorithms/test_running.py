"""Calls of a trainer's methods in its callbacks, or after `stop`: refused where they would recurse or do harm."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from rollax import Callbacks, PPOTrainer
from rollax.errors import RollaxError
from tests.env.refused import refused

SMALL = {"train_batch_size": 60, "sgd_minibatch_size": 30, "num_sgd_iter": 1, "seed": 0}


class Caller(Callbacks):
    """Calls a function of the trainer in one of its methods, while that is `method`."""

    method, call, trainer, returned = "", None, None, None

    def _of(self, method: str) -> None:
        if method == Caller.method:
            Caller.method = ""  # once
            assert Caller.call is not None
            Caller.returned = Caller.call(Caller.trainer)

    def on_episode_end(self, **arguments):
        self._of("on_episode_end")

    def on_sample_end(self, **arguments):
        self._of("on_sample_end")

    def on_train_result(self, **arguments):
        self._of("on_train_result")


@pytest.fixture
def trainer():
    with PPOTrainer("CartPole-v1", {**SMALL, "callbacks": Caller}) as made:
        made.train()
        Caller.trainer = made
        yield made
    Caller.method, Caller.trainer = "", None


def calls(method: str, call: Any) -> None:
    Caller.method, Caller.call, Caller.returned = method, call, None


def message(call: str, inside: str, fix: str) -> str:
    where = rf"where: +PPOTrainer\.{call}, in a callback"
    return rf"{call} was called inside of {inside}\.(.|\n)*{where}(.|\n)*fix: +.*{fix}"


TRAIN, ITERATION = r"train\(\)", r"an iteration of train\(\)"
IN_LOOP, BETWEEN = r"call train\(\) in a loop", "call it in on_train_result"


@pytest.mark.short("on_episode_end")
@pytest.mark.parametrize("method", ["on_episode_end", "on_sample_end", "on_train_result"])
def test_train_and_fit_are_refused(trainer, method):
    calls(method, lambda trainer: trainer.train())
    with pytest.raises(RollaxError, match=message(TRAIN, TRAIN, IN_LOOP)):
        trainer.train()
    calls(method, lambda trainer: trainer.fit({"training_iteration": 9}, progress="none"))
    with pytest.raises(RollaxError, match=message(r"fit\(\)", TRAIN, IN_LOOP)):
        trainer.train()
    before = trainer.iteration
    assert trainer.train()["training_iteration"] == before + 1  # it works again


def test_what_an_evaluation_refuses(trainer, tmp_path):
    path, before = trainer.save(tmp_path), trainer.iteration
    for call, name in (
        (lambda trainer: trainer.train(), "train()"),
        (lambda trainer: trainer.fit({"training_iteration": 9}, progress="none"), "fit()"),
        (lambda trainer: trainer.restore(path), "restore()"),
    ):
        calls("on_episode_end", call)
        refused(RollaxError, trainer.evaluate, 1, says=f"{name} was called inside of evaluate")
        calls("on_episode_end", call)
        refused(RollaxError, trainer.record, 1, tmp_path / "recorded", says=f"{name} was called inside of record")
    assert trainer.train()["training_iteration"] == before + 1


def test_evaluations_of_other_threads_go_on(trainer):
    with ThreadPoolExecutor(1) as other:
        calls("on_train_result", lambda trainer: other.submit(trainer.evaluate, 1).result())
        trainer.train()
    assert Caller.returned is not None
    assert len(Caller.returned["episode_rewards"]) == 1


@pytest.mark.parametrize("method", ["on_episode_end", "on_sample_end"])
def test_what_changes_the_running_iteration_is_refused(trainer, method, tmp_path):
    path = trainer.save(tmp_path)
    calls(method, lambda trainer: trainer.restore(path))
    with pytest.raises(RollaxError, match=message(r"restore\(\)", ITERATION, BETWEEN)):
        trainer.train()
    calls(method, lambda trainer: trainer.save(tmp_path / "exact", exact=True))
    with pytest.raises(RollaxError, match=message(r"save\(exact=True\)", ITERATION, BETWEEN)):
        trainer.train()
    assert not (tmp_path / "exact").exists()


def test_what_ends_or_repeats_a_running_evaluation_is_refused(trainer, tmp_path):
    path = trainer.save(tmp_path)
    inside = r"evaluate\(\)"
    for name, call in {
        inside: lambda trainer: trainer.evaluate(1),
        r"restore\(\)": lambda trainer: trainer.restore(path),
        r"save\(exact=True\)": lambda trainer: trainer.save(tmp_path / "exact", exact=True),
    }.items():
        calls("on_episode_end", call)
        with pytest.raises(RollaxError, match=message(name, inside, BETWEEN)):
            trainer.evaluate(2)
    calls("on_episode_end", lambda trainer: trainer.record(1, tmp_path / "inner"))
    with pytest.raises(RollaxError, match=message(r"record\(\)", r"record\(\)", BETWEEN)):
        trainer.record(1, tmp_path / "outer")
    assert trainer.evaluate(2)["episodes"] == 2


@pytest.mark.long
@pytest.mark.parametrize("method", ["on_episode_end", "on_sample_end"])
def test_evaluations_and_checkpoints_inside_an_iteration(trainer, method, tmp_path):
    calls(method, lambda trainer: trainer.evaluate(2)["episodes"])
    assert trainer.train()["timesteps_this_iter"] == 60
    assert Caller.returned == 2
    calls(method, lambda trainer: trainer.save(tmp_path))
    trainer.train()
    with PPOTrainer("CartPole-v1", SMALL) as other:
        other.restore(Caller.returned)  # type: ignore[arg-type]
        assert (other.iteration, other.optimizer.steps) == (2, 120)  # as before the iteration
        assert other.train()["timesteps_total"] == 180


def test_all_but_training_after_the_result(trainer, tmp_path):
    path = trainer.save(tmp_path)
    expected = trainer.train()["training_iteration"]
    trainer.restore(path)
    for call in (
        lambda trainer: trainer.evaluate(1)["episodes"] == 1,
        lambda trainer: trainer.record(1, tmp_path / "data")["episodes"] == 1,
        lambda trainer: trainer.save(tmp_path / "exact", exact=True).is_dir(),
        lambda trainer: trainer.restore(path) is None,
    ):
        calls("on_train_result", call)
        assert trainer.train()["training_iteration"] == expected
        assert Caller.returned is True
        trainer.restore(path)


def test_fit_does_not_go_back(trainer, tmp_path):
    path = trainer.save(tmp_path)
    calls("on_train_result", lambda trainer: trainer.restore(path))
    with pytest.raises(RollaxError, match=message(r"restore\(\)", r"fit\(\)", r"call train\(\) in a loop")):
        trainer.fit({"training_iteration": 3}, progress="none")
    trainer.restore(path)  # after fit()
    assert trainer.train()["training_iteration"] == 2


class TestAfterStop:
    def stopped(self, tmp_path):
        with PPOTrainer("CartPole-v1", SMALL) as trainer:
            trainer.train()
            trainer.evaluate(1)
            path = trainer.save(tmp_path)
        return trainer, path

    def test_what_plays_episodes_is_refused(self, tmp_path):
        trainer, path = self.stopped(tmp_path)
        for name, call in {
            "train()": lambda: trainer.train(),
            "fit()": lambda: trainer.fit({"training_iteration": 9}, progress="none"),
            "evaluate()": lambda: trainer.evaluate(1),
            "record()": lambda: trainer.record(1, tmp_path / "data"),
            "restore()": lambda: trainer.restore(path),
            "save(exact=True)": lambda: trainer.save(tmp_path / "exact", exact=True),
        }.items():
            where = f"where:    PPOTrainer.{name}...PPOTrainer.from_checkpoint"
            refused(RollaxError, call, says=f"{name} was called after stop()...{where}")
        for call in (
            lambda: trainer.worker.sample(),
            lambda: trainer.worker.evaluate(1),
            lambda: trainer.optimizer.step(),
            lambda: trainer.workers.foreach_worker(lambda worker: worker.sample_fragment()),
        ):
            refused(RollaxError, call, says="worker has been stopped...RolloutWorker(worker_index=0)")
        assert not trainer.can_evaluate
        assert trainer.iteration == 1
        trainer.stop()

    def test_fit_that_a_callback_stops(self):
        class Stops(Callbacks):
            at = 2

            def on_train_result(self, *, trainer, result):
                if result["training_iteration"] == self.at:
                    trainer.stop()

        trainer = PPOTrainer("CartPole-v1", {**SMALL, "callbacks": Stops})
        ended = trainer.fit({"training_iteration": 2}, progress="none")
        assert ended.last["evaluation"] is None
        trainer = PPOTrainer("CartPole-v1", {**SMALL, "callbacks": Stops})
        with pytest.raises(RollaxError, match=r"train\(\) was called after stop\(\)(.|\n)*result\['done'\] = True"):
            trainer.fit({"training_iteration": 3}, progress="none")

    def test_it_acts_and_is_saved(self, tmp_path):
        trainer, _ = self.stopped(tmp_path)
        observations = np.zeros((3, 4), np.float32)
        trainer.set_weights(trainer.get_weights())
        actions = trainer.get_policy().compute_actions(observations, explore=False)[0]
        np.testing.assert_array_equal(trainer.compute_actions(observations)[0], actions)
        with PPOTrainer.from_checkpoint(trainer.save(tmp_path / "again")) as restored:
            np.testing.assert_array_equal(restored.compute_actions(observations)[0], actions)
            assert restored.train()["training_iteration"] == 2
