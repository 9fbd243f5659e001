"""`MappedReplay`: rows in files are drawn like rows in memory."""

import copy
import json
import os
import shutil
import time

import numpy as np
import pytest

from rollax.batch import Fragment
from rollax.errors import DatasetError
from rollax.offline.column_files import ColumnWriter, open_columns, read_about
from rollax.offline.mapped import MappedReplay
from rollax.policy.sequence_draw import SequenceDraw
from rollax.replay.uniform import UniformReplay

COLUMNS = ("obs", "actions", "rewards", "state_in")


def fragment(first: int, *segments: tuple[int, bool]) -> Fragment:
    """Trajectories of (length, terminated), the others truncated; all numbers differ."""
    lengths = np.array([length for length, _ in segments])
    ends, size = np.cumsum(lengths) - 1, int(lengths.sum())
    terminated = np.array([over for _, over in segments])
    rng = np.random.default_rng(first)
    columns = {
        "obs": {"a": rng.random((size, 3), np.float32), "b": np.arange(size) + 1000 * first},
        "actions": rng.integers(5, size=size),
        "rewards": rng.random(size).astype(np.float32),
        "state_in": (rng.random((size, 2), np.float32),),
        "terminateds": np.zeros(size, bool),
        "truncateds": np.zeros(size, bool),
        "trajectory_id": np.repeat(first + np.arange(len(lengths)), lengths),
    }
    columns["terminateds"][ends] = terminated
    columns["truncateds"][ends] = ~terminated
    count = len(ends)
    after = {"obs": {"a": rng.random((count, 3), np.float32), "b": -np.arange(count)}}
    return Fragment(columns, ends, after)


FRAGMENTS = [fragment(0, (4, True), (1, False), (7, False)), fragment(10, (1, True), (3, True), (2, False))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("columns") / "data"
    writer = ColumnWriter(path, {"first": COLUMNS, "none": COLUMNS, "second": COLUMNS})
    writer.add("second", FRAGMENTS[1])
    for each in FRAGMENTS:
        writer.add("first", each)
    assert read_about(path) is None  # the folder gets its name when it is complete
    writer.finish({"files": []})
    writer.discard()
    return path


def written(folder, *fragments):
    """Writes these fragments as the columns of a policy "p" into a folder, and returns these."""
    writer = ColumnWriter(folder, {"p": COLUMNS})
    for each in fragments:
        writer.add("p", each)
    return writer.finish({})["p"]


def test_concurrent_runs_write_the_same_folder(tmp_path, monkeypatch):
    # The second one finishes when the first one has just found no folder, or has just moved an older one.
    first, second = writers = [ColumnWriter(tmp_path / "data", {"one": COLUMNS}) for _ in range(2)]
    for number, writer in enumerate(writers):
        writer.add("one", FRAGMENTS[number])
    rename, found = os.rename, []

    def renamed(source, to):
        if not found:
            found.append(None)
            found[0] = second.finish({"of": 2})
        rename(source, to)

    monkeypatch.setattr(os, "rename", renamed)
    mine = first.finish({"of": 1})
    monkeypatch.undo()
    lengths = [(each["one"].lasts - each["one"].starts + 1).tolist() for each in (mine, found[0])]
    assert lengths == [[4, 1, 7], [1, 3, 2]]  # each run has its own rows
    assert read_about(tmp_path / "data") == {"of": 1}
    assert list(tmp_path.iterdir()) == [tmp_path / "data"]


def in_memory(**settings):
    buffer = UniformReplay(18 + 3, columns=("state_in",), **settings)
    assert buffer.slots_for(FRAGMENTS) == buffer.capacity
    for each in FRAGMENTS:
        buffer.add(each)
    return buffer


def same(one, other):
    assert list(one) == list(other)
    for name, column in one.items():
        parts = column.items() if isinstance(column, dict) else [("", column)]
        for key, part in parts:
            theirs = other[name][key] if key else other[name]
            for mine, its in zip(*((p if isinstance(p, tuple) else (p,)) for p in (part, theirs)), strict=True):
                assert mine.dtype == its.dtype
                np.testing.assert_array_equal(mine, its, err_msg=name)


@pytest.mark.parametrize("n_step", [1, 3, None])
def test_draws_equal_those_of_a_buffer_in_memory(folder, n_step):
    columns = open_columns(folder)
    assert list(columns) == ["first", "second"]
    mapped, buffer = MappedReplay(columns["first"], n_step=n_step, gamma=0.5), in_memory(n_step=n_step, gamma=0.5)
    assert len(mapped) == len(buffer) == 18
    rngs = np.random.default_rng(1), np.random.default_rng(1)
    same(*(each.sample(200, rng) for each, rng in zip((mapped, buffer), rngs, strict=True)))
    for draw in (SequenceDraw(3, burn_in=2, overlap=2), SequenceDraw(3), SequenceDraw(3, overlap=1)):
        same(*[each.sample(50, rng, draw=draw) for each, rng in zip((mapped, buffer), rngs, strict=True)])
    for ours, theirs in zip(mapped.observations(4), buffer.observations(4), strict=True):
        same({"obs": ours}, {"obs": theirs})


def test_keys_of_nested_columns(tmp_path):
    # One key is not a string, and the second fragment names them in another order.
    fragments = [fragment(0, (2, False)), fragment(1, (1, True), (2, False))]
    for each, keys in zip(fragments, (("a", 7), (7, "a")), strict=True):
        for columns in (each, each.after):
            part = columns["obs"]["a"]
            columns["obs"] = {key: part if key == "a" else -part for key in keys}
    written(tmp_path / "data", *fragments)
    stored = open_columns(tmp_path / "data")["p"].columns["obs"]
    first, second = fragments
    expected = [first["obs"]["a"], first.after["obs"]["a"], second["obs"]["a"], second.after["obs"]["a"][1:]]
    np.testing.assert_array_equal(stored["a"], np.concatenate(expected))
    np.testing.assert_array_equal(stored[7], -stored["a"])


def test_pages_are_released_while_drawing(folder, monkeypatch):
    columns = open_columns(folder)["first"]
    mapped, released = MappedReplay(columns), []
    monkeypatch.setattr(columns, "release", lambda: released.append(1))
    for _ in range(30):
        mapped.sample(400, np.random.default_rng(0))  # 400 rows of four columns: at most 3200 pages
    assert 2 <= len(released) <= 30


@pytest.mark.parametrize("damage", ["truncated", "removed", "manifest"])
def test_a_damaged_folder_is_not_opened(tmp_path, damage):
    written(tmp_path / "data", FRAGMENTS[0])
    file = tmp_path / "data" / ("columns.json" if damage == "manifest" else "0-rewards-0.bin")
    if damage == "removed":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1])
    assert open_columns(tmp_path / "data") is None


