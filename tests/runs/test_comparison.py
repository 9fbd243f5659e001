"""Groups of runs with several seeds, their scores, and their curves."""

import json

import numpy as np
import pytest
from PIL import Image

from rollax.errors import ConfigError, RollaxError
from rollax.runs.comparison import aggregate, compared_by, curves, draw, groups_of, table
from rollax.runs.interquartile_mean import bootstrap_interval
from tests.cli.command_line import invoke
from tests.env.refused import refused
from tests.runs.written import write_run


def write(folder, seed, rewards, env="A-v0", greedy=None, **config):
    """A run folder with these rewards and this config."""
    write_run(folder, rewards, greedy)
    experiment = {"run": "PPO", "env": env, "config": {"seed": seed, **config}, "stop": {}}
    (folder / "config.json").write_text(json.dumps(experiment))
    return folder


@pytest.fixture
def folders(tmp_path):
    """Four seeds in one folder, and two single runs with another setting."""
    for seed, last in enumerate([1.0, 2.0, 3.0, 10.0]):
        write(tmp_path / "slow" / f"seed-{seed}", seed, [0.0, last], lr=1)
    return [tmp_path / "slow", *(write(tmp_path / f"fast{seed}", seed, [0.0, 4.0], lr=2) for seed in (0, 1))]


def test_runs_that_differ_in_their_seeds_are_a_group(folders):
    groups = groups_of(folders)
    assert [(group.label, len(group.runs)) for group in groups] == [("slow", 4), ("fast0", 2)]
    # Without 1 and 10 the mean is 2.5.
    low, high = bootstrap_interval([np.array([1.0, 2.0, 3.0, 10.0])])
    assert table(groups, "episode_reward_mean").splitlines()[2:] == [
        f"| slow | A-v0 | 4 | 2.5 | {low:.4g} to {high:.4g} | 4 | 1 | 10 |",
        "| fast0 | A-v0 | 2 | 4 | 4 to 4 | 4 | 4 | 4 |",
    ]


def test_a_run_that_counts_twice_is_refused_beside_runs_without_seeds(tmp_path):
    others = [write(tmp_path / f"other{number}", None, [1.0]) for number in range(3)]
    (group,) = groups_of(others)
    assert len(group.runs) == 3
    same = [write(tmp_path / name, 0, [1.0]) for name in ("one", "continued")]
    refused(ConfigError, groups_of, [*others, *same], says="seed 0, 2 times")


def test_keys_that_are_set_to_their_defaults_make_no_other_group(tmp_path):
    runs = [write(tmp_path / "a", None, [1.0], given=["env"]), write(tmp_path / "b", 1, [2.0], given=["env", "seed"])]
    assert [len(group.runs) for group in groups_of(runs)] == [2]


def test_the_settings_of_a_sweep_are_groups(tmp_path):
    for lr in (1, 2):
        for seed in (0, 10, 9):
            write(tmp_path / f"lr={lr}" / f"seed-{seed}", seed, [float(lr), float(seed)], lr=lr)
    (tmp_path / "other").mkdir()
    groups = groups_of([tmp_path])
    assert [group.label for group in groups] == ["lr=1", "lr=2"]
    assert groups[1].scores("episode_reward_mean").tolist() == [0, 9, 10]


def test_one_group_of_an_algorithm_has_its_name(tmp_path):
    runs = [write(tmp_path / f"{env}{seed}", seed, [1.0], env=env) for env in "AB" for seed in (0, 1)]
    assert [(group.label, group.env) for group in groups_of(runs)] == [("PPO", "A"), ("PPO", "B")]


def test_groups_whose_folders_have_the_same_name_have_different_labels(tmp_path):
    folders = [write(tmp_path / f"lr={lr}" / env / "one", 0, [lr], env=env, lr=lr) for lr in (1.0, 2.0) for env in "AB"]
    groups = groups_of(folders)
    assert [group.label for group in groups] == [str(folder) for folder in folders]
    assert not aggregate(groups, "episode_reward_mean", {}), "no group has runs in both environments"


def test_greedy_evaluations_count_if_all_runs_have_them(tmp_path):
    one = write(tmp_path / "one", 0, [1.0, 2.0], greedy=[None, 7.0])
    assert compared_by(groups_of([one])) == "evaluation_reward_mean"
    assert groups_of([one])[0].scores("evaluation_reward_mean") == [7]
    assert compared_by(groups_of([one, write(tmp_path / "other", 1, [1.0, 2.0])])) == "episode_reward_mean"
    refused(RollaxError, compared_by, groups_of([write(tmp_path / "none", 2, [None])]), says="no mean reward")


def test_curves_are_compared_at_equal_steps(tmp_path):
    runs = [write(tmp_path / "a", 0, [0.0, 10.0, 20.0]), write(tmp_path / "b", 1, [None, 4.0, 8.0, 12.0])]
    steps, values = curves(groups_of(runs)[0], "episode_reward_mean")
    assert (steps[0], steps[-1]) == (200, 300)
    np.testing.assert_allclose(values[0], steps / 10 - 10)
    np.testing.assert_allclose(values[1], steps / 25 - 4)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_command_writes_a_table_and_a_picture(folders, tmp_path, suffix):
    done = invoke("compare", *folders, f"--out={tmp_path}/picture.{suffix}")
    assert table(groups_of(folders), "episode_reward_mean") in done.output
    assert (tmp_path / f"picture.{suffix}").read_bytes()[:4] in (b"\x89PNG", b"<?xm")


