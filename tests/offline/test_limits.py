"""Small files that would be large in memory are refused before they are decoded."""

import io
import json
import os
from types import SimpleNamespace

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from PIL import Image

from rollax import ConfigError, DatasetError, open_dataset
from rollax.offline.formats import common
from rollax.offline.formats.limited_parquet import pages_of
from tests.offline.formats.reading import read, unreadable
from tests.offline.test_describe import some, written

TOO_MUCH = "The decoded data needs too much memory"
BOX = spaces.Box(-1, 1, (2,), np.float32)
PIXELS = spaces.Box(0, 255, (40, 32, 3), np.uint8)


@pytest.mark.parametrize("limit", ["4", 0, -1.0, True, float("nan"), None])
@pytest.mark.parametrize("name", ["data", "a.hdf5"])
def test_invalid_limits(tmp_path, name, limit):
    written(tmp_path / "data", some(1))
    (tmp_path / "a.hdf5").touch()
    with pytest.raises(ConfigError, match=r"setting 'max_decoded_gb'(.|\n)*a number of GiB above 0"):
        open_dataset(tmp_path / name, max_decoded_gb=limit)


def test_formats_of_text_have_no_limit(tmp_path):
    (tmp_path / "log.jsonl").touch()
    with pytest.raises(ConfigError, match=r"The format does not accept these settings(.|\n)*argument 'max_decoded_gb'"):
        open_dataset(tmp_path / "log.jsonl", max_decoded_gb=4)


