"""Sections of `BENCHMARKS.md`: curves over the number of workers, and a long run over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.rows.workers import DRIVER_FRAGMENT, GATHERED_FRAGMENT

# Liang et al. (2018), arXiv:1712.09381, figure 7: Pendulum, CPU, 64×64, 64 sub-environments for each process.
_CLASSIC = {1: 15_000, 128: 1_500_000}
_RATES = (1_000, 5_000, 15_000)  # steps per second of one worker; the last is that of the RLlib paper
_CPUS = (1, 2, 4, 8, 16, 32, 64, 128)


def rounded(value: float) -> str:
    """Returns `value` with three significant digits and thousands separators."""
    if abs(value) >= 1000:
        digits = len(str(int(abs(value)))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def driver_curve(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the driver's time per fragment by number of workers, and the number of workers that it can serve."""
    if "driver" not in results:
        return ""
    alone = _medians(results["driver"])
    actors = _medians(results["driver_ray"]) if "driver_ray" in results else {}
    lines = [
        "### Time of the driver per fragment",
        "",
        _line("workers", list(alone)),
        _line("---", ["---"] * len(alone)),
        _line("workers in its process, µs", [rounded(value) for value in alone.values()]),
    ]
    if actors:
        cells = [rounded(actors[count]) if count in actors else "" for count in alone]
        lines.append(_line("Ray actors, µs", cells))
    spread = max(alone.values()) / min(alone.values())
    lines += ["", f"Largest to smallest in its process: {spread:.2f}. {_fed(alone, '')}"]
    if actors:
        lines[-1] += f" {_fed(actors, ' from Ray actors, which share the machine with it')}"
    return "\n".join(lines)


def _fed(cost_us: Mapping[int, float], where: str) -> str:
    """Returns the number of workers that one driver can serve, from the time per fragment with the most workers."""
    most = max(cost_us)
    per_second = 1e6 / cost_us[most]
    steps = per_second * DRIVER_FRAGMENT
    workers = ", ".join(f"{steps / rate:,.0f} workers of {rate:,} steps/s" for rate in _RATES)
    return (
        f"At the time with {most} workers one driver processes {rounded(per_second)} fragments/s{where}. With "
        f"{DRIVER_FRAGMENT} steps per fragment that is {rounded(steps)} steps/s: {workers}."
    )


def pendulum_curve(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the measured rates of one and two workers, and the extrapolation to more."""
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
        _line("RLlib paper, one CPU each", [rounded(_CLASSIC[n]) if n in _CLASSIC else "" for n in _CPUS]),
        _line("measured", [rounded(measured[n]) if n in measured else "" for n in _CPUS]),
        _line("extrapolated", ["" if n in measured else rounded(n * two / 2) for n in _CPUS]),
        "",
        f'Actions per second. Two workers sample {two / one:.2f} times as fast as one. The row "extrapolated" '
        "multiplies the rate per worker of two workers, which share 2 cores with the driver; it was not measured. "
        "The figures of the RLlib paper are from arXiv:1712.09381, figure 7.",
    ]
    if "driver_ray" in results:
        cost_us = _medians(results["driver_ray"])
        processed, sent = 1e6 / cost_us[max(cost_us)], 64 * two / GATHERED_FRAGMENT
        bound = "the driver is then the limit" if processed < sent else "the driver is not the limit"
        lines[-1] += (
            f" With {GATHERED_FRAGMENT} steps per fragment 128 workers would send {rounded(sent)} fragments/s, and "
            f"one driver processes {rounded(processed)} fragments/s of {DRIVER_FRAGMENT} steps: {bound}."
        )
    return "\n".join(lines)


def soak_summary(report: Mapping[str, Any]) -> str:
    """Returns whether memory, threads or files grew in a long run whose workers were killed."""
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


def serving_soak_summary(report: Mapping[str, Any]) -> str:
    """Returns whether resources of a policy server grew in a long run of attacks."""
    counts = report["counts"]
    kind = "A policy server that learns" if report["learns"] else "A policy server"
    lines = [
        f"### {kind} under attack",
        "",
        f"{report['minutes']:g} minutes: {rounded(counts['attacks'])} attacks (garbage, wrong tokens and bodies, slow "
        f"and vanishing clients), {rounded(counts['opened'])} episodes left open, {counts['killed']} client processes "
        f"killed; meanwhile {rounded(counts['honest_episodes'])} episodes of two honest clients, {counts['failed']} of "
        "them failed. Medians of the two halves, after the warm-up:",
        "",
        "| | first half | second half | |",
        "|---|---|---|---|",
    ]
    for name, verdict in report["verdicts"].items():
        word = "flat" if verdict["flat"] else "**grows**"
        lines.append(f"| {_SERVED[name]} | {verdict['first_half']:g} | {verdict['second_half']:g} | {word} |")
    return "\n".join(lines)


def restarts_summary(report: Mapping[str, Any]) -> str:
    """Returns whether anything was lost when a policy server that learns was killed repeatedly."""
    iterations = ", ".join(map(str, report["iterations"][1:]))
    lines = [
        "### A policy server that is killed",
        "",
        f"{report['minutes']:g} minutes, {report['kills']} times SIGKILL and a restart on the same port and folder, "
        f"which went on from the newest checkpoint: iterations {iterations}. Meanwhile four clients completed "
        f"{rounded(report['completed'])} episodes, and {report['lost']} running ones were reported as lost; "
        + ("nothing else was." if not report["wrong"] else f"**and: {'; '.join(report['wrong'])}**."),
    ]
    return "\n".join(lines)


_SERVED = {
    "server_mb": "resident memory of the server, MiB",
    "threads": "its threads",
    "files": "its open files",
    "sockets": "its sockets",
}

_SOAKED = {
    "driver_mb": "resident memory of the driver, MiB",
    "driver_threads": "its threads",
    "driver_files": "its open files",
    "workers_mb": "resident memory of the larger worker, MiB",
    "store_mb": "Ray's object store, MB",
}


def larger_than_memory_summary(report: Mapping[str, Any]) -> str:
    """Returns the memory used in learning from a data set that is larger than memory."""
    whole, part = report["whole"], report["sixteenth"]
    verdict = "flat" if report["flat"] else "**grows**"
    return "\n".join(
        [
            "### Recorded data of four times the memory that it may take",
            "",
            f"BC from {report['data_mb']:,} MiB of observations ({whole['rows']:,} rows) with "
            f"`input_memory_gb` at {report['allowed_mb']} MiB and `input_folder`: the process has "
            f"{whole['warm_mb']} MiB of memory of its own after warm-up and {whole['end_mb']} MiB at the end, "
            f"{report['more_than_sixteenth_mb']} MiB more than with a sixteenth of the data: {verdict}. Decoding takes "
            f"{whole['decoded_s']} s once; {rounded(whole['rows_learned_per_s'])} rows/s are learned from, "
            f"{rounded(part['rows_learned_per_s'])} with a sixteenth of the data.",
        ]
    )


def _medians(result: Mapping[str, Any]) -> dict[int, float]:
    return dict(sorted((int(name.split()[0]), side["median"]) for name, side in result["sides"].items()))


def _line(head: str, cells: list[Any]) -> str:
    return f"| {head} | {' | '.join(map(str, cells))} |"
