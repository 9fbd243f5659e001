"""Any `gymnasium.vector.VectorEnv` as a `BaseEnv`: arrays in, arrays out, in all autoreset modes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rollax.core import trees
from rollax.core.spaces import Path, check_space, walk
from rollax.env import checks
from rollax.env.agent_checks import IdlePolls
from rollax.env.base_env import BaseEnv
from rollax.env.checks import ObservationChecks, as_columns, env_name, stacked
from rollax.env.copies import EnvCopies
from rollax.env.rows import NO_ENVS, Rows
from rollax.env.vector import warn_of_own_statistics
from rollax.env.vector.vector_base_env import ActionBuffer
from rollax.errors import EnvError, text_of

FINAL_OBS = ("final_obs", "final_observation")
_FINAL = (*FINAL_OBS, "final_info")
_STEP_S = 2.0
"""The longest wait, in seconds, for a step that an interrupt or a process that has ended left incomplete."""
_EPISODE = "episode"  # of RecordEpisodeStatistics; next to "final_info" if that wrapper is around the vector env


class NativeVectorEnv(BaseEnv):
    """The rows of a native vector environment.

    The last row of an episode has its real last observation, and the observation of a reset begins a new trajectory.
    The autoreset modes differ in when the reset's observation is available: with NEXT_STEP at the poll after the end
    (which ignores the action), with SAME_STEP at once, with DISABLED after the sampler's reset.
    """

    adapts = True
    in_lockstep = True

    def __init__(self, copies: EnvCopies) -> None:
        self.env: gym.vector.VectorEnv = copies.vector()
        env = self.env
        self.name = env_name(env)
        for kind in ("single_observation_space", "single_action_space"):
            check_space(getattr(env, kind, None), f"{self.name}.{kind}")
        self.num_envs = env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.mode = _autoreset_mode(env, self.name)
        warn_of_own_statistics(env, self.name)
        own_seeds = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self.seeds_every_episode = own_seeds and self.mode is AutoresetMode.DISABLED
        # EnvPool's environments get their seed from their creator.
        self.repeats = not any(parent.__module__.startswith("envpool.") for parent in type(env.unwrapped).__mro__)
        self._everyone = np.arange(self.num_envs)
        self._no = np.zeros(self.num_envs, bool)
        self._over = self._no  # sub-environments whose episode ended at the last poll
        self._begun = False
        self._next: tuple[trees.Tree, Any] = (None, None)  # SAME_STEP: first rows from the last poll's resets
        self._answers = ActionBuffer(self._everyone, self.name)
        self.checks = ObservationChecks(self.num_envs)
        self._idle = IdlePolls(self.name)

    def poll_rows(self) -> Rows:
        actions = walk(_cast, self.env.single_action_space, self._answers.take())
        self._begun = False  # until this step is done; after an interrupted step all sub-environments are reset
        try:
            result = self.env.step(actions)
        except Exception as error:
            raise checks.failed(error, "step()", f"{self.name}, one of its sub-environments", actions) from error
        obs, rewards, terms, truncs, infos = checks.vector_step(result, self.num_envs, self.name)
        self._check_infos(infos, "step()")
        obs = self._columns(obs)
        terms = checks.flag_column(terms, "terminated", self._where)
        truncs = checks.flag_column(truncs, "truncated", self._where)
        rewards = checks.reward_column(rewards, self._where)
        starts = self._over if self.mode is AutoresetMode.NEXT_STEP else self._no
        over, ended = terms | truncs, NO_ENVS
        waits = ~over
        if np.count_nonzero(starts):
            # The row of a reset does not follow from an action. If its flags end the episode, the next row is a reset
            # too.
            rewards, terms, truncs = np.where(starts, 0.0, rewards), terms & ~starts, truncs & ~starts
            if self._idle.counts or np.count_nonzero(starts & over):
                self._count_idle(starts, over)
        if np.count_nonzero(over):
            ended = (terms | truncs).nonzero()[0]
            if self.mode is AutoresetMode.SAME_STEP:
                self._next = obs, infos
                obs = self._with_final_obs(obs, ended, infos)
            elif self.mode is AutoresetMode.DISABLED:
                # The reset that follows may write into the same arrays.
                obs, rewards = trees.tree_map(np.copy, obs), rewards.copy()
                terms, truncs = terms.copy(), truncs.copy()
        self._over = over
        self._answers.expect(waits.nonzero()[0] if np.count_nonzero(over) else self._everyone)
        if self.mode is AutoresetMode.NEXT_STEP:
            self._answers.not_needed(over.nonzero()[0])
        self.checks.polled(ended)
        same_step = self.mode is AutoresetMode.SAME_STEP
        self._begun = True
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
            infos=lambda: self._info_list(infos, ended if same_step else NO_ENVS),
            in_order=True,
        )

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        self._answers.put(rows, selection, actions)

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows | None:
        if self._begun and seeds is None and bool(self._over[env_index].all()):
            if self.mode is AutoresetMode.NEXT_STEP:
                return None
            if self.mode is AutoresetMode.SAME_STEP:
                obs, infos = self._next
                return self._started(env_index, obs, lambda: without_final(infos))
        options = None
        if len(env_index) < self.num_envs:
            options = {"reset_mask": self._mask(env_index)}
        try:
            result = self.env.reset(seed=self._seed(env_index, seeds), options=options)
        except Exception as error:
            raise checks.failed(error, "reset()", self.name) from error
        if not (isinstance(result, tuple | list) and len(result) == 2):
            checks.check_reset(result, f"{self.name}, reset()")
        obs, infos = self._columns(result[0]), result[1]
        self._check_infos(infos, "reset()")
        self._over = self._no
        self._begun = True
        return self._started(env_index, obs, lambda: infos)

    def _started(self, env_index: np.ndarray, obs: trees.Tree, infos: Callable[[], Any]) -> Rows:
        """The first rows of some sub-environments, from the results of all."""

        def picked() -> list[dict]:
            of_all = self._info_list(infos())
            return [of_all[index] for index in env_index.tolist()]

        self._answers.expect(env_index)
        return Rows.starting(env_index, env_index, trees.index(obs, env_index), infos=picked)

    def _mask(self, env_index: np.ndarray) -> np.ndarray:
        """[num_envs] True for the sub-environments to reset."""
        if self.mode is not AutoresetMode.DISABLED:
            what = "This vector environment cannot reset some of its sub-environments in the middle of an episode."
            fix = "reset all sub-environments, or make the env with autoreset_mode=AutoresetMode.DISABLED"
            raise EnvError(
                what, f"{self.name}, sub-environments {env_index.tolist()}", f"autoreset mode {self.mode.name}"
            ).expected("a reset of all, or of those whose episode has ended", fix)
        mask = self._no.copy()
        mask[env_index] = True
        return mask

    def _seed(self, env_index: np.ndarray, seeds: Sequence[int | None] | None) -> Any:
        """The seeds in the form that the vector environment accepts."""
        if seeds is None:
            return None
        by_env = dict(zip(env_index.tolist(), seeds, strict=True))
        kind = self.env.unwrapped
        if isinstance(kind, SyncVectorEnv | AsyncVectorEnv):
            return [by_env.get(index) for index in range(self.num_envs)]
        # Environments in other languages accept 31 bits.
        in_order = [by_env[index] for index in sorted(by_env)]
        small = [-1 if seed is None else int(seed) % 2**31 for seed in in_order]
        if type(kind).__module__.startswith("ale_py."):
            return np.array(small)
        if not self.repeats:
            checks.warn_once(
                "seed",
                self.name,
                f"{self.name} does not accept a seed in reset(): pass it to envpool.make, together "
                "with the worker_index. Logged once.",
            )
            return None
        # One seed for all: the interface guarantees only that a single number is accepted.
        return next((seed for seed in small if seed >= 0), None)

    def _count_idle(self, starts: np.ndarray, over: np.ndarray) -> None:
        """Counts consecutive resets whose flags end the episode."""
        for index in starts.nonzero()[0].tolist():
            if over[index]:
                self._idle.idle(index, (), ())
            else:
                self._idle.acting(index)

    def _columns(self, obs: Any) -> trees.Tree:
        return self.checks.columns(self.env.single_observation_space, obs, self.num_envs, self._where)

    def _check_infos(self, infos: Any, call: str) -> None:
        if type(infos) is dict:
            return
        many = isinstance(infos, list | tuple)
        checks.check_infos(infos if many else [infos], lambda row: f"{self.name}, {call}")
        if many:
            checks.check_count("infos", infos, self.num_envs, f"{self.name}, {call}")

    def _info_list(self, infos: Any, ended: Iterable[int] = NO_ENVS) -> list[dict]:
        try:
            return info_list(infos, self.num_envs, ended)
        except Exception as error:
            got = f"{type(error).__name__}: {text_of(error)}, of {checks.outline(infos)}"
            raise EnvError("The infos cannot be split by sub-environment.", self.name, got).expected(
                "arrays and masks of one entry for each sub-environment",
                "return infos as gymnasium.vector.VectorEnv does",
            ) from error

    def _with_final_obs(self, obs: trees.Tree, ended: np.ndarray, infos: Any) -> trees.Tree:
        """SAME_STEP: replaces the first observations of the next episodes by the last ones of the ended episodes.

        `obs` holds the first observations, and the infos hold the last observations.
        """
        try:
            final = final_observations(infos, ended)
        except Exception:  # not one entry per sub-environment
            final = None
        if final is None:
            what = "The last observation of an ended episode is missing."
            got = f"infos with {sorted(infos)}" if isinstance(infos, dict) else checks.outline(infos)
            raise EnvError(what, f"{self.name}, sub-environments {ended.tolist()}", got).expected(
                "infos['final_obs'], as autoreset mode SAME_STEP requires", "return it, or use another autoreset mode"
            )
        space = self.env.single_observation_space

        def where(row: int) -> str:
            return f"{self._where(int(ended[row]))}, final_obs"

        last = stacked(space, final, where) if isinstance(final, list) else as_columns(space, final, len(ended), where)
        merged = trees.tree_map(np.copy, obs)
        trees.put(merged, ended, last)
        return merged

    def get_sub_environments(self) -> list[Any]:
        return list(getattr(self.env.unwrapped, "envs", []))

    def try_render(self, env_id: int | None = None) -> Any:
        if self.env.render_mode is None:
            return None
        frames = self.env.render()
        return None if frames is None else frames[env_id or 0]

    def stop(self) -> None:
        try:
            if isinstance(self.env.unwrapped, AsyncVectorEnv):
                _close_processes(self.env.unwrapped)
            self.env.close()
        except Exception as error:
            raise checks.failed(error, "close()", self.name) from error

    def _where(self, row: int) -> str:
        return f"{self.name}, sub-environment {row}"


def _close_processes(env: AsyncVectorEnv) -> None:
    """Closes the processes, also if some of them have ended already, as after Ctrl-C in a terminal."""
    if all(process.is_alive() for process in env.processes):
        with suppress(EOFError, OSError):
            env.close(timeout=_STEP_S)
            return
    for process in env.processes:
        process.terminate()
    env.closed = True  # `close` would raise again


def stated_autoreset_mode(env: Any) -> Any:
    """Returns the autoreset mode that a vector environment states by an attribute or its metadata; None without one."""
    mode, metadata = getattr(getattr(env, "unwrapped", env), "autoreset_mode", None), getattr(env, "metadata", None)
    # The dict of the base class says nothing: all classes share it, and ale-py writes its own mode into it.
    if mode is None and metadata is not gym.vector.VectorEnv.metadata:
        mode = (metadata or {}).get("autoreset_mode")
    return mode


def _autoreset_mode(env: gym.vector.VectorEnv, name: str) -> AutoresetMode:
    # The attribute first, because metadata often belong to the class, and instances may differ.
    mode = stated_autoreset_mode(env)
    if mode is None:
        said = (
            f"{name} does not declare its autoreset mode: NEXT_STEP is assumed. If it resets in the step that ends an "
            'episode, its class needs metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}.'
        )
        checks.warn_once("autoreset", name, said)
        return AutoresetMode.NEXT_STEP
    return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)


def _cast(space: gym.Space, path: Path, actions: np.ndarray) -> np.ndarray:
    return actions.astype(space.dtype, copy=False)


def info_list(infos: Any, num_envs: int, ended: Iterable[int] = NO_ENVS) -> list[dict]:
    """The infos of a `step` or `reset` as one dict per sub-environment.

    The info of an `ended` sub-environment belongs to the episode's last step, not to the reset after it.
    """
    result = list(infos) if isinstance(infos, list | tuple) else _split(infos, num_envs)
    for index in ended:
        info = result[index]
        added = {_EPISODE: info[_EPISODE]} if _is_of_end(_EPISODE, info.get(_EPISODE)) else {}
        result[index] = {**added, **(info.get("final_info") or {})}
    return result


def without_final(infos: Any) -> Any:
    """The same infos without the entries of steps that ended episodes."""
    if isinstance(infos, list | tuple):
        return [without_final(info) for info in infos]
    of_end = {key for key, value in infos.items() if _is_of_end(key, value)}
    return {key: value for key, value in infos.items() if key not in of_end and key not in map("_{}".format, of_end)}


def _is_of_end(key: str, value: Any) -> bool:
    return key in _FINAL or (key == _EPISODE and isinstance(value, dict) and value.keys() >= {"r", "l", "t"})


def final_observations(infos: Any, ended: np.ndarray) -> trees.Tree | None:
    """The last observations of episodes that ended: a list, or columns; None if there are none."""
    if isinstance(infos, list | tuple):
        found = [next((infos[i][key] for key in FINAL_OBS if key in infos[i]), None) for i in ended]
        return None if any(value is None for value in found) else found
    final = next((infos[key] for key in FINAL_OBS if key in infos), None)
    if final is None:
        return None
    if isinstance(final, list) or (isinstance(final, np.ndarray) and final.dtype == object):
        return [final[index] for index in ended]
    return trees.index(final, ended)


def _split(infos: dict, num_envs: int) -> list[dict]:
    result: list[dict] = [{} for _ in range(num_envs)]
    for key, values in infos.items():
        if isinstance(key, str) and key.startswith("_") and key[1:] in infos:
            continue  # the mask of another key
        mask = infos.get(f"_{key}")
        parts = _split(values, num_envs) if isinstance(values, dict) else values
        by_env = isinstance(parts, list | tuple) or (isinstance(parts, np.ndarray) and parts.ndim > 0)
        if not by_env or len(parts) != num_envs:
            parts = [parts] * num_envs  # one value for all
        for index in range(num_envs):
            if mask is None or mask[index]:
                result[index][key] = parts[index]
    return result
