"""Runs the benchmarks, prints their figures and ratios, and stores each in the machine's table of results.

`python -m benchmarks.run_all` runs all that need no GPU, `--gpu` those that need one, `--only NAME` one of them (repeat
the option for more), `--list` prints their names. `--quick` makes short rounds to check that everything works; its
figures are printed and not stored.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

from benchmarks.measure import measure
from benchmarks.rows import make_rows
from benchmarks.tables import store


def main() -> int:
    """Runs the selected benchmarks; the names of failed ones are printed at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(make_rows()), metavar="NAME", help="run this benchmark")
    parser.add_argument("--gpu", action="store_true", help="run those that need a GPU")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and what they measure")
    parser.add_argument("--quick", action="store_true", help="short rounds, figures that are not kept")
    parser.add_argument("--sides", nargs="+", metavar="SIDE", help="with --quick: only these sides")
    args = parser.parse_args()
    if args.sides and not args.quick:
        parser.error("--sides needs --quick: a kept figure has both sides in one invocation")
    if args.list:
        for row in make_rows().values():
            print(f"{row.name:30s}{row.work}")
        return 0

    failed = []
    rows = make_rows(quick=args.quick)
    for name in args.only or [name for name, row in rows.items() if row.needs_gpu == args.gpu]:
        row = rows[name]
        if args.sides:
            sides = tuple(side for side in row.sides if side.name in args.sides)
            row = replace(row, sides=sides, targets=())
        print(f"{name}: {row.work}", file=sys.stderr, flush=True)
        try:
            result = measure(row)
        except Exception as error:
            print(f"{name} failed: {error}", file=sys.stderr, flush=True)
            failed.append(name)
            continue
        print("\n".join(_summary(result)), flush=True)
        if not args.quick:
            store(result)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _summary(result: dict[str, Any]) -> list[str]:
    """Returns the lines with a benchmark's figures and verdicts."""
    unit = result["unit"]
    lines = [f"{result['name']}"]
    lines += [f"  {name:24s}{side['median']:>14,.4g} {unit}" for name, side in result["sides"].items()]
    for target in result["targets"]:
        verdict = {True: "reached", False: "FALLS SHORT", None: "reported"}[target["reached"]]
        if "against" in target:
            asked = "" if target["at_least"] is None else f" (must reach {target['at_least']:g})"
            lines.append(f"  {target['ratio']:.3g} × {target['against']}{asked}: {verdict}")
        else:
            asked = f"{target['sense']} {target['limit']:,g} {unit}"
            lines.append(f"  {target['side']} {target['figure']:,.4g}, {asked}: {verdict}")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
