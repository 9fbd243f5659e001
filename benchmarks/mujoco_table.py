"""Algorithms on MuJoCo and LunarLander, beside the same ones of other libraries: greedy scores, one run per seed.

`python -m benchmarks.mujoco_table --env Hopper-v5 --method SAC` makes the missing runs of both sides, and stores each
in the machine's table of results. A run of rollax that was interrupted continues exactly at its last evaluation, from a
checkpoint in `runs/mujoco`; one of another library begins again. Ten evaluations of ten greedy episodes divide a run.

The table has, for each environment and method, the mean of the last evaluations over the seeds and its standard error,
and the interquartile mean of all scores, in units of the other side's mean, with an interval that holds 95 % of the
interquartile means of runs drawn again with replacement within each environment (Agarwal et al., 2021,
arXiv:2108.13264). Settings are equal, RL Zoo's, or the defaults of each side, as `METHODS` says.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.processes import answer
from benchmarks.protocol import versions
from benchmarks.rows.commands import own, peer
from benchmarks.tables import Result, hardware, read_results, store
from rollax.runs.interquartile_mean import bootstrap_interval, interquartile_mean

_EVALUATIONS, _EPISODES = 10, 10
ENVIRONMENTS = (
    *("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Swimmer-v5", "InvertedDoublePendulum-v5"),
    "LunarLander-v3",
)


@dataclass(frozen=True)
class Method:
    """An algorithm with equal settings, or the defaults, on both sides.

    Args:
        algorithm: rollax's name of it.
        config: rollax's config.
        peer: library and class of the other side; None if no library has it.
        peer_settings: keyword arguments of the other side's class.
        normalized: whether the other side normalizes observations and rewards by `VecNormalize`.
        budget: environment steps.
        by_env: environment -> changes of both sides' settings.
    """

    algorithm: str
    config: Mapping[str, Any] = field(default_factory=dict)
    peer: tuple[str, str] | None = None
    peer_settings: Mapping[str, Any] = field(default_factory=dict)
    normalized: bool = False
    budget: int = 300_000
    by_env: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = field(default_factory=dict)


_STARTS = {"learning_starts": 10_000, "random_steps": 10_000}
_LONG_SIGHTED = {"Swimmer-v5": ({"gamma": 0.999}, {"gamma": 0.999})}
_LONGEST_SIGHTED = {"Swimmer-v5": ({"gamma": 0.9999}, {"gamma": 0.9999})}
_DROP = {"top_quantiles_to_drop_per_net": 5}  # as in TQC's paper: with fewer, values on Hopper are overestimated
METHODS = {
    "PPO": Method(
        "PPO",
        {
            "observation_filter": "MeanStdFilter",
            "normalize_rewards": True,
            "adam_epsilon": 1e-5,
            "model": {"free_log_std": True},
        },
        ("stable_baselines3", "PPO"),
        normalized=True,
        budget=1_000_000,
        by_env=_LONGEST_SIGHTED,
    ),
    "PPO without a config": Method("PPO", {}, ("stable_baselines3", "PPO"), budget=1_000_000),
    "SAC": Method("SAC", _STARTS, ("sbx", "SAC"), {"learning_starts": 10_000}, by_env=_LONG_SIGHTED),
    "SAC without a config": Method("SAC", {}, ("stable_baselines3", "SAC")),
    "DQN without a config": Method("DQN", {}, ("stable_baselines3", "DQN"), budget=100_000),
    "TD3": Method(
        "TD3",
        {"train_batch_size": 256},
        ("stable_baselines3", "TD3"),
        {"learning_starts": 10_000},  # its action noise is set by the side
        by_env=_LONGEST_SIGHTED,
    ),
    "TQC": Method(
        "TQC",
        _STARTS,
        ("sbx", "TQC"),
        {"learning_starts": 10_000},
        by_env={**_LONG_SIGHTED, "Hopper-v5": (_DROP, _DROP)},
    ),
}


def main() -> int:
    """Makes the missing runs of one method in one environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Hopper-v5", choices=ENVIRONMENTS)
    parser.add_argument("--method", default="PPO", choices=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    parser.add_argument("--side", help="rollax, or the other library; both if left out")
    args = parser.parse_args()
    fill(args.env, args.method, range(args.seeds), args.side)
    print(mujoco_table(read_results()))
    return 0


def fill(env: str, method: str, seeds: Sequence[int], only: str | None = None) -> None:
    """Makes the missing runs, one after another: two at once would compete for the cores."""
    about, found = _about(env, method), read_results()
    for seed in seeds:
        for side in _sides(METHODS[method]):
            name = f"mujoco/{env}/{method}/{side}/{seed}"
            if only in (None, side) and not about.items() <= found.get(name, {}).items():
                run = answer(_side(side, name, about, seed))
                facts = {"hardware": hardware(), "versions": versions("jax", "numpy", "gymnasium", "mujoco")}
                store({"name": name, "side": side, "seed": seed, **about, **run, **facts})


def _sides(method: Method) -> list[str]:
    return ["rollax"] if method.peer is None else ["rollax", method.peer[0]]


def _about(env: str, name: str) -> dict[str, Any]:
    """Returns what is equal in all runs; a run with other settings is made again, and not shown."""
    method = METHODS[name]
    ours, theirs = method.by_env.get(env, ({}, {}))
    return {
        "env": env,
        "method": name,
        "budget": method.budget,
        "config": {**method.config, **ours},
        "peer_settings": {**method.peer_settings, **theirs},
    }


def _side(side: str, name: str, about: Mapping[str, Any], seed: int) -> Any:
    """The process of one run."""
    method = METHODS[about["method"]]
    common = {
        "env": about["env"],
        "budget": about["budget"],
        "evaluations": _EVALUATIONS,
        "episodes": _EPISODES,
        "seed": seed,
    }
    if side == "rollax":
        config = {"algorithm": method.algorithm, "config": about["config"], "folder": f"runs/{name}"}
        return own(side, "rollax_training.greedy_curve", {**common, **config})
    assert method.peer is not None
    library, algorithm = method.peer
    settings = {"settings": about["peer_settings"], "normalized": method.normalized}
    return peer(side, "sb3.greedy_curve", {**common, "library": library, "algorithm": algorithm, **settings})


def mujoco_table(results: Mapping[str, Result]) -> str:
    """Returns the table of all measured environments and methods."""
    scores: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    others: dict[tuple[str, str], str] = {}  # rows of rollax with the settings of the table, made by another command
    for result in results.values():
        if result["name"].startswith("mujoco/") and _about(result["env"], result["method"]).items() <= result.items():
            of_task = scores.setdefault((result["method"], result["env"]), {})
            of_task.setdefault(result["side"], {})[result["seed"]] = result["curve"][-1][1]
            if "command" in result:
                others[result["method"], result["env"]] = result["command"]
    return "\n".join(_lines(scores, others)) if scores else ""


def _lines(
    scores: Mapping[tuple[str, str], Mapping[str, Mapping[int, float]]], others: Mapping[tuple[str, str], str]
) -> Iterator[str]:
    yield "### MuJoCo and LunarLander beside other libraries"
    yield ""
    yield (
        f"Mean returns of {_EPISODES} greedy episodes at the end of each run, by seed from 0 on, and their mean ± "
        "standard error; the settings are in `benchmarks/mujoco_table.py`. "
        "`python -m benchmarks.mujoco_table --env ENVIRONMENT --method METHOD` repeats the runs of a row."
    )
    yield ""
    yield "| method | environment | steps | side | by seed | mean |"
    yield "|---|---|---|---|---|---|"
    for (method, env), sides in sorted(scores.items()):
        for side in filter(sides.get, _sides(METHODS[method])):
            values = [score for _, score in sorted(sides[side].items())]
            words = ", ".join(f"{value:.0f}" for value in values)
            yield f"| {' | '.join((method, env, f'{METHODS[method].budget:,}', side, words, _with_error(values)))} |"
    for (method, env), command in sorted(others.items()):
        yield ""
        yield f"rollax's runs of {method} on {env} are those of `{command}`, with 100 episodes at the end of each."
    for method in METHODS:
        pairs = [sides for (name, _), sides in sorted(scores.items()) if name == method and _have_ratio(sides, method)]
        if pairs:
            by_env = [_in_units(sides, METHODS[method]) for sides in pairs]
            middle, (low, high) = interquartile_mean(np.concatenate(by_env)), bootstrap_interval(by_env)
            yield ""
            yield (
                f"{method}, {len(pairs)} environment{'s' * (len(pairs) > 1)}: the interquartile mean of rollax's "
                f"scores is {middle:.2f} of the other side's mean (95 %: {low:.2f} to {high:.2f})."
            )


def _with_error(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.0f}"
    return f"{np.mean(values):.0f} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.0f}"


def _have_ratio(sides: Mapping[str, Mapping[int, float]], method: str) -> bool:
    """Returns whether both sides have runs, and the other side's mean is a unit: it is positive."""
    return len(sides) == 2 and sum(sides[_sides(METHODS[method])[1]].values()) > 0


def _in_units(sides: Mapping[str, Mapping[int, float]], method: Method) -> np.ndarray:
    """[seeds] rollax's scores divided by the other side's mean."""
    ours, theirs = (np.array([*sides[side].values()]) for side in _sides(method))
    return ours / theirs.mean()


if __name__ == "__main__":
    raise SystemExit(main())
