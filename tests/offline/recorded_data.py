"""Data sets in memory, recorded with policies that are trained for this purpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from rollax.offline.dataset import RecordedTrajectory
from tests.offline.recorded import ListReader

ActionFunction = Callable[[np.ndarray], np.ndarray]
"""Observations [N, ...] -> actions of the environment [N, ...]."""


class Recordings(ListReader):
    """Trajectories, with the environment that they were recorded in."""

    def __init__(self, env: gym.Env, trajectories: Sequence[RecordedTrajectory]) -> None:
        super().__init__(trajectories, env.observation_space, env.action_space)
        self.env, self.found = env, list(trajectories)

    @property
    def score(self) -> float:
        """The mean return of a whole episode."""
        return float(np.mean([found.columns["rewards"].sum() for found in self.found if not found.cut]))

    def __add__(self, other: Recordings) -> Recordings:
        numbered = [replace(found, episode_id=str(number)) for number, found in enumerate([*self.found, *other.found])]
        return Recordings(self.env, numbered)


class Recorder(gym.Wrapper):
    """Records the episodes of an environment in a list."""

    def __init__(self, env: gym.Env, kept: list[RecordedTrajectory], seen_part: Any = None) -> None:
        super().__init__(env)
        self.kept, self.seen_part, self.rows = kept, seen_part, []
        self.obs: list[Any] = []

    def reset(self, **arguments):
        self._keep(False, False)
        obs, info = self.env.reset(**arguments)
        self.obs, self.rows = [obs], []
        return obs, info

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.obs.append(obs)
        self.rows.append((np.array(action), float(reward)))
        if terminated or truncated:
            self._keep(terminated, truncated)
        return obs, reward, terminated, truncated, info

    def _keep(self, terminated: bool, truncated: bool) -> None:
        if self.rows:
            actions, rewards = zip(*self.rows, strict=True)
            obs = np.stack(self.obs)
            columns: dict[str, Any] = {
                "obs": obs if self.seen_part is None else obs[:, self.seen_part],
                "actions": np.stack(actions),
                "rewards": np.array(rewards, np.float32),
            }
            ids = (str(len(self.kept)), 0, "default_policy")
            self.kept.append(RecordedTrajectory(columns, terminated, truncated, *ids))
        self.rows = []


def record_episodes(
    make: Callable[[], gym.Env], act: ActionFunction, rows: int, seed: int, seen_part: Any = None
) -> Recordings:
    """Records whole episodes in 16 environments until there are so many rows; `seen_part` indexes observations."""
    kept: list[RecordedTrajectory] = []
    envs = [Recorder(make(), kept, seen_part) for _ in range(16)]
    seen = [env.reset(seed=seed + number)[0] for number, env in enumerate(envs)]
    while sum(map(len, kept)) < rows:
        for number, (env, action) in enumerate(zip(envs, act(np.stack(seen)), strict=True)):
            obs, _, terminated, truncated, _ = env.step(action)
            seen[number] = env.reset()[0] if terminated or truncated else obs
    return Recordings(envs[0].env, kept)


def train_and_record(
    trainer_class: Any, make: Callable[[], gym.Env], steps: int, config: dict[str, Any]
) -> tuple[Any, Any]:
    """A trainer after so many steps, and all its experience."""
    kept: list[RecordedTrajectory] = []
    trainer = trainer_class(lambda context: Recorder(make(), kept), config)
    while trainer.optimizer.env_steps < steps:
        trainer.train()
    for env in trainer.worker.env.envs if hasattr(trainer.worker.env, "envs") else ():
        env._keep(False, False)
    return trainer, Recordings(make(), kept)


def actions_of(trainer: Any, *, explore: bool = True) -> ActionFunction:
    """The action function of a trainer's policy."""
    return lambda obs: np.asarray(trainer.compute_actions(obs, explore=explore)[0])


def mixed_actions(act: ActionFunction, other: ActionFunction, share: float, seed: int) -> ActionFunction:
    """Actions of `other` in a share of the steps."""
    rng = np.random.default_rng(seed)

    def chosen(obs: np.ndarray) -> np.ndarray:
        first, second = act(obs), other(obs)
        use_second = rng.random(len(obs)) < share
        return np.where(use_second.reshape(-1, *[1] * (first.ndim - 1)), second, first)

    return chosen


def random_actions(space: gym.spaces.Discrete, seed: int) -> ActionFunction:
    """Uniformly random actions."""
    rng = np.random.default_rng(seed)
    return lambda obs: rng.integers(int(space.n), size=len(obs))
