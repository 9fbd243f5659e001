"""The files of a shared run: a run folder with one checkpoint, a model card, and a measured score.

Fetched files may come from anyone, so only files with these names are read, and each name has a largest size.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from rollax.core.atomic_files import absolute
from rollax.core.memory import available_memory_bytes, gib
from rollax.core.storage import MANIFEST, newest
from rollax.errors import CheckpointError, ConfigError
from rollax.runs.results import RESULTS_NAME
from rollax.runs.run_folder import BEST, CHECKPOINTS, CONFIG, CURVE, PREFIX, newest_checkpoint

CARD, SCORE, REPLAY = "README.md", "score.json", "replay.mp4"

_MIB = 1 << 20
_MOST_BYTES = {
    CARD: _MIB,
    SCORE: _MIB,
    CONFIG: _MIB,
    CURVE: 16 * _MIB,
    REPLAY: 256 * _MIB,
    RESULTS_NAME: 256 * _MIB,
}
_OF_CHECKPOINT = re.compile(rf"(?:{CHECKPOINTS}|{BEST})/{PREFIX}[0-9]{{1,12}}/([a-z]+\.(?:json|safetensors))", re.ASCII)
_MOST_JSON = 64 * _MIB
PATTERNS = (*_MOST_BYTES, f"{CHECKPOINTS}/*", f"{BEST}/*")
"""The files of a shared run as patterns of the shell."""


def limit_of(name: str) -> int | None:
    """Returns the size limit in bytes of a file of a shared run; None for other names.

    Args:
        name: the path in the run folder, with slashes.
    """
    if name in _MOST_BYTES:
        return _MOST_BYTES[name]
    of_checkpoint = _OF_CHECKPOINT.fullmatch(name)
    if of_checkpoint is None:
        return None
    return _MOST_JSON if of_checkpoint[1].endswith(".json") else available_memory_bytes()


def refuse_large(sizes: Mapping[str, int], where: str, folder: Path) -> None:
    """Raises CheckpointError if a file exceeds its limit, or all files together exceed the free memory or disk space.

    Args:
        sizes: name of a file of a shared run -> bytes.
        where: the place that the files come from, for errors.
        folder: a folder on the disk that the files are written to.
    """
    for name, size in sizes.items():
        limit = limit_of(name)
        if limit is None or size > limit:
            raise CheckpointError(
                "A file of the shared run is too large.", f"{where}: {name}", f"{size} bytes"
            ).expected(f"at most {limit} bytes", "use another copy, and check where this file comes from")
    total, free = sum(sizes.values()), shutil.disk_usage(folder).free
    if total > min(free, available_memory_bytes()):
        raise CheckpointError("The shared run does not fit on this machine.", where, gib(total)).expected(
            f"at most {gib(free)} of disk and {gib(available_memory_bytes())} of memory", "use a machine with more"
        )


def chosen_checkpoint(run: str | Path) -> Path:
    """Returns the checkpoint to share: `run` itself if it is a checkpoint, else its best one, else its newest one.

    Raises:
        CheckpointError: there is no checkpoint.
    """
    path = absolute(run, ConfigError)
    if (path / MANIFEST).is_file():
        return path
    return newest(path / BEST, PREFIX) or newest_checkpoint(path)


def newest_in(run: Path) -> Path:
    """Returns the newest checkpoint of a run folder; CheckpointError if there is none, or if it has links."""
    found = newest_checkpoint(run)
    links = [path for path in (found, *found.iterdir()) if path.is_symlink()]
    if links or found.parent.is_symlink():
        raise CheckpointError("A shared run contains a link.", *(links or [found.parent])[:1]).expected(
            "files in the run folder itself", "use another copy, or replace the link by what it leads to"
        )
    return found


def run_of(checkpoint: Path) -> Path | None:
    """Returns the run folder of a checkpoint; None if `trainer.save` wrote the checkpoint elsewhere."""
    run = checkpoint.parent.parent
    return run if checkpoint.parent.name in (CHECKPOINTS, BEST) and (run / RESULTS_NAME).is_file() else None
