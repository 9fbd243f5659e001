"""Random play of any `BaseEnv`, in the order of the sampler's calls."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from rollax.core import trees
from rollax.core.spaces import ACTION_MASK, check_space, choices, stack, walk
from rollax.env.base_env import BaseEnv
from rollax.env.checks import check_observation
from rollax.env.rows import Rows
from rollax.errors import EnvError, SpaceError

SpacesOf = Callable[[Hashable], tuple[Space, Space]]


class Moment(NamedTuple):
    """What one agent received at one poll; `reward` is None with the first observation of a trajectory."""

    agent: Hashable
    obs: Any
    reward: float | None
    over: bool


class RandomPlayer:
    """Plays with random valid actions and checks the results.

    The actions of a sub-environment depend only on the seed, its number and its own observations. `spaces_of` returns
    the spaces of an agent, if the policies define them.
    """

    def __init__(self, env: BaseEnv, seed: int, spaces_of: SpacesOf | None = None) -> None:
        self.env = env
        self.steps = 0
        """Steps of all sub-environments together."""
        self.ended: Counter[int] = Counter()
        """Sub-environment -> number of ended episodes."""
        self.lengths: list[int] = []
        """Steps of the ended episodes."""
        self.truncates = False
        """Whether any agent has been truncated so far."""
        self.agents: dict[Hashable, None] = {}
        """All agents so far, in the order of appearance."""
        self.starts_by_itself = False
        self._seed = seed
        self._spaces_of = spaces_of
        self._sources: dict[int, RandomActions] = {}
        self._spaces: dict[tuple[str, Hashable], Space] = {}
        self._rows: Rows | None = None
        self._length: Counter[int] = Counter()  # sub-environment -> steps of its running episode

    def begin(self, seeds: Sequence[int | None] | None) -> Rows:
        """Resets all sub-environments and returns the first rows."""
        rows = self.env.reset_rows(np.arange(self.env.num_envs), seeds)
        self.starts_by_itself = rows is None
        self._rows = self.env.poll_rows() if rows is None else rows
        self._look_at(self._rows)
        return self._rows

    def step(self) -> Rows:
        """Acts, polls, and resets ended sub-environments; returns the polled rows and the reset rows."""
        assert self._rows is not None
        self._act(self._rows)
        rows = self.env.poll_rows()
        stepped = np.unique(rows.env_index[~rows.starts]).tolist()
        self.steps += len(stepped)
        self._length.update(stepped)
        over = rows.over_envs()
        # An external environment has num_envs 1: the episodes of all of its sub-environments count together.
        self.ended.update((rows.ended_envs % self.env.num_envs).tolist())
        self.lengths += [self._length.pop(index, 0) for index in rows.ended_envs.tolist()]
        self.truncates |= bool(rows.truncateds.any())
        # Checked before the reset, which may write into the same arrays.
        self._look_at(rows)
        started = self.env.reset_rows(over) if len(over) else None
        if started is not None:
            self._look_at(started)
            rows = Rows.concat(rows, started)
        self._rows = rows
        return rows

    def _act(self, rows: Rows) -> None:
        by_space: dict[int, tuple[Space, list[int], list[Any]]] = {}
        for row in rows.acts.nonzero()[0].tolist():
            env_id, agent = int(rows.env_index[row]), rows.agent_of(row)
            if env_id not in self._sources:
                seeds = np.random.SeedSequence((self._seed, env_id))
                self._sources[env_id] = RandomActions(int(seeds.generate_state(1)[0]))
            space = self._space("action_space", agent)
            action = self._sources[env_id].draw(space, _obs_of(rows, row), _where(rows, row))
            _, chosen, actions = by_space.setdefault(id(space), (space, [], []))
            chosen.append(row)
            actions.append(action)
        for space, chosen, actions in by_space.values():
            self.env.send_rows(rows, np.array(chosen), stack(space, actions))

    def _look_at(self, rows: Rows) -> None:
        """Records the agents and checks the observations, as the sampler does."""
        self.agents.update(dict.fromkeys(rows.agent_of(row) for row in range(len(rows))))
        if isinstance(rows.obs, list):
            for row, obs in enumerate(rows.obs):
                if obs is not None:
                    space = self._space("observation_space", rows.agent_of(row))
                    check_observation(space, obs, _where(rows, row))

    def _space(self, kind: str, agent: Hashable) -> Space:
        """Returns the space of one agent: the common space, its own space, or its policy's space."""
        space = getattr(self.env, kind)
        if space is not None:
            return space
        key = kind, agent
        if key not in self._spaces:
            by_agent = getattr(self.env, f"{kind}s", None) or {}
            space = by_agent.get(agent)
            if space is None and self._spaces_of is not None:
                space = self._spaces_of(agent)[kind == "action_space"]
            if space is None:
                raise SpaceError.no_space(kind, f"{type(self.env).__name__}.{kind}, agent {agent!r}").fix(
                    "set it in the env, or pass spaces_of, a function from an agent id to its spaces"
                )
            check_space(space, f"{kind} of agent {agent!r}")
            self._spaces[key] = space
        return self._spaces[key]


