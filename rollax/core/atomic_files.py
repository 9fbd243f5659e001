"""Files and folders that get their final name only when they are complete.

A file or folder is written under a temporary name beside the final name, `.NAME.xxxxxxxx.tmp`, and then renamed. A
killed process therefore leaves only the temporary name. `new_folder` and `publish` also sync folders, so that the name
survives a crash of the machine; `replace_file` does not sync. A failing disk raises OSError.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rollax.errors import RollaxError

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")


def temporary_for(path: Path) -> Path:
    """A new temporary name for a file or folder."""
    return path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"


def final_name(temporary: str) -> str | None:
    """The final name for a temporary name; None if the name is not temporary."""
    found = _TEMPORARY.fullmatch(temporary)
    return found and found[1]


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields a new folder under a temporary name, and renames it to `path` after the block.

    The block must sync the files that it writes. If anything fails, the folder is removed.
    """
    temporary = temporary_for(path)
    try:
        os.mkdir(temporary)
        yield temporary
        sync_folder(temporary)
        publish(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def absolute(path: str | os.PathLike[str], error: type[RollaxError]) -> Path:
    """Returns the absolute path.

    Raises `error` for a path with a null character, or for a relative path if the working directory was removed.
    """
    if "\0" in os.fspath(path):
        raise error("A path contains a null character.", None, os.fspath(path)).fix("correct the path")
    try:
        return Path(os.path.abspath(path))
    except FileNotFoundError as missing:
        raise error(
            "A relative path leads nowhere: the working directory was removed.", path, f"FileNotFoundError: {missing}"
        ).expected(
            "an absolute path, or a working directory that exists",
            "pass an absolute path, or call os.chdir(...) first (on the command line: cd)",
        ) from missing


def publish(temporary: Path, path: Path) -> None:
    """Renames a complete file or folder durably; if the disk fails, the temporary name remains."""
    os.rename(temporary, path)
    try:
        sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            os.rename(path, temporary)
        raise


def make_parents(folder: Path) -> None:
    """Creates a folder and its parents, durably."""
    if folder.is_dir():
        return
    make_parents(folder.parent)
    with suppress(FileExistsError):  # another process may have created the folder; if it is a file, later writes fail
        os.mkdir(folder)
    sync_folder(folder.parent)


def read_regular(path: Path, most: int) -> bytes:
    """Returns the content of a regular file of at most `most` bytes.

    Raises OSError for a larger file, and for a pipe or device, whose content might not end. The function is for files
    in folders that another user may have created. A path that the caller passes may be a pipe, and is read without it.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "This is not a regular file", str(path))
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"This file has more than {most} bytes", str(path))
    return content


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file under a temporary name, and then renames it to `path`.

    A symbolic link at `path` is replaced, not followed, so that nothing outside of the folder changes.
    """
    temporary = temporary_for(path)
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def named_write_errors(thing: str, path: Path) -> Iterator[None]:
    """Converts an OSError of the block to a RollaxError, which says that `thing` was not written, and where."""
    try:
        yield
    except OSError as error:
        raise RollaxError.not_written(thing, path, error) from error


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder; there the rename may not be durable.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
