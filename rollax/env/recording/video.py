"""One MP4 file, written frame by frame."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from rollax.errors import ConfigError, EnvError, RollaxError


class VideoFile:
    """Frames are encoded immediately, so long episodes take no memory.

    The file gets its name when it is complete.

    Args:
        path: path of the file; its folder is created if it is missing.
        frames_per_second: playback rate.
    """

    def __init__(self, path: Path, frames_per_second: float) -> None:
        self.path = path
        self._frames_per_second = frames_per_second
        self._unfinished = path.with_name(f".{path.name}.part")
        self._shape: tuple[int, ...] = ()
        self._encoder: subprocess.Popen[bytes] | None = None

    def add(self, frame: np.ndarray) -> None:
        """Appends a frame, [height, width, 3] of uint8, of the size of the first one.

        Raises:
            EnvError: it has another size.
            RollaxError: the encoder failed.
        """
        # The encoder requires even sides.
        frame = frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]
        if self._encoder is None:
            self._shape, self._encoder = frame.shape, self._start(frame.shape[1], frame.shape[0])
        if frame.shape != self._shape:
            raise EnvError(
                "A frame of another size than the one before it.",
                where=f"the video {self.path}",
                got=f"shape {frame.shape}",
                expected=f"shape {self._shape}",
                fix="let render() draw every frame of an episode in one size",
            )
        assert self._encoder.stdin is not None
        try:
            self._encoder.stdin.write(np.ascontiguousarray(frame).data)
        except OSError:
            raise self._failure() from None

    def finish(self) -> None:
        """Writes the remaining frames and gives the file its name.

        Raises:
            RollaxError: the encoder failed.
        """
        if self._encoder is None:
            return
        try:
            self._encoder.communicate()
        except OSError:
            raise self._failure() from None
        if self._encoder.returncode:
            raise self._failure()
        self._said.close()
        os.replace(self._unfinished, self.path)

    def discard(self) -> None:
        """Stops the encoder and leaves no file."""
        if self._encoder is None:
            return
        self._encoder.kill()
        with contextlib.suppress(OSError):  # the frames that are not yet written
            self._encoder.communicate()
        self._said.close()
        if self._unfinished.is_file():
            self._unfinished.unlink()

    def _start(self, width: int, height: int) -> subprocess.Popen[bytes]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        takes = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{self._frames_per_second:g}"]
        gives = ["-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-f", "mp4", str(self._unfinished)]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 closed with the encoder
        # A separate process group: Ctrl-C reaches only the program, which then stops the encoder.
        return subprocess.Popen(
            [encoder(), "-y", "-loglevel", "error", *takes, "-i", "-", *gives],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            process_group=0,
        )

    def _failure(self) -> RollaxError:
        """Stops the encoder, removes the file and returns the error with the encoder's output."""
        assert self._encoder is not None
        self._encoder.wait(timeout=10)
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip()
        self.discard()
        return RollaxError(
            "The video was not written.",
            where=str(self.path),
            got=said or f"the encoder ended with code {self._encoder.returncode}",
            expected="a file that can be written",
            fix="see that the folder is writable and the disk has room",
        )


def encoder() -> str:
    """Returns the path of ffmpeg.

    Raises:
        ConfigError: the video extra is not installed.
    """
    try:
        from imageio_ffmpeg import get_ffmpeg_exe

        return get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            "Videos cannot be written.",
            where="recording an environment",
            got=str(error),
            expected="the package imageio-ffmpeg",
            fix="pip install 'rollax[video]'",
        ) from error
