"""`describe`: the contents of a data set, and its errors."""

import functools
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, DatasetError, DatasetWriter, PGTrainer, PPOTrainer, RecordedTrajectory, open_dataset
from rollax.offline.convert import convert
from rollax.offline.describe import describe
from tests.cli.command_line import invoke
from tests.offline import recorded
from tests.offline.formats.test_parquet import same, trajectory
from tests.offline.recorded import ListReader

BOX, TWO = spaces.Box(-100, 100, (3,), np.float32), spaces.Discrete(2)
SPACES = {"default_policy": BOX}, {"default_policy": TWO}


written = functools.partial(recorded.written, spaces=SPACES)


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
    # Trajectories of 2, 3 and 4 steps with rewards 1, 10 and 100; the last one is cut, so it has no return.
    assert numbers["return"] == {"mean": 16, "std": 14, "min": 2, "max": 30}
    assert numbers["length"]["mean"] == 3
    assert (numbers["steps"], numbers["terminated"], numbers["truncated"], numbers["cut"]) == (9, 2, 0, 1)
    assert numbers["constant_obs_elements"] == {"obs": 1}
    assert numbers["action_counts"] == {"actions": [6, 3]}
    assert open_dataset(tmp_path).header["behaviour"] == {"algorithm": "PPO", "score": 16}
    whole, _, cut = open_dataset(tmp_path).trajectories()
    assert whole.total_reward == 2
    with pytest.raises(DatasetError, match=r"(?s)cut trajectory is unknown.*row group 0, row 7"):
        cut.total_reward  # noqa: B018
    assert report.errors == []
    assert any("1 trajectories were cut" in warning for warning in report.warnings)
    assert "mean 16.00" in str(report)


def test_a_continued_trajectory_has_no_return(tmp_path):
    # Three trajectories of 2, 3 and 4 steps with rewards of 1; the third one continues the first one, which is cut.
    data = some()
    data[0].terminated, data[2].episode_id = False, data[0].episode_id
    for one in data:
        one.columns["rewards"][:] = 1
    written(tmp_path, data)
    reader = open_dataset(tmp_path)
    assert reader.header["behaviour"]["score"] == 3
    assert [one.cut for one in reader.trajectories()] == [True, False, True]  # the third has no `total_reward` either
    report = describe(reader)
    numbers = report.as_json()["policies"]["default_policy"]
    assert numbers["return"]["mean"] == 3
    assert (numbers["cut"], numbers["continued"], report.episodes) == (1, 1, 2)
    assert any("1 trajectories were cut, and 1 go on" in warning for warning in report.warnings)


def test_further_errors_are_counted():
    report = describe(ListReader(some(1)))
    for number in range(23):
        report.note(f"error {number}")
    found = report.as_json()
    assert (found["errors"][-1], found["more_errors"]) == ("error 19", 3)
    assert "and 3 more errors" in str(report)


def test_errors_name_observations_of_other_shapes(tmp_path):
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
        ("rewards", np.ones((3, 1)), "column 'rewards': shape (3, 1), expected (3,)"),
        ("rewards", np.array([0, 1e39, 1]), "column 'rewards': 1e+39 in step 1, expected a number within ±3.4e+38"),
        ("action_logp", np.ones((3, 1)), "column 'action_logp': shape (3, 1), expected (3,)"),
        ("actions", np.array([0, 0.5, 1]), "column 'actions': 0.5 in step 1 is not in Discrete(2)"),
        ("actions", np.array([0, 1]), "column 'actions': shape (2,), expected (3,)"),
        ("obs", np.zeros((3, 3), np.float32), "column 'obs': shape (3, 3), expected (4, 3)"),
        ("obs", np.full((4, 3), 101, np.float32), "column 'obs': 101.0 in step 0 is not in Box"),
        ("obs", np.nan, "column 'obs': nan in step 1, expected"),
        ("obs", np.inf, "column 'obs': inf in step 1 is not in"),
        ("rewards", np.inf, "column 'rewards': inf in step 1"),
        ("actions", 5, "column 'actions': 5 in step 1 is not in"),
    ],
)
def test_values_that_learning_refuses_are_errors(column, value, says):
    columns = trajectory_of(3)
    if np.ndim(value):
        columns[column] = value
    else:
        columns[column][1] = value
    one = RecordedTrajectory(columns, True, False, "0", "a", "default_policy", "line 1")
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
        ("policy", {}, [2, 0, 0, 0, 0, 1, 0, 0, 0, 1]),  # -1 to 1 is mapped to 5 to 10, and -3 is clipped to -1
        ("policy", {"normalize_actions": False}, [4] + [0] * 9),
        ("environment", {}, [4] + [0] * 9),
        ("policy", {"normalize_actions": None}, None),  # the files differ
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
    # Ids in logs are often numbers. The first data set has no ends, the second is complete.
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
    # 2500 actions are in 834 ranges of 3.
    one = RecordedTrajectory(trajectory_of(4), True, False, "0", "a", "default_policy")
    one.columns["actions"] = np.array([0, 2, 3, 2499])
    report = describe(ListReader([one], BOX, spaces.Discrete(2500)))
    counts = report.policies["default_policy"].actions["actions"]
    assert len(counts) == 834
    assert counts[[0, 1, 833]].tolist() == [2, 1, 1]


