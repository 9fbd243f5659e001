"""Normalized scores of the offline algorithms on data of four qualities, as in the tables of D4RL and CORL.

`python -m benchmarks.offline_table --env Pendulum-v1` makes the data with SAC, learns from each data set with each
algorithm, and stores each cell in the machine's table of results. Each seed makes its own data. An interrupted call
continues with the first missing cell, and makes the data again unless `--data` kept them. Each number of updates has a
table of its own.

| data set | content |
|---|---|
| random | uniformly random actions |
| medium | SAC after some training, as it acts in training |
| replay | all that SAC experienced until it was an expert |
| expert | SAC after longer training, as it acts in training |

A score is 100 (x - random) / (expert - random), with the mean returns of the two data sets; x is the mean of the last
three greedy evaluations, each of 10 episodes.

Source of the protocol: Fu et al. (2020), arXiv:2004.07219; Tarasov et al. (2022), arXiv:2210.07105.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import answer
from benchmarks.protocol import versions
from benchmarks.rows.commands import peer as peer_side
from benchmarks.tables import Result, hardware, read_results, store

DATA_SETS = ("random", "medium", "replay", "expert")
ALGORITHMS: dict[str, dict[str, Any]] = {
    "BC": {"train_batch_size": 256},
    "MARWIL": {"train_batch_size": 256, "max_weight": 100.0},
    "TD3BC": {},
    "CQL": {},
    "IQL": {},
}
"""Name -> settings that differ from the algorithm's defaults in all environments."""
PEER = {f"d3rlpy {algorithm}": algorithm for algorithm in ("BC", "TD3BC", "CQL", "IQL")}
"""Column -> algorithm of d3rlpy."""
_COMPARED = ("lr", "actor_lr", "critic_lr", "gamma", "alpha", "min_q_weight", "num_actions", "expectile", "beta")
_QUICK = {"lr": 1e-3, "gamma": 0.98}
_PENDULUM = {
    "BC": {"lr": 1e-3},
    "MARWIL": _QUICK,
    "TD3BC": {**_QUICK, "alpha": 10.0},
    "CQL": {"gamma": 0.98, "actor_lr": 3e-4, "critic_lr": 1e-3, "num_actions": 4, "min_q_weight": 1.0},
    "IQL": {**_QUICK, "expectile": 0.9},
}
_MUJOCO = {
    "BC": {"lr": 1e-3},
    "MARWIL": {"lr": 1e-3, "moving_average_sqd_adv_norm_update_rate": 1e-2},  # returns of hundreds
    "TD3BC": {"lr": 1e-3},
    "CQL": {"actor_lr": 3e-4, "critic_lr": 1e-3, "num_actions": 4},
    "IQL": {"lr": 1e-3, "beta": 0.5},
}
_EVALUATIONS, _COUNTED = 10, 3


@dataclass(frozen=True)
class Task:
    """Training for an environment's data: steps of SAC for the medium policy and for the expert."""

    medium: int
    expert: int
    rows: int
    hiddens: tuple[int, ...]
    sac: Mapping[str, Any]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by algorithm, equal for all data sets

    @property
    def model(self) -> dict[str, Any]:
        return {"fcnet_hiddens": self.hiddens, "fcnet_activation": "relu"}


TASKS = {
    "Pendulum-v1": Task(
        2500, 8000, 10_000, (64, 64), {"lr": 1e-3, "learning_starts": 500, "random_steps": 500}, _PENDULUM
    ),
    "HalfCheetah-v5": Task(
        30_000, 150_000, 100_000, (128, 128), {"learning_starts": 5000, "random_steps": 5000}, _MUJOCO
    ),
}


