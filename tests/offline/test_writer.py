"""A `DatasetWriter` refuses values that could not be read again, and converts ids."""

import errno
import os
import stat
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq
import pytest

from rollax import ConfigError, DatasetError, DatasetWriter, open_dataset
from rollax.offline.formats.layout import plain_infos
from tests.env.refused import raised, refused
from tests.offline.test_describe import BOX, SPACES, TWO, some, written

RESERVED, REQUIRED = ("terminated", "is_last", "episode_id", "reward_left_out"), ("obs", "actions", "rewards")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *(({name: np.zeros(2)}, rf"name of the column is reserved(.|\n)*got: +{name}") for name in RESERVED),
        ({"more": {"x": np.zeros(2)}, "more/x": np.zeros(2)}, r"name of the column is reserved(.|\n)*more/x"),
        *(({name: None}, f"lacks a required column(.|\n)*no {name}") for name in REQUIRED),
        *(({name: [0, 1]}, rf"not an array(.|\n)*column '{name}'(.|\n)*np.array") for name in REQUIRED),
        ({"more": np.array([{}, {}], object)}, "The column does not contain numbers"),
        ({"more": np.zeros(5)}, "wrong length"),
    ],
)
def test_refused_columns(tmp_path, changes, says):
    (one,) = some(1)  # of two steps
    columns = {**one.columns, **changes}
    one.columns = {name: column for name, column in columns.items() if column is not None}
    with pytest.raises(DatasetError, match=says):
        written(tmp_path, [one])
    assert list(tmp_path.iterdir()) == []


def test_an_episode_id_that_is_not_a_string(tmp_path):
    (one,) = some(1)
    one.episode_id = 3
    refused(DatasetError, written, tmp_path, [one], says="episode_id of a trajectory is not a string...pass '3'")


@pytest.mark.parametrize("name", ["terminated", "truncated", "continues"])
@pytest.mark.parametrize("value", [np.array([False, True]), [True], "no", None])
def test_flags_that_are_no_booleans(tmp_path, name, value):
    good, wrong = some(2)
    setattr(wrong, name, value)
    raised(DatasetError, written, tmp_path, [good, wrong], says=f"{name} of a trajectory is neither true nor false")
    assert len(list(open_dataset(tmp_path).trajectories())) == 1


@pytest.mark.parametrize("agent", [np.int64(7), ("red", np.int32(7)), np.uint8(7)])
def test_agent_ids_of_numpy(tmp_path, agent):
    (one,) = some(1)
    one.agent_id = agent
    written(tmp_path, [one])
    (read,) = open_dataset(tmp_path).trajectories()
    assert read.agent_id == agent
    assert hash(read.agent_id) == hash(agent)


def test_a_header_that_is_not_json(tmp_path):
    refused(DatasetError, written, tmp_path, some(1), says="not JSON...type object is not", header={"x": object()})
    assert list(tmp_path.glob("*.parquet")) == []


def test_a_single_space_is_for_the_default_policy(tmp_path):
    with DatasetWriter(tmp_path, BOX, TWO) as writer:
        writer.write(some(1)[0])
    reader = open_dataset(tmp_path)
    assert (reader.observation_spaces, reader.action_spaces) == SPACES


def test_arrays_of_jax(tmp_path):
    (one,) = some(1)
    one.columns["obs"] = jnp.asarray(one.columns["obs"])
    written(tmp_path, [one])
    (found,) = open_dataset(tmp_path).trajectories()
    np.testing.assert_array_equal(found.columns["obs"], one.columns["obs"])


def test_infos_with_arrays_of_other_libraries(tmp_path):
    (one,) = some(1)
    one.columns["infos"] = np.array(
        [{"x": jnp.float32(i), "y": (jnp.arange(2), {1, 2}), "type": np.float32} for i in range(len(one) + 1)]
    )
    written(tmp_path, [one])
    (found,) = open_dataset(tmp_path).trajectories()
    assert found.columns["infos"].tolist() == [{"x": i, "y": [[0, 1], None]} for i in range(len(one) + 1)]


def test_copies_of_infos_have_arrays_and_not_lists_of_their_numbers():
    pixels = np.zeros(2, np.uint8)
    (copied,) = plain_infos(np.array([{"pixels": pixels, "objects": np.array([{1}, 2], object)}]))
    pixels += 1
    np.testing.assert_array_equal(copied.pop("pixels"), np.zeros(2, np.uint8), strict=True)
    assert copied == {"objects": [None, 2]}