def test_files_with_other_spaces_are_refused(tmp_path):
    written(tmp_path / "a", some())
    with DatasetWriter(tmp_path / "b", {"default_policy": TWO}, {"default_policy": TWO}) as writer:
        writer.write(trajectory(np.random.default_rng(0), 2, 0, obs=TWO, acts=TWO))
    with pytest.raises(DatasetError, match=r"(?s)different observation spaces.*Discrete.*Box"):
        open_dataset([tmp_path / "a", tmp_path / "b"])


def test_a_new_column_begins_a_new_file(tmp_path):
    first, second, third = some()
    second.columns["vf_preds"] = np.zeros(3, np.float32)
    assert len(written(tmp_path, [first, second, third])) == 3
    for a, b in zip([first, second, third], open_dataset(tmp_path).trajectories(), strict=True):
        same(a, b)


KILLED = """
import sys, numpy as np
from tests.offline.test_describe import SPACES, some
from rollax import DatasetWriter
writer = DatasetWriter(sys.argv[1], *SPACES, max_file_size=1 << 14)
printed = False
for seed in range(10**9):
    for one in some(20, seed):
        one.episode_id = f"{seed}:{one.episode_id}"
        writer.write(one)
    if len(writer.paths) >= 3 and not printed:
        printed = True
        print("three", flush=True)
"""


@pytest.mark.long
def test_a_killed_process_loses_only_the_open_file(tmp_path, caplog):
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


def test_commands(tmp_path):
    written(tmp_path / "a", some(), header={"env": "E"})
    assert "9 in 3 trajectories" in invoke("data", "info", tmp_path / "a").stdout
    assert json.loads(invoke("data", "info", tmp_path / "a", "--json").stdout)["episodes"] == 3
    assert invoke("data", "check", tmp_path / "a").stdout.endswith("no errors\n")
    invoke("data", "convert", tmp_path / "a", "--out", tmp_path / "b.jsonl", "--to", "json_lines")
    with open(tmp_path / "b.jsonl", "a") as file:
        file.write('{"agents": {"agent0": {"obs": [[1')
    assert "line 4" in invoke("data", "check", tmp_path / "b.jsonl", code=1).stdout
    invoke("data", "info", tmp_path / "b.jsonl", code=2)
    skipping = invoke("data", "info", tmp_path / "b.jsonl", "--settings", '{"max_broken": 1}')
    assert "3 trajectories" in skipping.stdout


def test_the_format_may_be_among_the_settings(tmp_path):
    written(tmp_path / "a", some(), header={"env": "E"})
    of_settings = "--settings", '{"format": "rollax"}'
    invoke("data", "info", tmp_path / "a", *of_settings)
    invoke("data", "info", tmp_path / "a", *of_settings, "--format", "rollax")
    invoke("data", "info", tmp_path / "a", "--settings", '{"format": "csv"}', code=2)
    assert "csv, rollax" in invoke("data", "info", tmp_path / "a", *of_settings, "--format", "csv", code=2).stderr


def test_json_has_null_for_numbers_that_are_not_finite(tmp_path):
    one, *_ = some()
    one.columns["obs"][1, 0] = np.inf
    one.columns["rewards"][0] = np.inf
    written(tmp_path, [one])
    text = invoke("data", "info", tmp_path, "--json").stdout
    numbers = json.loads(text, parse_constant=pytest.fail)["policies"]["default_policy"]
    assert numbers["obs_high"] == {"obs": None}
    assert numbers["return"]["max"] is None
    assert numbers["obs_low"]["obs"] == one.columns["obs"].min()


@pytest.mark.long
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
    done = invoke("record", checkpoint, "--episodes", 2, "--out", tmp_path / "greedy", "--greedy", "--infos")
    first, second = open_dataset(tmp_path / "greedy").trajectories()
    assert "action_logp" not in first.columns
    assert second.columns["infos"].tolist() == [{}] * (len(second) + 1)
    assert os.listdir(tmp_path / "greedy")[0] in done.stdout


@pytest.mark.long
def test_another_recording_in_the_same_folder_has_other_episode_ids(tmp_path):
    returns = []
    for folder in ("one", "two"):
        with PGTrainer(env="CartPole-v1", config={"model": {"fcnet_hiddens": (4,)}, "seed": 0}) as trainer:
            returns.append([tuple(trainer.record(8, tmp_path / folder)["episode_rewards"]) for _ in range(2)])
    assert returns[0] == returns[1]
    assert returns[0][0] != returns[0][1]
