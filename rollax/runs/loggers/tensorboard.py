"""`TensorBoardLogger`: an events file in the run folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollax.core.atomic_files import named_write_errors
from rollax.runs.loggers.logger import LoggedRun, Logger, Outcome

EVENTS = "events.out.tfevents.*"
_FLUSH_S = 10.0
_PICTURES = (".png", ".jpg", ".jpeg", ".gif")


class TensorBoardLogger(Logger):
    """Writes numbers and pictures, but no videos, into a new events file.

    The file is written in the calling thread, so that errors of the disk are raised there.
    """

    _writer: Any = None  # made with the first numbers, because the import would delay the first result

    def begin(self, run: LoggedRun) -> bool:
        self._folder, self._writer = run.folder, None  # the writer of an earlier run is closed
        return not any(run.folder.glob(EVENTS))

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Adds the numbers; a call at least 10 s after the last write also writes them to the file."""
        with named_write_errors("The TensorBoard log", self._folder / EVENTS):
            writer = self._open()
            from tensorboardX.summary import scalar

            self._write(
                writer, [value for name, number in numbers.items() for value in scalar(name, number).value], step
            )

    def media(self, name: str, path: Path, step: int) -> None:
        if path.suffix.lower() not in _PICTURES:
            return
        with named_write_errors("The TensorBoard log", self._folder / EVENTS):
            writer = self._open()
            from PIL import Image
            from tensorboardX.proto import summary_pb2

            with Image.open(path) as picture:
                width, height = picture.size
            image: Any = summary_pb2.Summary.Image(  # pyright: ignore[reportAttributeAccessIssue]  # made by protobuf
                height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes()
            )
            self._write(writer, [summary_pb2.Summary.Value(tag=name, image=image)], step)  # pyright: ignore[reportAttributeAccessIssue]

    def close(self, outcome: Outcome) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> Any:
        if self._writer is None:
            with _without_torch():
                from tensorboardX.event_file_writer import EventsWriter
            # The name has the time in seconds: without a suffix, a run continued in the same second would replace it.
            suffix = f".{sum(1 for _ in self._folder.glob(EVENTS))}"
            self._writer, self._flushed = EventsWriter(str(self._folder / "events"), suffix), time.monotonic()
        return self._writer

    def _write(self, writer: Any, values: list[Any], step: int) -> None:
        from tensorboardX.proto import event_pb2, summary_pb2

        summary = summary_pb2.Summary(value=values)  # pyright: ignore[reportAttributeAccessIssue]
        writer.write_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary))  # pyright: ignore[reportAttributeAccessIssue]
        if time.monotonic() - self._flushed > _FLUSH_S:
            writer.flush()
            self._flushed = time.monotonic()


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
