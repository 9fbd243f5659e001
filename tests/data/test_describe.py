"""What a data set holds, what is broken in it, and what it becomes in another format."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

from rollax import (
    ConfigError,
    DatasetError,
    DatasetWriter,
    PGTrainer,
    PPOTrainer,
    RecordedTrajectory,
    open_dataset,
    trees,
)
from rollax.cli import app
from rollax.data.convert import convert
from rollax.data.describe import describe
from tests.data.test_parquet import same, trajectory
from tests.optimizers.recorded import ListReader

BOX, TWO = spaces.Box(-100, 100, (3,), np.float32), spaces.Discrete(2)
SPACES = {"default_policy": BOX}, {"default_policy": TWO}


def written(folder, trajectories, **settings):
    with DatasetWriter(folder, *SPACES, **settings) as writer:
        for one in trajectories:
            writer.write(one)
    return writer.paths


def some(count=3, seed=0, **changes):
    rng = np.random.default_rng(seed)
    return [trajectory(rng, 2 + i, i, obs=BOX, acts=TWO, **changes) for i in range(count)]


def test_returns_and_coverage(tmp_path):
    data = some()
    data[2].terminated = False
    for i, one in enumerate(data):
        one.columns["rewards"][:] = 10**i
        one.columns["obs"][:, 0] = 7
        one.columns["actions"][:] = [i % 2] * len(one)
    written(tmp_path, data, header={"env": "E", "behaviour": {"algorithm": "PPO"}})
    report = describe(open_dataset(tmp_path), check=True)
    numbers = report.as_json()["policies"]["default_policy"]
    # Trajectories of 2, 3 and 4 steps with rewards 1, 10 and 100; the last one was cut, so it has no return.
    assert numbers["return"] == {"mean": 16, "std": 14, "min": 2, "max": 30}
    assert numbers["length"]["mean"] == 3
    assert (numbers["steps"], numbers["terminated"], numbers["truncated"], numbers["cut"]) == (9, 2, 0, 1)
    assert numbers["constant_obs_elements"] == {"obs": 1}
    assert numbers["action_counts"] == {"actions": [6, 3]}
    assert open_dataset(tmp_path).header["behaviour"] == {"algorithm": "PPO", "score": 16}
    whole, _, cut = open_dataset(tmp_path).trajectories()
    assert whole.total_reward == 2
    with pytest.raises(DatasetError, match=r"(?s)cut trajectory is not known.*row group 0, row 7"):
        cut.total_reward  # noqa: B018
    assert report.errors == []
    assert any("1 trajectories were cut" in warning for warning in report.warnings)
    assert "mean 16.00" in str(report)


def test_the_rest_of_a_cut_trajectory_has_no_return(tmp_path):
    # Three trajectories of 2, 3 and 4 steps with rewards of 1; the third goes on where the first was cut.
    data = some()
    data[0].terminated, data[2].episode_id = False, data[0].episode_id
    for one in data:
        one.columns["rewards"][:] = 1
    written(tmp_path, data)
    reader = open_dataset(tmp_path)
    assert reader.header["behaviour"]["score"] == 3
    report = describe(reader)
    numbers = report.as_json()["policies"]["default_policy"]
    assert numbers["return"]["mean"] == 3
    assert (numbers["cut"], numbers["continued"], report.episodes) == (1, 1, 2)
    assert any("1 trajectories were cut, and 1 go on" in warning for warning in report.warnings)


def test_observations_of_other_shapes_are_named(tmp_path):
    lines = [
        {"agents": {"a": {"obs": [[0.0] * width] * 3, "actions": [0, 1], "rewards": [1, 2], "terminated": True}}}
        for width in (4, 3, 4)
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = describe(open_dataset(tmp_path / "log.jsonl"), check=True)
    (error,) = report.errors
    assert error.endswith(
        "log.jsonl, line 2, agent 'a', column 'obs': rows of shapes {'obs': (3,)}, before it {'obs': (4,)}"
    )
    assert report.policies["default_policy"].returns == [3, 3]


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("obs", np.nan, "nan in step 1, expected"),
        ("obs", np.inf, "inf in step 1 is not in"),
        ("rewards", np.inf, "inf in step 1"),
        ("actions", 5, "5 in step 1 is not in"),
    ],
)
def test_wrong_values_are_named(tmp_path, column, value, says):
    data = some()
    data[1].columns[column][1] = value
    (path,) = written(tmp_path, data)
    (error,) = describe(open_dataset(tmp_path), check=True).errors
    assert says in error
    assert f"{path}, row group 0, row 3" in error


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("rewards", np.ones((3, 1)), "column 'rewards': shape (3, 1), expected (3,)"),
        ("rewards", np.array([0, 1e39, 1]), "column 'rewards': 1e+39 in step 1, expected a number within ±3.4e+38"),
        ("action_logp", np.ones((3, 1)), "column 'action_logp': shape (3, 1), expected (3,)"),
        ("actions", np.array([0, 0.5, 1]), "column 'actions': 0.5 in step 1 is not in Discrete(2)"),
        ("actions", np.array([0, 1]), "column 'actions': shape (2,), expected (3,)"),
        ("obs", np.zeros((3, 3), np.float32), "column 'obs': shape (3, 3), expected (4, 3)"),
        ("obs", np.full((4, 3), 101, np.float32), "column 'obs': 101.0 in step 0 is not in Box"),
    ],
)
def test_what_learning_refuses_is_an_error(column, value, says):
    one = RecordedTrajectory({**trajectory_of(3), column: value}, True, False, "0", "a", "default_policy", "line 1")
    (error,) = describe(ListReader([one], BOX, TWO), check=True).errors
    assert error.startswith(f"line 1, {says}")


def trajectory_of(steps):
    return trajectory(np.random.default_rng(0), steps, 0, obs=BOX, acts=TWO).columns


def test_an_action_that_its_mask_forbids_is_an_error():
    space = spaces.Dict({"action_mask": spaces.Box(0, 1, (2,), np.int8)})
    one = RecordedTrajectory(trajectory_of(2), True, False, "0", "a", "default_policy", "line 1")
    one.columns["actions"] = np.array([1, 0])
    one.columns["obs"] = {"action_mask": np.array([[0, 1], [0, 1], [0, 0]], np.int8)}
    (error,) = describe(ListReader([one], space, TWO), check=True).errors
    assert error == "line 1, column 'actions': the action of step 1 is not allowed by the action mask [0 1]"
    one.columns["actions"] = np.array([1, 1])
    assert describe(ListReader([one], space, TWO), check=True).errors == []


@pytest.mark.parametrize(
    ("actions_of", "header", "counts"),
    [
        ("policy", {}, [2, 0, 0, 0, 0, 1, 0, 0, 0, 1]),  # -1 to 1 are 5 to 10, and -3 is clipped to -1
        ("policy", {"normalize_actions": False}, [4] + [0] * 9),
        ("environment", {}, [4] + [0] * 9),
        ("policy", {"normalize_actions": None}, None),  # files differ
    ],
)
def test_coverage_in_the_scale_of_the_policy(actions_of, header, counts):
    box = spaces.Box(5, 10, (1,), np.float32)
    one = trajectory(np.random.default_rng(0), 4, 0, obs=BOX, acts=box)
    one.columns["actions"] = np.array([[-3], [-1], [0.1], [1]], np.float32)
    reader = ListReader([one], BOX, box)
    reader.actions_of, reader.header = actions_of, header
    found = describe(reader).as_json()["policies"]["default_policy"]["action_counts"]
    assert found == ({} if counts is None else {"actions": counts})


def test_data_sets_with_the_same_ids_are_read_together(tmp_path):
    # As ids of logs, which are often numbers: of the first the end is missing, of the second nothing.
    for name, ends in (("a", False), ("b", True)):
        data = some()
        for one in data:
            one.terminated = ends
        written(tmp_path / name, data)
        convert(open_dataset(tmp_path / name), tmp_path / "converted" / name)
    report = describe(open_dataset(tmp_path / "converted"))
    assert report.episodes == 6
    assert len(report.policies["default_policy"].returns) == 3


def test_many_discrete_actions_are_counted_in_ranges():
    # 2500 actions in 834 ranges of 3.
    one = RecordedTrajectory(trajectory_of(4), True, False, "0", "a", "default_policy")
    one.columns["actions"] = np.array([0, 2, 3, 2499])
    report = describe(ListReader([one], BOX, spaces.Discrete(2500)))
    counts = report.policies["default_policy"].actions["actions"]
    assert len(counts) == 834
    assert counts[[0, 1, 833]].tolist() == [2, 1, 1]


def test_a_truncated_file_is_named_and_the_others_may_be_read(tmp_path):
    paths = written(tmp_path, some(6), max_file_size=1)
    assert len(paths) == 6
    whole = paths[2].read_bytes()
    paths[2].write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DatasetError, match=rf"(?s)damaged.*{paths[2].name}"):
        open_dataset(tmp_path)
    reader = open_dataset(tmp_path, max_broken=1)
    assert len(list(reader.trajectories())) == 5
    assert len(reader.broken) == 1
    assert paths[2].name in describe(reader, check=True).errors[0]


def test_files_with_other_spaces_are_refused(tmp_path):
    written(tmp_path / "a", some())
    with DatasetWriter(tmp_path / "b", {"default_policy": TWO}, {"default_policy": TWO}) as writer:
        writer.write(trajectory(np.random.default_rng(0), 2, 0, obs=TWO, acts=TWO))
    with pytest.raises(DatasetError, match=r"(?s)another observation space.*Discrete.*Box"):
        open_dataset([tmp_path / "a", tmp_path / "b"])


def test_objects_and_wrong_lengths_are_not_written(tmp_path):
    (one,) = some(1)
    writer = DatasetWriter(tmp_path, *SPACES)
    for column, says in ((np.array([{}, {}], object), "not made of numbers"), (np.zeros(5), "wrong length")):
        one.columns["more"] = column
        with pytest.raises(DatasetError, match=says):
            writer.write(one)
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_columns_that_come_later_begin_a_new_file(tmp_path):
    first, second, third = some()
    second.columns["vf_preds"] = np.zeros(3, np.float32)
    paths = written(tmp_path, [first, second, third])
    assert len(paths) == 3
    for a, b in zip([first, second, third], open_dataset(tmp_path).trajectories(), strict=True):
        same(a, b)


KILLED = """
import sys, numpy as np
from tests.data.test_describe import SPACES, some
from rollax import DatasetWriter
writer = DatasetWriter(sys.argv[1], *SPACES, max_file_size=1 << 14)
told = False
for seed in range(10**9):
    for one in some(20, seed):
        one.episode_id = f"{seed}:{one.episode_id}"
        writer.write(one)
    if len(writer.paths) >= 3 and not told:
        told = True
        print("three", flush=True)
