"""Pictures of data sets."""

from __future__ import annotations

import numpy as np
from typer.testing import CliRunner

from rollax.cli import app
from rollax.data.describe import describe
from rollax.data.picture import Coverage
from tests.data.test_describe import some, written
from tests.optimizers.recorded import ListReader, trajectory


def test_coverage_counts_each_element_over_its_range():
    # Two trajectories with the observations [k, t]: k is 0 or 1, t is 0, 1, 2.
    reader = ListReader([trajectory(number, 2) for number in range(2)])
    coverage = Coverage(describe(reader).policies["default_policy"])
    for one in reader.trajectories():
        coverage.add(one.columns["obs"])
    assert coverage.names == ["obs[0]  0 … 1", "obs[1]  0 … 2"]
    expected = np.zeros((2, 40), int)
    expected[0, [0, 39]] = 3
    expected[1, [0, 20, 39]] = 2
    np.testing.assert_array_equal(coverage.counts, expected)


def test_elements_that_never_change_and_images():
    reader = ListReader([trajectory(0, 2)])
    for one in reader.trajectories():
        one.columns["obs"] = np.full((3, 6, 5), 7, np.uint8)
    coverage = Coverage(describe(reader).policies["default_policy"])
    coverage.add(np.full((3, 6, 5), 7, np.uint8))
    assert coverage.left_out == 6
    assert coverage.counts.shape == (24, 40)
    assert coverage.counts[:, 0].tolist() == [3] * 24


def test_the_command_writes_a_picture(tmp_path):
    written(tmp_path / "a", some())
    done = CliRunner().invoke(app, ["data", "plot", str(tmp_path / "a"), f"--out={tmp_path / 'new' / 'a.png'}"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["data", "plot", str(tmp_path / "a"), f"--out={tmp_path / 'file' / 'a.png'}"])
    assert done.exit_code != 0
    assert "The picture was not written" in done.output
