"""`BaseEnv`: many agents acting asynchronously in many sub-environments, seen as dicts or as columns."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Sequence, Set
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from gymnasium import Space

from rollax.core import spaces, trees
from rollax.core.overrides import overrides
from rollax.env import checks
from rollax.env.rows import ALL, Rows
from rollax.errors import EnvError

if TYPE_CHECKING:
    from rollax.env.dict_rows import DictRows

AgentDict = dict[Hashable, Any]
EnvDict = dict[int, AgentDict]

_DICT = {dict}
DICT_VIEW = ("poll", "send_actions", "try_reset")
_ROW_VIEW = ("poll_rows", "send_rows", "reset_rows")


class BaseEnv:
    """The interface that the sampler uses. It has two views; a subclass overrides one view.

    Dict view: `poll`, `send_actions`, `try_reset`. For users and for environments that produce dicts.
    Columnar view: `poll_rows`, `send_rows`, `reset_rows`. For the sampler, and for environments made of arrays.

    The sampler resets all sub-environments and then alternates between polling and sending. Each poll may return other
    agents and another number of sub-environments.
    """

    num_envs: int = 1
    observation_space: Space | None = None
    action_space: Space | None = None
    """Both are None if the policies of a multi-agent environment have their own."""
    possible_agents: Sequence[Hashable] | None = None
    """Every agent that may appear; None allows any."""
    samples_in_background: bool = False
    """The default of the config key `sample_async`."""
    seeds_every_episode: bool = True
    """Whether `reset_rows` begins the next episode of any sub-environment, from a given seed."""
    evaluates: bool = True
    """Whether evaluation can play its episodes."""
    repeats: bool = True
    """Whether equal seeds and actions give equal polls; false where other threads or processes decide what is ready."""
    adapts: bool = False
    """Whether it presents environments of another kind, in `env`, whose results it checks itself."""
    in_lockstep: bool = False
    """Whether each poll has one row of each sub-environment, with one agent in each, unless one was lost or rests.

    Then observations are columns, and no action is given by the environment.
    """
    in_jax: bool = False
    """Whether it is a `JaxBaseEnv`, whose steps can be compiled together with the steps of a policy."""

    # Double underscores avoid clashes with attributes of users' subclasses.
    __reset_takes_seeds: bool
    __dicts: DictRows | None = None  # has the trajectories if only the dict view is overridden
    __collected: EnvDict | None = None  # likewise, the actions until all policies have acted
    __kept: Rows | None = None  # if only the columnar view is overridden: the rows of the last dicts

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if not (overrides(cls, BaseEnv, *DICT_VIEW) or overrides(cls, BaseEnv, *_ROW_VIEW)):
            found = ", ".join(name for name in (*DICT_VIEW, *_ROW_VIEW) if overrides(cls, BaseEnv, name))
            what = "The BaseEnv overrides neither all methods of the dict view nor all of the row view."
            raise EnvError(what, f"class {cls.__qualname__}", f"only {found or 'none'} overridden").expected(
                f"{', '.join(DICT_VIEW)}, or {', '.join(_ROW_VIEW)}",
                "override all methods of one view; the other follows from it",
            )
        env = super().__new__(cls)
        env.__reset_takes_seeds = "seeds" in inspect.signature(cls.try_reset).parameters
        return env

    def __repr__(self) -> str:
        name = getattr(self, "name", "")
        return f"{type(self).__name__}({f'{name}, ' if name else ''}num_envs={self.num_envs})"

    def poll(self) -> tuple[EnvDict, EnvDict, EnvDict, EnvDict, EnvDict, EnvDict]:
        """The outcomes since the last poll, for the agents that are ready; blocks until there are any.

        Returns:
            `(obs, rewards, terminateds, truncateds, infos, off_policy_actions)`, each `env_id -> agent_id -> value`.
            The reward is None if the observation is the first of a trajectory. `"__all__"` in a flag dict ends the
            sub-environment's episode; a lost episode is truncated without an agent. An agent in `off_policy_actions`
            has acted already and gets no action.
        """
        self.__kept = self.poll_rows()
        return dicts_of(self.__kept)

    def send_actions(self, actions: EnvDict) -> None:
        """Sends actions to the agents that were ready at the last poll: `env_id -> agent_id -> action`."""
        rows = self._kept_rows
        wanted = {(int(rows.env_index[row]), rows.agent_of(row)): row for row in np.flatnonzero(rows.acts).tolist()}
        pairs = {(env_id, agent): action for env_id, given in actions.items() for agent, action in given.items()}
        unknown = [key for key in pairs if key not in wanted]
        if unknown:
            raise EnvError.not_waiting(
                "an agent", f"sub-environment {unknown[0][0]}, agent {unknown[0][1]!r}", pairs[unknown[0]]
            ).expected(
                f"actions for {sorted(map(str, wanted))}",
                "send one action for each agent of the last obs whose episode continues",
            )
        for key, action in pairs.items():
            # One row at a time, because agents may have different action spaces.
            self.send_rows(rows, np.array([wanted[key]]), _one_row(action, self.action_space))

    def try_reset(
        self, env_id: int | None = None, *, seeds: Sequence[int | None] | None = None
    ) -> tuple[EnvDict, EnvDict] | None:
        """Resets one sub-environment, or all of them if `env_id` is None.

        Args:
            env_id: the sub-environment.
            seeds: one per sub-environment that is reset; None keeps their random streams. A subclass may omit this
                argument: it is then never passed.
        Returns:
            `(obs, infos)` keyed by env id, or None if the environment starts its next episode by itself: a later poll
            then returns the first observation.
        """
        rows = self.reset_rows(np.arange(self.num_envs) if env_id is None else np.array([env_id]), seeds)
        if rows is None:
            return None
        # The new episode's rows are added to the kept rows of the other sub-environments.
        self.__kept = rows if env_id is None or self.__kept is None else Rows.concat(self.__kept, rows)
        obs, _, _, _, infos, _ = dicts_of(rows)
        return obs, infos

    def poll_rows(self) -> Rows:
        """The same as `poll`, as columns."""
        if self.__collected:
            # All policies' actions are sent together, because an environment may step inside send_actions.
            collected, self.__collected = self.__collected, {}
            self.send_actions(collected)
        parts = self._checked(self.poll(), "poll()", 6, "six dicts by env id, as in the docstring of BaseEnv.poll")
        return self._dict_rows().outcome(*parts)

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        """Sends actions to some rows of the last poll or reset; called once per policy, with disjoint selections.

        Args:
            rows: the polled rows.
            selection: [K] indices of rows that wait for an action; None for all rows.
            actions: columns of K actions; the environment may keep them and write into them.
        """
        if self.__collected is None:
            self.__collected = {}
        chosen = range(len(rows)) if selection is None else selection.tolist()
        for row, action in zip(chosen, trees.unstack(actions), strict=True):
            self.__collected.setdefault(int(rows.env_index[row]), {})[rows.agent_of(row)] = action

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows | None:
        """The same as `try_reset` for any number of sub-environments; None if all start by themselves."""
        obs: EnvDict = {}
        infos: EnvDict = {}
        for position, env_id in enumerate(env_index.tolist()):
            if self.__collected:
                self.__collected.pop(env_id, None)
            kwargs = {"seeds": [seeds[position]]} if seeds is not None and self.__reset_takes_seeds else {}
            result = self.try_reset(env_id, **kwargs)
            if result is None:
                self._dict_rows().drop(env_id)
            else:
                expected = f"None, or (obs, infos) with the observations of sub-environment {env_id} in both"
                first_obs, first_infos = self._checked(result, f"try_reset({env_id})", 2, expected, env_id)
                obs[env_id], infos[env_id] = first_obs[env_id], first_infos.get(env_id, {})
        return self._dict_rows().beginning(obs, infos) if obs else None

    def rest_rows(self, env_index: np.ndarray) -> bool:
        """Leaves out sub-environments from the polls until they are reset; their running episodes are dropped.

        Returns False if this environment always steps all of them; then they must be reset and need actions.
        """
        return False

    def _checked(
        self, result: Any, call: str, count: int, expected: str, env_id: int | None = None
    ) -> Sequence[EnvDict]:
        """The dicts that a method of the dict view returned, checked."""
        right = isinstance(result, tuple) and len(result) == count and all(isinstance(part, dict) for part in result)
        right = right and all(_DICT.issuperset(map(type, part.values())) for part in result)
        if right and (env_id is None or env_id in result[0]):
            return result
        raise EnvError(
            f"{call.partition('(')[0]} did not return the required dicts.",
            f"{type(self).__name__}.{call}",
            f"tuple of {len(result)}: {result!r}" if isinstance(result, tuple) else checks.outline(result),
        ).expected(expected, "return dicts of dicts: env id -> agent id -> value")

    def get_sub_environments(self) -> list[Any]:
        """The user's environments inside this one."""
        return []

    def try_render(self, env_id: int | None = None) -> Any:
        """A frame of one sub-environment (None: the first), or None if it cannot be drawn."""
        return None

    def sampled_by(self, worker: Any) -> None:
        """Called once, before the first reset, with the `RolloutWorker` that samples this environment."""

    def interrupt(self, interrupted: bool) -> None:
        """True: a `poll_rows` that waits in another thread, and each later one, raises; False: no longer.

        An environment that never waits long need not implement it.
        """

    def stop(self) -> None:
        """Releases what the environment holds."""

    @property
    def _kept_rows(self) -> Rows:
        if self.__kept is None:
            what = "Actions were sent before the first observation."
            fix = "call try_reset(), then send actions to the agents that it observed"
            raise EnvError(what, type(self).__name__, "no observation yet").expected("try_reset() or poll() first", fix)
        return self.__kept

    def _dict_rows(self) -> DictRows:
        if self.__dicts is None:
            from rollax.env.dict_rows import DictRows  # loaded only for environments with dicts

            spaces_of = getattr(self, "observation_spaces", None)
            self.__dicts = DictRows(
                type(self).__name__, self.num_envs, self.observation_space, self.possible_agents, spaces_of
            )
        return self.__dicts


def dicts_of(rows: Rows) -> tuple[EnvDict, EnvDict, EnvDict, EnvDict, EnvDict, EnvDict]:
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


def in_order(agents: Any) -> Any:
    """Agent ids in an order that is the same in every process; the order of a set is not."""
    return sorted(agents, key=str) if isinstance(agents, Set) else agents


def _one_row(action: Any, space: Space | None) -> trees.Tree:
    """One action as columns of one row."""
    if space is not None:
        return spaces.stack(space, [action])
    if isinstance(action, dict):
        return {key: _one_row(part, None) for key, part in action.items()}
    if isinstance(action, tuple):
        return tuple(_one_row(part, None) for part in action)
    return np.asarray(action)[None]