def main() -> int:
    """Fills the table of an environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Pendulum-v1", choices=list(TASKS))
    parser.add_argument("--updates", type=int, default=5000, help="of each cell")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from 0 on")
    parser.add_argument("--peer", action="store_true", help="d3rlpy's algorithms beside, from the same data")
    parser.add_argument("--data", type=Path, help="folder for the data; default: one that is removed at the end")
    parser.add_argument("--jobs", type=int, default=1, help="cells at once, each on a core of its own")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollax-bench-") as folder:
        fill(args.env, args.updates, args.seeds, args.data or Path(folder), peer=args.peer, jobs=args.jobs)
    print(offline_tables(read_results()))
    return 0


def fill(env: str, updates: int, seeds: int, folder: Path, *, peer: bool, jobs: int) -> None:
    """Makes the data and the missing cells; all cells of a seed if its data differ, as on another processor."""
    results = read_results()
    made: dict[str, Result] = {}
    for seed in range(seeds):
        name = f"offline/{env}/{updates}/{seed}"
        new = {"name": name, "env": env, "updates": updates, "seed": seed, "data": {}, "cells": {}}
        made[str(seed)] = results.get(name, new)
    columns = {**dict.fromkeys(ALGORITHMS, learned), **(dict.fromkeys(PEER, learned_by_d3rlpy) if peer else {})}
    cells = [(name, column) for column in columns for name in DATA_SETS]
    wanted = [seed for seed, result in made.items() if _missing(result, cells)]
    folders = {seed: folder / env / seed for seed in wanted}
    context = get_context("spawn")
    core = context.Value("i", 0)
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_on_its_own_core, initargs=(core,)) as pool:
        for seed, data in zip(wanted, pool.map(data_of, [env] * len(wanted), folders.values(), wanted), strict=True):
            if made[seed]["data"] != data:
                made[seed] |= {"data": data, "cells": {}}
            made[seed] |= {"hardware": hardware(), "versions": versions("jax", "numpy", "gymnasium")}
        runs = {
            pool.submit(columns[column], env, column, folders[seed] / name, updates, int(seed)): (seed, name, column)
            for seed in wanted
            for name, column in _missing(made[seed], cells)
        }
        for run in as_completed(runs):
            seed, name, column = runs[run]
            made[seed]["cells"].setdefault(name, {})[column] = run.result()
            store(made[seed])
            print(f"{env} {name} {column} seed {seed}: {[round(x, 1) for x in run.result()]}", file=sys.stderr)


def _missing(result: Result, cells: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, column) for name, column in cells if column not in result["cells"].get(name, {})]


def _on_its_own_core(core: Any) -> None:
    """Takes the next core for this process, so that the threads of several do not compete; on Linux only."""
    if sys.platform != "linux":
        return
    with core.get_lock():
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core.value % len(cores)]})
        core.value += 1


def data_of(env: str, folder: Path, seed: str) -> dict[str, dict[str, float]]:
    """Writes the data sets into `folder` unless they exist; returns data set -> rows and mean return."""
    about = folder / "about.json"
    if about.exists():
        return json.loads(about.read_text())
    from rollax import SACTrainer, open_dataset

    task = TASKS[env]
    config = {**task.sac, "model": task.model, "timesteps_per_iteration": 500, "seed": int(seed)}
    with SACTrainer(env, {**config, "output": str(folder / "replay")}) as trainer:
        _record(trainer, folder / "random", task)  # SAC begins with `random_steps`, and has made no step yet
        _train_up_to(trainer, task.medium)
        _record(trainer, folder / "medium", task)
        _train_up_to(trainer, task.expert)
        _record(trainer, folder / "expert", task)
    found = {}
    for name in DATA_SETS:
        reader = open_dataset(folder / name)
        found[name] = {"rows": len(reader), "score": float(reader.header["behaviour"]["score"])}
    about.write_text(json.dumps(found))
    print(f"{env} seed {seed}: {found}", file=sys.stderr)
    return found


def _config(env: str, algorithm: str, data: Path, updates: int, seed: int) -> dict[str, Any]:
    return {
        "input": str(data),
        "updates_per_step": max(updates // _EVALUATIONS, 1),
        "timesteps_per_iteration": 0,
        "evaluation_num_episodes": 10,
        "model": TASKS[env].model,
        "seed": seed,
        **ALGORITHMS[algorithm],
        **TASKS[env].settings.get(algorithm, {}),
    }


def learned(env: str, algorithm: str, data: Path, updates: int, seed: int) -> list[float]:
    """Returns the mean returns of evaluations at equal intervals during the updates."""
    from rollax.algorithms.registry import get_trainer_class

    config = _config(env, algorithm, data, updates, seed)
    with get_trainer_class(algorithm)(env, config) as trainer:
        scores = []
        for _ in range(_EVALUATIONS):
            trainer.train()
            scores.append(float(trainer.evaluate()["episode_reward_mean"]))
    return scores


def learned_by_d3rlpy(env: str, column: str, data: Path, updates: int, seed: int) -> list[float]:
    """As `learned`, with d3rlpy's algorithm and the same settings."""
    from rollax.algorithms.registry import get_trainer_class
    from rollax.config.trainer import resolve_config

    algorithm = PEER[column]
    config = resolve_config(get_trainer_class(algorithm).config_class, _config(env, algorithm, data, updates, seed))
    settings = {name: getattr(config, name, None) for name in _COMPARED}
    with tempfile.TemporaryDirectory(prefix="rollax-bench-") as folder:
        path = Path(folder, "data.hdf5")
        write_d4rl(data, path)
        arguments = {
            "env": env,
            "data": str(path),
            "algorithm": algorithm,
            "settings": settings,
            "hiddens": TASKS[env].hiddens,
            "updates": updates,
            "evaluations": _EVALUATIONS,
            "seed": seed,
        }
        return answer(peer_side(column, "d3rlpy.scores", arguments))


