"""The two views of a `BaseEnv`, each derived from the other: as dicts, and as columns."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from rollax.core import spaces, trees
from rollax.env.checks import outline
from rollax.env.dict_rows import DictRows
from rollax.env.rows import ALL, Rows
from rollax.errors import EnvError

EnvDicts = tuple[dict, dict, dict, dict, dict, dict]
"""Observations, rewards, terminateds, truncateds, infos and given actions, each `env_id -> agent_id -> value`."""
_DICT = {dict}


class RowsOfDicts:
    """The columnar view of an environment with dicts; the methods are described in `BaseEnv`."""

    def __init__(self, env: Any) -> None:
        self._env, self._name = env, type(env).__name__
        self._takes_seeds = "seeds" in inspect.signature(env.try_reset).parameters
        self._collected: dict[int, dict] = {}  # the actions, until all policies have acted
        spaces_of_agents = getattr(env, "observation_spaces", None)
        settings = env.num_envs, env.observation_space, env.possible_agents, spaces_of_agents
        self._dict_rows = DictRows(self._name, *settings)

    def poll_rows(self) -> Rows:
        if self._collected:
            # All policies' actions are sent together, because an environment may step inside send_actions.
            collected, self._collected = self._collected, {}
            self._env.send_actions(collected)
        expected = "six dicts by env id, as in the docstring of BaseEnv.poll"
        return self._dict_rows.outcome(*self._checked(self._env.poll(), "poll()", 6, expected))

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        chosen = range(len(rows)) if selection is None else selection.tolist()
        for row, action in zip(chosen, trees.unstack(actions), strict=True):
            self._collected.setdefault(int(rows.env_index[row]), {})[rows.agent_of(row)] = action

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows | None:
        obs, infos = {}, {}
        for position, env_id in enumerate(env_index.tolist()):
            self._collected.pop(env_id, None)
            keywords = {"seeds": [seeds[position]]} if seeds is not None and self._takes_seeds else {}
            result = self._env.try_reset(env_id, **keywords)
            if result is None:
                self._dict_rows.drop(env_id)
            else:
                expected = f"None, or (obs, infos), two dicts by env id, with the key {env_id} in obs"
                first_obs, first_infos = self._checked(result, f"try_reset({env_id})", 2, expected, env_id)
                obs[env_id], infos[env_id] = first_obs[env_id], first_infos.get(env_id, {})
        return self._dict_rows.beginning(obs, infos) if obs else None

    def _checked(self, result: Any, call: str, count: int, expected: str, env_id: int | None = None) -> Sequence[dict]:
        right = isinstance(result, tuple) and len(result) == count and all(isinstance(part, dict) for part in result)
        right = right and all(_DICT.issuperset(map(type, part.values())) for part in result)
        if right and (env_id is None or env_id in result[0]):
            return result
        raise EnvError(
            f"{call.partition('(')[0]} did not return the required dicts.",
            f"{self._name}.{call}",
            f"tuple of {len(result)}: {result!r}" if isinstance(result, tuple) else outline(result),
        ).expected(expected, "return dicts of dicts: env id -> agent id -> value")


class DictsOfRows:
    """The dict view of an environment with columns; the methods are described in `BaseEnv`."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._last: Rows | None = None  # the rows of the last dicts

    def poll(self) -> EnvDicts:
        self._last = rows = self._env.poll_rows()
        return dicts_of(rows)

    def send_actions(self, actions: dict[int, dict]) -> None:
        rows = self._last
        if rows is None:
            where = type(self._env).__name__
            raise EnvError("Actions were sent before the first observation.", where, "no observation yet").expected(
                "try_reset() or poll() first", "call try_reset(), then send actions to the agents that it observed"
            )
        wanted = {(int(rows.env_index[row]), rows.agent_of(row)): row for row in np.flatnonzero(rows.acts).tolist()}
        pairs = {(env_id, agent): action for env_id, given in actions.items() for agent, action in given.items()}
        unknown = [key for key in pairs if key not in wanted]
        if unknown:
            where = f"sub-environment {unknown[0][0]}, agent {unknown[0][1]!r}"
            raise EnvError.not_waiting("an agent", where, pairs[unknown[0]]).expected(
                f"actions for {sorted(map(str, wanted))}",
                "send one action for each agent of the last obs whose episode continues",
            )
        for key, action in pairs.items():
            # One row at a time, because agents may have different action spaces.
            self._env.send_rows(rows, np.array([wanted[key]]), _one_row(action, self._env.action_space))

    def try_reset(self, env_id: int | None, seeds: Sequence[int | None] | None) -> tuple[dict, dict] | None:
        rows = self._env.reset_rows(np.arange(self._env.num_envs) if env_id is None else np.array([env_id]), seeds)
        if rows is None:
            return None
        # The new episode's rows are added to the kept rows of the other sub-environments.
        self._last = rows if env_id is None or self._last is None else Rows.concat(self._last, rows)
        obs, _, _, _, infos, _ = dicts_of(rows)
        return obs, infos


def dicts_of(rows: Rows) -> EnvDicts:
    """The six dicts of `BaseEnv.poll` with the contents of `rows`."""
    obs, rewards, terminateds, truncateds, infos, given = ({} for _ in range(6))
    info_list = rows.info_list()
    # Copies: a native environment may write its next observations into the same arrays.
    values = rows.obs if isinstance(rows.obs, list) else trees.rows(trees.tree_map(np.array, rows.obs))
    for row, env_id in enumerate(rows.env_index.tolist()):
        agent = rows.agent_of(row)
        for part in (obs, rewards, terminateds, truncateds, infos):
            part.setdefault(env_id, {})
        if values[row] is not None:
            obs[env_id][agent] = values[row]
        rewards[env_id][agent] = None if rows.starts[row] else float(rows.rewards[row])
        terminateds[env_id][agent] = bool(rows.terminateds[row])
        truncateds[env_id][agent] = bool(rows.truncateds[row])
        infos[env_id][agent] = info_list[row]
        if rows.given_actions and row in rows.given_actions:
            given.setdefault(env_id, {})[agent] = rows.given_actions[row]
    ended, lost = rows.ended_envs.tolist(), rows.dropped_envs.tolist()
    for env_id in dict.fromkeys((*obs, *ended, *lost)):
        for part in (obs, rewards, terminateds, truncateds, infos):
            part.setdefault(env_id, {})
        cut = env_id in lost or (env_id in ended and any(truncateds[env_id].values()))
        terminateds[env_id][ALL] = env_id in ended and not cut
        truncateds[env_id][ALL] = cut
    return obs, rewards, terminateds, truncateds, infos, given


def _one_row(action: Any, space: Space | None) -> trees.Tree:
    """One action as columns of one row."""
    if space is not None:
        return spaces.stack(space, [action])
    if isinstance(action, dict):
        return {key: _one_row(part, None) for key, part in action.items()}
    if isinstance(action, tuple):
        return tuple(_one_row(part, None) for part in action)
    return np.asarray(action)[None]