def moments_of(rows: Rows, env_id: int) -> list[Moment]:
    """Returns copies of what the agents of one sub-environment received."""
    return [
        Moment(
            rows.agent_of(row),
            trees.tree_map(np.array, _obs_of(rows, row)),
            None if rows.starts[row] else float(rows.rewards[row]),
            bool(rows.terminateds[row] or rows.truncateds[row]),
        )
        for row in np.flatnonzero(rows.env_index == env_id).tolist()
    ]


def same_moment(one: Moment, other: Moment) -> bool:
    outcomes_are_equal = (one.agent, one.reward, one.over) == (other.agent, other.reward, other.over)
    return outcomes_are_equal and same_obs(one.obs, other.obs)


def same_obs(one: Any, other: Any) -> bool:
    first, second = list(trees.leaves(one)), list(trees.leaves(other))
    return len(first) == len(second) and all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def _obs_of(rows: Rows, row: int) -> Any:
    return rows.obs[row] if isinstance(rows.obs, list) else trees.index(rows.obs, row)


def _where(rows: Rows, row: int) -> str:
    return f"sub-environment {rows.env_index[row]}, agent {rows.agent_of(row)!r}"


class RandomActions:
    """A stream of random actions, determined by seed, spaces and masks."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = np.random.default_rng(seed)
        self._spaces: dict[int, tuple[spaces.Space, spaces.Space]] = {}  # by identity: the space, and a seeded copy

    def draw(self, space: spaces.Space, obs: Any, where: str) -> Any:
        """Returns a random action that the observation's `action_mask` allows; `EnvError` for an invalid mask."""
        if id(space) not in self._spaces:
            seeded = copy.deepcopy(space)
            seeded.seed(self._seed)
            self._spaces[id(space)] = space, seeded
        action = self._spaces[id(space)][1].sample()
        if not (isinstance(obs, dict) and ACTION_MASK in obs):
            return action
        mask, widths = np.asarray(obs[ACTION_MASK]).ravel() > 0, choices(space)
        if len(mask) != sum(widths):
            raise EnvError("The action mask has the wrong width.", where, f"{len(mask)} entries").expected(
                f"{sum(widths)}, for the discrete actions of {space}",
                "make the mask's space a Box or MultiBinary of that width",
            )
        allowed = []
        for part in np.split(mask, np.cumsum(widths)[:-1]):
            if not part.any():
                raise EnvError.no_valid_action(where, obs[ACTION_MASK])
            allowed.append(int(self._random.choice(np.flatnonzero(part))))
        chosen = iter(allowed)
        return walk(lambda leaf, path, part: _with_choices(leaf, part, chosen), space, action)


def _with_choices(space: spaces.Space, action: Any, chosen: Iterator[int]) -> Any:
    """Returns a discrete action of these choices; other actions unchanged."""
    if isinstance(space, spaces.Discrete):
        return space.start + next(chosen)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start + np.array([next(chosen) for _ in range(space.nvec.size)]).reshape(space.nvec.shape)
    return action
