"""Zip files of unknown origin: what is no shared run is refused before anything is written."""

import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rollax.errors import CheckpointError, RollaxError
from rollax.sharing.archive import read_zip, write_zip
from tests.env.refused import refused


def packed(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def written(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """The folder for the files, in another one."""
    folder = tmp_path / "outer" / "inside"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.long
def test_a_shared_run_is_the_same_after_packing(shared, inside, tmp_path):
    write_zip(shared, tmp_path / "run.zip")
    read_zip(tmp_path / "run.zip", inside)
    assert {name: (inside / name).read_bytes() for name in written(inside)} == {
        name: (shared / name).read_bytes() for name in written(shared)
    }
    refused(RollaxError, write_zip, shared, tmp_path / "run.zip")


def test_a_zip_file_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    refused(RollaxError, write_zip, tmp_path, tmp_path / "file" / "run.zip")


def test_the_folder_of_a_zip_file_may_be_new(inside, tmp_path):
    (inside / "README.md").touch()
    write_zip(inside, tmp_path / "new" / "folder" / "run.zip")
    assert zipfile.ZipFile(tmp_path / "new" / "folder" / "run.zip").namelist() == ["README.md"]


def test_an_interrupt_leaves_no_half_of_a_zip_file(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "README.md").touch()

    def write(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(zipfile.ZipFile, "write", write)
    with pytest.raises(KeyboardInterrupt):
        write_zip(tmp_path / "run", tmp_path / "run.zip")
    assert not (tmp_path / "run.zip").exists()


def test_other_files_are_left_out(inside, tmp_path):
    others = {"setup.py": b"raise SystemExit", "checkpoints/checkpoint_1/model.pkl": b"", "best/": b""}
    read_zip(packed(tmp_path / "run.zip", {"README.md": b"card", **others}), inside)
    assert written(inside) == {"README.md"}


def special(path: Path, kind: int, content: str) -> None:
    """A member that is no regular file."""
    member = zipfile.ZipInfo("README.md")
    member.external_attr = (kind | 0o777) << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)


def twice(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("README.md", "one")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("README.md", "two")


def encrypted(path: Path) -> None:
    """A member with the flag of encryption, in both of its headers."""
    packed(path, {"README.md": b"card"})
    content = bytearray(path.read_bytes())
    for header, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(header) + offset] |= 1
    path.write_bytes(content)


def changed(path: Path) -> None:
    packed(path, {"score.json": b"0" * 1000}, zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes().replace(b"0" * 1000, b"1" * 1000))


def small_in_the_directory(path: Path) -> None:
    """A member that has more bytes than the directory of the zip states."""
    packed(path, {"score.json": b"0" * 100_000})
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<L", 10)
    path.write_bytes(content)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "parent": lambda path: packed(path, {"../outside": b"", "README.md": b""}),
    "parent within": lambda path: packed(path, {"checkpoints/../../outside": b""}),
    "absolute": lambda path: packed(path, {"/tmp/outside": b""}),
    "backslash": lambda path: packed(path, {"..\\outside": b""}),
    "link": lambda path: special(path, stat.S_IFLNK, "/etc/passwd"),
    "device": lambda path: special(path, stat.S_IFIFO, ""),
    "bomb": lambda path: packed(path, {"result.jsonl": b"\0" * (1 << 24)}),
    "bomb elsewhere": lambda path: packed(path, {"other.bin": b"\0" * (1 << 24)}),
    "large file": lambda path: packed(path, {"score.json": b"\0" * ((1 << 20) + 1)}, zipfile.ZIP_STORED),
    "many files": lambda path: packed(path, {f"{i}": b"" for i in range(10_001)}),
    "same name": twice,
    "encrypted": encrypted,
    "changed": changed,
    "small in the directory": small_in_the_directory,
    "cut": lambda path: path.write_bytes(packed(path, {"README.md": b"card"}).read_bytes()[:-10]),
    "text": lambda path: path.write_text("no zip"),
    "empty": lambda path: path.touch(),
    "missing": lambda path: None,
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_zip_is_refused(make, inside, tmp_path):
    make(tmp_path / "run.zip")
    refused(CheckpointError, read_zip, tmp_path / "run.zip", inside)
    assert written(tmp_path / "outer") <= {"inside/score.json"}  # at most the beginning of the file that is damaged
    assert sum(path.stat().st_size for path in inside.rglob("*")) <= 1000