def test_a_run_of_one_result_has_a_curve_of_one_point(tmp_path):
    groups = groups_of([write(tmp_path / "one", 0, [1.0])])
    draw(groups, "episode_reward_mean", tmp_path / "one.png")
    assert curves(groups[0], "episode_reward_mean")[1].shape == (1, 1)
    with Image.open(tmp_path / "one.png") as picture:
        middle = np.asarray(picture.convert("RGB"))[200:400, 300:600]
    assert (middle == [0x1F, 0x77, 0xB4]).all(axis=2).any()  # a blue point


def test_the_picture_does_not_consist_of_evaluations_at_the_end(tmp_path):
    rewards, greedy = [1.0, 2.0, 3.0], [None, 5.0, 6.0]
    last = write(tmp_path / "last", 0, rewards, greedy=[None, None, 7.0])
    several = write(tmp_path / "several", 0, rewards, greedy=greedy, lr=1)
    for runs, quantity in (([last, several], "episode_reward_mean"), ([several], "evaluation_reward_mean")):
        assert "evaluation_reward_mean" in invoke("compare", *runs, f"--out={tmp_path / 'drawn.png'}").output
        draw(groups_of(runs), quantity, tmp_path / "expected.png")
        assert (tmp_path / "drawn.png").read_bytes() == (tmp_path / "expected.png").read_bytes()


class TestAggregate:
    """Normalized scores over environments."""

    @pytest.fixture
    def runs(self, tmp_path):
        """In A one group has 0 and 10 and the other 5 and 10; in B 200 and 200, and 100 and 300."""
        scores = {("A", 1): (0.0, 10.0), ("A", 2): (5.0, 10.0), ("B", 1): (200.0, 200.0), ("B", 2): (100.0, 300.0)}
        for (env, lr), rewards in scores.items():
            for seed, reward in enumerate(rewards):
                folder = tmp_path / env / ("slow" if lr == 1 else "fast") / f"seed-{seed}"
                write(folder, seed, [reward], env=env, lr=lr)
        return [tmp_path / env / name for env in "AB" for name in ("slow", "fast")]

    def test_scores_count_between_the_lowest_and_the_highest_of_their_environment(self, runs):
        # slow: 0, 1, 0.5, 0.5; fast: 0.5, 1, 0, 1. Without the lowest and highest of four: 0.5 and 0.75.
        lines = aggregate(groups_of(runs), "episode_reward_mean", {}).splitlines()
        low, high = bootstrap_interval([np.array([0.0, 1.0]), np.array([0.5, 0.5])])
        assert lines[2] == f"| slow | 2 | 4 | 0.5 | {low:.4g} to {high:.4g} | 0.5 |"
        assert lines[3].startswith("| fast | 2 | 4 | 0.75 |")
        assert lines[-2:] == ["| A | 0 | 10 |", "| B | 100 | 300 |"]

    def test_references_replace_them(self, runs):
        # B counts from 0 to 400: slow 0, 1, 0.5, 0.5; fast 0.5, 1, 0.25, 0.75.
        table = aggregate(groups_of(runs), "episode_reward_mean", {"B": (0.0, 400.0)})
        assert table.splitlines()[3].startswith("| fast | 2 | 4 | 0.625 |")

    def test_there_is_none_for_one_environment_or_without_a_group_in_all(self, runs):
        assert not aggregate(groups_of(runs[:2]), "episode_reward_mean", {})
        assert not aggregate(groups_of([runs[0], runs[3]])[:0], "episode_reward_mean", {})

    def test_equal_scores_need_references(self, tmp_path):
        runs = [write(tmp_path / f"{env}{seed}", seed, [1.0], env=env) for env in "AB" for seed in (0, 1)]
        assert not aggregate(groups_of(runs), "episode_reward_mean", {}).startswith("|")
        assert aggregate(groups_of(runs), "episode_reward_mean", {"A": (0.0, 1.0), "B": (0.0, 2.0)}).startswith("|")
        refused(ConfigError, aggregate, groups_of(runs), "episode_reward_mean", {"C": (0.0, 1.0)})

    def test_the_command(self, runs, tmp_path):
        out = tmp_path / "out.png"
        result = invoke("compare", *runs, f"--out={out}", "--reference=A=0:20", "--reference=B=0:400")
        assert "| A | 0 | 20 |" in result.output

    @pytest.mark.parametrize("text", ["A", "A=1", "A=1:1", "A=a:b", "=0:1", "A=0:inf"])
    def test_wrong_references(self, runs, text):
        assert "--reference" in invoke("compare", runs[0], f"--reference={text}", code=2).stderr


def test_mistakes(tmp_path, folders):
    invoke("compare", tmp_path / "nowhere", code=2)
    invoke("compare", tmp_path, code=2)
    refused(ConfigError, groups_of, [folders[1], folders[1]], says="same seed")
    (folders[1] / "config.json").write_text("[]")
    invoke("compare", folders[1], code=2)