def write_d4rl(data: Path, path: Path) -> None:
    """Writes a single-agent data set as a D4RL file, with the policy's actions."""
    import h5py

    from rollax import open_dataset

    parts: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "rewards", "terminals", "timeouts")}
    for trajectory in open_dataset(data).trajectories():
        last = np.arange(len(trajectory)) == len(trajectory) - 1
        parts["observations"].append(trajectory.columns["obs"][:-1])
        parts["actions"].append(trajectory.columns["actions"])
        parts["rewards"].append(trajectory.columns["rewards"])
        parts["terminals"].append(last & trajectory.terminated)
        parts["timeouts"].append(last & (not trajectory.terminated))
    with h5py.File(path, "w") as file:
        for name, columns in parts.items():
            file.create_dataset(name, data=np.concatenate(columns))


def normalized(data: Mapping[str, Any], scores: Sequence[float]) -> float:
    """The score of a cell: 0 is random, 100 the expert of these data."""
    low, high = (data[name]["score"] for name in ("random", "expert"))
    return 100 * (float(np.mean(scores[-_COUNTED:])) - low) / (high - low)


def offline_tables(results: Mapping[str, Result]) -> str:
    """Returns a table for each measured environment and number of updates."""
    found = [result for name, result in results.items() if name.startswith("offline/")]
    found.sort(key=lambda result: (result["env"], result["updates"], result["seed"]))
    tables = groupby(found, key=lambda result: (result["env"], result["updates"]))
    return "\n\n".join("\n".join(_lines(env, updates, list(seeds))) for (env, updates), seeds in tables)


def _lines(env: str, updates: int, seeds: Sequence[Result]) -> Iterator[str]:
    scores: dict[str, dict[str, list[float]]] = {name: {} for name in DATA_SETS}
    for seed in seeds:
        for name, cells in seed["cells"].items():
            for column, cell in cells.items():
                scores[name].setdefault(column, []).append(normalized(seed["data"], cell))
    found = {column: len(cells) for by_column in scores.values() for column, cells in by_column.items()}
    columns = [column for column in (*ALGORITHMS, *PEER) if column in found]
    peers = max((found[column] for column in columns if column in PEER), default=0)
    beside = f" d3rlpy's algorithms learn from the same rows with the same settings, {_seeds(peers)}." if peers else ""
    yield f"### Offline learning: {env}"
    yield ""
    yield (
        f"Normalized scores after {updates:,} updates: 0 is the mean return of the random data "
        f"({_returns(seeds, 'random')}), 100 that of the expert's ({_returns(seeds, 'expert')}). Mean of the last "
        f"{_COUNTED} greedy evaluations and of {_seeds(len(seeds))}, each of which makes data of its own; behind "
        f"it the lowest and the highest seed.{beside} "
        f"`python -m benchmarks.offline_table --env {env} --updates {updates} "
        f"--seeds {len(seeds)}{' --peer' if peers else ''}` makes the data with SAC and repeats the table."
    )
    yield ""
    yield f"| data | rows | its score | {' | '.join(columns)} |"
    yield f"|---|---|---|{'---|' * len(columns)}"
    for name in DATA_SETS:
        rows = np.mean([seed["data"][name]["rows"] for seed in seeds])
        behaviour = [normalized(seed["data"], [seed["data"][name]["score"]]) for seed in seeds]
        cells = [_cell(scores[name].get(column, ())) for column in columns]
        yield f"| {name} | {rows:,.0f} | {_cell(behaviour)} | {' | '.join(cells)} |"


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count > 1)}"


def _returns(seeds: Sequence[Mapping[str, Any]], name: str) -> str:
    return ", ".join(f"{seed['data'][name]['score']:.5g}" for seed in seeds)


def _cell(scores: Sequence[float]) -> str:
    """The mean, minimum and maximum."""
    if not scores:
        return ""
    low, mean, high = (f"{number(scores):.0f}" for number in (np.min, np.mean, np.max))
    return mean if low == high else f"{mean} ({low} to {high})"


def _train_up_to(trainer: Any, steps: int) -> None:
    while trainer.optimizer.env_steps < steps:
        trainer.train()


def _record(trainer: Any, folder: Path, task: Task) -> None:
    # Episodes of one call differ; a second call would repeat them.
    length = trainer.evaluate(10)["episode_len_mean"]
    trainer.record(math.ceil(task.rows / length), folder)


if __name__ == "__main__":
    raise SystemExit(main())
