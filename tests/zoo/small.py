"""A small entry of the zoo, which trains within a second."""

from pathlib import Path

TEXT = """\
# Three iterations of A2C.
run: A2C
env: CartPole-v1

config:
  env_config: {max_episode_steps: 30}
  train_batch_size: 200
  model: {fcnet_hiddens: [8]}
  evaluation_interval: 1
  evaluation_num_episodes: 2
  evaluation_config: {num_envs_per_worker: 10}

stop:
  training_iteration: 3

zoo:
  tags: [classic]
  target: 10
  published: {score: 500, steps: 100000, source: the tests}
"""


def write_small(folder: Path, text: str = TEXT) -> Path:
    path = folder / "a2c_small.yaml"
    path.write_text(text)
    return path
