"""Curves of runs that go on: the runs at each number of steps, and the picture."""

import numpy as np

from rollax.runs.interquartile_mean import bootstrap_interval
from rollax.runs.live_curves import LiveCurves, middle_of
from tests.runs.written import write_run as write


def test_the_middle_is_of_the_runs_that_have_reached_a_step():
    """From 0 to 50 steps there are four runs, from there to 98 one; 50 points with a distance of 2."""
    short = [([0.0, 50.0], [value, value]) for value in (1.0, 2.0, 9.0)]
    at, middle, low, high = middle_of([*short, ([0.0, 98.0], [4.0, 53.0])])
    np.testing.assert_allclose(at, np.arange(0, 100, 2))
    # At 0 steps 1, 2, 4, 9, whose middle two are 2 and 4; at 50 steps 1, 2, 9, 29, with 2 and 9; then 4 + steps / 2.
    np.testing.assert_allclose(middle[[0, 25, 26, 49]], [3.0, 5.5, 30.0, 53.0])
    expected = bootstrap_interval([np.array([1.0, 2.0, 4.0, 9.0])])
    np.testing.assert_allclose((low[0], high[0]), expected)
    np.testing.assert_allclose((low[49], high[49]), (53.0, 53.0))


def test_one_result_is_one_point():
    at, middle, low, high = middle_of([([100.0], [7.0])])
    assert (at.tolist(), middle.tolist(), low.tolist(), high.tolist()) == ([100], [7], [7], [7])


def test_a_picture_follows_the_runs(tmp_path):
    """Runs that have not begun are left out, and a run without an ended episode too."""
    out = tmp_path / "curves.png"
    curves = LiveCurves(out, "episode_reward_mean")
    curves.runs = {"lr=1": [tmp_path / "a", tmp_path / "b"], "lr=2": [tmp_path / "c"]}
    write(tmp_path / "b", [None])
    assert curves.draw() == ""
    assert not out.exists()
    write(tmp_path / "a", [1.0, 2.0])
    assert curves.draw()
    first = out.read_bytes()
    assert first.startswith(b"\x89PNG")
    write(tmp_path / "c", [5.0, 6.0, 7.0])
    assert "lr=2" in curves.draw()
    assert out.read_bytes() != first
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["curves.png"]


def test_updates_wait(tmp_path):
    curves = LiveCurves(tmp_path / "curves.svg", "episode_reward_mean")
    curves.runs = {"": [tmp_path / "a"]}
    write(tmp_path / "a", [1.0, 2.0])
    curves.update()
    assert not (tmp_path / "curves.svg").exists()
    curves.draw()
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_a_last_picture_that_cannot_be_drawn_is_said(tmp_path, capsys):
    curves = LiveCurves(tmp_path / "no folder" / "curves.svg", "episode_reward_mean", quiet=True)
    curves.runs = {"": [tmp_path / "a"]}
    curves.finish()  # nothing to draw
    assert not capsys.readouterr().err
    write(tmp_path / "a", [1.0, 2.0])
    (tmp_path / "no folder").touch()
    curves.finish()
    assert "no folder" in capsys.readouterr().err