def test_arrays_that_the_caller_reuses(tmp_path):
    (one,) = some(1)
    place = np.zeros(1)
    one.columns["infos"] = np.array([{"place": place}] * (len(one) + 1))
    with DatasetWriter(tmp_path, *SPACES) as writer:
        for number in range(3):
            one.columns["rewards"][:] = place[:] = number
            writer.write(replace(one, episode_id=str(number)))
    reader = open_dataset(tmp_path)
    assert [read.columns["infos"][-1] for read in reader.trajectories()] == [{"place": [i]} for i in range(3)]
    assert [set(read.columns["rewards"].tolist()) for read in reader.trajectories()] == [{0}, {1}, {2}]
    assert reader.header["behaviour"]["score"] == len(one)


def test_wrong_arguments():
    with pytest.raises(ConfigError, match=r"Unknown compression(.|\n)*got: +zst(.|\n)*zstd"):
        DatasetWriter("unused", BOX, TWO, compression="zst")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Unknown actions_of(.|\n)*got: +env\n(.|\n)*environment"):
        DatasetWriter("unused", BOX, TWO, actions_of="env")  # type: ignore[arg-type]
    raised(ConfigError, DatasetWriter, "unused", {"a": BOX}, {"b": TWO}, says="different policies...['a'] and ['b']")


@pytest.mark.parametrize("prefix", [".x", "", "../x", "a/b", "a\\b", "a*", "[ab]", "a?", 3, None])
def test_a_prefix_of_files_that_a_reader_would_not_find(tmp_path, prefix):
    with pytest.raises(ConfigError, match=r"cannot begin the names(.|\n)*prefix of DatasetWriter(.|\n)*begins with"):
        DatasetWriter(tmp_path, BOX, TWO, prefix=prefix)


@pytest.mark.parametrize("prefix", ["part", "run 1.5", "_über-2"])
def test_other_prefixes_of_files(tmp_path, prefix):
    written(tmp_path, some(1), prefix=prefix)
    assert len(list(open_dataset(tmp_path).trajectories())) == 1


def test_columns_to_read_must_be_a_list(tmp_path):
    written(tmp_path, some(1))
    raised(ConfigError, open_dataset, tmp_path, says="setting 'columns'...got:      obs", columns="obs")


def test_an_interrupt_while_rows_are_written_does_not_repeat_them(tmp_path, monkeypatch):
    write = pq.ParquetWriter.write_table

    def interrupted(*args, **kwargs):
        write(*args, **kwargs)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(pq.ParquetWriter, "write_table", interrupted)
    first, second, third = some()  # of 2, 3 and 4 steps
    with DatasetWriter(tmp_path, *SPACES, max_file_size=1) as writer:
        writer.write(first)
        with pytest.raises(KeyboardInterrupt):
            writer.write(second)  # writes the episode before
        writer.write(third)
    reader = open_dataset(tmp_path)
    assert [len(one) for one in reader.trajectories()] == [2, 4]
    assert len(reader) == 6


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_an_interrupt_while_a_file_is_completed_does_not_lose_it(tmp_path, monkeypatch, step):
    first, second, third = some()  # of 2, 3 and 4 steps
    with DatasetWriter(tmp_path, *SPACES, max_file_size=1) as writer:
        writer.write(first)
        done = getattr(os, step)

        def interrupted(*args):
            done(*args)
            if step == "rename" or stat.S_ISREG(os.fstat(*args).st_mode):
                monkeypatch.undo()
                raise KeyboardInterrupt

        monkeypatch.setattr(os, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.write(second)  # completes the file of the episode before
        writer.write(third)
    assert [len(one) for one in open_dataset(tmp_path).trajectories()] == [2, 4]


def test_a_file_that_could_not_be_written_does_not_count_in_the_next_one(tmp_path, monkeypatch):
    write = pq.ParquetWriter.write_table
    first, second, third = some()  # of 2, 3 and 4 steps

    def full(self, table, **kwargs):
        if len(table) == len(second) + 1:
            self.is_open = False  # so that PyArrow does not close the removed file once more
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, table, **kwargs)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    monkeypatch.setattr("rollax.offline.writer._ROWS_AT_ONCE", 1)  # each episode is written before the next one
    with DatasetWriter(tmp_path, *SPACES) as writer:
        writer.write(first)
        writer.write(second)
        refused(DatasetError, writer.write, third, says="No space")
        writer.write(third)
    reader = open_dataset(tmp_path)
    assert [len(one) for one in reader.trajectories()] == [4]
    assert len(reader) == 4
    assert reader.header["behaviour"]["score"] == third.total_reward
