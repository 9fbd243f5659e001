"""The rows of some sub-environments, from what their single steps and resets returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollax import trees
from rollax.env import checks
from rollax.env.dict_rows import DictRows
from rollax.env.multi_agent.multi_agent_env import checked_reset, checked_step
from rollax.env.observations import ObservationChecks
from rollax.env.remote.env_host import EnvFacts
from rollax.env.rows import NO_ENVS, Rows


class OneAgentEach:
    """Sub-environments of one agent: the slot is the sub-environment's number.

    Args:
        facts: of the sub-environments.
        num_envs: how many there are.
    """

    def __init__(self, facts: EnvFacts, num_envs: int) -> None:
        self._name = facts.name
        space: Any = facts.observation_space
        self._checks = ObservationChecks(space, num_envs)

    def beginning(self, results: dict[int, Any]) -> Rows:
        """The rows of sub-environments that were reset: number -> `(obs, info)`."""
        index = np.array(list(results), np.int64)
        pairs = [checks.check_reset(result, f"{self._where(i)}, reset()") for i, result in results.items()]
        obs, infos = zip(*pairs, strict=True)
        return Rows.starting(index, index, self._columns(obs, index, infos, "reset()"), infos=infos)

    def outcome(self, results: dict[int, Any]) -> Rows:
        """The rows of sub-environments that were stepped: number -> what `step` returned."""
        for i, result in results.items():
            checks.check_step(result, self._where(i))
        index = np.array(list(results), np.int64)
        obs, rewards, terminateds, truncateds, infos = zip(*results.values(), strict=True) if results else ((),) * 5

        def where(row: int) -> str:
            return self._where(int(index[row]))

        terms = checks.flag_column(terminateds, "terminated", where)
        truncs = checks.flag_column(truncateds, "truncated", where)
        over = terms | truncs
        ended = index[over] if over.any() else NO_ENVS
        columns = self._columns(obs, index, infos, "step()")
        amounts = checks.reward_column(rewards, where)
        if self._checks.first_episodes.indices:
            self._checks.first_episodes.polled(ended.tolist())
        no, in_order = np.zeros(len(index), bool), list(results) == list(range(len(index)))
        return Rows(index, index, columns, amounts, terms, truncs, no, ~over, ended, infos=infos, in_order=in_order)

    def _columns(self, obs: Sequence[Any], index: np.ndarray, infos: Sequence[dict], call: str) -> trees.Tree:
        def where(row: int) -> str:
            return f"{self._where(int(index[row]))}, {call}"

        checks.check_infos(infos, where)
        return self._checks.stacked(obs, index, where)

    def _where(self, index: int) -> str:
        return f"{self._name}, sub-environment {index}"


class ManyAgents:
    """Sub-environments of many agents.

    Args:
        facts: of the sub-environments.
        num_envs: how many there are.
    """

    def __init__(self, facts: EnvFacts, num_envs: int) -> None:
        self._name = facts.name
        spaces = (facts.observation_space, facts.possible_agents, facts.observation_spaces)
        self._rows = DictRows(facts.name, num_envs, *spaces)

    def beginning(self, results: dict[int, Any]) -> Rows:
        """The rows of sub-environments that were reset: number -> `(obs, infos)`."""
        checked = {i: checked_reset(result, self._where(i)) for i, result in results.items()}
        obs, infos = ({i: parts[place] for i, parts in checked.items()} for place in range(2))
        return self._rows.beginning(obs, infos)

    def outcome(self, results: dict[int, Any]) -> Rows:
        """The rows of sub-environments that were stepped: number -> what `step` returned."""
        return self._rows.outcome_of({i: checked_step(result, self._where(i)) for i, result in results.items()})

    def _where(self, index: int) -> str:
        return f"{self._name}, sub-environment {index}"
