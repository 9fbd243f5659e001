"""Runs the benchmarks, prints their figures and ratios, and stores each in the machine's table of results.

`python -m benchmarks.run_all` runs all that need no GPU, `--gpu` those that need one, `--only NAME` one of them (repeat
the option for more), `--list` prints their names. `--quick` makes short rounds to check that everything works; its
figures are printed and not stored.

`--minutes M` ends the call within M minutes. Benchmarks run in the order of `--list`, those of a GPU with the most
important first. One that does not fit into the remaining time, or takes much longer than expected, is skipped, and
another library that does not start is left out.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psutil

from benchmarks.measure import Row, measure
from benchmarks.processes import Side
from benchmarks.rows import make_rows
from benchmarks.tables import gpu_models, store
from benchmarks.time_limit import OutOfTimeError, TimeLimit

_ENDING_S = 5.0  # for ending processes at a limit
_MOST_TIMES = 4.0  # with a limit, a benchmark that takes so much longer than it was guessed must not cost all others


def main() -> int:
    """Runs the selected benchmarks; the names of failed ones are printed at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(make_rows()), metavar="NAME", help="run this benchmark")
    parser.add_argument("--gpu", action="store_true", help="run those that need a GPU")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and what they measure")
    parser.add_argument("--quick", action="store_true", help="short rounds, figures that are not kept")
    parser.add_argument("--sides", nargs="+", metavar="SIDE", help="with --quick: only these sides")
    parser.add_argument("--minutes", type=float, metavar="M", help="end within M minutes")
    parser.add_argument("--on-cpu", action="store_true", help="with --quick: sides that use a GPU run on the CPU")
    args = parser.parse_args()
    if args.sides and not args.quick:
        parser.error("--sides needs --quick: a kept figure has both sides in one invocation")
    if args.on_cpu and not args.quick:
        parser.error("--on-cpu needs --quick: a kept figure of a GPU is measured on one")
    if args.list:
        for row in make_rows().values():
            print(f"{row.name:30s}{row.work}")
        return 0

    rows = make_rows(quick=args.quick)
    chosen = [rows[name] for name in args.only or [name for name, row in rows.items() if bool(row.gpus) == args.gpu]]
    if args.sides:
        chosen = [_of_sides(row, [side for side in row.sides if side.name in args.sides]) for row in chosen]
    if args.on_cpu:
        chosen = [_of_sides(row, [replace(side, gpus=0) for side in row.sides]) for row in chosen]
    limit = TimeLimit()
    if args.minutes is not None:
        since_start = time.time() - psutil.Process().create_time()
        limit = TimeLimit(60 * args.minutes - since_start - _ENDING_S)
    return _run(chosen, limit, keep=not args.quick)


def _of_sides(row: Row, sides: Sequence[Side]) -> Row:
    """Returns a benchmark with other sides, whose figures have no targets."""
    return replace(row, sides=tuple(sides), targets=())


def _run(rows: Sequence[Row], limit: TimeLimit, *, keep: bool) -> int:
    """Measures benchmarks within a time limit; returns 1 if some failed, else 0."""
    failed, skipped, gpus = [], [], len(gpu_models())
    for row in rows:
        if row.gpus > gpus or not limit.allows(row.least_seconds):
            skipped.append(row.name)
            continue
        print(f"{row.name}: {row.work}", file=sys.stderr, flush=True)
        try:
            result = measure(row, limit=limit.for_part(_MOST_TIMES * row.least_seconds))
        except OutOfTimeError:
            skipped.append(row.name)
            continue
        except Exception as error:
            print(f"{row.name} failed: {error}", file=sys.stderr, flush=True)
            failed.append(row.name)
            continue
        print("\n".join(_summary(result)), flush=True)
        if keep:
            store(result)
    if skipped:
        print(f"skipped, for want of time or of GPUs: {', '.join(skipped)}", file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _summary(result: dict[str, Any]) -> list[str]:
    """Returns the lines with a benchmark's figures and verdicts."""
    unit = result["unit"]
    lines = [f"{result['name']}"]
    lines += [
        f"  {name:24s}{side['median']:>14,.4g} {unit}, {side['cores']:.2f} cores"
        + (f", first call {side['first_call_s']:.3g} s" if "first_call_s" in side else "")
        for name, side in result["sides"].items()
    ]
    for target in result["targets"]:
        verdict = {True: "reached", False: "FALLS SHORT", None: "reported"}[target["reached"]]
        if "against" in target:
            asked = "" if target["at_least"] is None else f" (must reach {target['at_least']:g})"
            of_cpu = "" if target["cpu_ratio"] is None else f", {target['cpu_ratio']:.3g} × by processor time"
            lines.append(f"  {target['ratio']:.3g} × {target['against']}{asked}: {verdict}{of_cpu}")
        else:
            asked = f"{target['sense']} {target['limit']:,g} {unit}"
            lines.append(f"  {target['side']} {target['figure']:,.4g}, {asked}: {verdict}")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
