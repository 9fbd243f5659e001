"""Pictures of data sets."""

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from matplotlib.axes import Axes

from rollax import DatasetError
from rollax.offline.describe import describe
from rollax.offline.picture import Coverage, draw_dataset
from tests.cli.command_line import invoke
from tests.offline.recorded import ListReader, trajectory
from tests.offline.test_describe import some, written


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


def test_constant_elements_and_images():
    reader = ListReader([trajectory(0, 2)])
    for one in reader.trajectories():
        one.columns["obs"] = np.full((3, 6, 5), 7, np.uint8)
    coverage = Coverage(describe(reader).policies["default_policy"])
    coverage.add(np.full((3, 6, 5), 7, np.uint8))
    assert coverage.left_out == 6
    assert coverage.counts.shape == (24, 40)
    assert coverage.counts[:, 0].tolist() == [3] * 24


ALMOST_EQUAL = (1e6, np.nextafter(1e6, 2e6), np.nextafter(1e6, 0))


def with_rewards(*rewards):
    found = [trajectory(number, 1) for number in range(len(rewards))]
    for one, reward in zip(found, rewards, strict=True):
        one.columns["rewards"] = np.array([reward])
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    "rewards", [ALMOST_EQUAL, (np.nan, np.inf, -np.inf), (0.5, np.nan, 2.5), (1e-12, 2e-12), (-1e300, 1e300, 1e308)]
)
def test_returns_that_are_almost_equal_or_not_finite(rewards, tmp_path):
    draw_dataset(ListReader(with_rewards(*rewards)), tmp_path / "a.png")
    assert (tmp_path / "a.png").exists()


def test_observations_that_are_not_finite_are_not_counted(tmp_path):
    one = trajectory(0, 2)
    one.columns["obs"][0, 0], one.columns["obs"][1, 1] = np.inf, np.nan
    reader = ListReader([one, trajectory(1, 2)])
    coverage = Coverage(describe(reader).policies["default_policy"])
    coverage.add(one.columns["obs"])
    assert coverage.names == ["obs[0]  not finite", "obs[1]  not finite"]
    assert not coverage.counts.any()
    draw_dataset(reader, tmp_path / "a.png")


def test_without_a_trajectory(tmp_path):
    with pytest.raises(DatasetError, match="The data set has no trajectory"):
        draw_dataset(ListReader([]), tmp_path / "a.png")


@pytest.mark.long
def test_a_million_actions_are_drawn_as_a_hundred_bars(tmp_path, monkeypatch):
    bars = []
    of = Axes.bar
    monkeypatch.setattr(Axes, "bar", lambda self, *args, **more: bars.append(len(args[0])) or of(self, *args, **more))
    draw_dataset(ListReader([trajectory(0, 3)], action_space=Discrete(1_000_000)), tmp_path / "a.png")
    assert bars[-1] == 100


@pytest.mark.long
def test_the_command_writes_a_picture(tmp_path):
    written(tmp_path / "a", some())
    invoke("data", "plot", tmp_path / "a", f"--out={tmp_path / 'new' / 'a.png'}")
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")
    draw_dataset(ListReader([trajectory(0, 3)]), tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    (tmp_path / "file").write_text("")
    done = invoke("data", "plot", tmp_path / "a", f"--out={tmp_path / 'file' / 'a.png'}", code=2)
    assert "The picture was not written" in done.output