class TestParquet:
    def with_ids(self, tmp_path, length):
        """A file whose rows share one episode id of `length` letters, which is stored once."""
        (path,) = written(tmp_path / "data", some(60))
        table = pq.read_table(path)
        # One id for all rows: `is_last` separates the trajectories.
        ids = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(table), np.int32)), pa.array(["x" * length]))
        table = table.set_column(table.column_names.index("episode_id"), "episode_id", ids)
        metadata = pq.read_metadata(path).metadata
        with pq.ParquetWriter(path, table.schema, store_schema=False, compression="zstd") as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({key: metadata[key] for key in (b"rollax", b"rollax.contents")})
        return path

    def test_a_string_that_all_rows_share(self, tmp_path):
        # 60 trajectories of 2 to 61 steps, each with a last row: 60 · 31.5 + 60 = 1950 rows.
        path = self.with_ids(tmp_path, 3 << 20)
        assert path.stat().st_size < 1 << 20
        unreadable(rf"(?s){TOO_MUCH}.*row group 0.*at least 5.7 GiB.*at most 4.0 GiB", tmp_path / "data")
        path.unlink()
        self.with_ids(tmp_path, 30)
        assert [one.episode_id for one in read(tmp_path / "data")] == ["x" * 30] * 60

    def test_the_declared_size(self, tmp_path):
        # Each of 1950 rows has an observation of 3 float32.
        written(tmp_path / "data", some(60))
        unreadable(TOO_MUCH, tmp_path / "data", max_decoded_gb=1950 * 12 / 2**30)
        assert len(read(tmp_path / "data", max_decoded_gb=1e-3)) == 60

    def test_columns_that_are_not_read_do_not_count(self, tmp_path):
        many = some(60)
        for one in many:
            one.columns["action_dist_inputs"] = np.random.default_rng(0).random((len(one), 200), np.float32)
        written(tmp_path / "data", many)
        limit = 1950 * 800 / 2**30
        unreadable(TOO_MUCH, tmp_path / "data", max_decoded_gb=limit)
        assert len(read(tmp_path / "data", max_decoded_gb=limit, columns=["obs"])) == 60

    def test_rllib(self, tmp_path):
        rows = 1000
        columns = {"eps_id": ["e"] * rows, "obs": [[0.0, 1.0]] * rows, "actions": [0] * rows, "rewards": [1.0] * rows}
        pq.write_table(pa.table({**columns, "terminateds": np.arange(rows) == rows - 1}), tmp_path / "a.parquet")
        assert len(read(tmp_path / "a.parquet")) == 1
        unreadable(TOO_MUCH, tmp_path / "a.parquet", max_decoded_gb=rows * 16 / 2**30)

    def test_a_footer_that_declares_less_than_the_pages_have(self, tmp_path):
        # One row with a list of 5 million equal numbers, which a dictionary stores in some bytes.
        count, path = 5_000_000, tmp_path / "a.parquet"
        long = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), pa.array(np.zeros(count, np.float32)))
        table = pa.table({"eps_id": ["e"], "obs": long, "actions": [0], "rewards": [1.0], "terminateds": [True]})
        pq.write_table(table, path, data_page_size=1 << 30, write_statistics=False)
        declared_as(path, count, 1)
        assert path.stat().st_size < 10_000
        assert pq.read_metadata(path).row_group(0).column(1).num_values == 1
        unreadable(rf"(?s){TOO_MUCH}.*a.parquet", path, max_decoded_gb=20_000_000 / 2**30)

    @pytest.mark.short("RLE_DICTIONARY")
    @pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "RLE_DICTIONARY"])
    def test_texts_that_share_their_beginning(self, tmp_path, encoding):
        # 1000 ids of 100,000 letters are 100 MB, and some kB in the file.
        rows, path = 1000, tmp_path / "a.parquet"
        columns = {"obs": [[0.0]] * rows, "actions": [0] * rows, "rewards": [1.0] * rows}
        table = pa.table({"eps_id": ["e" * 100_000] * rows, **columns})
        delta = encoding == "DELTA_BYTE_ARRAY"
        settings = {"use_dictionary": False, "column_encoding": {"eps_id": encoding}} if delta else {}
        pq.write_table(table, path, compression="zstd", **settings)
        assert path.stat().st_size < 20_000
        unreadable(TOO_MUCH, path, max_decoded_gb=90_000_000 / 2**30)

    def test_rows_as_objects_of_python(self, tmp_path):
        # 100,000 rows take 1.2 MB in Arrow, but more than 20 MB as tuples of ids and lists of numbers.
        rows, path = 100_000, tmp_path / "a.parquet"
        columns = {"obs": np.zeros(rows, np.int8), "actions": np.zeros(rows, np.int8), "rewards": np.zeros(rows, "f4")}
        pq.write_table(pa.table({"eps_id": ["e"] * rows, **columns}), path)
        unreadable(TOO_MUCH, path, max_decoded_gb=20_000_000 / 2**30)

    def test_trajectories_as_objects_of_python(self, tmp_path):
        written(tmp_path / "data", some(60))
        unreadable(rf"(?s){TOO_MUCH}.*row group 0", tmp_path / "data", max_decoded_gb=60 * 2000 / 2**30)


@pytest.mark.parametrize(
    "header",
    [
        bytes([0x19]) * 100_000,  # lists in lists
        bytes([0x1C]) * 100_000,  # structs in structs
        bytes([0x1C, 0, 0x15, 0, 0x15, 0, 0]),  # a struct in place of the type of the page
        bytes([0x15, 0, 0x15, 0, 0x15, 0, 0x2C, 0x15, 0, 0x1C, 0, 0, 0]),  # in place of the encoding
    ],
)
def test_damaged_headers_of_pages(header):
    sizes = {"total_compressed_size": len(header), "num_values": 9}
    chunk = SimpleNamespace(data_page_offset=0, dictionary_page_offset=None, **sizes)
    with pytest.raises(ValueError, match=r"page"):
        pages_of(io.BytesIO(header), chunk)


def declared_as(path, values, less):
    """Changes a number of values in the footer of a Parquet file, which stays as long as it is."""
    content = path.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    was = varint(2 * values)
    assert was in content[begin:]
    path.write_bytes(content[:begin] + content[begin:].replace(was, varint(2 * less, len(was))))


