"""`BaseEnv`: many agents acting asynchronously in many sub-environments, seen as dicts or as columns."""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from typing import Any, Self

import numpy as np
from gymnasium import Space

from rollax.core import trees
from rollax.core.introspection import overrides
from rollax.env.rows import Rows
from rollax.errors import EnvError

AgentDict = dict[Hashable, Any]
EnvDict = dict[int, AgentDict]

DICT_VIEW = ("poll", "send_actions", "try_reset")
_ROW_VIEW = ("poll_rows", "send_rows", "reset_rows")


class BaseEnv:
    """The interface that the sampler uses, with two views, of which a subclass overrides one.

    Dict view: `poll`, `send_actions`, `try_reset`. For users and for environments that produce dicts.
    Columnar view: `poll_rows`, `send_rows`, `reset_rows`. For the sampler, and for environments made of arrays.

    The sampler resets all sub-environments and then alternates between polling and sending. The agents and the number
    of sub-environments may differ from poll to poll.
    """

    num_envs: int = 1
    observation_space: Space | None = None
    action_space: Space | None = None
    """Both are None in a multi-agent environment whose agents have different spaces, or whose policies define them."""
    possible_agents: Sequence[Hashable] | None = None
    """Every agent that may appear; None allows any."""
    samples_in_background: bool = False
    """The default of the config key `sample_async`."""
    seeds_every_episode: bool = True
    """Whether `reset_rows` begins the next episode of any sub-environment, from a given seed."""
    evaluates: bool = True
    """Whether evaluation can play episodes in this environment."""
    repeats: bool = True
    """Whether equal seeds and actions give equal polls; false where other threads or processes decide what is ready, or
    where the environment takes no seed."""
    adapts: bool = False
    """Whether this class wraps environments of another kind, and checks their results itself."""
    in_lockstep: bool = False
    """Whether each poll has one row for each single-agent sub-environment that is neither lost nor resting.

    If so, observations are columns, and no row has an action that the environment chose itself.
    """
    in_jax: bool = False
    """Whether observations may stay on the device: a `JaxBaseEnv` or a `TorchBaseEnv`."""

    # Double underscores avoid clashes with attributes of users' subclasses.
    __derived: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if not (overrides(cls, BaseEnv, *DICT_VIEW) or overrides(cls, BaseEnv, *_ROW_VIEW)):
            found = ", ".join(name for name in (*DICT_VIEW, *_ROW_VIEW) if overrides(cls, BaseEnv, name))
            what = "The BaseEnv overrides neither all methods of the dict view nor all of the row view."
            raise EnvError(what, f"class {cls.__qualname__}", f"only {found or 'none'} overridden").expected(
                f"{', '.join(DICT_VIEW)}, or {', '.join(_ROW_VIEW)}",
                "override all methods of one view; the other follows from it",
            )
        return super().__new__(cls)

    def __view(self) -> Any:
        """The view that the class does not override."""
        if self.__derived is None:
            from rollax.env.views import DictsOfRows, RowsOfDicts  # loaded only where one is used

            has_rows = overrides(type(self), BaseEnv, *_ROW_VIEW)
            self.__derived = DictsOfRows(self) if has_rows else RowsOfDicts(self)
        return self.__derived

    def __repr__(self) -> str:
        name = getattr(self, "name", "")
        return f"{type(self).__name__}({f'{name}, ' if name else ''}num_envs={self.num_envs})"

    def poll(self) -> tuple[EnvDict, EnvDict, EnvDict, EnvDict, EnvDict, EnvDict]:
        """Returns the outcomes since the last poll, for the agents that are ready; blocks until an agent is ready.

        Returns:
            `(obs, rewards, terminateds, truncateds, infos, off_policy_actions)`, each `env_id -> agent_id -> value`.
            The reward is None if the observation is the first of a trajectory. `"__all__": True` in a flag dict ends
            the sub-environment's episode; if the episode was lost, `truncateds` has no other entry. An agent in
            `off_policy_actions` has acted already and gets no action.
        """
        return self.__view().poll()

    def send_actions(self, actions: EnvDict) -> None:
        """Sends actions to the agents that were ready at the last poll: `env_id -> agent_id -> action`."""
        self.__view().send_actions(actions)

    def try_reset(
        self, env_id: int | None = None, *, seeds: Sequence[int | None] | None = None
    ) -> tuple[EnvDict, EnvDict] | None:
        """Resets one sub-environment, or all of them if `env_id` is None.

        Args:
            env_id: the sub-environment.
            seeds: one per sub-environment that is reset; None keeps their random streams. A subclass may omit this
                parameter; the sampler then passes no seeds.
        Returns:
            `(obs, infos)` keyed by env id, or None if the environment starts its next episode by itself: a later poll
            then returns the first observation.
        """
        return self.__view().try_reset(env_id, seeds)

    def poll_rows(self) -> Rows:
        """The same as `poll`, as columns."""
        return self.__view().poll_rows()

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        """Sends actions to some rows of the last poll or reset; called once per policy, with disjoint selections.

        Args:
            rows: the polled rows.
            selection: [K] indices of rows that wait for an action; None for all rows.
            actions: columns of K actions; the environment may keep them and write into them.
        """
        self.__view().send_rows(rows, selection, actions)

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows | None:
        """The same as `try_reset` for any number of sub-environments; None if all start by themselves."""
        return self.__view().reset_rows(env_index, seeds)

    def rest_rows(self, env_index: np.ndarray) -> bool:
        """Leaves out sub-environments from the polls until they are reset; their running episodes are dropped.

        Returns False if this environment always steps all sub-environments; these must then be reset and need actions.
        """
        return False

    def get_sub_environments(self) -> list[Any]:
        """The user's environments inside this one."""
        return []

    def try_render(self, env_id: int | None = None) -> Any:
        """A frame of one sub-environment (None: the first), or None if it cannot be drawn."""
        return None

    def sampled_by(self, worker: Any) -> None:
        """Called once, before the first reset, with the `RolloutWorker` that samples this environment."""

    def interrupt(self, interrupted: bool) -> None:
        """With True, `poll_rows` raises, also if it already waits in another thread; with False, it works again.

        An environment that never waits long need not implement it.
        """

    def stop(self) -> None:
        """Releases the resources of the environment."""


def in_order(agents: Any) -> Any:
    """Agent ids in an order that is the same in every process; the order of a set is not."""
    return sorted(agents, key=str) if isinstance(agents, Set) else agents
