"""`NewFile`: a file that has its name only once it is complete on disk."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from rollax.errors import DatasetError
from rollax.storage import make_parents, sync_folder

_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")


class NewFile:
    """A file to write, under a temporary name until `commit`.

    The temporary sibling `.NAME.xxxxxxxx.tmp` is synced and renamed, and then the folder is synced. A process that is
    killed leaves the sibling, which readers report and do not read. As a context manager it commits, or discards what
    was written if the block raises.

    Args:
        path: the final name; its folder is made.
    Raises:
        DatasetError: the file exists, or the disk fails.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(path))
        try:
            make_parents(self.path.parent)
            if os.path.lexists(self.path):
                fix = "choose another name, or remove it"
                raise DatasetError("The file to write exists.", where=self.path, expected="a new name", fix=fix)
            self.temporary = self.path.parent / f".{self.path.name}.{secrets.token_hex(4)}.tmp"
            self.file = open(self.temporary, "xb")  # noqa: SIM115  closed by commit or discard
        except OSError as error:
            raise self.failed(error) from error

    def commit(self) -> Path:
        """Gives the file its name; returns its path."""
        try:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            os.rename(self.temporary, self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            self.discard()
            raise self.failed(error) from error
        return self.path

    def discard(self) -> None:
        """Removes what was written."""
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

    def failed(self, error: OSError) -> DatasetError:
        """The error of a write that failed."""
        return DatasetError(
            "The file could not be written.",
            where=self.path,
            got=f"{type(error).__name__}: {error}",
            expected="a folder on a disk with space, which this user may write to",
            fix="free some space, or write somewhere else",
        )


def unfinished_in(folders: Iterable[Path]) -> list[Path]:
    """The files in these folders that are not committed: their process is still running, or was killed."""
    return [path for folder in folders for path in sorted(folder.glob(".*.tmp")) if _UNFINISHED.fullmatch(path.name)]
