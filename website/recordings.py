"""Records trained policies: `python -m website.recordings [NAME...]` trains each, and writes docs/images/*.gif.

The gallery shows a recording beside the example of its name, with hyphens; docs/zoo.md shows those of the zoo.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from PIL import Image

from rollax import PPOTrainer, Trainer, zoo
from rollax.core.cleanup import cleanup_on_error
from website.repository import REPOSITORY

_SIZE, _COLORS, _FRAMES = 200, 16, 90
_EVERY = 2  # steps between two frames
_DRAWN = {"env_config": {"render_mode": "rgb_array"}}


def cartpole_ppo() -> Trainer:
    config = {"num_envs_per_worker": 8, "train_batch_size": 1024, "num_sgd_iter": 20, "lr": 1e-3, "seed": 0}
    return _fitted(PPOTrainer("CartPole-v1", {**config, **_DRAWN}), {"training_iteration": 20})


def _fitted(trainer: Trainer, stop: Mapping[str, float]) -> Trainer:
    with cleanup_on_error(trainer.stop):
        trainer.fit(stop, evaluate=False, progress="none")
    return trainer


def of_zoo(env: str, algorithm: str) -> Callable[[], Trainer]:
    """Returns a function that trains with an entry of the zoo."""

    def trained() -> Trainer:
        entry = zoo.load(env, algorithm)
        return _fitted(entry.make_trainer(seed=0, **_DRAWN), entry.experiment.stop)

    return trained


RECORDINGS: Mapping[str, Callable[[], Trainer]] = {
    "cartpole-ppo": cartpole_ppo,
    "zoo-acrobot": of_zoo("Acrobot-v1", "PQN"),
    "zoo-minigrid": of_zoo("minigrid:MiniGrid-Empty-8x8-v0", "PPO"),
    "zoo-mountain-car": of_zoo("MountainCar-v0", "PPO"),
    "zoo-pendulum": of_zoo("Pendulum-v1", "SAC"),
}


def record(name: str, trained: Callable[[], Trainer]) -> None:
    """Trains, plays one greedy episode, and writes its frames."""
    with trained() as trainer:
        env: Any = trainer.worker.env.get_sub_environments()[0]
        obs, _ = env.reset(seed=1)
        frames, reward, over = [env.render()], 0.0, False
        while not over:
            obs, earned, terminated, truncated, _ = env.step(trainer.compute_single_action(obs))
            reward, over = reward + float(earned), terminated or truncated
            frames.append(env.render())
    print(f"{name}: reward {reward:.5g}")
    step = _EVERY if len(frames) > _FRAMES else 1  # short episodes are shown whole, and slower
    images = [_small(frame) for frame in frames[: _FRAMES * step : step]]
    path = REPOSITORY / "docs" / "images" / f"{name}.gif"
    duration = 40 if step == _EVERY else 120
    images[0].save(path, save_all=True, append_images=images[1:], duration=duration, loop=0, optimize=True)


def _small(frame: Any) -> Image.Image:
    image = Image.fromarray(frame)
    height = _SIZE * image.height // image.width
    return image.resize((_SIZE, height)).quantize(_COLORS, dither=Image.Dither.NONE)


if __name__ == "__main__":
    for name in sys.argv[1:] or RECORDINGS:
        record(name, RECORDINGS[name])
