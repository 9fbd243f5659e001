"""A `VectorEnv` as a `BaseEnv`: each poll returns columns, with a row for each sub-environment that stepped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Tuple

from rollax.core import trees
from rollax.core.spaces import check_space
from rollax.env import checks
from rollax.env.adapters import has_base
from rollax.env.base_env import BaseEnv
from rollax.env.checks import ObservationChecks
from rollax.env.copies import EnvCopies
from rollax.env.rows import NO_ENVS, Rows
from rollax.env.vector import SteppedInTurn, VectorEnv
from rollax.errors import EnvError, RollaxError

_OVER, _WAITING, _ANSWERED = range(3)
_DM_ENVIRONMENT = "rollax.env.dm_environment.DMEnvironment"  # its seed is an argument of its constructor


class VectorBaseEnv(BaseEnv):
    """Steps all sub-environments at each poll, with the actions sent since the last poll.

    The sampler resets sub-environments whose episode has ended, with `reset_rows`.

    Args:
        copies: a `VectorEnv`, or single-agent environments, which are stepped in turn.
    """

    adapts = True
    in_lockstep = True

    def __init__(self, copies: EnvCopies) -> None:
        is_vector = isinstance(copies.existing[0], VectorEnv)
        env: Any = copies.vector() if is_vector else SteppedInTurn(copies)
        self.env = env
        self.name = env.name or type(getattr(env, "as_written", env)).__name__
        for kind in ("observation_space", "action_space"):
            check_space(getattr(env, kind, None), f"{self.name}.{kind}")
        self.num_envs = env.num_envs
        self.seeds_every_episode = env.seeds_every_episode
        if not is_vector:
            self.repeats = not has_base(getattr(env.envs[0], "unwrapped", env.envs[0]), _DM_ENVIRONMENT)
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self._everyone = np.arange(self.num_envs)
        self._answers = ActionBuffer(self._everyone, self.name)
        self._resting, self._stepping = NO_ENVS, self._everyone
        self._rows = SingleAgentRows(self.name, self.observation_space, self.num_envs)

    def poll_rows(self) -> Rows:
        if len(self._resting):
            self._answers.not_needed(self._resting)
        actions = trees.unstack(self._answers.take())
        try:
            result = self.env.vector_step(actions)
        except RollaxError:
            raise
        except Exception as error:
            raise checks.failed(error, "vector_step()", self.name, actions) from error
        index, lost = self._stepping, NO_ENVS
        if len(self.env.lost):
            lost = np.array(self.env.lost)
            index = np.setdiff1d(index, lost)
        obs, rewards, terminateds, truncateds, infos = checks.vector_step(result, len(index), self.name)
        if not isinstance(infos, list | tuple) or len(infos) != len(index):
            checks.check_count("infos", infos, len(index), self.name)
        rows = self._rows.stepped(index, obs, rewards, terminateds, truncateds, infos)
        rows.dropped_envs = lost
        self._answers.expect(index[rows.acts] if len(rows.ended_envs) else index)
        return rows

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        self._answers.put(rows, selection, actions)

    def rest_rows(self, env_index: np.ndarray) -> bool:
        if not isinstance(self.env, SteppedInTurn):
            return False
        self._rest(self.env, np.union1d(self._resting, env_index))
        return True

    def _rest(self, env: SteppedInTurn, env_index: np.ndarray) -> None:
        self._resting, self._stepping = env_index, np.setdiff1d(self._everyone, env_index)
        env.resting = frozenset(env_index.tolist())

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows:
        if isinstance(self.env, SteppedInTurn) and len(self._resting):
            self._rest(self.env, np.setdiff1d(self._resting, env_index))
        indices = env_index.tolist()
        of_all = indices == list(range(self.num_envs))
        call = "vector_reset()" if of_all else "reset_at()"
        with checks.failures_named(call, self.name):
            if of_all:
                result: Any = self.env.vector_reset(seeds)
            else:
                pairs = [self.env.reset_at(i, None if seeds is None else seeds[n]) for n, i in enumerate(indices)]
                checked = [checks.check_reset(pair, self._where(i)) for i, pair in zip(indices, pairs, strict=True)]
                result = [obs for obs, _ in checked], [info for _, info in checked]
        if not (isinstance(result, tuple | list) and len(result) == 2):
            raise (
                EnvError.not_returned("vector_reset()", "(obs, infos)", self.name, checks.outline(result))
                .fix("return obs, [{}] * num_envs")
                .expected("observations and infos, one entry for each sub-environment in both")
            )
        obs, infos = result
        checks.check_count("infos", infos, len(indices), f"{self.name}, {call}")
        rows = self._rows.started(env_index, obs, infos)
        self._answers.expect(env_index)
        return rows

    def get_sub_environments(self) -> list[Any]:
        return self.env.get_sub_environments()

    def try_render(self, env_id: int | None = None) -> Any:
        return self.env.try_render_at(env_id or 0)

    def stop(self) -> None:
        with checks.failures_named("close()", self.name):
            self.env.close()

    def _where(self, row: int) -> str:
        return f"{self.name}, sub-environment {row}"


class SingleAgentRows:
    """The rows of sub-environments with one agent each, from results that it checks; slot i is sub-environment i.

    Args:
        name: of the environment, in error messages.
        space: the observation space.
        num_envs: the number of sub-environments.
    """

    def __init__(self, name: str, space: Any, num_envs: int) -> None:
        self.name, self._space, self._num_envs = name, space, num_envs
        self._none, self._all = np.zeros(num_envs, bool), np.ones(num_envs, bool)
        self._checks = ObservationChecks(num_envs)

    def started(self, env_index: np.ndarray, obs: Any, infos: Sequence[dict]) -> Rows:
        """The rows after resets: single observations in a list, or columns, of these sub-environments."""
        return Rows.starting(env_index, env_index, self._columns(obs, env_index, infos, "reset()"), infos=infos)

    def stepped(
        self, env_index: np.ndarray, obs: Any, rewards: Any, terminateds: Any, truncateds: Any, infos: Sequence[dict]
    ) -> Rows:
        """The rows after steps of these sub-environments."""
        where = self._where(env_index)
        terms = checks.flag_column(terminateds, "terminated", where)
        truncs = checks.flag_column(truncateds, "truncated", where)
        rewards = checks.reward_column(rewards, where)
        columns = self._columns(obs, env_index, infos, "step()")
        count = len(env_index)
        waiting, ended = self._all[:count], NO_ENVS
        if np.count_nonzero(terms) or np.count_nonzero(truncs):
            waiting = ~(terms | truncs)
            ended = env_index[~waiting]
            # A simulator may write the next episode into the returned arrays.
            terms, truncs, rewards = terms.copy(), truncs.copy(), rewards.copy()
            if not self._is_list(obs):
                columns = trees.tree_map(np.copy, columns)
        self._checks.polled(ended)
        outcomes = rewards, terms, truncs, self._none[:count], waiting, ended
        return Rows(env_index, env_index, columns, *outcomes, infos=infos, in_order=count == self._num_envs)

    def _is_list(self, obs: Any) -> bool:
        """True for single observations, False for columns; for a Tuple space, a tuple holds columns."""
        return isinstance(obs, list) or (isinstance(obs, tuple) and not isinstance(self._space, Tuple))

    def _columns(self, obs: Any, env_index: np.ndarray, infos: Sequence[dict], call: str) -> trees.Tree:
        where = self._where(env_index, call)
        checks.check_infos(infos, where)
        if not self._is_list(obs):
            return self._checks.columns(self._space, obs, len(env_index), where)
        if len(obs) != len(env_index):
            checks.check_count("observations", obs, len(env_index), f"{self.name}, {call}")
        return self._checks.stacked(self._space, obs, env_index, where)

    def _where(self, env_index: np.ndarray, *call: str) -> checks.Where:
        return lambda row: ", ".join((self.name, f"sub-environment {env_index[row]}", *call))


class ActionBuffer:
    """Collects the actions of sub-environments that step together, until the next step takes all of them."""

    def __init__(self, everyone: np.ndarray, name: str) -> None:
        self.name = name
        self._everyone = everyone
        self._states = np.full(len(everyone), _OVER, np.int8)
        self._state: int | None = _OVER  # the state that all have in common; if None, see `_states`
        self._columns: trees.Tree | None = None
        self._own: trees.Tree | None = None
        self._all_at_once = False

    def expect(self, env_index: np.ndarray) -> None:
        """Marks sub-environments as waiting for an action."""
        self._set(env_index, _WAITING)

    def not_needed(self, env_index: np.ndarray) -> None:
        """Marks sub-environments that step without an action; any action sent for them is ignored."""
        self._set(env_index, _ANSWERED)

    def _set(self, env_index: np.ndarray, state: int) -> None:
        if len(env_index) == len(self._states):
            self._state = state
        elif len(env_index):
            self._each()[env_index] = state

    def _each(self) -> np.ndarray:
        """The writable states of all sub-environments."""
        if self._state is not None:
            self._states[:] = self._state
            self._state = None
        return self._states

    def put(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        """Stores actions of some of the waiting sub-environments; see `BaseEnv.send_rows`."""
        of_all = selection is None and rows.in_order and len(rows) == len(self._states)
        env_index = rows.env_index if selection is None else rows.env_index.take(selection)
        if not (of_all and self._state == _WAITING):
            self._check_waiting(env_index)
            self._states[env_index] = _ANSWERED
        if of_all:
            self._columns, self._all_at_once, self._state = actions, True, _ANSWERED
            return
        if self._own is None:
            # A valid action everywhere, because sub-environments that step without an action also get one.
            self._own = trees.tree_map(lambda leaf: np.repeat(leaf[:1], len(self._everyone), axis=0), actions)
        if self._all_at_once:
            # Some were reset after all had an action: the actions of the others are kept.
            trees.put(self._own, self._everyone, self._columns)
            self._all_at_once = False
        trees.put(self._own, env_index, actions)
        self._columns = self._own

    def _check_waiting(self, env_index: np.ndarray) -> None:
        states = self._each().take(env_index)
        if np.count_nonzero(states == _WAITING) != len(states):
            stray = int(env_index[states != _WAITING][0])
            raise EnvError.not_waiting(
                "a sub-environment",
                f"{self.name}, sub-environment {stray}",
                "a second action" if self._states[stray] == _ANSWERED else checks.NO_EPISODE,
                "one action per poll, between the reset and the end of an episode",
            )

    def take(self) -> trees.Tree:
        """Returns the actions of all sub-environments as columns; `EnvError` if an action is missing."""
        if self._state != _ANSWERED and np.count_nonzero(self._each() == _ANSWERED) != len(self._states):
            stray = int(np.flatnonzero(self._states != _ANSWERED)[0])
            waits = self._states[stray] == _WAITING
            what, got = "A step lacks the action of a sub-environment.", "no action" if waits else checks.NO_EPISODE
            raise EnvError(what, f"{self.name}, sub-environment {stray}", got).expected(
                "a reset first, then an action for each sub-environment before the next poll",
                "send its action" if waits else "call reset_rows or try_reset after an episode's end",
            )
        self._state = _OVER
        self._all_at_once = False
        # A copy, because the next step reuses these arrays, and an environment may keep its action or write into it.
        return trees.copied(self._columns) if self._columns is self._own else self._columns
