"""Written trajectories are read again bit for bit."""

import errno
import functools
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from rollax import DatasetError
from rollax.core import trees
from rollax.core.spaces import same_space
from rollax.offline.dataset import RecordedTrajectory
from rollax.offline.new_file import NewFile, new_folder
from rollax.offline.reader import open_dataset
from rollax.offline.writer import DatasetWriter
from tests.env.refused import refused
from tests.offline import recorded

OBS = spaces.Dict(
    {
        "position": spaces.Box(-1, 1, (2, 3), np.float32),
        "a/b": spaces.Tuple([spaces.Discrete(4), spaces.MultiBinary(3)]),
        "image": spaces.Box(0, 255, (20, 20, 1), np.uint8),
    }
)
ACTIONS = spaces.Tuple([spaces.Box(-2, 2, (2,), np.float64), spaces.MultiDiscrete([3, 5])])


def columns_of(space, rows, rng):
    space.seed(int(rng.integers(1 << 30)))
    return trees.stack([trees.tree_map(np.asarray, space.sample()) for _ in range(rows)])


def trajectory(
    rng, steps, episode, *, agent="agent0", policy="default_policy", ends="terminated", obs=OBS, acts=ACTIONS
):
    columns = {
        "obs": columns_of(obs, steps + 1, rng),
        "actions": columns_of(acts, steps, rng),
        "rewards": rng.normal(size=steps),
        "t": np.arange(steps),
        "action_logp": rng.normal(size=steps).astype(np.float32),
        "action_dist_inputs": rng.normal(size=(steps, 4)).astype(np.float32),
    }
    return RecordedTrajectory(columns, ends == "terminated", ends == "truncated", str(episode), agent, policy)


written = functools.partial(recorded.written, spaces=(OBS, ACTIONS))


def same(a, b):
    assert (a.terminated, a.truncated) == (b.terminated, b.truncated)
    assert (a.episode_id, a.agent_id, a.policy_id) == (b.episode_id, b.agent_id, b.policy_id)
    assert (a.continues, a.reward_left_out) == (b.continues, b.reward_left_out)
    assert list(a.columns) == list(b.columns)
    for name in a.columns:
        trees.tree_map(same_array, a.columns[name], b.columns[name])


def same_array(a, b):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


def test_nested_spaces_and_ends(tmp_path):
    rng = np.random.default_rng(0)
    ends = ["terminated", "truncated", "cut"]
    data = [trajectory(rng, steps, i, ends=ends[i % 3]) for i, steps in enumerate((1, 5, 3, 40))]
    (path,) = written(tmp_path, data, header={"env": "E"})
    reader = open_dataset(tmp_path)
    assert len(reader) == 49
    assert reader.header["env"] == "E"
    assert same_space(reader.observation_spaces["default_policy"], OBS)
    assert same_space(reader.action_spaces["default_policy"], ACTIONS)
    for a, b in zip(data, reader.trajectories(), strict=True):
        same(a, b)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("columns", [None, ["obs"]])
def test_continued_trajectories_and_rewards_left_out(tmp_path, columns):
    rng, box = np.random.default_rng(0), spaces.Box(-1, 1, (2,), np.float32)
    data = [trajectory(rng, 2 + i, i, ends="truncated", obs=box, acts=box) for i in range(3)]
    data[0].continues, data[1].reward_left_out, data[2].reward_left_out = True, 0.5, 0.0
    (path,) = written(tmp_path, data, spaces=(box, box))
    found = list(open_dataset(path, columns=columns).trajectories())
    assert [(one.continues, one.reward_left_out) for one in found] == [(True, None), (False, 0.5), (False, 0.0)]
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["continues", "reward_left_out"]), path)  # the format of older versions
    found = list(open_dataset(path, columns=columns).trajectories())
    assert [(one.continues, one.reward_left_out) for one in found] == [(False, None)] * 3


def test_a_disk_that_fails_leaves_no_file(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    (tmp_path / "file").touch()
    refused(DatasetError, NewFile, tmp_path / "file" / "part.parquet", says="could not be written...fix")
    writer = DatasetWriter(tmp_path / "data", {"default_policy": OBS}, {"default_policy": ACTIONS})
    writer.write(trajectory(rng, 3, 0))

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused(DatasetError, writer.close, says="could not be written...No space left")
    assert list((tmp_path / "data").iterdir()) == []
    assert writer.paths == []


@pytest.mark.parametrize("kind", [NewFile, new_folder])
def test_a_name_that_cannot_be_made_durable_is_not_given(tmp_path, monkeypatch, kind):
    fsync = os.fsync

    def fails_for_the_name(descriptor):
        if os.path.exists(tmp_path / "data"):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fails_for_the_name)
    with pytest.raises(DatasetError, match="Input/output error"), kind(tmp_path / "data"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [NewFile, new_folder])
