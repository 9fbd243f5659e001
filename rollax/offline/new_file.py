"""`NewFile` and `new_folder`: files and folders that get their name when they are complete on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from rollax.core import atomic_files
from rollax.errors import DatasetError

_ANOTHER = "choose another name, or remove it"


class NewFile:
    """A file to write, under a temporary name until `commit`.

    The temporary sibling `.NAME.xxxxxxxx.tmp` is synced and renamed, and then the folder is synced. A killed process
    leaves the sibling, which readers report and ignore. As a context manager it commits, or discards the file if the
    block raises. DatasetError if the file exists, or the disk fails.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = atomic_files.absolute(path, DatasetError)
        with _errors_of("file", self.path):
            atomic_files.make_parents(self.path.parent)
            if os.path.lexists(self.path):
                raise DatasetError("The file to write already exists.", self.path, fix=_ANOTHER)
            self.temporary = atomic_files.temporary_for(self.path)
            self.file = open(self.temporary, "xb")  # noqa: SIM115  closed by commit or discard

    def commit(self) -> Path:
        """Gives the file its name, also if Ctrl-C interrupts that once; returns its path."""
        try:
            try:
                self._publish()
            except KeyboardInterrupt:
                self._publish()  # nothing would complete the file later
                raise
        except OSError as error:
            self.discard()
            raise self.failed(error) from error
        return self.path

    def _publish(self) -> None:
        """Does what is left of `commit`."""
        if not self.file.closed:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
        if os.path.lexists(self.temporary):
            atomic_files.publish(self.temporary, self.path)

    def discard(self) -> None:
        """Removes the temporary file."""
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):
            os.unlink(self.temporary)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()
            if isinstance(error, OSError):
                raise self.failed(error) from error

    def failed(self, error: OSError) -> DatasetError:
        """The error of a write that failed."""
        return _failed("file", self.path, error)


def check_folder(path: str | os.PathLike[str]) -> None:
    """Creates a folder, and raises DatasetError unless files can be written into it."""
    folder = atomic_files.absolute(path, DatasetError)
    with _errors_of("folder", folder):
        atomic_files.make_parents(folder)
        probe = atomic_files.temporary_for(folder / "probe")
        probe.touch()
        probe.unlink()


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to fill, under a temporary name until the block ends; removed if the block raises.

    The temporary sibling is `.NAME.xxxxxxxx.tmp`, as for `NewFile`. DatasetError if `path` exists and is not an empty
    folder, or the disk fails.
    """
    final = atomic_files.absolute(path, DatasetError)
    with _errors_of("folder", final):
        is_used = os.path.lexists(final) and not (final.is_dir() and not os.listdir(final))
    if is_used:
        raise DatasetError("The folder to write is not empty.", final, fix=_ANOTHER)
    with _errors_of("folder", final):
        atomic_files.make_parents(final.parent)
        with atomic_files.new_folder(final) as temporary:
            yield temporary


@contextmanager
def _errors_of(kind: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _failed(kind, path, error) from error


def _failed(kind: str, path: Path, error: OSError) -> DatasetError:
    return DatasetError(f"The {kind} could not be written.", path, f"{type(error).__name__}: {error}").expected(
        "a folder on a disk with space, which this user may write to", "free some space, or write somewhere else"
    )


def unfinished_in(folders: Iterable[Path]) -> list[Path]:
    """The uncommitted files and folders in these folders, whose process is still running or was killed."""
    return [path for folder in folders for path in sorted(folder.glob(".*.tmp")) if atomic_files.final_name(path.name)]
