"""Rows under construction."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import repeat
from operator import is_
from typing import Any

import numpy as np

from rollax.env import checks
from rollax.env.rows import Rows
from rollax.errors import EnvError

_NO_INFO: dict = {}


Flags = tuple[list[bool], list[bool], list[bool]]
"""The columns terminated, truncated and starting of some rows."""


@dataclass(slots=True)
class RowBuilder:
    """Collects the rows of one poll, sub-environment by sub-environment."""

    name: str
    env_index: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    obs: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    flags: list[tuple[int, Flags]] = field(default_factory=list)  # each with the first row that it belongs to
    agents: list[Hashable] = field(default_factory=list)
    infos: list[dict] = field(default_factory=list)
    given: dict[int, Any] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    silent: int = 0  # rows of agents that are not in obs

    def extend(
        self,
        env_id: int,
        agents: list,
        values: list,
        slots: list[int],
        rewards: list,
        infos: dict,
        flags: Flags | None = None,
    ) -> None:
        """Appends rows of one sub-environment; `flags` is None if all are False."""
        count = len(agents)
        if flags is not None:
            self.flags.append((len(self.agents), flags))
        self.env_index.extend([env_id] * count)
        self.slots.extend(slots)
        self.obs.extend(values)
        self.rewards.extend(rewards)
        self.agents.extend(agents)
        self.infos.extend([infos.get(agent, _NO_INFO) for agent in agents] if infos else [_NO_INFO] * count)

    def _where(self, row: int) -> str:
        return f"{self.name}, sub-environment {self.env_index[row]}, agent {self.agents[row]!r}"

    def rows(self) -> Rows:
        """The rows. A row waits for an action if it has an observation and its trajectory has not ended."""
        flags = np.zeros((3, len(self.agents)), bool)
        for start, columns in self.flags:
            flags[:, start : start + len(columns[0])] = columns
        terminateds, truncateds, starts = flags
        acts = ~(terminateds | truncateds)
        without_obs = sum(map(is_, self.obs, repeat(None)))
        if without_obs != self.silent:
            raise self._none_observed()
        if without_obs:
            acts &= np.array([value is not None for value in self.obs], bool)
        acts[list(self.given)] = False
        return Rows(
            np.array(self.env_index, np.int64),
            np.array(self.slots, np.int64),
            self.obs,
            checks.reward_column(self.rewards, self._where),
            terminateds,
            truncateds,
            starts,
            acts,
            np.array(self.ended, np.int64),
            self.agents,
            self.infos,
            self.given or None,
            name=self.name,
        )

    def _none_observed(self) -> EnvError:
        row = next(row for row, value in enumerate(self.obs) if value is None)
        return EnvError(
            "An observation that is None.",
            where=self._where(row),
            got=None,
            expected="an observation, which requests an action",
            fix="omit agents that do not act from obs",
        )
