"""A `VectorEnv` as a `BaseEnv`: one row per sub-environment at every poll, without a dict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Tuple

from rollax import trees
from rollax.env import checks
from rollax.env.base_env import BaseEnv, action_values
from rollax.env.rows import NO_ENVS, Rows
from rollax.env.vector_env import VectorEnv
from rollax.errors import EnvError


_OVER, _WAITING, _ANSWERED = range(3)


class VectorBaseEnv(BaseEnv):
    """Steps all sub-environments at each poll, with the actions sent since the one before.

    Args:
        env: what is stepped.
    """

    def __init__(self, env: VectorEnv) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.name = type(env).__name__
        self._everyone = np.arange(self.num_envs)
        self._answers = Answers(self._everyone, self.name)
        self._none_set, self._all_set = np.zeros(self.num_envs, bool), np.ones(self.num_envs, bool)

    def poll_rows(self) -> Rows:
        actions = self._answers.take()
        obs, rewards, terminateds, truncateds, infos = self.env.vector_step(action_values(actions))
        ended, waiting = NO_ENVS, self._all_set
        term = checks.flag_column(terminateds, "terminated", self._where)
        trunc = checks.flag_column(truncateds, "truncated", self._where)
        if np.count_nonzero(term) or np.count_nonzero(trunc):
            waiting = ~(term | trunc)
            ended = (~waiting).nonzero()[0]
        rows = Rows(
            self._everyone,
            self._everyone,
            self._columns(obs),
            checks.reward_column(rewards, self._where),
            term,
            trunc,
            self._none_set,
            waiting,
            ended,
            None,
            infos,
        )
        self._answers.expect(self._everyone if not len(ended) else waiting.nonzero()[0])
        return rows

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        self._answers.put(rows.env_index if selection is None else rows.env_index[selection], actions)

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows:
        indices = env_index.tolist()
        if len(indices) == self.num_envs:
            obs, infos = self.env.vector_reset(seeds)
        else:
            pairs = [self.env.reset_at(i, None if seeds is None else seeds[n]) for n, i in enumerate(indices)]
            obs, infos = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        self._answers.expect(env_index)
        return Rows.starting(env_index, env_index, self._columns(obs), infos=infos)

    def _columns(self, obs: Any) -> trees.Tree:
        assert self.observation_space is not None
        # A tuple is a tuple of columns where the space is a Tuple, and otherwise a sequence of observations like a list.
        if isinstance(obs, list) or (isinstance(obs, tuple) and not isinstance(self.observation_space, Tuple)):
            return checks.observation_columns(self.observation_space, obs, self._where)
        checks.check_columns(self.observation_space, obs, self._where)
        return obs

    def get_sub_environments(self) -> list[Any]:
        return self.env.get_sub_environments()

    def try_render(self, env_id: int | None = None) -> Any:
        return self.env.try_render_at(env_id or 0)

    def stop(self) -> None:
        self.env.close()

    def _where(self, row: int) -> str:
        return f"{self.name}, sub-environment {row}"


class Answers:
    """The actions of the sub-environments that step together, until all of them are there.

    Args:
        everyone: [0, 1, ..., number of sub-environments - 1]; answers for this very array are taken as they are.
        name: how error messages call the environment.
    """

    def __init__(self, everyone: np.ndarray, name: str) -> None:
        self.name = name
        self._everyone = everyone
        self._states = np.full(len(everyone), _OVER, np.int8)
        self._columns: trees.Tree | None = None
        self._own: trees.Tree | None = None

    def expect(self, env_index: np.ndarray) -> None:
        """These sub-environments wait for an action."""
        self._states[env_index] = _WAITING

    def not_needed(self, env_index: np.ndarray) -> None:
        """These step on by themselves: whatever stands in their place is sent, and ignored."""
        self._states[env_index] = _ANSWERED

    def put(self, env_index: np.ndarray, actions: trees.Tree) -> None:
        """Actions for some of the waiting sub-environments."""
        states = self._states[env_index]
        if np.count_nonzero(states == _WAITING) != len(states):
            stray = int(env_index[states != _WAITING][0])
            raise EnvError(
                "An action for a sub-environment that is not waiting for one.",
                where=f"{self.name}, sub-environment {stray}",
                got="an answer already" if self._states[stray] == _ANSWERED else "an episode that is over or not begun",
                expected="one action per poll, between the reset and the end of an episode",
                fix="reset the sub-environment first, and answer each row that acts once",
            )
        self._states[env_index] = _ANSWERED
        if env_index is self._everyone:
            self._columns = actions
            return
        if self._own is None:
            # A valid action everywhere: sub-environments that step on by themselves are sent what stands in their place.
            self._own = trees.tree_map(lambda leaf: np.repeat(leaf[:1], len(self._everyone), axis=0), actions)
        trees.put(self._own, env_index, actions)
        self._columns = self._own

    def take(self) -> trees.Tree:
        """The columns of all actions."""
        if np.count_nonzero(self._states == _ANSWERED) != len(self._states):
            stray = int(np.flatnonzero(self._states != _ANSWERED)[0])
            waits = self._states[stray] == _WAITING
            raise EnvError(
                "A step without an action for every sub-environment.",
                where=f"{self.name}, sub-environment {stray}",
                got="no action" if waits else "an episode that is over or not begun",
                expected="a reset first, then an action for each sub-environment before the next poll",
                fix="send its action" if waits else "call reset_rows or try_reset after an episode's end",
            )
        self._states[:] = _OVER
        return self._columns
