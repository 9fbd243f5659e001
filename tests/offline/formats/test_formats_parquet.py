"""Damage to rollax's own files after they were opened is an error, or skipped with `max_broken`."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from rollax import DatasetError, DatasetWriter, open_dataset
from tests.offline.formats.test_parquet import trajectory

BOX, TWO = spaces.Box(-100, 100, (3,), np.float32), spaces.Discrete(2)


def with_a_damaged_group(folder, following):
    """Two files of one trajectory, the second from t = `following`; the first row group of the first is damaged."""
    rng = np.random.default_rng(0)
    for ends, first in (("cut", 0), ("terminated", following)):
        with DatasetWriter(folder, {"default_policy": BOX}, {"default_policy": TWO}) as writer:
            one = trajectory(rng, 3, 0, obs=BOX, acts=TWO, ends=ends)
            one.columns["t"] += first
            writer.write(one)
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


def test_a_missing_file_is_an_error_or_skipped(tmp_path):
    rng = np.random.default_rng(0)
    for _ in range(2):
        with DatasetWriter(tmp_path, {"default_policy": BOX}, {"default_policy": TWO}) as writer:
            writer.write(trajectory(rng, 3, 0, obs=BOX, acts=TWO))
    strict, lenient = open_dataset(tmp_path), open_dataset(tmp_path, max_broken=1)
    path = sorted(tmp_path.iterdir())[0]
    path.unlink()
    with pytest.raises(DatasetError, match=rf"(?s){path.name}.*FileNotFound"):
        list(strict.trajectories())
    assert len(list(lenient.trajectories())) == 1
