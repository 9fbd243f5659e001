"""ARS compared with sb3-contrib's: greedy scores after the same steps with the same settings, one run per seed.

`python -m benchmarks.search_table --env Swimmer-v5` runs both libraries with each seed and stores
each in the machine's table of results. An interrupted call continues with the first missing run. A score
is the mean return of a greedy evaluation; a run has ten of them at equal intervals. Scores depend only on the seed, so
`--jobs 2` can run two at once.

Source of the settings: Mania, Guy and Recht (2018), arXiv:1803.07055, appendix A; of the budgets: rl-baselines3-zoo.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.processes import answer
from benchmarks.protocol import versions
from benchmarks.rows.commands import own, peer
from benchmarks.tables import Result, hardware, read_results, store

SIDES = ("rollax", "sb3-contrib")
_EVALUATIONS, _EPISODES = 10, 20


@dataclass(frozen=True)
class Task:
    """Settings of a search, by rollax's config keys, and its budget in steps."""

    variant: str
    budget: int
    settings: Mapping[str, Any]


TASKS = {
    "Swimmer-v5": Task(
        "V1",
        2_000_000,
        {
            "num_directions": 1,
            "directions_used": 1,
            "lr": 0.02,
            "noise_stdev": 0.01,
            "observation_filter": "NoFilter",
            "shared_starts": False,
        },
    ),
    "HalfCheetah-v5": Task(
        "V2-t",
        12_000_000,
        {
            "num_directions": 32,
            "directions_used": 4,
            "lr": 0.02,
            "noise_stdev": 0.03,
            "observation_filter": "MeanStdFilter",
            "shared_starts": False,
        },
    ),
}


def main() -> int:
    """Makes the missing runs of an environment's table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Swimmer-v5", choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    args = parser.parse_args()
    fill(args.env, args.seeds, args.jobs)
    print(search_table(read_results()))
    return 0


def fill(env: str, seeds: int, jobs: int) -> None:
    """Makes the missing runs."""
    task, about, found = TASKS[env], _about(env), read_results()
    # The slower side first.
    names = {(side, seed): f"search/{env}/{side}/{seed}" for seed in range(seeds) for side in reversed(SIDES)}
    missing = [run for run, name in names.items() if not about.items() <= found.get(name, {}).items()]
    with ThreadPoolExecutor(jobs) as pool:
        runs = {pool.submit(_curve, side, env, task, seed): (side, seed) for side, seed in missing}
        for run in as_completed(runs):
            side, seed = runs[run]
            result = {"name": names[side, seed], "side": side, "seed": seed, **about, "curve": run.result()}
            installed = versions("jax", "numpy", "gymnasium", "mujoco")
            store({**result, "hardware": hardware(), "versions": installed})


def _about(env: str) -> dict[str, Any]:
    """Returns what is equal in all runs of an environment; a run with other settings is made again, and not shown."""
    task = TASKS[env]
    return {"env": env, "variant": task.variant, "budget": task.budget, "settings": dict(task.settings)}


def _curve(side: str, env: str, task: Task, seed: int) -> list[tuple[int, float]]:
    settings = {
        "env": env,
        "settings": dict(task.settings),
        "budget": task.budget,
        "evaluations": _EVALUATIONS,
        "episodes": _EPISODES,
        "seed": seed,
    }
    if side == "rollax":
        return answer(own(side, "rollax_search.curve", settings))
    return answer(peer(side, "sb3.ars_curve", settings))


def search_table(results: Mapping[str, Result]) -> str:
    """Returns the table of all measured environments."""
    curves: dict[str, dict[str, dict[int, Result]]] = {}
    for result in results.values():
        if result["name"].startswith("search/") and _about(result["env"]).items() <= result.items():
            curves.setdefault(result["env"], {}).setdefault(result["side"], {})[result["seed"]] = result
    return "\n".join(_lines(curves)) if curves else ""


def _lines(curves: Mapping[str, Mapping[str, Mapping[int, Result]]]) -> Iterator[str]:
    yield "### Augmented random search beside sb3-contrib"
    yield ""
    yield (
        f"Mean returns of greedy evaluations of {_EPISODES} episodes, {_EVALUATIONS} in each run, with the same "
        "settings on both sides, those of the paper: the best and the last of each seed, from 0 on, and their medians. "
        "`python -m benchmarks.search_table --env ENV` repeats the runs."
    )
    yield ""
    yield "| environment | steps | side | best | median | last | median |"
    yield "|---|---|---|---|---|---|---|"
    for env, by_side in sorted(curves.items()):
        for side in filter(by_side.get, SIDES):
            runs = [by_side[side][seed] for seed in sorted(by_side[side])]
            best = [max(score for _, score in run["curve"]) for run in runs]
            last = [run["curve"][-1][1] for run in runs]
            cells = (f"{env}, {runs[0]['variant']}", f"{runs[0]['budget']:,}", side, *_both(best), *_both(last))
            yield f"| {' | '.join(cells)} |"


def _both(scores: Sequence[float]) -> tuple[str, str]:
    return ", ".join(f"{score:.0f}" for score in scores), f"{np.median(scores):.0f}"


if __name__ == "__main__":
    raise SystemExit(main())
