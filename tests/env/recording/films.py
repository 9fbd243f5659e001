"""An environment whose frames show the step they were drawn at, and a function that reads a video."""

import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rollax.env.recording import encoder


class Film(gym.Env):
    """Episodes of three steps; the brightness of a frame is the state: 20, 40, 60, 80."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}
    observation_space, action_space = spaces.Discrete(4), spaces.Discrete(2)

    def __init__(self, env_config: Any = None) -> None:
        settings = env_config or {}
        self.render_mode = settings.get("render_mode")
        self.blind = settings.get("blind", False)
        self.drawn = 0
        self.state = 0

    def reset(self, *, seed=None, options=None):
        self.state = 0
        return 0, {}

    def step(self, action):
        self.state += 1
        return self.state, 1.0, self.state == 3, False, {}

    def render(self):
        self.drawn += 1
        if self.render_mode == "rgb_array" and not self.blind:
            return np.full((33, 50, 3), 20 * (self.state + 1), np.uint8)
        return None


WHOLE = [20, 40, 60, 80]


class Video(NamedTuple):
    """The brightness of each frame rounded to tens, the size, and the frame rate."""

    brightness: list[int]
    size: tuple[int, int]
    frames_per_second: float


def watch(path: Path | str) -> Video:
    """Decodes a video."""
    command = [encoder(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    said = done.stderr.decode()
    found = re.search(r"Video:.*?, (\d+)x(\d+).*?, ([\d.]+) fps", said)
    assert found, said
    width, height = int(found[1]), int(found[2])
    frames = np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)
    return Video([int(round(frame.mean(), -1)) for frame in frames], (width, height), float(found[3]))
