"""A shared run as a zip file.

A zip of unknown origin may name files outside of the folder, hold links, or expand to more than the disk has. So all
names and sizes are checked before anything is extracted, and no member is read beyond the size that it declares.
"""

from __future__ import annotations

import shutil
import stat
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path, PurePosixPath

from rollax.core.atomic_files import make_parents
from rollax.errors import CheckpointError, RollaxError
from rollax.sharing.contents import limit_of, refuse_large

_MOST_MEMBERS = 10_000
_MOST_TIMES = 100
"""Largest ratio of the expanded size to the size of a zip file; about 1 in shared runs, which store arrays as is."""
_ENCRYPTED = 0x1
_COPY = "use another copy"


def write_zip(run: Path, path: Path) -> None:
    """Writes the files of a shared run; arrays, pictures and videos are not compressed.

    Raises:
        RollaxError: the file exists or cannot be written.
    """
    try:
        make_parents(path.parent)
        with zipfile.ZipFile(path, "x") as packed:
            for file in sorted(run.rglob("*")):
                if file.is_file():
                    plain = file.suffix in (".json", ".jsonl", ".md")
                    method = zipfile.ZIP_DEFLATED if plain else zipfile.ZIP_STORED
                    packed.write(file, file.relative_to(run).as_posix(), method)
    except FileExistsError as error:
        raise RollaxError("The file exists already.", str(path), "a file").expected(
            "a new name", "choose another name"
        ) from error
    except BaseException as error:
        with suppress(OSError):  # no folder, for example
            path.unlink()  # an interrupt leaves half a file too
        if isinstance(error, OSError):
            raise RollaxError.not_written("The zip file", str(path), error) from error
        raise


def read_zip(path: Path, folder: Path) -> None:
    """Extracts the files of a shared run from a zip file into a folder; other files in the zip file are left out.

    Raises:
        CheckpointError: the file is not a zip file, is damaged, or is not a shared run: it has a path outside of its
            folder, a link, an encrypted file, or files that are too large.
    """
    try:
        with zipfile.ZipFile(path) as packed:
            members = _checked_members(packed, path)
            refuse_large({name: member.file_size for name, member in members.items()}, str(path), folder)
            for name, member in members.items():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with packed.open(member) as source, target.open("xb") as file:
                    shutil.copyfileobj(source, file)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        raise CheckpointError.damaged(path, str(error), "a zip file of `rollax share`").fix(_COPY) from error
    except OSError as error:
        raise CheckpointError("The zip file cannot be read.", str(path), str(error)).expected(
            "a zip file of `rollax share`", "check the path and the permissions"
        ) from error


def _checked_members(packed: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """Returns name -> member, for the members that belong to a shared run; CheckpointError for an unsafe zip file."""
    members = packed.infolist()
    if len(members) > _MOST_MEMBERS:
        raise CheckpointError("The zip file has too many files.", str(path), len(members)).expected(
            f"at most {_MOST_MEMBERS}", _COPY
        )
    expanded, stored = sum(member.file_size for member in members), path.stat().st_size
    if expanded > _MOST_TIMES * stored:
        raise CheckpointError(
            "The zip file expands to much more than a shared run does.", str(path), f"{expanded} bytes from {stored}"
        ).expected(f"at most {_MOST_TIMES} times its size", "do not unpack it, and use another copy")
    for member in members:
        _refuse_unsafe(member, path)
    found = {member.filename: member for member in members if limit_of(member.filename) is not None}
    if len({member.filename for member in members}) < len(members):
        raise CheckpointError.damaged(path, "a name that occurs twice", "each file once").fix(_COPY)
    return found


def _refuse_unsafe(member: zipfile.ZipInfo, path: Path) -> None:
    name, mode = PurePosixPath(member.filename), member.external_attr >> 16
    unsafe = None
    if name.is_absolute() or ".." in name.parts or "\\" in member.filename:
        unsafe = "a path outside of its folder"
    elif stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        unsafe = "a link or a device"
    elif member.flag_bits & _ENCRYPTED:
        unsafe = "an encrypted file"
    if unsafe is not None:
        raise CheckpointError(f"The zip file contains {unsafe}.", str(path), member.filename).expected(
            "the plain files of a shared run", "do not unpack it, and use another copy"
        )
