"""Records trained policies for the gallery: `python -m website.recordings` trains each, and writes docs/images/*.gif.

The name of a recording is that of the example that shows it, with hyphens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
from PIL import Image

from rollax import PPOTrainer, Trainer
from website.repository import REPOSITORY

_SIZE, _COLORS, _FRAMES = 200, 16, 90
_EVERY = 2  # steps between two frames


class Recording(NamedTuple):
    """A trainer, its environment and config, and the number of its iterations."""

    trainer_class: type[Trainer]
    env: str
    config: Mapping[str, Any]
    iterations: int


RECORDINGS = {
    "cartpole-ppo": Recording(
        PPOTrainer,
        "CartPole-v1",
        {"num_envs_per_worker": 8, "train_batch_size": 1024, "num_sgd_iter": 20, "lr": 1e-3, "seed": 0},
        20,
    ),
}


def record(name: str, recording: Recording) -> None:
    """Trains, plays one greedy episode, and writes its frames."""
    with recording.trainer_class(recording.env, dict(recording.config)) as trainer:
        for _ in range(recording.iterations):
            trainer.train()
        env = gym.make(recording.env, render_mode="rgb_array")
        obs, _ = env.reset(seed=1)
        frames, reward, over = [], 0.0, False
        while not over:
            if len(frames) < _FRAMES * _EVERY:
                frames.append(env.render())
            obs, earned, terminated, truncated, _ = env.step(trainer.compute_single_action(obs))
            reward, over = reward + float(earned), terminated or truncated
    print(f"{name}: reward {reward:.0f}")
    images = [_small(frame) for frame in frames[::_EVERY]]
    path = REPOSITORY / "docs" / "images" / f"{name}.gif"
    images[0].save(path, save_all=True, append_images=images[1:], duration=40 * _EVERY // 2, loop=0, optimize=True)


def _small(frame: Any) -> Image.Image:
    image = Image.fromarray(frame)
    height = _SIZE * image.height // image.width
    return image.resize((_SIZE, height)).quantize(_COLORS, dither=Image.Dither.NONE)


if __name__ == "__main__":
    for name, recording in RECORDINGS.items():
        record(name, recording)
