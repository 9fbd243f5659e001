"""Tables of the benchmarks' results, in files and in the documentation, and the count of lines."""

import ast
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks import code_size, tables
from benchmarks.mujoco_table import mujoco_table
from benchmarks.peers import ROOT
from benchmarks.readme import PAGES, speed_table
from benchmarks.rows import make_rows

LAPTOP = {"cores": 8, "system": "Linux", "architecture": "x86_64", "python": "3.12.1"}
SERVER = {**LAPTOP, "cores": 16, "gpu": "NVIDIA H200"}


def test_each_machine_has_a_table_with_one_line_for_each_result(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "TABLES", tmp_path)
    for name, value in (("b", 1.0), ("a", 1 / 3), ("b", 2.0)):
        tables.store({"name": name, "rounds": [value], "notes": "×", "hardware": LAPTOP})
    tables.store({"name": "b", "rounds": [3.0], "hardware": SERVER})
    laptop, server = tables.machine_table(LAPTOP), tables.machine_table(SERVER)
    assert laptop != server
    assert {path.name for path in tmp_path.iterdir()} == {laptop.name, server.name}
    lines = [json.loads(line) for line in laptop.read_text(encoding="utf-8").splitlines()]
    assert [(line["name"], line["rounds"]) for line in lines] == [("a", [1 / 3]), ("b", [2.0])]
    assert tables.read_table(laptop) == {line["name"]: line for line in lines}
    assert tables.read_table(tmp_path / "absent.jsonl") == {}


def test_the_newest_result_counts_whichever_machine_it_is_from(tmp_path):
    dates = {
        LAPTOP["cores"]: {"a": "2026-01-02", "b": "2026-01-01"},
        SERVER["cores"]: {"a": "2026-01-01", "c": "2026-01-01"},
    }
    for hardware in (LAPTOP, SERVER):
        of_machine = dates[hardware["cores"]].items()
        lines = [json.dumps({"name": name, "date": date, "hardware": hardware}) for name, date in of_machine]
        (tmp_path / tables.machine_table(hardware).name).write_text("\n".join(lines))
    found = {name: result["hardware"]["cores"] for name, result in tables.read_results(tmp_path).items()}
    assert found == {"a": 8, "b": 8, "c": 16}


def test_no_result_is_lost_when_several_processes_store_at_once(tmp_path):
    table = tmp_path / "learning.jsonl"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: tables.store({"name": f"run {number}"}, table), range(50)))
    assert set(tables.read_table(table)) == {f"run {number}" for number in range(50)}


def test_scores_have_a_ratio_only_to_positive_ones():
    def lines(other_score):
        env, method = "LunarLander-v3", "DQN without a config"
        about = {"env": env, "method": method, "budget": 100_000, "config": {}, "peer_settings": {}, "seed": 0}
        scores = {"rollax": 50.0, "stable_baselines3": other_score}
        runs = {side: {**about, "side": side, "curve": [[100_000, score]]} for side, score in scores.items()}
        return mujoco_table({side: {**run, "name": f"mujoco/{side}"} for side, run in runs.items()}).splitlines()

    with_ratio, without = lines(25.0), lines(-25.0)
    assert len([line for line in without if line.startswith("|")]) == 4  # header, rule, and both sides
    assert len(with_ratio) > len(without)


def test_the_tables_are_sorted_and_hold_results_of_their_machine():
    found = list(tables.TABLES.glob("*.jsonl"))
    assert tables.LEARNING in found
    for table in found:
        results = [json.loads(line) for line in table.read_text(encoding="utf-8").splitlines()]
        names = [result["name"] for result in results]
        assert names == sorted(set(names))
        assert table == tables.LEARNING or {tables.machine_table(result["hardware"]) for result in results} == {table}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_the_measured_speeds(page):
    assert f"\n\n{speed_table(PAGES[page])}\n\n" in page.read_text(encoding="utf-8")


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
    assert [rows[name][2:] for name in ("cli", "replay", "serving", "torch")] == [[0, 0]] * 4


@pytest.mark.parametrize("quick", [False, True])
def test_every_side_is_a_function_that_takes_its_settings(quick):
    # The modules are only parsed, because the other libraries are not installed.
    commands = [side.arguments for row in make_rows(quick=quick).values() for side in row.sides]
    of_functions = [arguments for arguments in commands if arguments[1].startswith("benchmarks.")]
    assert len(of_functions) > 100
    for _, module, name, text in of_functions:
        tree = ast.parse(ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8"))
        function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
        link, *parameters = [argument.arg for argument in function.args.args]
        required = parameters[: len(parameters) - len(function.args.defaults)]
        assert link == "link"
        assert set(required) <= set(json.loads(text)) <= set(parameters), (module, name)
        (ran,) = [node for node in ast.walk(tree.body[-1]) if isinstance(node, ast.Call)]
        assert name in {argument.id for argument in ran.args}
