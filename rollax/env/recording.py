"""Videos of selected episodes, for all environments that can render."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from rollax.core.importing import JAX_ENV, named_by_caller
from rollax.core.numbers import is_finite
from rollax.env.base_env import BaseEnv
from rollax.env.checks import failures_named
from rollax.env.env_wrapper import EnvWrapper
from rollax.env.making import DEFAULT_SETTINGS, EnvSettings, call_convention, make_base_env, signature_of
from rollax.env.registry import EnvContext, EnvCreator, env_creator
from rollax.env.rows import Rows
from rollax.env.to_base_env import to_base_env
from rollax.errors import EnvError, RollaxError, WorkerError, not_installed

Chosen = Callable[[int, int, int], bool]
"""`(episode, sub-environment, number of sub-environments)` -> whether it is recorded; episodes count from 0."""

log = logging.getLogger("rollax.env")

_FRAMES_PER_SECOND = 30
_RGB = "rgb_array"


def every_hundredth(episode: int) -> bool:
    """Selects the first episode and every hundredth after it."""
    return episode % 100 == 0


def record_env(
    env: Any,
    folder: str | Path,
    *,
    episodes: Callable[[int], bool] = every_hundredth,
    sub_envs: Collection[int] | None = (0,),
) -> Any:
    """Returns an environment that writes an MP4 of each selected episode, from the reset to the last step.

    A file is named `episode_000100.mp4`, or `env_3_episode_000100.mp4` for several sub-environments. It replaces an
    earlier file of the same name, with a warning. Other episodes are not rendered. Of several remote workers only the
    first one records.

    Args:
        env: as for a trainer: an id, a registered name, `module:Class`, a class, a creator function; or an instance of
            any kind. It must render: a creator that accepts a render mode gets `render_mode="rgb_array"` unless
            `env_config` has one, and an instance must have been created with this mode.
        folder: folder of the files; created if it is missing.
        episodes: selects episodes of a sub-environment by number, from 0.
        sub_envs: the recorded sub-environments; None for all.
    Returns:
        An `env` for a trainer; for an instance, a `BaseEnv`.
    Raises:
        ConfigError: the video extra is not installed.
        EnvError: during recording, if the environment returns no frame, or frames of different sizes.
    """

    def chosen(episode: int, env_id: int, _: int) -> bool:
        return (sub_envs is None or env_id in sub_envs) and episodes(episode)

    if isinstance(env, str) or callable(env):
        return RecordingCreator(named_by_caller(env), Path(folder), chosen)
    return RecordedEnv(to_base_env(env), Path(folder), chosen)


class RecordingCreator:
    """Creates environments whose selected episodes are recorded in a folder."""

    def __init__(self, env: Any, folder: Path, chosen: Chosen) -> None:
        encoder()
        self.unrecorded = env
        """The environment that the caller passed, without recording."""
        self._creator: EnvCreator = env_creator(env)
        self._folder = folder
        self._chosen = chosen

    def __call__(self, context: EnvContext) -> BaseEnv:
        return self.make_base_env(context, 1, DEFAULT_SETTINGS)

    def make_base_env(self, context: EnvContext, num_envs: int, settings: EnvSettings) -> BaseEnv:
        """Creates the `BaseEnv` of a worker; see `rollax.env.making.make_base_env`."""
        if context.worker_index > 1:
            return make_base_env(self._creator, context, num_envs, settings)
        env = make_base_env(self._creator, drawing(self._creator, context), num_envs, settings)
        return RecordedEnv(env, self._folder, self._chosen)


def drawing(creator: EnvCreator, context: EnvContext) -> EnvContext:
    """Returns the context with `render_mode="rgb_array"`, unless it has a mode or the creator does not accept one."""
    if str(getattr(creator, "env_id", "")).startswith(JAX_ENV):  # a JaxEnv has no modes
        return context
    way = call_convention(creator, context)
    if way == "context" or (way == "keywords" and _takes_mode(creator)):
        context = copy.copy(context)
        context.setdefault("render_mode", _RGB)
    return context


def _takes_mode(creator: EnvCreator) -> bool:
    parameters = signature_of(creator).parameters
    return "render_mode" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


class RecordedEnv(EnvWrapper):
    """Records the selected episodes of an environment in a folder."""

    def __init__(self, env: BaseEnv, folder: Path, chosen: Chosen) -> None:
        encoder()
        quiet_without_screen()
        super().__init__(env)
        self.folder = folder
        self.paths: list[Path] = []
        """The completed files, in the order in which their episodes ended."""
        self._chosen = chosen
        self._replaces = False  # whether a file of an earlier recording was replaced
        self._begun: dict[int, int] = {}  # sub-environment -> number of episodes
        self._running: set[int] = set()
        self._videos: dict[int, VideoFile] = {}
        # With SAME_STEP, the step that ends an episode has already rendered the first frame of the next one.
        self._shows_next = getattr(env, "mode", None) is AutoresetMode.SAME_STEP

    def __repr__(self) -> str:
        return f"RecordedEnv({self.env!r}, folder={str(self.folder)!r})"

    def poll_rows(self) -> Rows:
        rows = self.env.poll_rows()
        ended = set(rows.ended_envs.tolist()) if len(rows.ended_envs) else ()
        for env_id in list(self._videos):
            if np.count_nonzero(rows.env_index == env_id) and not (self._shows_next and env_id in ended):
                frame = self._frame(env_id)
                if frame is None:
                    self._videos.pop(env_id).discard()
                else:
                    self._videos[env_id].add(frame)
        for env_id in ended:
            self._end(env_id, whole=True)
        for env_id in rows.dropped_envs.tolist():
            if env_id in self._running:
                self._begun[env_id] -= 1  # a lost episode does not count: the next one has its number
            self._end(env_id, whole=False)
        if np.count_nonzero(rows.starts):
            self._begin(set(rows.env_index[rows.starts].tolist()) - self._running)
        return rows

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows | None:
        for env_id in env_index.tolist():
            self._end(env_id, whole=False)
        rows = self.env.reset_rows(env_index, seeds)
        if rows is not None:
            self._begin(set(rows.env_index.tolist()))
        return rows

    def rest_rows(self, env_index: np.ndarray) -> bool:
        rests = self.env.rest_rows(env_index)
        for env_id in env_index.tolist() if rests else ():
            self._end(env_id, whole=False)
        return rests

    def _begin(self, env_ids: set[int]) -> None:
        self._running |= env_ids
        for env_id in sorted(env_ids):
            episode = self._begun.get(env_id, 0)
            self._begun[env_id] = episode + 1
            if self._chosen(episode, env_id, self.num_envs):
                place = f"env_{env_id}_" if self.num_envs > 1 else ""
                path = self.folder / f"{place}episode_{episode:06d}.mp4"
                frame = self._frame(env_id)
                if frame is not None:
                    self._videos[env_id] = VideoFile(path, self._frames_per_second(env_id))
                    self._videos[env_id].add(frame)

    def _end(self, env_id: int, *, whole: bool) -> None:
        self._running.discard(env_id)
        video = self._videos.pop(env_id, None)
        if video is not None and whole:
            if not self._replaces and video.path.exists():
                self._replaces = True
                log.warning("%s and other videos overwrite earlier ones of the same name.", video.path)
            video.finish()
            self.paths.append(video.path)
        elif video is not None:
            video.discard()

    def _frame(self, env_id: int) -> np.ndarray | None:
        """A frame; None if the process of the sub-environment is gone: a later poll reports its episode as lost."""
        try:
            with failures_named("render()", f"sub-environment {env_id}"):
                frame: Any = self.env.try_render(env_id)
        except WorkerError:
            return None
        if is_frame(frame):
            return frame
        raise EnvError(
            "The environment does not return frames.",
            f"sub-environment {env_id}, try_render",
            f"{frame.dtype} of shape {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__,
        ).expected(
            "an array [height, width, 3] of uint8, as with render_mode='rgb_array'",
            "let the env's creator pass on render_mode='rgb_array', record in another environment with the same spaces "
            "(--env), or record no video",
        )

    def _frames_per_second(self, env_id: int) -> float:
        envs, inside = self.env.get_sub_environments(), self.env
        while isinstance(inside, EnvWrapper):
            inside = inside.env
        env = envs[env_id] if env_id < len(envs) else getattr(inside, "env", None)
        given: Any = (getattr(env, "metadata", None) or {}).get("render_fps")
        return float(given) if is_finite(given) and given > 0 else _FRAMES_PER_SECOND

    def stop(self) -> None:
        for env_id in list(self._videos):
            self._end(env_id, whole=False)
        self.env.stop()


def is_frame(frame: Any) -> bool:
    """Returns whether the value is an image, [height, width, 3] of uint8."""
    return isinstance(frame, np.ndarray) and frame.ndim == 3 and frame.shape[2] == 3 and frame.dtype == np.uint8


def quiet_without_screen() -> None:
    """Configures SDL, which many environments render with, for machines without a screen."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


