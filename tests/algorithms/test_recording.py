"""Videos of evaluation episodes: which frames, how fast, and what is refused."""

from __future__ import annotations

import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollax import PPOTrainer
from rollax.errors import ConfigError, EnvError

pytest.importorskip("moviepy")

import moviepy.video.io.ImageSequenceClip


class Film(gym.Env):
    """Three steps; a frame is as bright as the state: 0, 10, 20, 30."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}
    observation_space, action_space = spaces.Discrete(4), spaces.Discrete(2)

    def __init__(self, context):
        self.render_mode = context.get("render_mode")
        self.blind = context.get("blind", False)

    def reset(self, *, seed=None, options=None):
        self.state = 0
        return 0, {}

    def step(self, action):
        self.state += 1
        return self.state, 1.0, self.state == 3, False, {}

    def render(self):
        if self.render_mode == "rgb_array" and not self.blind:
            return np.full((5, 6, 3), 10 * self.state, np.uint8)
        return None


CONFIG = {"train_batch_size": 8, "sgd_minibatch_size": 8, "num_envs_per_worker": 2, "model": {"fcnet_hiddens": (4,)}}


@pytest.fixture
def written(monkeypatch):
    """`(brightness of the frames, their shape, frames per second)` of each clip that is written."""
    found = []

    class Clip:
        def __init__(self, frames, fps):
            found.append(([int(frame.max()) for frame in frames], frames[0].shape, fps))

        def write_videofile(self, path, **options):
            found[-1] += (path,)

    monkeypatch.setattr(moviepy.video.io.ImageSequenceClip, "ImageSequenceClip", Clip)
    return found


def test_one_film_for_each_episode(written, tmp_path):
    with PPOTrainer(Film, CONFIG) as trainer:
        result = trainer.evaluate(3, record_dir=tmp_path / "films")
    assert result["episode_rewards"] == [3, 3, 3]
    assert result["videos"] == [str(tmp_path / "films" / f"episode_00{n}.mp4") for n in (1, 2, 3)]
    assert [path for *_, path in written] == result["videos"]
    # The step that ends an episode has already begun the next: the last state is not seen, and the very first neither.
    assert [frames for frames, *_ in written] == [[10, 20], [0, 10, 20], [0, 10, 20]]
    assert {shape for _, shape, *_ in written} == {(4, 6, 3)}  # an MP4 has even sides
    assert {fps for _, _, fps, _ in written} == {7}


def test_a_real_file_is_written(tmp_path):
    with PPOTrainer(Film, CONFIG) as trainer:
        (path,) = trainer.evaluate(1, record_dir=tmp_path)["videos"]
    with open(path, "rb") as file:
        assert file.read(8)[4:] == b"ftyp"


def test_an_env_without_frames(written, tmp_path):
    with PPOTrainer(Film, {**CONFIG, "env_config": {"blind": True}}) as trainer:
        with pytest.raises(EnvError, match=r"gives no frames(.|\n)*NoneType(.|\n)*render_mode"):
            trainer.evaluate(1, record_dir=tmp_path)
        assert trainer.evaluate(1)["episodes"] == 1
    assert written == []


def test_without_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "moviepy.video.io.ImageSequenceClip", None)
    with PPOTrainer(Film, CONFIG) as trainer:
        with pytest.raises(ConfigError, match=r"Videos cannot be written(.|\n)*moviepy(.|\n)*rollax\[video\]"):
            trainer.evaluate(1, record_dir=tmp_path)
