"""A run folder that a killed process has left is taken up again."""

import json

import pytest

from rollax.runs.results import read_lines
from rollax.runs.run_folder import RunFolder

EXPERIMENT = {"run": "PPO", "env": None, "config": {}, "stop": {}}


def line(iteration):
    return json.dumps({"training_iteration": iteration}) + "\n"


@pytest.mark.parametrize(
    ("left", "kept"),
    [
        ("", []),  # killed in the first iteration
        (line(1)[:9], []),  # while it wrote the first line
        (line(1) + line(2) + line(3)[:9], [1, 2]),
        (line(1) + line(2) + line(3), [1, 2]),  # the checkpoint is of iteration 2
    ],
)
def test_later_and_unfinished_results_are_dropped(tmp_path, left, kept):
    (tmp_path / "result.jsonl").write_text(left)
    folder = RunFolder(tmp_path, EXPERIMENT, None, None, goes_on_after=2)
    with folder:
        folder.append({"training_iteration": 3})
    results, unread = read_lines(tmp_path / "result.jsonl")
    assert [result["training_iteration"] for result in results] == [*kept, 3]
    assert unread == 0