def varint(number, length=0):
    """An unsigned integer in Thrift's compact protocol, of at least `length` bytes."""
    found = []
    while number or len(found) < max(length, 1):
        found.append(number & 127)
        number >>= 7
    return bytes(part | 128 for part in found[:-1]) + bytes(found[-1:])


def test_an_episode_of_d4rl(tmp_path):
    short, long = tmp_path / "a.hdf5", tmp_path / "b.hdf5"
    for path, rows, steps in ((short, 1000, 100), (long, 500_000, 500_000)):
        with h5py.File(path, "w") as file:
            for name, width in (("observations", 3), ("actions", 1)):
                file.create_dataset(name, (rows, width), "f4", compression="gzip")
            file["rewards"], file["terminals"] = np.zeros(rows, np.float32), np.arange(rows) % steps == steps - 1
    assert len(read(short, time_limit=100)) == 10
    # Up to 1000 rows are read at once, or one longer episode: 500,000 rows of 5 float32.
    assert len(read(long, time_limit=500_000, max_decoded_gb=10_000_001 / 2**30)) == 1
    unreadable(rf"(?s){TOO_MUCH}.*b.hdf5, row 0", long, time_limit=500_000, max_decoded_gb=9_999_999 / 2**30)


BYTES = h5py.vlen_dtype(np.uint8)
TEXTS = h5py.string_dtype()


def share_rows(path, name, kind):
    """Adds an array of 200 rows to an HDF5 file: each is the same 100,000 bytes, which the file has once."""
    long, short = ("x" * 100_000, "y") if kind is TEXTS else (np.zeros(100_000, np.uint8), np.zeros(1, np.uint8))
    with h5py.File(path, "a") as file:
        array = file.create_dataset(name, (200,), kind)
        array[0] = long
        for row in range(1, 200):
            array[row] = short
    with h5py.File(path) as file:
        begin = file[name].id.get_offset()
    content = bytearray(path.read_bytes())
    content[begin : begin + 200 * 16] = content[begin : begin + 16] * 200  # the places of the rows, 16 bytes each
    path.write_bytes(content)
    with h5py.File(path) as file:
        assert len(file[name][199]) == 100_000


@pytest.mark.parametrize("kind", [BYTES, TEXTS])
def test_rows_of_d4rl_that_share_their_bytes(tmp_path, kind):
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        file["actions"], file["rewards"] = np.zeros((200, 1), np.float32), np.zeros(200, np.float32)
        file["terminals"] = np.arange(200) == 199
    share_rows(path, "observations", kind)
    unreadable(r"(?s)no numbers.*observations", path, time_limit=300)


def write_four_steps(tmp_path, storage, space=BOX, value=0, **settings):
    """A data set of Minari with an episode that terminates, whose observations are filled with one value."""
    (tmp_path / "data").mkdir()
    made = MinariStorage.new(tmp_path / "data", space, spaces.Discrete(2), None, storage, **settings)
    numbers = {"observations": np.full((5, *space.shape), value, space.dtype), "actions": np.zeros(4, np.int64)}
    flags = {"terminations": np.arange(4) == 3, "truncations": np.zeros(4, bool)}
    made.update_episodes([EpisodeBuffer(**numbers, rewards=np.zeros(4), **flags)])
    made.update_metadata({"dataset_id": "a-v0", "minari_version": "0.5.3"})


