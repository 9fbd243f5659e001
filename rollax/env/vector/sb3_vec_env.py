"""Stable-Baselines3's `VecEnv` as a native vector environment; Stable-Baselines3 itself is never imported here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode


class SB3VectorEnv(gym.vector.VectorEnv):
    """Steps a `VecEnv`, which resets a sub-environment in the step that ends its episode (SAME_STEP).

    The info of that step holds the episode's last observation and whether a time limit ended it.
    """

    def __init__(self, env: Any) -> None:
        self.env = self.as_written = env
        self.num_envs = env.num_envs
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.render_mode = getattr(env, "render_mode", None)
        self.metadata = {**(getattr(env, "metadata", None) or {}), "autoreset_mode": AutoresetMode.SAME_STEP}

    @property
    def envs(self) -> Sequence[Any]:
        """The sub-environments, if they are in this process."""
        return getattr(self.env, "envs", ())

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, list[dict]]:
        if seed is not None:
            self.env.seed(seed)
        return self.env.reset(), list(self._reset_infos())

    def step(self, actions: Any) -> tuple[Any, Any, np.ndarray, np.ndarray, list[dict]]:
        self.env.step_async(actions)
        obs, rewards, dones, infos = self.env.step_wait()
        cut = np.array([bool(info.get("TimeLimit.truncated")) for info in infos])
        infos = [
            _with_final(*of) if done else of[0] for done, *of in zip(dones, infos, self._reset_infos(), strict=True)
        ]
        return obs, rewards, dones & ~cut, dones & cut, infos

    def _reset_infos(self) -> Sequence[dict]:
        return getattr(self.env, "reset_infos", None) or [{}] * self.num_envs

    def render(self) -> Any:
        return self.env.get_images()

    def close(self, **kwargs: Any) -> None:
        self.env.close()


def _with_final(info: dict, reset_info: dict) -> dict:
    """The info of a reset; Gymnasium's keys in it hold the info and observation of the step that ended the episode."""
    last = {key: value for key, value in info.items() if key != "terminal_observation"}
    final = {"final_obs": info["terminal_observation"]} if "terminal_observation" in info else {}
    return {**reset_info, **final, "final_info": last}