"""


def test_a_killed_process_loses_the_open_file_alone(tmp_path, caplog):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "three\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    complete = [path for path in tmp_path.iterdir() if path.suffix == ".parquet"]
    assert len(complete) >= 3
    reader = open_dataset(tmp_path)
    read = list(reader.trajectories())
    rows = [f"{seed}:{i}" for seed in range(10**3) for i in range(20)]
    assert [one.episode_id for one in read] == rows[: len(read)]
    assert len(reader) == sum(map(len, read))
    left = [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]
    assert bool(left) == ("is incomplete" in caplog.text)


@pytest.mark.parametrize("to", ["rollax", "minari", "minari_arrow", "json_lines"])
def test_converted_and_read_again(tmp_path, to):
    data = some()
    data[0].truncated, data[0].terminated = True, False
    written(tmp_path / "a", data)
    out = tmp_path / ("b.jsonl" if to == "json_lines" else "b")
    assert convert(open_dataset(tmp_path / "a"), out, to) == 3
    settings = {"observation_space": BOX, "action_space": TWO} if to == "json_lines" else {}
    for a, b in zip(data, open_dataset(out, **settings).trajectories(), strict=True):
        assert (a.terminated, a.truncated) == (b.terminated, b.truncated)
        for name in ("obs", "actions", "rewards"):
            trees.tree_map(np.testing.assert_array_equal, a.columns[name], b.columns[name])
    with pytest.raises(DatasetError, match="exists|not empty"):
        convert(open_dataset(tmp_path / "a"), out, to)


@pytest.mark.parametrize("to", ["minari", "minari_arrow", "json_lines"])
@pytest.mark.parametrize("known", [True, False])
def test_log_probabilities_that_are_left_out_are_named(tmp_path, caplog, to, known):
    data = some()
    for one in data:
        one.columns["actions"] = one.columns["env_actions"] = np.zeros((len(one), 1), np.float32)
        one.columns["action_logp"] = np.zeros(len(one), np.float32)
        if not known:
            del one.columns["action_logp"]
    box = spaces.Box(-2, 2, (1,), np.float32)
    convert(ListReader(data, BOX, box), tmp_path / ("a.jsonl" if to == "json_lines" else "a"), to)
    assert ("log-probabilities of 3 trajectories are left out" in caplog.text) == known


def test_a_folder_of_several_sets_of_minari(tmp_path):
    written(tmp_path / "a", some())
    for name in ("one", "two"):
        convert(open_dataset(tmp_path / "a"), tmp_path / "sets" / name, "minari")
    hidden = tmp_path / "sets" / ".three.tmp" / "data"  # of a conversion that was killed
    hidden.mkdir(parents=True)
    (hidden / "metadata.json").write_text("{}")
    assert len(list(open_dataset(tmp_path / "sets").trajectories())) == 6
    assert len(list(open_dataset([tmp_path / "sets", tmp_path / "sets" / "one" / "data"]).trajectories())) == 6
    written(tmp_path / "sets", some(1))  # beside them
    assert len(list(open_dataset(tmp_path / "sets").trajectories())) == 7


@pytest.mark.parametrize("to", ["rollax", "minari", "minari_arrow", "json_lines"])
def test_a_conversion_that_fails_midway_leaves_nothing(tmp_path, to):
    first, second = (written(tmp_path / "data", some(25, seed), prefix=f"p{seed}")[0] for seed in (0, 1))
    with open(second, "r+b") as file:  # its footer is whole, so that the error comes after the first file
        file.seek(40)
        file.write(b"\xff" * 200)
    settings = {"max_file_size": 1 << 10} if to == "rollax" else {}  # a file is completed before the error
    with pytest.raises(DatasetError, match="damaged"):
        convert(open_dataset(tmp_path / "data"), tmp_path / "out.jsonl", to, **settings)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    second.unlink()
    (tmp_path / "out.jsonl").mkdir()
    if to != "json_lines":  # an empty folder may be there
        assert convert(open_dataset(tmp_path / "data"), tmp_path / "out.jsonl", to) == 25
    assert first.exists()


def test_what_is_still_being_converted_is_not_read(tmp_path, caplog):
    written(tmp_path / "data", some())
    written(tmp_path / ".data2.0123abcd.tmp", some())
    assert len(list(open_dataset(tmp_path).trajectories())) == 3
    assert ".data2.0123abcd.tmp is incomplete" in caplog.text


def test_lines_have_no_log_probabilities_of_actions_that_were_clipped(tmp_path):
    clipped, plain = some()[:2]
    for one in (clipped, plain):
        one.columns["action_logp"] = np.zeros(len(one), np.float32)
    clipped.columns["env_actions"] = clipped.columns["actions"].copy()
    for name, one in (("clipped", clipped), ("plain", plain)):
        written(tmp_path / name, [one])
        convert(open_dataset(tmp_path / name), tmp_path / f"{name}.jsonl", "json_lines")
    assert "action_logp" not in (tmp_path / "clipped.jsonl").read_text()
    assert "action_logp" in (tmp_path / "plain.jsonl").read_text()


@pytest.mark.parametrize(("column", "value"), [("obs", np.nan), ("rewards", np.inf), ("action_logp", -np.inf)])
def test_lines_refuse_what_is_no_json(tmp_path, column, value):
    data = some()
    for one in data:
        one.columns["action_logp"] = np.zeros(len(one), np.float32)
    data[1].columns[column][1] = value
    (path,) = written(tmp_path / "a", data)
    with pytest.raises(DatasetError, match=rf"(?s){path}, row group 0, row 3, column '{column}', step 1.*{value}"):
        convert(open_dataset(path), tmp_path / "b.jsonl", "json_lines")
    assert not (tmp_path / "b.jsonl").exists()


def test_lines_keep_infos_and_unknown_log_probabilities(tmp_path, caplog):
    (one,) = some(1)
    one.columns["action_logp"] = np.array([np.nan, -0.5], np.float32)
    one.columns["infos"] = np.array([{"seed": 3}, {"lives": np.int64(2)}, {"lives": 1}], object)
    written(tmp_path / "a", [one])
    convert(open_dataset(tmp_path / "a"), tmp_path / "b.jsonl", "json_lines")
    assert "NaN" not in (tmp_path / "b.jsonl").read_text()
    (read,) = open_dataset(tmp_path / "b.jsonl").trajectories()
    np.testing.assert_array_equal(read.columns["action_logp"], one.columns["action_logp"])
    assert read.columns["infos"].tolist() == [{}, {"lives": 2}, {"lives": 1}]
    assert "the infos of 1 resets are left out" in caplog.text
    convert(open_dataset(tmp_path / "a"), tmp_path / "c", "minari")
    assert "the infos of 1 episodes are left out" in caplog.text
    one.columns["infos"][2] = {"parts": [float("nan")]}
    written(tmp_path / "d", [one])
    with pytest.raises(DatasetError, match=r"(?s)column 'infos', step 2.*NaN"):
        convert(open_dataset(tmp_path / "d"), tmp_path / "d.jsonl", "json_lines")


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_commands(tmp_path):
    written(tmp_path / "a", some(), header={"env": "E"})
    shown = run("data", "info", tmp_path / "a")
    assert shown.exit_code == 0
    assert "9 in 3 trajectories" in shown.stdout
    assert json.loads(run("data", "info", tmp_path / "a", "--json").stdout)["episodes"] == 3
    assert run("data", "check", tmp_path / "a").stdout.endswith("no errors\n")
    done = run("data", "convert", tmp_path / "a", "--out", tmp_path / "b.jsonl", "--to", "json_lines")
    assert done.exit_code == 0, done.output
    with open(tmp_path / "b.jsonl", "a") as file:
        file.write('{"agents": {"agent0": {"obs": [[1')
    broken = run("data", "check", tmp_path / "b.jsonl")
    assert broken.exit_code == 1
    assert "line 4" in broken.stdout
    assert run("data", "info", tmp_path / "b.jsonl").exit_code == 2
    skipping = run("data", "info", tmp_path / "b.jsonl", "--settings", '{"max_broken": 1}')
    assert skipping.exit_code == 0
    assert "3 trajectories" in skipping.stdout


def test_json_has_null_for_what_is_not_finite(tmp_path):
    one, *_ = some()
    one.columns["obs"][1, 0] = np.inf
    one.columns["rewards"][0] = np.inf
    written(tmp_path, [one])
    done = run("data", "info", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    text = done.stdout
    numbers = json.loads(text, parse_constant=pytest.fail)["policies"]["default_policy"]
    assert numbers["obs_high"] == {"obs": None}
    assert numbers["return"]["max"] is None
    assert numbers["obs_low"]["obs"] == one.columns["obs"].min()


def test_a_recorded_checkpoint(tmp_path):
    config = {"train_batch_size": 40, "sgd_minibatch_size": 20, "num_sgd_iter": 1, "model": {"fcnet_hiddens": (4,)}}
    with PPOTrainer(env="CartPole-v1", config={**config, "num_envs_per_worker": 2, "seed": 0}) as trainer:
        result = trainer.record(5, tmp_path / "drawn")
        checkpoint = trainer.save(tmp_path)
        for number in (0, 2.5, "5", True):
            with pytest.raises(ConfigError, match=r"num_episodes(.|\n)*record"):
                trainer.record(number, tmp_path / "none")
    read = list(open_dataset(tmp_path / "drawn").trajectories())
    assert result["files"] == [str(path) for path in sorted((tmp_path / "drawn").iterdir())]
    assert not any(one.cut for one in read)
    assert sorted(float(one.columns["rewards"].sum()) for one in read) == sorted(result["episode_rewards"])
    assert all("action_logp" in one.columns for one in read)
    assert open_dataset(tmp_path / "drawn").header["behaviour"]["score"] == result["episode_reward_mean"]
    done = run("record", checkpoint, "--episodes", 2, "--out", tmp_path / "greedy", "--greedy", "--infos")
    assert done.exit_code == 0, done.output
    first, second = open_dataset(tmp_path / "greedy").trajectories()
    assert "action_logp" not in first.columns
    assert second.columns["infos"].tolist() == [{}] * (len(second) + 1)
    assert os.listdir(tmp_path / "greedy")[0] in done.stdout


def test_another_recording_in_the_same_folder_has_other_episodes(tmp_path):
    returns = []
    for folder in ("one", "two"):
        with PGTrainer(env="CartPole-v1", config={"model": {"fcnet_hiddens": (4,)}, "seed": 0}) as trainer:
            returns.append([tuple(trainer.record(8, tmp_path / folder)["episode_rewards"]) for _ in range(2)])
    assert returns[0] == returns[1]
    assert returns[0][0] != returns[0][1]


def test_lines_have_no_policy_ids(tmp_path, caplog):
    (one,), (other,) = some(1), some(1, seed=1)
    other.agent_id = "agent1"
    written(tmp_path / "a", [one, other])
    convert(open_dataset(tmp_path / "a"), tmp_path / "a.jsonl", "json_lines")
    assert "policy ids" not in caplog.text
    other.policy_id = "walker"
    with DatasetWriter(
        tmp_path / "b", *(dict.fromkeys(("default_policy", "walker"), box) for box in (BOX, TWO))
    ) as own:
        own.write(one)
        own.write(other)
    convert(open_dataset(tmp_path / "b"), tmp_path / "b.jsonl", "json_lines")
    assert "the policy ids default_policy, walker are left out" in caplog.text


@pytest.mark.parametrize(("to", "fits"), [("minari", False), ("minari_arrow", True)])
def test_keys_with_a_slash(tmp_path, to, fits):
    data, space = some(2), spaces.Dict({"p/q": BOX})
    for one in data:
        one.columns["obs"] = {"p/q": one.columns["obs"]}
    if fits:
        convert(ListReader(data, space, TWO), tmp_path / "out", to)
        assert len(list(open_dataset(tmp_path / "out").trajectories())) == 2
        return
    with pytest.raises(DatasetError, match=r"takes for a path(.|\n)*p/q(.|\n)*minari_arrow"):
        convert(ListReader(data, space, TWO), tmp_path / "out", to)
    assert list(tmp_path.iterdir()) == []


def test_settings_that_a_format_does_not_have(tmp_path):
    with pytest.raises(ConfigError, match=r"json_lines does not have(.|\n)*got: +compression"):
        convert(ListReader(some(), BOX, TWO), tmp_path / "a.jsonl", "json_lines", compression="zstd")


def test_lines_have_texts_as_ids(tmp_path, caplog):
    data = some(2)
    data[0].agent_id = "a", 1
    convert(ListReader(data, BOX, TWO), tmp_path / "a.jsonl", "json_lines")
    assert "ids of agents are written as texts: ('a', 1)" in caplog.text
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({**line, "episode_id": 0}) + "\n" for line in lines[:1]))
    assert [one.episode_id for one in open_dataset(tmp_path / "b.jsonl").trajectories()] == ["0:0"]