def replaced(value, odd):
    """Copies of JSON values, each with `odd` in place of one of its parts."""
    yield odd
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        for changed in replaced(part, odd):
            copied = copy.deepcopy(value)
            copied[key] = changed
            yield copied


@pytest.mark.parametrize("odd", [None, -1, 10**30, 1e300, "x", [], {}, [[]], {"a": []}])
def test_a_description_with_odd_values_is_not_opened_or_the_same(tmp_path, odd):
    slots = written(tmp_path / "data", FRAGMENTS[0]).slots
    file = tmp_path / "data" / "columns.json"
    for changed in replaced(json.loads(file.read_text()), odd):
        file.write_text(json.dumps(changed))
        found = open_columns(tmp_path / "data")  # raises nothing
        assert not found or {columns.slots for columns in found.values()} == {slots}
    file.write_text("[" * 100_000)
    assert open_columns(tmp_path / "data") is None


def test_trajectories_that_go_backwards_are_not_opened(tmp_path):
    columns = written(tmp_path / "data", *FRAGMENTS)
    lasts, ends = columns.lasts.copy(), columns.lasts + ~columns.terminated
    shift = 10**9  # beyond the rows, and back
    starts = columns.starts.copy()
    lasts[0], starts[1] = lasts[0] + shift, starts[1] + shift
    assert ends[-1] + 1 == columns.slots
    assert len(lasts) > 2
    lasts.tofile(tmp_path / "data" / "0-@lasts-0.bin")
    starts.tofile(tmp_path / "data" / "0-@starts-0.bin")
    assert open_columns(tmp_path / "data") is None


def test_old_files_of_a_killed_process_are_removed(tmp_path):
    for age in (0, 7200):
        killed = ColumnWriter(tmp_path / "data", {"p": COLUMNS})
        killed.add("p", FRAGMENTS[0])
        for file in killed._files.values():
            file.close()
        (left,) = tmp_path.iterdir()
        for path in (*left.iterdir(), left):
            os.utime(path, (time.time() - age,) * 2)
        writer = ColumnWriter(tmp_path / "data", {"p": COLUMNS})
        assert left.exists() == (age == 0)
        writer.discard()
        shutil.rmtree(left, ignore_errors=True)


def test_a_folder_is_replaced_while_it_is_mapped(tmp_path):
    written(tmp_path / "data", FRAGMENTS[0])
    old = MappedReplay(open_columns(tmp_path / "data")["p"])
    before = old.sample(5, np.random.default_rng(0))
    written(tmp_path / "data", FRAGMENTS[1])
    same(old.sample(5, np.random.default_rng(0)), before)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match="cannot be written"):
        ColumnWriter(tmp_path / "file" / "data", {"p": COLUMNS})
