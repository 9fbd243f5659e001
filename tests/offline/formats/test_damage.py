"""A damaged, truncated or missing file of any format is refused, and skipped with `max_broken`."""

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollax import DatasetError, open_dataset
from tests.offline.formats.reading import lines
from tests.offline.recorded import trajectory, written

OBS, NEW_OBS = [[0.0], [1.0], [2.0]], [[1.0], [2.0], [3.0]]
"""One episode of three steps, which terminates."""
STEPS = {"actions": [0, 1, 0], "rewards": [1.0, 2.0, 3.0]}
ENDS = {"terminateds": [False, False, True], "truncateds": [False] * 3, "t": [0, 1, 2]}
EPISODE = {"obs": [*OBS, [3.0]], **STEPS, "terminated": True}
BATCH = {"obs": OBS, "new_obs": NEW_OBS, **STEPS, **ENDS}


def own(path):
    return written(path.parent / "own", [trajectory(0, 3)])[0].rename(path)


def rllib_parquet(path):
    pq.write_table(pa.table({"eps_id": [path.stem] * 3, **BATCH}), path)
    return path


def d4rl(path):
    with h5py.File(path, "w") as file:
        file["observations"], file["next_observations"] = np.array(OBS), np.array(NEW_OBS)
        file["terminals"], file["actions"], file["rewards"] = ENDS["terminateds"], STEPS["actions"], STEPS["rewards"]
    return path


def csv(path):
    rows = zip(OBS, STEPS["actions"], STEPS["rewards"], ENDS["terminateds"], strict=True)
    path.write_text("x,a,r,end\n" + "".join(f"{x},{a},{r},{end}\n" for (x,), a, r, end in rows))
    return path


FORMATS = {
    "rollax": (own, ".parquet", {}),
    "rllib_parquet": (rllib_parquet, ".parquet", {}),
    "d4rl": (d4rl, ".hdf5", {}),
    "json_lines": (lambda path: lines(path, {"agents": {"a": EPISODE}}), ".jsonl", {}),
    "rllib_json": (lambda path: lines(path, {"type": "SampleBatch", **BATCH}), ".json", {}),
    "csv": (csv, ".csv", {"obs": ["x"], "actions": "a", "rewards": "r", "terminated": "end"}),
}


@pytest.fixture(params=FORMATS)
def two_files(request, tmp_path):
    """Two files of a format, and how to open them."""
    write, suffix, settings = FORMATS[request.param]
    return [write(tmp_path / f"{name}{suffix}") for name in "ab"], {**settings, "format": request.param}


def test_a_file_is_read(two_files):
    paths, settings = two_files
    for one in open_dataset(paths, **settings).trajectories():
        assert (one.columns["rewards"].tolist(), one.terminated, one.cut) == ([1, 2, 3], True, False)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("damage", ["truncated", "not text", "missing"])
def test_a_damaged_file_is_refused_or_skipped(two_files, number, damage):
    paths, settings = two_files
    path = paths[number]

    def change():
        content = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(content[:-40] if damage == "truncated" else b"\xff" * len(content))

    readers = [open_dataset(paths, max_broken=most, **settings) for most in (0, 1)] if damage == "missing" else []
    change()
    with pytest.raises(DatasetError, match=rf"(?s){path.name}.*max_broken"):
        list((readers[0] if readers else open_dataset(paths, **settings)).trajectories())
    reader = readers[1] if readers else open_dataset(paths, max_broken=1, **settings)
    for _ in range(2):
        whole = [one for one in reader.trajectories() if not one.cut]
        assert [one.columns["rewards"].tolist() for one in whole] == [[1, 2, 3]]
        assert len(reader.broken) == 1
        assert path.name in reader.broken[0]


@pytest.mark.parametrize("two_files", [name for name in FORMATS if "parquet" not in FORMATS[name][1]], indirect=True)
def test_any_damage_is_read_or_refused_or_skipped(two_files):
    (whole, path), settings = two_files
    content, rng, refused = path.read_bytes(), np.random.default_rng(0), 0
    for _ in range(100):
        damaged, place = bytearray(content), rng.integers(len(content))
        part = damaged[place : place + rng.integers(1, 9)]
        damaged[place : place + len(part)] = rng.bytes(len(part)) if rng.random() < 0.5 else b"\xff" * len(part)
        path.write_bytes(damaged)
        try:
            list(open_dataset([whole, path], **settings).trajectories())
        except DatasetError:
            refused += 1
        reader = open_dataset([whole, path], max_broken=9, **settings)
        assert len(reader) >= 0
        assert any(one.columns["rewards"].tolist() == [1, 2, 3] for one in reader.trajectories())
    assert refused > 20


def test_a_parquet_file_with_a_column_whose_name_is_not_text(tmp_path):
    path = own(tmp_path / "a.parquet")
    content = path.read_bytes()
    assert content.count(b"rewards") > 1
    path.write_bytes(content.replace(b"rewards", b"r\xffwards"))
    with pytest.raises(DatasetError):  # the format is detected, too
        list(open_dataset(path).trajectories())
