"""The parts of `BENCHMARKS.md` that follow a quantity: with the number of workers, or over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.numbers import rounded
from benchmarks.rows.workers import DRIVER_FRAGMENT, GATHERED_FRAGMENT

# Liang et al. (2018), arXiv:1712.09381, figure 7: Pendulum, CPU, 64×64, 64 sub-environments for each process.
_CLASSIC = {1: 15_000, 128: 1_500_000}
_RATES = (1_000, 5_000, 15_000)  # steps per second of a worker; the last is the classic figure's of one CPU
_CPUS = (1, 2, 4, 8, 16, 32, 64, 128)


def driver_curve(results: Mapping[str, Mapping[str, Any]]) -> str:
    """What a fragment costs the driver with more and more workers, and how many of them it feeds."""
    if "driver" not in results:
        return ""
    alone = _medians(results["driver"])
    actors = _medians(results["driver_ray"]) if "driver_ray" in results else {}
    lines = [
        "### What a fragment costs the driver",
        "",
        _line("workers", list(alone)),
        _line("---", ["---"] * len(alone)),
        _line("answer in its process, µs", [rounded(value) for value in alone.values()]),
    ]
    if actors:
        cells = [rounded(actors[count]) if count in actors else "" for count in alone]
        lines.append(_line("answer from Ray actors, µs", cells))
    lines += ["", f"Worst to best in its process: {max(alone.values()) / min(alone.values()):.2f}. {_fed(alone, '')}"]
    if actors:
        lines[-1] += f" {_fed(actors, ' from Ray actors, which share the machine with it')}"
    return "\n".join(lines)


def _fed(cost_us: Mapping[int, float], where: str) -> str:
    """How many workers keep one driver busy, at the cost with the most of them."""
    most = max(cost_us)
    per_second = 1e6 / cost_us[most]
    steps = per_second * DRIVER_FRAGMENT
    workers = ", ".join(f"{steps / rate:,.0f} that sample {rate:,} steps/s each" for rate in _RATES)
    return (
        f"At its cost with {most} workers one driver takes in {rounded(per_second)} fragments/s{where}: with "
        f"{DRIVER_FRAGMENT} steps in each {rounded(steps)} steps/s, of {workers}."
    )


def pendulum_curve(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Sampling with more workers than there are cores here, as one and two of them let expect."""
    if "gather_pendulum" not in results:
        return ""
    sides = results["gather_pendulum"]["sides"]
    one, two = sides["1 worker"]["median"], sides["2 workers"]["median"]
    measured = {1: one, 2: two}
    lines = [
        "### Sampling Pendulum-v1 with many workers",
        "",
        _line("workers", list(_CPUS)),
        _line("---", ["---"] * len(_CPUS)),
        _line("classic figure, one CPU each", [rounded(_CLASSIC[n]) if n in _CLASSIC else "" for n in _CPUS]),
        _line("measured", [rounded(measured[n]) if n in measured else "" for n in _CPUS]),
        _line("implied", ["" if n in measured else rounded(n * two / 2) for n in _CPUS]),
        "",
        f"Actions per second. Two workers sample {two / one:.2f} times what one does. Implied is as much for each "
        "worker as with two on 2 cores, which they share with the driver: nothing of it was measured. The classic "
        "figure is RLlib's, arXiv:1712.09381, figure 7.",
    ]
    if "driver_ray" in results:
        cost_us = _medians(results["driver_ray"])
        taken_in, sent = 1e6 / cost_us[max(cost_us)], 64 * two / GATHERED_FRAGMENT
        bound = "the bound is then the driver" if taken_in < sent else "the driver is not the bound"
        lines[-1] += (
            f" With {GATHERED_FRAGMENT} steps in a fragment 128 workers would send {rounded(sent)} fragments/s, and "
            f"one driver takes in {rounded(taken_in)} of {DRIVER_FRAGMENT} steps: {bound}."
        )
    return "\n".join(lines)


def soak_summary(report: Mapping[str, Any]) -> str:
    """Whether anything grew in a long run whose workers were killed."""
    last = report["looks"][-1]
    lines = [
        "### A long run whose workers are killed",
        "",
        f"IMPALA on CartPole-v1 for {report['minutes']:g} minutes, a random one of its 2 workers killed every "
        f"{report['kill_every_s']:g} s: {last['killed']} killed, {last['restarts']} restarts, "
        f"{last['iteration']:,} iterations, {report['lost_iterations']} lost, {rounded(last['timesteps'])} steps. "
        f"Medians of the two halves, after {report['warm_up_minutes']:g} minutes of warm-up:",
        "",
        "| | first half | second half | |",
        "|---|---|---|---|",
    ]
    for name, verdict in report["verdicts"].items():
        word = "flat" if verdict["flat"] else "**grows**"
        lines.append(f"| {_SOAKED[name]} | {verdict['first_half']:g} | {verdict['second_half']:g} | {word} |")
    return "\n".join(lines)


_SOAKED = {
    "driver_mb": "resident memory of the driver, MiB",
    "driver_threads": "its threads",
    "driver_files": "its open files",
    "workers_mb": "resident memory of the larger worker, MiB",
    "store_mb": "Ray's object store, MB",
}


def _medians(result: Mapping[str, Any]) -> dict[int, float]:
    return dict(sorted((int(name.split()[0]), side["median"]) for name, side in result["sides"].items()))


def _line(head: str, cells: list[Any]) -> str:
    return f"| {head} | {' | '.join(map(str, cells))} |"
