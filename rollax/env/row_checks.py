"""Checks on the rows of a columnar `BaseEnv`; one that adapts other environments checks what they return itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollax.core.overrides import defining_class
from rollax.core.spaces import check_space
from rollax.env import checks
from rollax.env.base_env import BaseEnv
from rollax.env.checks import IdlePolls
from rollax.env.copies import EnvCopies
from rollax.env.observations import ObservationChecks
from rollax.env.rows import Rows
from rollax.errors import EnvError

_COLUMNS = ("env_index", "slots", "rewards", "terminateds", "truncateds", "starts", "acts")


def with_checked_rows(copies: EnvCopies) -> BaseEnv:
    """Returns the environment itself; from now on the rows of its columnar view are checked."""
    env: BaseEnv = copies.vector()
    for kind in ("observation_space", "action_space"):
        if getattr(env, kind) is not None:
            check_space(getattr(env, kind), f"{type(env).__name__}.{kind}")
    view = defining_class(type(env), "poll_rows")
    if view is not BaseEnv and not vars(view).get("adapts") and "poll_rows" not in vars(env):
        check, poll, reset = RowChecks(env), env.poll_rows, env.reset_rows

        def reset_rows(env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows | None:
            rows = reset(env_index, seeds)
            return None if rows is None else check(rows, "reset_rows()")

        def poll_rows() -> Rows:
            rows = check(poll(), "poll_rows()")
            check.polled(rows)
            return rows

        env.poll_rows, env.reset_rows = poll_rows, reset_rows
    return env


class RowChecks:
    """Checks rows: in full during each sub-environment's first episode, in bulk always."""

    def __init__(self, env: BaseEnv) -> None:
        self._name, space = type(env).__name__, env.observation_space
        self._checks = None if space is None else ObservationChecks(space, env.num_envs)
        self._idle = IdlePolls(self._name)
        self._alive = np.zeros(64, bool)  # by slot

    def __call__(self, rows: Any, call: str) -> Rows:
        """The rows, with observations in the dtypes of the space; `EnvError` for an invalid column."""
        if not isinstance(rows, Rows):
            raise self._error("The call did not return Rows.", call, checks.outline(rows), "rollax.Rows")
        count = len(rows.slots)
        for name in _COLUMNS:
            self._check_length(name, getattr(rows, name), count, call)
        if rows.agents is not None:
            self._check_length("agents", rows.agents, count, call)

        def where(row: int) -> str:
            return f"{self._name}, sub-environment {rows.env_index[row]}, agent {rows.agent_of(row)!r}, {call}"

        rows.rewards = checks.reward_column(rows.rewards, where)
        for name in _COLUMNS[3:]:
            setattr(rows, name, checks.flag_column(getattr(rows, name), name.removesuffix("s"), where))
        stray = rows.acts & (rows.terminateds | rows.truncateds)
        if stray.any():
            where_ = where(int(stray.argmax()))
            raise self._error("A row both acts and has ended.", where_, "acts and a flag, both True", "one of them")
        if rows.infos is not None and not callable(rows.infos):
            self._check_length("infos", rows.infos, count, call)
            checks.check_infos(rows.infos, where)
        rows.name = self._name
        self._check_trajectories(rows, where)
        if isinstance(rows.obs, list):
            self._check_length("obs", rows.obs, count, call)
            unseen = rows.acts & ~rows.observing()
            if unseen.any():
                raise self._error("A row acts without an observation.", where(int(unseen.argmax())), None, "one")
            if self._checks is not None and not any(obs is None for obs in rows.obs):
                rows.obs = self._checks.stacked(rows.obs, rows.env_index, where)
        elif self._checks is not None:
            rows.obs = self._checks.columns(rows.obs, count, where)
        return rows

    def _check_trajectories(self, rows: Rows, where: checks.Where) -> None:
        """Checks that outcomes belong to trajectories that have begun, and that rows with `in_order` are in order."""
        counted = np.arange(len(rows))
        ordered = {**({"env_index": rows.env_index} if rows.agents is None else {}), "slots": rows.slots}
        if rows.in_order and not all(np.array_equal(index, counted) for index in ordered.values()):
            got = ", ".join(f"{name} {index}" for name, index in ordered.items())
            raise self._error("The rows are not in order.", where(0), got, "0, 1, 2, ... in each, or in_order=False")
        top = int(rows.slots.max(initial=-1))
        if top >= len(self._alive):
            self._alive = np.append(self._alive, np.zeros(2 * top, bool))
        unborn = ~(rows.starts | self._alive[rows.slots])
        if unborn.any():
            where_ = where(int(unborn.argmax()))
            raise self._error(
                "A row belongs to a trajectory that has not started.",
                where_,
                "starts: False",
                "a first row that starts",
            )
        self._alive[rows.slots[rows.terminateds | rows.truncateds]] = False
        self._alive[rows.slots[rows.starts]] = True

    def polled(self, rows: Rows) -> None:
        """Records ended first episodes, and sub-environments in which no agent can act."""
        if self._checks is not None:
            self._checks.first_episodes.polled(rows.ended_envs.tolist())
        self._count_idle(rows)

    def _count_idle(self, rows: Rows) -> None:
        acting = rows.acting()
        if np.count_nonzero(acting) == len(rows) and not self._idle.counts:
            return
        acting_in = {*rows.env_index[acting].tolist(), *rows.ended_envs.tolist()}
        for env_id in acting_in & self._idle.counts.keys():
            self._idle.acting(env_id)
        for env_id in set(rows.env_index.tolist()) - acting_in:
            agents = [rows.agent_of(row) for row in np.flatnonzero(rows.env_index == env_id).tolist()]
            self._idle.idle(env_id, agents, ())

    def _check_length(self, name: str, column: Any, count: int, where: str) -> None:
        if not hasattr(column, "__len__") or len(column) != count:
            expected = f"{count}, one for each row"
            got = f"{len(column)} of them" if hasattr(column, "__len__") else checks.outline(column)
            raise self._error(f"{name} has the wrong length.", where, got, expected)

    def _error(self, what: str, where: str, got: Any, expected: str) -> EnvError:
        where = where if where.startswith(self._name) else f"{self._name}, {where}"
        return EnvError(what, where, got).expected(
            expected, "correct the columns of the Rows that the environment returns"
        )
