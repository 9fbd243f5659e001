"""Learning curves."""

import pytest

from rollax.runs.results import curve, draw_curves, labelled
from tests.runs.written import write_run


def test_curve_leaves_out_unknown_values():
    results = [
        {"timesteps_total": 100, "episode_reward_mean": None},
        {"timesteps_total": 200, "episode_reward_mean": 5.0, "evaluation": {"episode_reward_mean": 7.0}},
        {"episode_reward_mean": 6.0},
        {"timesteps_total": 300, "episode_reward_mean": 8.0},
    ]
    assert curve(results, "episode_reward_mean") == ([200, 300], [5, 8])
    assert curve(results, "evaluation_reward_mean") == ([200], [7])
    assert curve([], "episode_reward_mean") == ([], [])


def test_draws_a_line_for_each_run(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "matplotlib.axes.Axes.plot",
        lambda axes, x, y, **style: drawn.append((list(x), list(y), style["label"], style["color"])),
    )
    monkeypatch.setattr("matplotlib.axes.Axes.legend", lambda *_, **__: None)
    evaluated = [{"timesteps_total": 10, "evaluation": {"episode_reward_mean": 3.0}}]
    draw_curves({"a": [{"timesteps_total": 1, "episode_reward_mean": 2.0}], "b": evaluated}, tmp_path / "x" / "y.png")
    assert drawn == [([1], [2], "a", "C0"), ([], [], "b", "C1"), ([10], [3], "b, greedy evaluation", "C1")]
    assert (tmp_path / "x" / "y.png").exists()


def test_labels_of_runs_are_distinct(tmp_path):
    one, two, three = (write_run(tmp_path / name, [1.0]) for name in ("a/run", "b/run", "c/other"))
    assert list(labelled([one, two, three])) == [str(one), str(two), "other"]
    assert list(labelled([one / "result.jsonl"])) == ["run"]


def test_any_folder_name_is_a_label(rollax, cwd):
    rollax("plot", write_run(cwd / "_one", [1.0]), write_run(cwd / r"a$\x$", [1.0]), "--out=a.svg")
    picture = (cwd / "a.svg").read_text()
    assert "<!-- _one -->" in picture  # the text of a label, which is drawn as paths
    assert r"<!-- a$\x$ -->" in picture


@pytest.mark.short("rewards0")
@pytest.mark.parametrize("rewards", [[1.0, 2.0, 4.0], [None, None], [3.0]])
def test_the_command_writes_a_picture(rollax, cwd, rewards):
    runs = [write_run(cwd / name, rewards) for name in ("one", "two")]
    assert rollax("plot", *runs, "--out=pictures/both.png").output.strip() == "pictures/both.png"
    assert (cwd / "pictures" / "both.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_the_suffix_is_the_format(rollax, cwd):
    run = write_run(cwd / "one", [1.0])
    for name, begins in (("a.svg", b"<?xml"), ("a.PDF", b"%PDF"), ("a", b"\x89PNG")):
        done = rollax("plot", run, f"--out={name}")
        assert (cwd / name).read_bytes().startswith(begins)
    done = rollax("plot", run, "--out=a.csv", code=2)
    assert "Unknown picture format." in done.output
    assert ".png" in done.output
    assert not (cwd / "a.csv").exists()


def test_the_command_counts_damaged_lines(rollax, cwd):
    run = write_run(cwd / "one", [1.0])
    with (run / "result.jsonl").open("a") as file:
        file.write('\n{"timesteps_total": 2')
    assert "one: 1 lines could not be read" in rollax("plot", run).output


def test_the_command_refuses_other_folders(rollax, cwd):
    assert "The results cannot be read." in rollax("plot", cwd / "nothing", code=2).output
