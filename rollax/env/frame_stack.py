"""`FrameStack`: stacks the latest observations of each agent, in any kind of environment that is not in JAX."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from gymnasium import Space

from rollax.core import trees
from rollax.core.spaces import zeros
from rollax.env.base_env import BaseEnv
from rollax.env.env_wrapper import EnvWrapper
from rollax.env.multi_agent.multi_agent_env import space_of
from rollax.env.rows import Rows
from rollax.env.stacking import begun, pushed, stacked_space
from rollax.errors import SpaceError


class FrameStack(EnvWrapper):
    """Stacks the observations that an agent acts on, and the last one of its trajectory; see `rollax.env.stacking`.

    Args:
        count: k, observations in a stack.
    Raises:
        SpaceError: an agent has no observation space, or images that cannot be stacked; see `stacked_space`.
    """

    observation_space: Space | None = None
    observation_spaces: Mapping[Hashable, Space] | None = None

    def __init__(self, env: BaseEnv, count: int) -> None:
        super().__init__(env)
        self._count = count
        if env.observation_space is not None:
            self.observation_space = stacked_space(env.observation_space, count)
        if (by_agent := getattr(env, "observation_spaces", None)) is not None:
            self.observation_spaces = {agent: stacked_space(space, count) for agent, space in by_agent.items()}
        for agent in env.possible_agents or ():
            self._space_of(agent)
        self._stacks: dict[Hashable, trees.Tree] = {}
        """Agent, or None for all agents if they have a common space -> stacks, with one row per slot."""

    def __repr__(self) -> str:
        return f"FrameStack({self.env!r}, {self._count})"

    def poll_rows(self) -> Rows:
        return self._stacked(self.env.poll_rows())

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows | None:
        rows = self.env.reset_rows(env_index, seeds)
        return None if rows is None else self._stacked(rows)

    def _stacked(self, rows: Rows) -> Rows:
        """Returns the rows with stacked observations, except where the observation of a row is not used."""
        space, observing = self.env.observation_space, rows.observing()
        rows.stack(space)
        if space is not None and observing.all():
            return replace(rows, obs=self._push(rows, None, None, space))
        if isinstance(rows.obs, list):
            obs = list(rows.obs)
        else:
            assert self.observation_space is not None  # columns exist only with a common space
            obs = zeros(self.observation_space, len(rows))
        for agent, chosen in self._by_space(rows, observing.nonzero()[0]):
            stacks = self._push(rows, agent, chosen, self._space_of(agent))
            if isinstance(obs, list):
                for row, stack in zip(chosen.tolist(), trees.rows(stacks), strict=True):
                    obs[row] = stack
            else:
                trees.put(obs, chosen, stacks)
        return replace(rows, obs=obs)

    def _push(self, rows: Rows, agent: Hashable, chosen: np.ndarray | None, space: Space) -> trees.Tree:
        """Stores and returns the new stacks of some rows (None: all), whose observations have this space."""
        slots, obs = rows.places(chosen)[1], rows.observations(chosen, space)
        table = self._room(agent, int(rows.slots.max(initial=-1)) + 1, space)
        stacks = trees.index(table, slots)
        starts = (rows.starts if chosen is None else rows.starts[chosen]).nonzero()[0]
        if len(starts):
            trees.put(stacks, starts, begun(space, self._count, trees.index(obs, starts)))
        stacks = pushed(space, self._count, stacks, obs)
        # A slot may have two rows. The second begins the next trajectory; of two values for one index, `put` keeps the
        # last.
        trees.put(table, slots, stacks)
        return stacks

    def _room(self, agent: Hashable, slots: int, space: Space) -> trees.Tree:
        """The stacks of an agent's slots, in columns of at least `slots` rows."""
        table = self._stacks.get(agent)
        if table is None or trees.length(table) < slots:
            larger = zeros(stacked_space(space, self._count), 2 * slots)
            if table is not None:
                trees.copy_into(larger, 0, table)
            self._stacks[agent] = table = larger
        return table

    def _by_space(self, rows: Rows, chosen: np.ndarray) -> Iterator[tuple[Hashable, np.ndarray]]:
        """Yields `(agent, its rows)` of the chosen rows; `(None, all of them)` if all agents have a common space."""
        if self.env.observation_space is not None:
            yield None, chosen
            return
        agents = rows.agent_ids(chosen)
        for agent in dict.fromkeys(agents):
            yield agent, chosen[np.fromiter((one == agent for one in agents), bool, len(agents))]

    def _space_of(self, agent: Hashable) -> Space:
        if (space := space_of(self.env, "observation_space", agent)) is None:
            raise SpaceError.missing(
                "observation space", f"config key 'frame_stack', agent {agent!r}", "a space of the environment"
            ).fix("set observation_spaces of the environment, by agent")
        return space
