"""`EventLog`: the scalars of a run for TensorBoard."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_FLUSH_S = 10.0


class EventLog:
    """A new events file in a folder. It is written in the calling thread, so that errors of the disk are raised there.

    The constructor and all methods raise OSError if the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        with _without_torch():
            from tensorboardX.event_file_writer import EventsWriter
        self._writer = EventsWriter(str(folder / "events"))
        self._flushed = time.monotonic()

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        """Adds numbers by name, at a step; a call at least 10 s after the last write also writes them to the file."""
        from tensorboardX.proto import event_pb2, summary_pb2
        from tensorboardX.summary import scalar

        values = [value for name, number in scalars.items() for value in scalar(name, number).value]
        summary = summary_pb2.Summary(value=values)  # pyright: ignore[reportAttributeAccessIssue]  # made by protobuf
        event = event_pb2.Event(wall_time=time.time(), step=step, summary=summary)  # pyright: ignore[reportAttributeAccessIssue]
        self._writer.write_event(event)
        if time.monotonic() - self._flushed > _FLUSH_S:
            self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Completes the file."""
        self._writer.close()


@contextmanager
def _without_torch() -> Iterator[None]:
    """Imports tensorboardX without PyTorch, which would be loaded (2 s) only to recognize tensors in images."""
    absent = "torch" not in sys.modules
    if absent:
        sys.modules["torch"] = None  # type: ignore[assignment]  # so `import torch` raises ImportError
    try:
        yield
    finally:
        if absent:
            del sys.modules["torch"]
