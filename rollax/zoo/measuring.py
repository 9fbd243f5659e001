"""`rollax zoo measure`: trains with the seeds of an entry, and writes the results into its file."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, process_time
from typing import TYPE_CHECKING, Any

import numpy as np

from rollax.core.numbers import is_finite
from rollax.errors import ConfigError
from rollax.runs.interrupts import Interrupted
from rollax.runs.results import curve, number_in, read_results
from rollax.zoo.conditions import machine, versions
from rollax.zoo.entry import Entry, FirstPart, Measured, SeedResult, TrainedSeed, short_hash

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer

EPISODES = 100
"""Number of greedy episodes of a score."""
_FIRST_SECONDS = 5.0
Show = Callable[[str], None]


def measure(entry: Entry, seeds: int, folder: Path, *, again: bool = False, show: Show = print) -> Entry:
    """Trains seeds 0, 1, …, and stores each result in the file of the entry; seeds with a result there are skipped.

    Args:
        entry: the entry, whose file is written.
        seeds: the number of seeds.
        folder: the folder in which the run folders `NAME-seed-N` are created.
        again: drop the results that the file has.
        show: prints a line.
    Raises:
        ConfigError: the file has results of other settings, versions or machines, and `again` is False.
    """
    earlier = None if again else entry.measured
    here: dict[str, Any] = {"machine": machine(), "versions": versions(entry.about.tags)}
    if earlier is not None:
        found = earlier.model_dump(include={"machine", "versions"})
        if earlier.settings != entry.settings or found != here:
            raise ConfigError(
                "The entry has results of other settings, versions or another kind of machine.",
                f"{entry.path}: measured",
                f"{found}, settings {earlier.settings}",
            ).expected(f"{here}, settings {entry.settings}", "pass --again, which measures all seeds again")
    results = {} if earlier is None else {result.seed: result for result in earlier.seeds}
    iterations = None if earlier is None else earlier.first_iterations
    for seed in range(seeds):
        if seed in results:
            show(f"{entry.name} seed {seed}: {results[seed].score:.5g}, measured before")
            continue
        results[seed], iterations = measure_seed(entry, seed, iterations, folder)
        show(f"{entry.name} seed {seed}: {results[seed].score:.5g} in {results[seed].seconds:.0f} s")
        entry = entry.with_measured(
            Measured(
                command=f"rollax zoo measure {entry.path.name} --seeds {seeds}",
                settings=entry.settings,
                date=datetime.now(UTC).date(),
                **here,
                episodes=EPISODES,
                first_iterations=iterations,
                seeds=tuple(results[number] for number in sorted(results)),
            )
        )
    return entry


def measure_seed(entry: Entry, seed: int, first_iterations: int | None, folder: Path) -> tuple[SeedResult, int]:
    """Trains one seed in a run folder of its own; also returns the number of iterations of its first part.

    Args:
        entry: the settings.
        seed: the seed of the run.
        first_iterations: number of iterations in the first part, as in the other seeds; None chooses the number.
        folder: the folder in which the run folder is created.
    """
    trained, results = train_seed(entry, seed, folder)
    first_iterations = first_iterations or _iterations_of_first_part(entry, seed, results)
    first = train_first(entry, seed, first_iterations)
    return SeedResult(**trained.model_dump(), first=first), first_iterations


def train_seed(entry: Entry, seed: int, folder: Path) -> tuple[TrainedSeed, list[dict[str, Any]]]:
    """Trains one seed to the end, in a run folder `NAME-seed-N`; also returns its result lines.

    If there is such a folder, of an interrupted run or an earlier measurement, the name is `NAME-seed-N-2` and so on.
    """
    name = f"{entry.name}-seed-{seed}"
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    out = next(free for free in map(folder.joinpath, names) if not free.exists())
    progress = "auto" if sys.stdout.isatty() else "none"
    started, cpu_started = monotonic(), process_time()
    with entry.make_trainer(seed=seed) as trainer:
        fitted = trainer.fit(entry.experiment.stop, out, evaluate=False, loggers=(), progress=progress)
        seconds, cpu_seconds = monotonic() - started, process_time() - cpu_started
        if fitted.signal is not None:
            raise Interrupted(fitted.signal)
        score = trainer.evaluate(EPISODES)["episode_reward_mean"]
        weights = hash_of_weights(trainer)
    results, _ = read_results(out)
    steps = int(fitted.last["timesteps_total"])
    points = [point for point in zip(*curve(results, "evaluation_reward_mean"), strict=True) if point[0] < steps]
    trained = TrainedSeed(
        seed=seed,
        score=_rounded(score),
        steps=steps,
        seconds=round(seconds, 1),
        cpu_seconds=round(cpu_seconds, 1),
        weights=weights,
        curve=tuple((int(at), _rounded(reward)) for at, reward in [*points, (steps, score)]),
    )
    return trained, results


def train_first(entry: Entry, seed: int, iterations: int) -> FirstPart:
    """Trains the first iterations of a seed."""
    with entry.make_trainer(seed=seed) as trainer:
        result: Mapping[str, Any] = {}
        for _ in range(iterations):
            result = trainer.train()
        reward = number_in(result, "episode_reward_mean")
        return FirstPart(
            steps=int(result["timesteps_total"]),
            reward=None if reward is None else _rounded(reward),
            weights=hash_of_weights(trainer),
        )


def hash_of_weights(trainer: Trainer) -> str:
    """Returns a hash of the name, type, shape and bits of all weights."""
    parts: list[bytes] = []
    for policy, weights in sorted(trainer.get_weights().items()):
        for name, value in sorted(weights.items()):
            array = np.asarray(value)
            parts += [f"{policy}/{name} {array.dtype.str} {array.shape}\n".encode(), array.tobytes()]
    return short_hash(b"".join(parts))


def _iterations_of_first_part(entry: Entry, seed: int, results: list[dict[str, Any]]) -> int:
    """Returns the number of iterations until 5 seconds have passed and the weights have changed.

    The time is measured from the end of the first iteration, which compiles.
    """
    times = [number_in(result, "time_total_s") or 0.0 for result in results]
    number = next((index for index, time in enumerate(times, start=1) if time - times[0] >= _FIRST_SECONDS), len(times))
    with entry.make_trainer(seed=seed) as trainer:
        untrained = hash_of_weights(trainer)
        for done in range(1, len(times) + 1):
            trainer.train()
            if done >= number and hash_of_weights(trainer) != untrained:
                return done
    return len(times)


def _rounded(value: float) -> float:
    """Returns a reward with six significant digits, as entries state it."""
    return float(f"{value:.6g}") if is_finite(value) else value
