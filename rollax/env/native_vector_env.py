"""Any `gymnasium.vector.VectorEnv` as a `BaseEnv`: arrays in, arrays out, whatever its autoreset mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rollax import trees
from rollax.env import checks
from rollax.env.base_env import BaseEnv
from rollax.env.rows import NO_ENVS, Rows
from rollax.env.vector_base_env import Answers
from rollax.errors import EnvError
from rollax.spaces import check_space


class NativeVectorEnv(BaseEnv):
    """The rows of a native vector environment.

    An episode's last row always carries its real last observation, and the observation of a reset is always the first
    of a new life. The three modes differ only in where the two come from: NEXT_STEP gives the reset's observation at
    the poll after the end (that sub-environment is sent an action which it ignores), SAME_STEP gives both at once,
    DISABLED waits for the sampler's reset.

    Args:
        env: the vector environment.
    """

    def __init__(self, env: gym.vector.VectorEnv) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        spec = getattr(env, "spec", None)
        self.name = spec.id if spec is not None else type(env).__name__
        check_space(self.observation_space, f"{self.name}.single_observation_space")
        check_space(self.action_space, f"{self.name}.single_action_space")
        self.mode = _autoreset_mode(env, self.name)
        self._everyone = np.arange(self.num_envs)
        self._no = np.zeros(self.num_envs, bool)
        self._over = self._no  # sub-environments whose episode ended at the last poll
        self._begun = False
        self._next_obs: trees.Tree = None  # SAME_STEP: the first observations of the episodes that follow
        self._answers = Answers(self._everyone, self.name)

    def poll_rows(self) -> Rows:
        actions = self._answers.take()
        starts = self._over if self.mode is AutoresetMode.NEXT_STEP else self._no
        try:
            obs, rewards, terms, truncs, infos = self.env.step(self._cast(actions))
        except Exception as error:
            raise checks.failed(error, "step()", self.name, actions) from error
        checks.check_columns(self.observation_space, obs, self._where)
        terms = checks.flag_column(terms, "terminated", self._where)
        truncs = checks.flag_column(truncs, "truncated", self._where)
        rewards = checks.reward_column(rewards, self._where)
        over, ended = terms | truncs, NO_ENVS
        if np.count_nonzero(starts):
            rewards = np.where(starts, 0.0, rewards)
        waits = ~over
        if np.count_nonzero(over):
            ended = over.nonzero()[0]
            if self.mode is AutoresetMode.SAME_STEP:
                obs = self._with_final_obs(obs, ended, infos)
        self._over = over
        self._answers.expect(waits.nonzero()[0] if len(ended) else self._everyone)
        if self.mode is AutoresetMode.NEXT_STEP:
            self._answers.not_needed(ended)
        return Rows(
            self._everyone,
            self._everyone,
            obs,
            rewards,
            terms,
            truncs,
            starts,
            waits,
            ended,
            infos=lambda: _info_list(infos, self.num_envs),
        )

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        self._answers.put(rows.env_index if selection is None else rows.env_index[selection], actions)

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows | None:
        only_ended = self._begun and seeds is None and bool(self._over[env_index].all())
        if only_ended and self.mode is AutoresetMode.NEXT_STEP:
            return None
        if only_ended and self.mode is AutoresetMode.SAME_STEP:
            self._answers.expect(env_index)
            return Rows.starting(env_index, env_index, trees.index(self._next_obs, env_index))
        options, seed = None, None if seeds is None else list(seeds)
        if len(env_index) < self.num_envs:
            if self.mode is not AutoresetMode.DISABLED:
                raise EnvError(
                    "This vector environment cannot reset some of its sub-environments in the middle of an episode.",
                    where=f"{self.name}, sub-environments {env_index.tolist()}",
                    got=f"autoreset mode {self.mode.name}",
                    expected="a reset of all, or of those whose episode has ended",
                    fix="reset all sub-environments, or make the env with autoreset_mode=AutoresetMode.DISABLED",
                )
            mask = self._no.copy()
            mask[env_index] = True
            options = {"reset_mask": mask}
            if seed is not None:
                by_env = dict(zip(env_index.tolist(), seed, strict=True))
                seed = [by_env.get(i) for i in range(self.num_envs)]
        if seed is not None and not isinstance(self.env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            seed = seed[0]  # one random stream for all: the interface promises no more than a single number
        try:
            obs, infos = checks.check_reset(self.env.reset(seed=seed, options=options), self.name)
        except EnvError:
            raise
        except Exception as error:
            raise checks.failed(error, "reset()", self.name) from error
        self._begun, self._over = True, self._no
        checks.check_columns(self.observation_space, obs, self._where)
        self._answers.expect(env_index)
        everyone = _info_list(infos, self.num_envs)
        return Rows.starting(
            env_index, env_index, trees.index(obs, env_index), infos=[everyone[i] for i in env_index.tolist()]
        )

    def _with_final_obs(self, obs: trees.Tree, ended: np.ndarray, infos: dict) -> trees.Tree:
        """SAME_STEP: `obs` holds the next episodes' first observations; the last ones stand in the infos."""
        final = infos.get("final_obs", infos.get("final_observation"))
        if final is None:
            raise EnvError(
                "An episode ended without its last observation.",
                where=f"{self.name}, sub-environments {ended.tolist()}",
                got=f"infos with {sorted(infos)}",
                expected="infos['final_obs'], as autoreset mode SAME_STEP asks for",
                fix="return it, or use another autoreset mode",
            )
        self._next_obs = obs
        if isinstance(final, np.ndarray) and final.dtype == object:
            last = checks.observation_columns(
                self.observation_space, [final[i] for i in ended], lambda row: self._where(int(ended[row]))
            )
        else:
            last = trees.index(final, ended)
        merged = trees.tree_map(np.copy, obs)
        trees.put(merged, ended, last)
        return merged

    def _cast(self, actions: trees.Tree) -> trees.Tree:
        space = self.env.action_space
        if isinstance(actions, np.ndarray) and actions.dtype != space.dtype:
            return actions.astype(space.dtype)
        return actions

    def get_sub_environments(self) -> list[Any]:
        return list(getattr(self.env, "envs", []))

    def try_render(self, env_id: int | None = None) -> Any:
        frames = self.env.render()
        return None if frames is None else frames[env_id or 0]

    def stop(self) -> None:
        self.env.close()

    def _where(self, row: int) -> str:
        return f"{self.name}, sub-environment {row}"


def _autoreset_mode(env: gym.vector.VectorEnv, name: str) -> AutoresetMode:
    mode = (env.metadata or {}).get("autoreset_mode", getattr(env, "autoreset_mode", None))
    if mode is None:
        checks.say_once("autoreset", name, f"{name} does not say how it resets: NEXT_STEP is taken for granted.")
        return AutoresetMode.NEXT_STEP
    return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)


def _info_list(infos: dict, num_envs: int) -> list[dict]:
    """Gymnasium's dict of arrays with masks as one dict per sub-environment."""
    result: list[dict] = [{} for _ in range(num_envs)]
    for key, values in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        mask = infos.get(f"_{key}")
        parts = _info_list(values, num_envs) if isinstance(values, dict) else values
        if not hasattr(parts, "__len__") or len(parts) != num_envs:
            continue
        for index in range(num_envs):
            if mask is None or mask[index]:
                result[index][key] = parts[index]
    return result