class TestRowsOfMinari:
    """Arrays and attributes of variable length in HDF5."""

    def write(self, tmp_path):
        write_four_steps(tmp_path, "hdf5")
        return tmp_path / "data" / "main_data.hdf5"

    @pytest.mark.short("infos/x-kind0")
    @pytest.mark.parametrize("kind", [BYTES, TEXTS])
    @pytest.mark.parametrize("name", ["infos/x", "infos/in/x", "observations"])
    def test_rows_that_share_their_bytes(self, tmp_path, name, kind):
        path = self.write(tmp_path)
        with h5py.File(path, "a") as file:
            file["episode_0"].pop(name, None)
            file["episode_0"].require_group("infos/in")
        share_rows(path, f"episode_0/{name}", kind)
        unreadable(rf"{TOO_MUCH}(.|\n)*episode 0", tmp_path, max_decoded_gb=15_000_000 / 2**30)
        if name != "observations":
            assert [len(one) for one in read(tmp_path, max_decoded_gb=30_000_000 / 2**30)] == [4]

    def test_rows_of_several_axes_and_of_lists_of_texts_are_refused(self, tmp_path):
        path = self.write(tmp_path)
        with h5py.File(path, "a") as file:
            file.create_dataset("episode_0/infos/x", (2, 2), TEXTS)
        unreadable(r"shape \(2, 2\)", tmp_path)
        with h5py.File(path, "a") as file:
            del file["episode_0/infos/x"]
            file.create_dataset("episode_0/infos/y", (2,), h5py.vlen_dtype(TEXTS))
        unreadable("objects", tmp_path)

    def test_attributes_that_are_not_needed_are_not_read(self, tmp_path, monkeypatch):
        with h5py.File(self.write(tmp_path), "a") as file:
            file["episode_0"].attrs["options/x"] = ["a", "b"]
        names, whole = [], h5py.AttributeManager.__getitem__

        def noted(self, name):
            names.append(name)
            return whole(self, name)

        monkeypatch.setattr(h5py.AttributeManager, "__getitem__", noted)
        assert [len(one) for one in read(tmp_path)] == [4]
        assert set(names) == {"total_steps"}

    def test_a_number_of_steps_that_is_a_text(self, tmp_path):
        with h5py.File(self.write(tmp_path), "a") as file:
            file["episode_0"].attrs["total_steps"] = ["4"]
        unreadable("total_steps", tmp_path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_lines_without_an_end_are_not_read_to_it(tmp_path, name, monkeypatch):
    monkeypatch.setattr(common, "LONGEST_LINE", 1 << 17)
    path, settings = tmp_path / name, {} if name == "a.jsonl" else {"obs": "obs", "actions": "acts", "rewards": "r"}
    path.write_text("obs,acts,r\n1,1,1\n" if settings else '{"agents": {}}')
    os.truncate(path, 1 << 40)
    unreadable("too long", path, **settings)
    reader = open_dataset(path, max_broken=1, **settings)
    list(reader.trajectories())
    assert len(reader.broken) == 1


@pytest.mark.parametrize("storage", ["hdf5", "arrow"])
class TestImagesOfMinari:
    def write(self, tmp_path, storage, monkeypatch, bomb=None):
        """Writes an episode with 5 observations as JPEG; `bomb` replaces the third image."""
        number = 0
        whole = Image.Image.save

        def save(image, buffer, **settings):
            nonlocal number
            number += 1
            whole(bomb if bomb is not None and number == 3 else image, buffer, **settings)

        with monkeypatch.context() as patch:
            patch.setattr(Image.Image, "save", save)
            write_four_steps(tmp_path, storage, PIXELS, 128, jpeg_encoding=True)
        return tmp_path

    def test_the_decoded_size_is_limited(self, tmp_path, storage, monkeypatch):
        path = self.write(tmp_path, storage, monkeypatch)
        (one,) = read(path)
        assert one.columns["obs"].shape == (5, 40, 32, 3)
        unreadable(rf"{TOO_MUCH}(.|\n)*episode 0", path, max_decoded_gb=5 * 40 * 32 * 3 / 2**30)

    @pytest.mark.short("arrow")
    def test_images_larger_than_the_space_are_refused(self, tmp_path, storage, monkeypatch):
        path = self.write(tmp_path, storage, monkeypatch, Image.new("RGB", (8000, 6000)))
        unreadable(r"(?s)larger than its space.*6000 × 8000 pixels.*40 × 32", path)
        reader = open_dataset(path, max_broken=1)
        assert list(reader.trajectories()) == []
        assert len(reader.broken) == 1


class TestFilesOfMinari:
    """Episodes in Arrow and Parquet that are forged after Minari has written them."""

    def write(self, tmp_path, storage, change, **settings):
        """Writes an episode of 4 steps; `change` gets its table, and `settings` are those of the new file."""
        write_four_steps(tmp_path, storage)
        (path,) = (tmp_path / "data" / "0").glob(f"*.{storage}")
        table = change(pa.dataset.dataset(path, format=storage).to_table())
        if storage == "parquet":
            pq.write_table(table, path, **settings)
        else:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, **settings) as writer:
                writer.write_table(table)
        return path

    @pytest.mark.parametrize("storage", ["arrow", "parquet"])
    def test_unchanged_files_are_read(self, tmp_path, storage):
        self.write(tmp_path, storage, lambda table: table.append_column("text", pa.array(["a"] * 5)))
        assert [len(one) for one in read(tmp_path)] == [4]

    def test_compressed_arrow(self, tmp_path):
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        text = pa.array(["a" * 10_000_000] * 5)
        self.write(tmp_path, "arrow", lambda table: table.append_column("text", text), options=options)
        unreadable("compressed", tmp_path)

    def test_rows_that_take_no_place(self, tmp_path):
        # A billion equal rows are stored as one.
        def repeat(table):
            rows = 1_000_000_000

            def column(values):
                return pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), values.combine_chunks()[:1])

            return pa.table({name: column(table[name]) for name in table.column_names})

        self.write(tmp_path, "arrow", repeat)
        unreadable("run_end_encoded", tmp_path)

    def test_nulls_count(self, tmp_path):
        rows = 1_000_000_000
        self.write(tmp_path, "arrow", lambda table: pa.table({name: pa.nulls(rows) for name in table.column_names}))
        unreadable(TOO_MUCH, tmp_path)

    def test_texts_that_share_their_bytes(self, tmp_path):
        # Each row has all bytes of the column: the end of a row is not where the next one begins.
        def share(table):
            offsets = np.array([0, 10_000] * 3, np.int32)
            texts = pa.Array.from_buffers(pa.binary(), 5, [None, pa.py_buffer(offsets), pa.py_buffer(b"a" * 10_000)])
            return table.append_column("texts", texts)

        self.write(tmp_path, "arrow", share)
        unreadable("ffset", tmp_path)

    @pytest.mark.long
    def test_texts_of_parquet_that_share_a_dictionary(self, tmp_path):
        def repeat(table):
            texts = pa.array(["a" * 1_000_000] * 1000)
            return table.take(pa.array([0] * 1000)).append_column("texts", texts)

        path = self.write(tmp_path, "parquet", repeat, compression="zstd")
        assert path.stat().st_size < 100_000
        unreadable(TOO_MUCH, tmp_path, max_decoded_gb=0.5)

    @pytest.mark.parametrize("kind", ["U500000000", "V2000000000", "(100000,100000)f4", "O"])
    def test_a_space_of_other_dtypes(self, tmp_path, kind):
        self.write(tmp_path, "arrow", lambda table: table)
        described = {"type": "Box", "dtype": kind, "shape": [1], "low": ["a"], "high": ["b"]}
        self.change_metadata(tmp_path, action_space=json.dumps({"type": "Tuple", "subspaces": [described]}))
        with pytest.raises(DatasetError, match="dtype"):
            open_dataset(tmp_path)

    @pytest.mark.parametrize("changes", [{"total_steps": -5}, {"total_steps": 2**63}, {"total_episodes": -1}])
    def test_numbers_of_steps_and_episodes(self, tmp_path, changes):
        self.write(tmp_path, "arrow", lambda table: table)
        self.change_metadata(tmp_path, **changes)
        with pytest.raises(DatasetError, match=next(iter(changes))):
            open_dataset(tmp_path)

    def change_metadata(self, tmp_path, **changes):
        path = tmp_path / "data" / "metadata.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
