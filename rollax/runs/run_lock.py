"""`RunLock`: only one process writes into a run folder.

The lock is a lock of the operating system (flock) on a file in the folder. It ends when its process ends or is killed.
Reading a run folder needs no lock. On a network file system, the settings of the file system decide whether other
machines see the lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shlex
import socket
import sys
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from rollax.core.atomic_files import absolute
from rollax.core.cleanup import cleanup_on_error
from rollax.errors import ConfigError

log = logging.getLogger("rollax.runs")

LOCK_NAME = "run.lock"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
_MOST_BYTES = 10_000

_held: set[int] = set()
"""The descriptors of this process's locks."""


class RunLock:
    """The lock of a run folder, which is created if it is missing; held until `release`, or the end of the process.

    If the file system has no locks, this is logged, and the folder is not locked.

    Args:
        folder: the run folder.
        where: the argument or option that names it, for errors.
    Raises:
        ConfigError: another run writes into the folder, or the folder cannot be written to.
    """

    def __init__(self, folder: Path, where: str) -> None:
        # Environments may change the working directory.
        self.folder = absolute(folder, ConfigError)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = _locked(self.folder / LOCK_NAME, where)
            with suppress(OSError):  # such as a full disk: the description is only for errors of other processes
                _describe(self._descriptor)
        except OSError as error:
            raise ConfigError("The run folder cannot be created or written to.", str(folder), str(error)).fix(
                "choose a folder that you may write to"
            ) from error

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Removes the lock; a second call, or a call in a forked process, does nothing."""
        if self._descriptor in _held:
            with suppress(OSError):
                if _is_named(self._descriptor, self.folder / LOCK_NAME):  # else another run has the folder by now
                    os.unlink(self.folder / LOCK_NAME)
            _close(self._descriptor)
        self._descriptor = -1


def refuse_used(folder: Path, where: str) -> None:
    """Raises ConfigError if a run of any process writes into the folder."""
    with suppress(OSError):  # no lock, or none that can be read
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe would wait
        try:
            _lock(descriptor, fcntl.LOCK_SH, folder, where)
        finally:
            os.close(descriptor)


def _locked(path: Path, where: str) -> int:
    """Returns a descriptor of the locked file, which is created if it is missing."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        _held.add(descriptor)
        with cleanup_on_error(partial(_close, descriptor)):
            _lock(descriptor, fcntl.LOCK_EX, path.parent, where)
            if _is_named(descriptor, path):
                return descriptor
        _close(descriptor)  # another process removed the file before it was locked


def _close(descriptor: int) -> None:
    _held.discard(descriptor)
    os.close(descriptor)


def _lock(descriptor: int, kind: int, folder: Path, where: str) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            "Another run writes into the folder.", where, f"{folder}, used by {_owner(descriptor)}"
        ).expected(
            "a folder that no other process writes to", "choose another folder, or wait until that process has ended"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        log.warning("The file system of %s has no locks: let no other run write into it.", folder)


def _is_named(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _describe(descriptor: int) -> None:
    """Writes who holds the lock."""
    owner = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": shlex.join(sys.orig_argv),
        "since": datetime.now().astimezone().isoformat(" ", "seconds"),
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode(), 0)


def _owner(descriptor: int) -> str:
    try:
        owner: Any = json.loads(os.pread(descriptor, _MOST_BYTES, 0))
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}: {owner['command']}"
    except (OSError, ValueError, LookupError, TypeError):
        return "a process that has not written its name yet"


def _close_in_child() -> None:
    """Closes the descriptors in a forked process, where they would hold the locks after the parent's end."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)