def test_a_write_that_fails_is_an_error_of_the_data_set(tmp_path, kind):
    with pytest.raises(DatasetError, match=r"(?s)could not be written.*No space left"), kind(tmp_path / "data"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_ids_of_agents(tmp_path):
    agents = ["a", 7, ("team", 1), "json:x", ""]
    rng = np.random.default_rng(0)
    written(tmp_path, [trajectory(rng, 2, 0, agent=agent) for agent in agents])
    assert [one.agent_id for one in open_dataset(tmp_path).trajectories()] == agents


@pytest.mark.long
def test_some_columns_in_a_stable_order(tmp_path):
    rng = np.random.default_rng(0)
    assert len(written(tmp_path, [trajectory(rng, 30, i) for i in range(40)], max_file_size=1 << 12)) > 2
    found = list(open_dataset(tmp_path, columns=["t"]).trajectories())
    assert [one.episode_id for one in found] == [str(i) for i in range(40)]
    assert list(found[0].columns) == ["obs", "actions", "rewards", "t"]


@pytest.mark.parametrize("agent", [None, "json:{}", "json:[1"])
def test_invalid_ids(tmp_path, agent):
    (path,) = written(tmp_path, [trajectory(np.random.default_rng(0), 2, 0)])
    table = pq.read_table(path)
    schema = pa.schema([field.with_nullable(True) for field in table.schema], table.schema.metadata)
    columns = [pa.array([agent] * 3, pa.string()) if n == "agent_id" else table[n] for n in schema.names]
    pq.write_table(pa.table(columns, schema=schema), path)
    refused(DatasetError, list, open_dataset(path).trajectories(), says="damaged...row group 0")


def test_files_of_policies_with_actions_of_another_scale(tmp_path):
    rng = np.random.default_rng(0)
    for name in (True, False):
        header = {"normalize_actions": name, "clip_actions": True}
        written(tmp_path / str(name), [trajectory(rng, 2, 0)], header=header, actions_of="policy")
    assert open_dataset(tmp_path / "True").header["normalize_actions"] is True
    one_reader, chained = open_dataset(tmp_path), open_dataset([open_dataset(tmp_path / str(n)) for n in (True, False)])
    for reader in (one_reader, chained):
        assert reader.header["normalize_actions"] is None
        assert reader.header["clip_actions"] is True
        assert "logp_of" not in reader.header


def test_files_with_log_probabilities_of_different_actions(tmp_path):
    for name, header in (("a", {}), ("b", {"logp_of": "policy"}), ("c", {"logp_of": "environment"})):
        written(tmp_path / name, [trajectory(np.random.default_rng(0), 2, 0)], header=header)
    assert open_dataset(tmp_path / "b").header["logp_of"] == "policy"
    assert open_dataset([tmp_path / "a", tmp_path / "c"]).header["logp_of"] == "environment"  # the default
    for reader in (open_dataset(tmp_path), open_dataset([open_dataset(tmp_path / n) for n in "ab"])):
        assert reader.header["logp_of"] is None


def test_skipped_beginnings_are_noticed_when_reading_some_columns(tmp_path):
    data = [trajectory(np.random.default_rng(0), 2, episode) for episode in range(2)]
    data[1].columns["t"] += 1
    path, _ = written(tmp_path, data, max_file_size=1)
    path.write_bytes(b"PAR1")
    (found,) = open_dataset(tmp_path, columns=["rewards"], max_broken=1).trajectories()
    assert found.continues


LARGE = ("observation_space", "action_space")
BOX_OF_16M = {"type": "Box", "shape": [1 << 24], "dtype": "float64", "low": 0, "high": 1}


@pytest.mark.parametrize(
    "metadata",
    [
        {b"rollax": b"[]"},
        {b"rollax": b'{"policies": []}'},
        {b"rollax": b'{"policies": {"a": 1}}'},
        {b"rollax": b'{"policies": {}, "behaviour": [1]}'},
        {b"rollax": b'{"policies": {}, "format_version": "1"}'},
        {b"rollax": b"[" * 100_000},
        {b"rollax.contents": b"[]"},
        {b"rollax.contents": b'{"episodes": "x", "episode_reward_mean": 1}'},
        {b"rollax.contents": b'{"episodes": 1, "episode_reward_mean": null}'},
        {b"rollax.contents": b'{"episodes": 1}'},
        {b"rollax.contents": b'{"steps": []}'},
        {b"rollax.contents": b'{"steps": -5}'},
        {b"rollax.contents": b'{"steps": 1e400}'},
        {b"rollax.contents": b'{"steps": 9223372036854775808}'},
        {b"rollax.contents": b'{"episodes": 1, "episode_reward_mean": 1%s}' % (b"0" * 400)},
        {b"rollax": b'{"policies": {}, "policies": {}}'},
        {b"rollax": json.dumps({"policies": {i: dict.fromkeys(LARGE, BOX_OF_16M) for i in "abcd"}}).encode()},
    ],
)
def test_headers_that_rollax_did_not_write(tmp_path, metadata, monkeypatch):
    (path,) = written(tmp_path, [trajectory(np.random.default_rng(0), 2, 0)])
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, **metadata}), path)
    monkeypatch.setattr(np, "broadcast_to", lambda *_: pytest.fail("memory is taken"))
    refused(DatasetError, open_dataset, path, says="damaged")


def with_a_damaged_group(folder, following):
    """Two files of one trajectory, the second from t = `following`; the first row group of the first is damaged."""
    for ends, first in (("cut", 0), ("terminated", following)):
        one = trajectory(np.random.default_rng(0), 3, 0, ends=ends)
        one.columns["t"] += first
        written(folder, [one])
    path = sorted(folder.iterdir())[0]
    column = pq.read_metadata(path).row_group(0).column(0)
    content, start = bytearray(path.read_bytes()), column.dictionary_page_offset or column.data_page_offset
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("following", [0, 3])
def test_a_damaged_row_group_is_skipped(tmp_path, following):
    path = with_a_damaged_group(tmp_path, following)
    with pytest.raises(DatasetError, match=rf"(?s)damaged.*{path.name}, row group 0.*max_broken"):
        list(open_dataset(tmp_path).trajectories())
    reader = open_dataset(tmp_path, max_broken=1)
    for _ in range(2):
        (rest,) = reader.trajectories()
        assert (rest.continues, rest.ended) == (following > 0, True)  # the earlier steps are lost
        assert len(reader.broken) == 1
