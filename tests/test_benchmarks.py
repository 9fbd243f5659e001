"""Tables of the benchmarks in the documentation, and the count of lines."""

from __future__ import annotations

import pytest

from benchmarks import code_size
from benchmarks.peers import ROOT
from benchmarks.readme import speed_table


def test_the_readme_has_the_measured_speeds():
    assert f"\n\n{speed_table()}\n\n" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_code_size_counts_all_lines_and_those_that_ppo_loads():
    lines = [line.strip("|").split("|") for line in code_size.report().splitlines()[2:]]
    rows = {name.strip(): [int(cell.replace(",", "")) for cell in cells] for name, *cells in lines}
    total = rows.pop("**all**")
    assert total == [sum(column) for column in zip(*rows.values(), strict=True)]
    folders = {path.parent.name for path in (ROOT / "rollax").glob("*/__init__.py")}
    assert set(rows) == {"rollax", *folders}
    assert rows["ops"][1] == sum(len(path.read_text().splitlines()) for path in (ROOT / "rollax/ops").rglob("*.py"))
    assert 0 < rows["policy"][3] <= rows["policy"][1]
    assert [rows[name][2:] for name in ("cli", "data", "offline", "replay")] == [[0, 0]] * 4
