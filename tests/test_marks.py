"""The marks that divide the parameters of tests between the short and the long part."""

import subprocess
import sys
from pathlib import Path

import pytest

MATRIX = """
import pytest

@pytest.fixture(params="ab")
def fixed(request):
    return request.param

@pytest.mark.short(every=3)
@pytest.mark.parametrize("row", ["x", "y", "z"])
@pytest.mark.parametrize(("one", "two"), [(1, True), (2, True), (3, False), (4, False)])
def test_matrix(fixed, row, one, two):
    pass

@pytest.mark.short("y")
@pytest.mark.parametrize("row", ["x", "y", "z"])
def test_names(row):
    pass
"""
CONFTEST = """
from tests.marks import mark_long

def pytest_collection_modifyitems(items):
    mark_long(items, complete=True)
"""


def collected(folder: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  short\n  long\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", *options, str(folder)]
    environment = {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_each_value_of_a_matrix_remains_in_the_short_part(tmp_path):
    output = collected(tmp_path, MATRIX, "-m", "not long").stdout
    kept = [line.partition("[")[2].rstrip("]") for line in output.splitlines() if "test_matrix" in line]
    assert len(kept) == 8
    assert {part for name in kept for part in name.split("-")} == {*"ab", *"xyz", *"1234", "True", "False"}
    assert "test_names[y]" in output
    assert "test_names[x]" not in output


@pytest.mark.long
def test_names_of_parameters_that_do_not_exist_are_refused(tmp_path):
    done = collected(tmp_path, MATRIX.replace('short("y")', 'short("why")'))
    assert done.returncode != 0
    assert "why" in done.stdout + done.stderr
