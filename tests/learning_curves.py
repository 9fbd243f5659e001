"""Fixtures that measure learning runs, for `conftest.py` of the folders with such runs.

"At least X within N" is the best periodic greedy evaluation (20 episodes) inside N steps, averaged over three seeds;
the last evaluation is printed beside it. With `--learning-results FILE` each run stores its curves in that table.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from benchmarks.tables import store
from rollax import EvaluationResult, Trainer
from rollax.config import resolve_config
from rollax.zoo import load

SEEDS, EVALUATIONS = (0, 1, 2), 10
Score = Callable[[EvaluationResult], float]
Point = tuple[int, float]


def reward_of(evaluation: EvaluationResult) -> float:
    """The usual score: the mean reward of an episode."""
    return evaluation["episode_reward_mean"]


class Run(NamedTuple):
    """An algorithm that must reach the target within the budget; see `Learned`."""

    trainer_class: type[Trainer]
    env: Any
    target: float
    budget: int
    config: Mapping[str, Any]
    score: Score = reward_of
    seeds: Sequence[int] = SEEDS


def settings_of(env: str, algorithm: str) -> dict[str, Any]:
    """The config of an entry of the zoo, without its evaluations, for runs that differ from it in a few keys."""
    config = load(env, algorithm).config
    return {key: value for key, value in config.items() if not key.startswith("evaluation_")}


def each_run(runs: Mapping[str, Run]) -> pytest.MarkDecorator:
    """A parameter `run` for each; the result of the run `x` is named `test_x`.

    Raises:
        ConfigError: a config is refused. The short part of the tests finds it too, because it imports the runs.
    """
    for run in runs.values():
        resolve_config(run.trainer_class.config_class, run.config)
    return pytest.mark.parametrize("run", [pytest.param(run, id=name) for name, run in runs.items()])


@dataclass(frozen=True)
class Learned:
    """The result of one algorithm on one task, with each seed.

    Args:
        name: name of the test.
        algorithm: name of the trainer's algorithm.
        env: id or class of the environment.
        budget: steps, in the unit that the trainer counts in.
        target: required mean over the seeds of their best scores.
        num_workers: processes that sample; 0 means that the learning process samples.
        curves: one for each seed, of (steps, score).
        seconds: duration of each seed's run, evaluations included.
    """

    name: str
    algorithm: str
    env: str
    budget: int
    target: float
    num_workers: int
    curves: list[list[Point]]
    seconds: list[float]

    @property
    def best(self) -> float:
        return float(np.mean([max(score for _, score in curve) for curve in self.curves]))

    @property
    def last(self) -> float:
        return float(np.mean([curve[-1][1] for curve in self.curves]))


@pytest.fixture
def learning_run(capsys, request):
    """Trains with each seed, and prints the scores."""

    def show(text: str) -> None:
        with capsys.disabled():
            print(text, end="", flush=True)

    def run(
        trainer_class, env, target, budget, config, score: Score = reward_of, seeds: Sequence[int] = SEEDS
    ) -> Learned:
        of_table = hasattr(request.node, "callspec") and "run" in request.node.callspec.params
        name = f"test_{request.node.callspec.id}" if of_table else request.node.name
        if config.get("num_workers"):
            request.getfixturevalue("small_ray")
        curves, seconds = [], []
        for seed in seeds:
            show(f"\n{name} seed {seed}:")
            started, curve = time.monotonic(), []
            with trainer_class(env, {"evaluation_num_episodes": 20, **config, "seed": seed}) as trainer:
                for steps, found in evaluations(trainer, budget):
                    curve.append((steps, score(found)))
                    show(f" {curve[-1][1]:.5g}")
            curves.append(curve)
            seconds.append(round(time.monotonic() - started, 1))
            show(f", {seconds[-1]:.0f} s")
        named = env if isinstance(env, str) else env.__name__
        workers = config.get("num_workers", 0)
        learned = Learned(name, trainer_class.name, named, budget, target, workers, curves, seconds)
        show(f"\n{name}: best {learned.best:.5g}, last {learned.last:.5g}, target {target}\n")
        table = request.config.getoption("--learning-results")
        if table:
            store({**asdict(learned), "best": learned.best, "last": learned.last}, Path(table))
        return learned

    return run


@pytest.fixture
def reaches(learning_run):
    """Trains with each seed and checks the mean of the best evaluations."""

    def check(
        trainer_class, env, target, budget, config, score: Score = reward_of, seeds: Sequence[int] = SEEDS
    ) -> None:
        assert learning_run(trainer_class, env, target, budget, config, score, seeds).best >= target

    return check


def evaluations(trainer: Trainer, budget: int) -> Iterator[tuple[int, EvaluationResult]]:
    """Yields steps and a greedy evaluation after each tenth of the budget. Whole episodes may exceed the budget; such a
    last evaluation is left out."""
    steps, one_iteration = 0, max(trainer.config.train_batch_size, trainer.config.timesteps_per_iteration)
    for part in range(1, EVALUATIONS + 1):
        before = steps
        while steps + one_iteration <= part * budget / EVALUATIONS:
            steps = trainer.train()["timesteps_total"]
        if before < steps <= budget:
            yield steps, trainer.evaluate()
