"""Videos of evaluation episodes."""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from rollax.env.base_env import BaseEnv
from rollax.errors import ConfigError, EnvError
from rollax.evaluation.metrics import EpisodeMetrics


class FrameRecorder:
    """Collects a frame per step and writes one MP4 per episode.

    Args:
        folder: made if it is missing.
        frames_per_second: of the videos, where the environment's metadata do not say.
    Raises:
        ConfigError: the video extra is not installed.
        EnvError: the environment gives no frames.
    """

    def __init__(self, folder: Path, frames_per_second: int = 30) -> None:
        try:
            from moviepy.video.io.ImageSequenceClip import ImageSequenceClip
        except ImportError as error:
            raise ConfigError(
                "Videos cannot be written.",
                where="record_dir",
                got=str(error),
                expected="the package moviepy",
                fix="pip install 'rollax[video]'",
            ) from error
        logging.getLogger("imageio_ffmpeg").setLevel(logging.WARNING)
        self._make_clip = ImageSequenceClip
        self.folder = folder
        self.paths: list[Path] = []
        self._frames_per_second = frames_per_second
        self._frames: list[np.ndarray] = []

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def after_step(self, env: BaseEnv) -> None:
        """Keeps a frame of the first sub-environment."""
        if not self._frames:
            metadata = next(iter(getattr(e, "metadata", None) or {} for e in env.get_sub_environments()), {})
            self._frames_per_second = metadata.get("render_fps") or self._frames_per_second
        frame: Any = env.try_render(0)
        if not isinstance(frame, np.ndarray) or frame.ndim != 3:
            raise EnvError(
                "The environment gives no frames.",
                where=f"{type(env).__name__}.try_render",
                got=type(frame).__name__,
                expected="an array [height, width, 3] of uint8, as render_mode='rgb_array' gives",
                fix="let the env's creator pass render_mode on, or leave the video out",
            )
        # An MP4 needs even sides.
        self._frames.append(np.asarray(frame, np.uint8)[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2])

    def end_episode(self, metrics: EpisodeMetrics) -> None:
        """Writes the frames since the last episode."""
        # The step that ended the episode has reset the environment: its frame is the first of the next one.
        frames, self._frames = self._frames[:-1] or self._frames, self._frames[-1:]
        path = self.folder / f"episode_{len(self.paths) + 1:03d}.mp4"
        clip = self._make_clip(frames, fps=self._frames_per_second)
        clip.write_videofile(str(path), logger=None, audio=False)
        self.paths.append(path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._frames = []
