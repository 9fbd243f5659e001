"""The columnar view of one poll: one row for each agent with an event."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import is_
from typing import Any

import numpy as np

from rollax.core import trees
from rollax.env.checks import stacked

DEFAULT_AGENT = "agent0"
"""The agent id of a single-agent environment."""

ALL = "__all__"
"""The key of the flag dicts that ends a sub-environment's episode."""

NO_ENVS = np.empty(0, np.int64)

COLUMNS = ("env_index", "slots", "rewards", "terminateds", "truncateds", "starts", "acts")
"""The fields of `Rows` that are arrays with one entry for each row."""


@dataclass(slots=True)
class Rows:
    """N rows, one per agent that is ready or has received a reward or flag since the last poll.

    A *slot* is a small integer that identifies one agent of one sub-environment during one trajectory; afterwards
    another agent may get the slot. Within one `Rows`, ends come before starts; an agent that acts again right after its
    end may have one row for the end and one for the start.

    Args:
        env_index: [N] the sub-environment of each row.
        slots: [N] the slot of each row.
        obs: columns of N observations if all agents share one space, else a list of N single observations, with None
            for a row without an observation, such as the row of an agent that only gets a reward. In columns, the
            values of rows that neither act nor have ended are not used.
        rewards: [N] float64, the sum since the agent's last row; 0 where `starts`. Rewards before the agent's first
            action count only in the episode's return.
        terminateds: [N] the trajectory ended in a terminal state.
        truncateds: [N] the trajectory was truncated, for instance by a time limit; it is bootstrapped.
        starts: [N] the observation is the first of a trajectory: no reward or flag belongs to it.
        acts: [N] the row waits for an action.
        ended_envs: [M] sub-environments whose episode ended with this poll.
        agents: N agent ids, or None if each sub-environment has one agent.
        infos: N info dicts, or a function that makes them when they are needed.
        given_actions: row -> action that the agent has taken already (off-policy); such a row does not wait.
        trains: [N] whether the trajectory is trained on, equal in all rows of an episode; None: all are trained on.
        dropped_envs: [D] sub-environments whose running episode was lost since the last poll. The whole episode is
            dropped and has no row here; the sampler resets them like `ended_envs`.
        resumed_envs: sub-environments whose rows here begin in the middle of an episode, because the sampler dropped
            its beginning. The rest of the episode has no callbacks and metrics.
        name: of the environment, in error messages.
        in_order: every slot has a row, row i is on slot i, and if `agents` is None, slot i is sub-environment i. All
            agents of a sub-environment begin and end at once. Sampling such rows is faster.
        given_logps: row -> log-probability of a given action under the earlier version of the policy that chose it;
            such an action is not off-policy.
    """

    env_index: np.ndarray
    slots: np.ndarray
    obs: trees.Tree
    rewards: np.ndarray
    terminateds: np.ndarray
    truncateds: np.ndarray
    starts: np.ndarray
    acts: np.ndarray
    ended_envs: np.ndarray
    agents: Sequence[Hashable] | None = None
    infos: Sequence[dict] | Callable[[], Sequence[dict]] | None = None
    given_actions: dict[int, Any] | None = None
    trains: np.ndarray | None = None
    dropped_envs: np.ndarray = field(default_factory=lambda: NO_ENVS)
    resumed_envs: np.ndarray = field(default_factory=lambda: NO_ENVS)
    name: str = ""
    in_order: bool = False
    given_logps: dict[int, float] | None = None

    def __len__(self) -> int:
        return len(self.slots)

    def observations(self, rows: np.ndarray | None, space: Any) -> trees.Tree:
        """Columns of the observations of some rows, or of all; existing columns of all rows are not copied.

        Raises:
            EnvError: single observations outside the space, or not finite.
        """
        if isinstance(self.obs, list):
            values = self.obs if rows is None else [self.obs[row] for row in rows.tolist()]
            return stacked(space, values, lambda row: self._where(row if rows is None else int(rows[row])))
        return self.obs if rows is None else trees.index(self.obs, rows)

    def stack(self, space: Any) -> None:
        """Turns single observations into columns, once for all policies, if every row has one.

        Args:
            space: space of every agent; None if the spaces differ, and then nothing is done.
        Raises:
            EnvError: as `observations`.
        """
        if space is not None and isinstance(self.obs, list) and not any(map(is_, self.obs, repeat(None))):
            self.obs = self.observations(None, space)

    def _where(self, row: int) -> str:
        of_env = f"{self.name}, " if self.name else ""
        return f"{of_env}sub-environment {self.env_index[row]}, agent {self.agent_of(row)!r}"

    def observing(self) -> np.ndarray:
        """[N] True for rows with an observation that is acted on or is the last of its trajectory.

        Other rows have only a reward for an agent that keeps waiting; their observations are not used.
        """
        observing = self.acting() | self.terminateds | self.truncateds
        if isinstance(self.obs, list):
            observing &= np.fromiter((obs is not None for obs in self.obs), bool, len(self.obs))
        return observing

    def over_envs(self) -> np.ndarray:
        """The sub-environments to reset."""
        if not len(self.dropped_envs):
            return self.ended_envs
        return np.concatenate((self.ended_envs, self.dropped_envs))

    def training(self) -> np.ndarray:
        """[N] True if the trajectory is trained on."""
        return np.ones(len(self), bool) if self.trains is None else self.trains

    def info_list(self) -> Sequence[dict]:
        """The info dict of each row."""
        if callable(self.infos):
            self.infos = self.infos()
        return [{}] * len(self) if self.infos is None else self.infos

    def agent_of(self, row: int) -> Hashable:
        """The agent id of one row."""
        return DEFAULT_AGENT if self.agents is None else self.agents[row]

    def agent_ids(self, rows: np.ndarray | None) -> np.ndarray:
        """[K] the agent ids of some rows (None: all), as objects."""
        return _objects(repeat(DEFAULT_AGENT, len(self)) if self.agents is None else self.agents, rows)

    def infos_of(self, rows: np.ndarray | None) -> np.ndarray:
        """[K] copies of the info dicts of some rows (None: all), as objects; the environment may change its dicts."""
        chosen = _objects(self.info_list(), rows)
        for place, info in enumerate(chosen):
            chosen[place] = _copied(dict(info))
        return chosen

    def given(self) -> np.ndarray:
        """[N] True where the agent has taken its action already."""
        return _marked(len(self), self.given_actions)

    def off_policy(self) -> np.ndarray:
        """[N] True for given actions that were not chosen by any version of the policy."""
        given = self.given()
        return given & ~_marked(len(self), self.given_logps) if self.given_logps else given

    def acting(self) -> np.ndarray:
        """[N] True for rows that wait for an action, or whose agent has taken it already."""
        return self.acts | self.given() if self.given_actions else self.acts

    @classmethod
    def starting(
        cls,
        env_index: np.ndarray,
        slots: np.ndarray,
        obs: trees.Tree,
        *,
        agents: Sequence[Hashable] | None = None,
        infos: Sequence[dict] | Callable[[], Sequence[dict]] | None = None,
    ) -> Rows:
        """Rows that each begin a trajectory."""
        count = len(slots)
        no, yes = np.zeros(count, bool), np.ones(count, bool)
        return cls(env_index, slots, obs, np.zeros(count), no, no, yes, yes, NO_ENVS, agents, infos)

    def places(self, rows: np.ndarray | None) -> tuple[np.ndarray | slice, np.ndarray | slice]:
        """Sub-environments and slots of some rows (None: all), as indices; as slices if all rows are in order."""
        if rows is not None:
            return self.env_index[rows], self.slots[rows]
        if self.in_order:
            everyone = slice(len(self.slots))
            return everyone if self.agents is None else self.env_index, everyone
        return self.env_index, self.slots

    def replaced(self, started: Rows) -> Rows | None:
        """Rows to act on: these rows, with the rows of `started` for the ended trajectories; None if they do not fit.

        They fit if these rows are in order, are all trained on, and have no given actions or dropped sub-environments,
        and `started` has one row for each ended trajectory. The result has the `obs` of these rows, not of `started`.
        """
        fits = self.in_order and not (self.given_actions or len(self.dropped_envs)) and self.trains is None
        if not (fits and len(started) == np.count_nonzero(self.terminateds | self.truncateds)):
            return None
        no, yes = np.zeros(len(self), bool), np.ones(len(self), bool)

        def infos() -> list[dict]:
            both = list(self.info_list())
            for place, info in zip(started.slots.tolist(), started.info_list(), strict=True):
                both[place] = info
            return both

        columns = self.env_index, self.slots, self.obs, self.rewards, no, no, no, yes, NO_ENVS
        return Rows(*columns, agents=self.agents, infos=infos, name=self.name, in_order=True)

    @classmethod
    def concat(cls, first: Rows, second: Rows) -> Rows:
        """The rows of `first`, followed by the rows of `second`."""
        both = np.concatenate
        if isinstance(first.obs, list) or isinstance(second.obs, list):
            obs = [*_values(first.obs), *_values(second.obs)]
        else:
            obs = trees.concat((first.obs, second.obs))
        given = {len(first) + row: action for row, action in (second.given_actions or {}).items()}
        logps = {len(first) + row: logp for row, logp in (second.given_logps or {}).items()}
        all_train = first.trains is None and second.trains is None
        columns: dict[str, Any] = {name: both((getattr(first, name), getattr(second, name))) for name in COLUMNS}
        return cls(
            **columns,
            obs=obs,
            ended_envs=both((first.ended_envs, second.ended_envs)),
            agents=None if first.agents is None else [*first.agents, *(second.agents or ())],
            infos=lambda: [*first.info_list(), *second.info_list()],
            given_actions={**(first.given_actions or {}), **given} or None,
            trains=None if all_train else both((first.training(), second.training())),
            dropped_envs=both((first.dropped_envs, second.dropped_envs)),
            name=first.name,
            given_logps={**(first.given_logps or {}), **logps} or None,
        )


def _objects(values: Iterable[Any], rows: np.ndarray | None) -> np.ndarray:
    chosen = list(values)
    if rows is not None:
        chosen = [chosen[row] for row in rows.tolist()]
    return np.fromiter(chosen, object, len(chosen))


def _copied(value: Any) -> Any:
    """An info with copies of its arrays, dicts, lists and tuples. Other objects, such as simulators, are kept."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) is dict:
        return {key: _copied(part) for key, part in value.items()}
    return type(value)(map(_copied, value)) if type(value) in (list, tuple) else value


def _marked(count: int, rows: Iterable[int] | None) -> np.ndarray:
    marks = np.zeros(count, bool)
    marks[list(rows or ())] = True
    return marks


def _values(obs: trees.Tree) -> list[Any]:
    """Observations as a list of single observations."""
    return obs if isinstance(obs, list) else trees.rows(obs)
