"""Writes the tables of `BENCHMARKS.md` and `README.md`, and the learning curves, from `benchmarks/results`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.curves import (
    driver_curve,
    larger_than_memory_summary,
    pendulum_curve,
    restarts_summary,
    rounded,
    serving_soak_summary,
    soak_summary,
)
from benchmarks.learning import draw_learned, learning_table, read_learned
from benchmarks.measure import BUSY_PERCENT
from benchmarks.mujoco_table import mujoco_table
from benchmarks.offline_table import offline_tables
from benchmarks.peers import ROOT
from benchmarks.readme import write_speed_tables
from benchmarks.rows import make_rows
from benchmarks.search_table import search_table
from benchmarks.tables import Result, read_results

BEGIN = "<!-- tables: begin (written by python -m benchmarks.report) -->"
END = "<!-- tables: end -->"
_NEW_PAGE = f"# Benchmarks\n\n{BEGIN}\n{END}\n"


# Before the tables of offline learning, and after them.
_FIRST_RUNS = {"soak": soak_summary, "larger_than_memory": larger_than_memory_summary}
_LONG_RUNS = {
    "soak_serving": serving_soak_summary,
    "soak_serving_learn": serving_soak_summary,
    "soak_restarts": restarts_summary,
}


def main() -> int:
    """Rewrites the tables and the learning curves; prints the names of benchmarks without figures."""
    found = read_results()
    names = list(make_rows())
    missing = [name for name in names if name not in found]
    if missing:
        print(f"no figures for: {', '.join(missing)}", file=sys.stderr)
    results = [found[name] for name in names if name in found]
    parts = [_targets_table(results), _figures_table(results), _notes(results), *_sections(found)]
    _replace_tables(ROOT / "BENCHMARKS.md", "\n\n".join(part for part in parts if part))
    write_speed_tables()
    return 0


def _sections(found: dict[str, Result]) -> list[str]:
    """Returns the sections that follow the tables, and draws the learning curves."""
    learned = read_learned()
    draw_learned(learned)
    return [
        learning_table(learned),
        mujoco_table(found),
        search_table(found),
        driver_curve(found),
        pendulum_curve(found),
        *(summary(found[name]) for name, summary in _FIRST_RUNS.items() if name in found),
        offline_tables(found),
        *(summary(found[name]) for name, summary in _LONG_RUNS.items() if name in found),
    ]


def _replace_tables(page: Path, tables: str) -> None:
    """Puts `tables` between the markers of `page`, which is created if it is missing."""
    text = page.read_text() if page.exists() else _NEW_PAGE
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        raise SystemExit(f"{page.name}: expected the lines {BEGIN!r} and {END!r}, once each and in this order")
    before, rest = text.split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{tables}\n\n{END}{rest.split(END)[1]}")


def _targets_table(results: list[Result]) -> str:
    """Returns a table with one line for each target of each benchmark."""
    lines = ["| work | must reach | measured | |", "|---|---|---|---|"]
    for result in results:
        for i, target in enumerate(result["targets"]):
            work = result["work"] if i == 0 else "″"
            verdict = {True: "reached", False: "**falls short**", None: "reported"}[target["reached"]]
            lines.append(f"| {work} | {_asked(result, target)} | {_measured(result, target)} | {verdict} |")
    return "\n".join(lines)


def _asked(result: Result, target: dict[str, Any]) -> str:
    if "against" not in target:
        sign = "≥" if target["sense"] == "at least" else "≤"
        return f"{target['side']} {sign} {rounded(target['limit'])} {result['unit']}"
    if target["at_least"] is None:
        return f"× {target['against']}"
    if target["at_least"] == 1.0:
        return f"ahead of {target['against']}"
    return f"≥ {target['at_least']:g} × {target['against']}"


def _measured(result: Result, target: dict[str, Any]) -> str:
    if "against" not in target:
        return f"{rounded(target['figure'])} {result['unit']}"
    low, high = target["ratios"]
    return f"{target['ratio']:.3g} × ({low:.3g} to {high:.3g})"


def _figures_table(results: list[Result]) -> str:
    """Returns a table of the absolute figures of each side, which hold for one machine only.

    "cores" is the number of processor cores that the side used on average, where it was measured.
    """
    lines = ["| benchmark | side | median | lowest to highest round | rounds | cores |", "|---|---|---|---|---|---|"]
    for result in results:
        for i, (name, side) in enumerate(result["sides"].items()):
            rounds = side["rounds"]
            spread = f"{rounded(min(rounds))} to {rounded(max(rounds))}" if len(rounds) > 1 else ""
            label = f"`{result['name']}`" if i == 0 else ""
            cores = f"{side['cores']:.1f}" if "cores" in side else ""
            cells = (label, name, f"{rounded(side['median'])} {result['unit']}", spread, str(len(rounds)), cores)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _notes(results: list[Result]) -> str:
    """Returns a list: notes on each benchmark, rewards of the runs, hardware and versions."""
    lines = []
    for result in results:
        words = [result["notes"]] if result["notes"] else []
        for name, side in result["sides"].items():
            if "greedy_rewards" in side:
                rewards = ", ".join(f"{reward:.0f}" for reward in side["greedy_rewards"])
                words.append(f"{name}: greedy reward afterwards {rewards}.")
        if words:
            lines.append(f"- `{result['name']}`: {' '.join(words)}")
    places = dict.fromkeys(_describe_hardware(result["hardware"]) for result in results)
    sides = dict.fromkeys(_describe_versions(*item) for result in results for item in result["sides"].items())
    lines += [f"- Measured on {place}." for place in places]
    busy = [result["name"] for result in results if result["other_programs_percent"] > BUSY_PERCENT]
    if busy:
        lines.append(f"- Measured while other programs kept the processor busy, to be repeated: {', '.join(busy)}.")
    lines += [f"- {side}" for side in sides if side]
    return "\n".join(lines)


def _describe_hardware(hardware: dict[str, Any]) -> str:
    cores = f"{hardware['cores']} cores ({hardware['architecture']}, {hardware['system']}), Python {hardware['python']}"
    if "gpu" not in hardware:
        return cores
    number = hardware.get("gpus", 1)
    return f"{cores}, {'one' if number == 1 else number} {hardware['gpu']}"


def _describe_versions(name: str, side: dict[str, Any]) -> str:
    """Returns the versions of a side, or an empty string if the side reported none."""
    if "versions" not in side:
        return ""
    words = ", ".join(f"{library} {version}" for library, version in side["versions"].items())
    threads = f"; {side['threads']} PyTorch threads, its default" if "threads" in side else ""
    return f"{name}: {words}{threads}."


if __name__ == "__main__":
    raise SystemExit(main())
