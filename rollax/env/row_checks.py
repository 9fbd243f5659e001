"""Checks on the rows of a columnar `BaseEnv`. An adapter of other environments checks their results itself instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollax.core.introspection import defining_class
from rollax.core.spaces import check_space
from rollax.env import checks
from rollax.env.agent_checks import IdlePolls
from rollax.env.base_env import BaseEnv
from rollax.env.checks import ObservationChecks
from rollax.env.copies import EnvCopies
from rollax.env.rows import COLUMNS, Rows
from rollax.errors import EnvError


def with_checked_rows(copies: EnvCopies) -> BaseEnv:
    """Returns the environment itself; unless it `adapts` or has the dict view, its rows are checked from now on."""
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
        self._name, self._space = type(env).__name__, env.observation_space
        self._checks = ObservationChecks(env.num_envs)
        self._idle = IdlePolls(self._name)
        self._alive = np.zeros(64, bool)  # by slot

    def __call__(self, rows: Any, call: str) -> Rows:
        """The rows, with observations in the dtypes of the space; `EnvError` for an invalid column."""
        here = f"{self._name}, {call}"
        if not isinstance(rows, Rows):
            raise _wrong("The call did not return Rows.", here, checks.outline(rows), "rollax.Rows")
        count = len(rows.slots)
        columns = {name: getattr(rows, name) for name in COLUMNS}
        optional = {"agents": rows.agents, "infos": rows.infos, "obs": rows.obs if isinstance(rows.obs, list) else None}
        columns |= {name: column for name, column in optional.items() if not (column is None or callable(column))}
        for name, column in columns.items():
            _check_length(name, column, count, here)

        def where(row: int) -> str:
            return f"{self._name}, sub-environment {rows.env_index[row]}, agent {rows.agent_of(row)!r}, {call}"

        rows.rewards = checks.reward_column(rows.rewards, where)
        for name in COLUMNS[3:]:
            setattr(rows, name, checks.flag_column(getattr(rows, name), name.removesuffix("s"), where))
        over = rows.terminateds | rows.truncateds
        _refuse(rows.acts & over, "A row both acts and has ended.", where, "acts and a flag, both True", "one of them")
        if rows.infos is not None and not callable(rows.infos):
            checks.check_infos(rows.infos, where)
        rows.name = self._name
        self._check_trajectories(rows, over, where)
        if isinstance(rows.obs, list):
            _refuse(rows.acts & ~rows.observing(), "A row acts without an observation.", where, None, "one")
            if self._space is not None and not any(obs is None for obs in rows.obs):
                rows.obs = self._checks.stacked(self._space, rows.obs, rows.env_index, where)
        elif self._space is not None:
            rows.obs = self._checks.columns(self._space, rows.obs, count, where)
        return rows

    def _check_trajectories(self, rows: Rows, over: np.ndarray, where: checks.Where) -> None:
        """Checks that outcomes belong to trajectories that have begun, and that rows with `in_order` are in order."""
        counted = np.arange(len(rows))
        ordered = {**({"env_index": rows.env_index} if rows.agents is None else {}), "slots": rows.slots}
        if rows.in_order and not all(np.array_equal(index, counted) for index in ordered.values()):
            got = ", ".join(f"{name} {index}" for name, index in ordered.items())
            raise _wrong("The rows are not in order.", where(0), got, "0, 1, 2, ... in each, or in_order=False")
        top = int(rows.slots.max(initial=-1))
        if top >= len(self._alive):
            self._alive = np.append(self._alive, np.zeros(2 * top, bool))
        unborn, what = ~(rows.starts | self._alive[rows.slots]), "A row belongs to a trajectory that has not started."
        _refuse(unborn, what, where, "starts: False", "a first row that starts")
        self._alive[rows.slots[over]] = False
        self._alive[rows.slots[rows.starts]] = True

    def polled(self, rows: Rows) -> None:
        """Records ended first episodes, and sub-environments in which no agent can act."""
        self._checks.polled(rows.ended_envs)
        acting = rows.acting()
        if np.count_nonzero(acting) == len(rows) and not self._idle.counts:
            return
        acting_in = {*rows.env_index[acting].tolist(), *rows.ended_envs.tolist()}
        for env_id in acting_in & self._idle.counts.keys():
            self._idle.acting(env_id)
        for env_id in set(rows.env_index.tolist()) - acting_in:
            agents = [rows.agent_of(row) for row in np.flatnonzero(rows.env_index == env_id).tolist()]
            self._idle.idle(env_id, agents, ())


def _check_length(name: str, column: Any, count: int, where: str) -> None:
    if not hasattr(column, "__len__") or len(column) != count:
        got = f"{len(column)} of them" if hasattr(column, "__len__") else checks.outline(column)
        raise _wrong(f"{name} has the wrong length.", where, got, f"{count}, one for each row")


def _refuse(rows: np.ndarray, what: str, where: checks.Where, got: Any, expected: str) -> None:
    """Raises an error about the first of the marked rows, if there are any."""
    if rows.any():
        raise _wrong(what, where(int(rows.argmax())), got, expected)


def _wrong(what: str, where: str, got: Any, expected: str) -> EnvError:
    return EnvError(what, where, got).expected(expected, "correct the columns of the Rows that the environment returns")