class VideoFile:
    """A file that gets its name when it is complete; each frame is encoded when it is added."""

    def __init__(self, path: Path, frames_per_second: float) -> None:
        self.path = path
        self._frames_per_second = frames_per_second
        self._unfinished = path.with_name(f".{path.name}.part")
        self._shape: tuple[int, ...] = ()
        self._encoder: subprocess.Popen[bytes] | None = None

    def add(self, frame: np.ndarray) -> None:
        """Appends a frame, [height, width, 3] of uint8; `EnvError` if its size differs from the first frame's size."""
        # The encoder requires even sides.
        frame = frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]
        if self._encoder is None:
            self._shape, self._encoder = frame.shape, self._start(frame.shape[1], frame.shape[0])
        if frame.shape != self._shape:
            raise EnvError(
                "The size of a frame differs from that of the previous frame.",
                f"the video {self.path}",
                f"shape {frame.shape}",
            ).expected(f"shape {self._shape}", "draw every frame of an episode in the same size")
        assert self._encoder.stdin is not None
        try:
            self._encoder.stdin.write(np.ascontiguousarray(frame).data)
        except OSError:
            raise self._failure() from None

    def finish(self) -> None:
        """Writes the remaining frames and gives the file its name."""
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
        with contextlib.suppress(OSError):  # the last frames can no longer be written
            self._encoder.communicate()
        self._said.close()
        if self._unfinished.is_file():
            self._unfinished.unlink()

    def _start(self, width: int, height: int) -> subprocess.Popen[bytes]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RollaxError.not_written("The video", self.path, error) from error
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
        return RollaxError.not_written(
            "The video", self.path, said or f"the encoder ended with code {self._encoder.returncode}"
        )


def encoder() -> str:
    """Returns the path of ffmpeg; `ConfigError` if the video extra is not installed."""
    try:
        from imageio_ffmpeg import get_ffmpeg_exe

        return get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        where = "recording an environment"
        raise not_installed("A video", error, where=where, package="imageio-ffmpeg", extra="video") from error
