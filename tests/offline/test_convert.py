"""Conversion of data sets: values that are kept, left out with a warning, or refused."""

import json

import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, DatasetError, DatasetWriter, open_dataset
from rollax.core import trees
from rollax.core.spaces import same_space
from rollax.offline.convert import convert
from tests.env.refused import refused
from tests.offline.recorded import ListReader
from tests.offline.test_describe import BOX, TWO, some, written


@pytest.mark.parametrize("to", ["rollax", "minari", "minari_arrow", "json_lines"])
def test_converted_data_can_be_read(tmp_path, to):
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
def test_a_warning_names_log_probabilities_that_are_left_out(tmp_path, caplog, to, known):
    data = some()
    for one in data:
        one.columns["actions"] = one.columns["env_actions"] = np.zeros((len(one), 1), np.float32)
        one.columns["action_logp"] = np.zeros(len(one), np.float32)
        if not known:
            del one.columns["action_logp"]
    box = spaces.Box(-2, 2, (1,), np.float32)
    convert(ListReader(data, BOX, box), tmp_path / ("a.jsonl" if to == "json_lines" else "a"), to)
    assert ("log-probabilities of 3 trajectories are left out" in caplog.text) == known


def test_a_folder_of_several_minari_data_sets(tmp_path):
    written(tmp_path / "a", some())
    for name in ("one", "two"):
        convert(open_dataset(tmp_path / "a"), tmp_path / "sets" / name, "minari")
    hidden = tmp_path / "sets" / ".three.tmp" / "data"  # left by a conversion that was killed
    hidden.mkdir(parents=True)
    (hidden / "metadata.json").write_text("{}")
    assert len(list(open_dataset(tmp_path / "sets").trajectories())) == 6
    assert len(list(open_dataset([tmp_path / "sets", tmp_path / "sets" / "one" / "data"]).trajectories())) == 6
    written(tmp_path / "sets", some(1))  # beside them
    assert len(list(open_dataset(tmp_path / "sets").trajectories())) == 7


@pytest.mark.short("rollax")
@pytest.mark.parametrize("to", ["rollax", "minari", "minari_arrow", "json_lines"])
def test_a_conversion_that_fails_midway_leaves_nothing(tmp_path, to):
    first, second = (written(tmp_path / "data", some(25, seed), prefix=f"p{seed}")[0] for seed in (0, 1))
    with open(second, "r+b") as file:  # its footer is valid, so that the error comes after the first file
        file.seek(40)
        file.write(b"\xff" * 200)
    settings = {"max_file_size": 1 << 10} if to == "rollax" else {}  # a file is completed before the error
    with pytest.raises(DatasetError, match="damaged"):
        convert(open_dataset(tmp_path / "data"), tmp_path / "out.jsonl", to, **settings)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    second.unlink()
    (tmp_path / "out.jsonl").mkdir()
    if to != "json_lines":  # an empty folder is allowed
        assert convert(open_dataset(tmp_path / "data"), tmp_path / "out.jsonl", to) == 25
    assert first.exists()


def test_unfinished_conversions_are_not_read(tmp_path, caplog):
    written(tmp_path / "data", some())
    written(tmp_path / ".data2.0123abcd.tmp", some())
    assert len(list(open_dataset(tmp_path).trajectories())) == 3
    assert ".data2.0123abcd.tmp is incomplete" in caplog.text


def test_json_lines_have_no_log_probabilities_of_clipped_actions(tmp_path):
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
def test_json_lines_refuse_values_that_are_not_json(tmp_path, column, value):
    data = some()
    for one in data:
        one.columns["action_logp"] = np.zeros(len(one), np.float32)
    data[1].columns[column][1] = value
    (path,) = written(tmp_path / "a", data)
    with pytest.raises(DatasetError, match=rf"(?s){path}, row group 0, row 3, column '{column}', step 1.*{value}"):
        convert(open_dataset(path), tmp_path / "b.jsonl", "json_lines")
    assert not (tmp_path / "b.jsonl").exists()


def test_json_lines_refuse_columns_that_do_not_fit_together(tmp_path):
    (one,) = some(1)
    one.columns["obs"] = trees.index(one.columns["obs"], slice(-1))  # without the observation after the last step
    with pytest.raises(DatasetError, match="obs"):
        convert(ListReader([one]), tmp_path / "a.jsonl", "json_lines")
    assert not (tmp_path / "a.jsonl").exists()


def test_json_lines_keep_infos_and_unknown_log_probabilities(tmp_path, caplog):
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


def test_json_lines_have_no_policy_ids(tmp_path, caplog):
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


@pytest.mark.parametrize("to", ["rollax", "json_lines", "minari", "minari_arrow"])
@pytest.mark.parametrize(("first", "second"), [(0, 1), (np.int64(0), np.int64(1)), ((0, "a"), (0, "b"))])
def test_keys_that_are_not_strings(tmp_path, to, first, second):
    data, space = some(2), spaces.Dict({first: BOX, second: TWO})
    for one in data:
        one.columns["obs"] = {first: one.columns["obs"], second: np.ones(len(one) + 1, np.int64)}
    out = tmp_path / ("out.jsonl" if to == "json_lines" else "out")
    if to.startswith("minari"):
        with pytest.raises(DatasetError, match=r"not a string, so Minari cannot store(.|\n)*column 'obs'(.|\n)*own"):
            convert(ListReader(data, space, TWO), out, to)
        assert list(tmp_path.iterdir()) == []
        return
    convert(ListReader(data, space, TWO), out, to)
    settings = {"observation_space": space} if to == "json_lines" else {}
    reader = open_dataset(out, **settings)
    assert same_space(reader.observation_spaces["default_policy"], space)
    for a, b in zip(data, reader.trajectories(), strict=True):
        trees.tree_map(np.testing.assert_array_equal, a.columns["obs"], b.columns["obs"])


@pytest.mark.parametrize(("to", "fits"), [("minari", False), ("minari_arrow", True)])
def test_keys_with_a_slash(tmp_path, to, fits):
    data, space = some(2), spaces.Dict({"p/q": BOX})
    for one in data:
        one.columns["obs"] = {"p/q": one.columns["obs"]}
    if fits:
        convert(ListReader(data, space, TWO), tmp_path / "out", to)
        assert len(list(open_dataset(tmp_path / "out").trajectories())) == 2
        return
    with pytest.raises(DatasetError, match=r"reads as a path(.|\n)*p/q(.|\n)*minari_arrow"):
        convert(ListReader(data, space, TWO), tmp_path / "out", to)
    assert list(tmp_path.iterdir()) == []


def test_settings_that_a_format_does_not_have(tmp_path):
    reader, out = ListReader(some(), BOX, TWO), tmp_path / "a.jsonl"
    refused(ConfigError, convert, reader, out, "json_lines", compression="zstd", says="json_lines...compression")
    refused(ConfigError, convert, str(tmp_path), out, says="open_dataset")


def test_json_lines_have_strings_as_ids(tmp_path, caplog):
    data = some(2)
    data[0].agent_id = "a", 1
    convert(ListReader(data, BOX, TWO), tmp_path / "a.jsonl", "json_lines")
    assert "agent ids that are not strings are written as strings: ('a', 1)" in caplog.text
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({**line, "episode_id": 0}) + "\n" for line in lines[:1]))
    assert [one.episode_id for one in open_dataset(tmp_path / "b.jsonl").trajectories()] == ["0:0"]
