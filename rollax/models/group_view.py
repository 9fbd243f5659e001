"""`GroupView`: the parts of a group's Tuple observations that its members and their mixer see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces
from jaxtyping import Array, Bool, Int

from rollax.core.spaces import ACTION_MASK, same_space
from rollax.errors import SpaceError


@dataclass(frozen=True)
class GroupView:
    """How to read the observations of a group of members with equal spaces; made by `GroupView.of`.

    A group's columns are tuples with the columns of each member. `seen` concatenates the members' rows, those of the
    first member first.
    """

    members: int  # M
    num_actions: int  # N, choices of each member
    masked: bool  # whether observations have action masks; a member whose mask is all zeros is absent
    hidden: tuple[str, ...]  # the keys of a member's observation that are not in its view
    state_key: str | None  # the key of the global state
    agent_ids: bool  # whether a member sees its index

    @classmethod
    def of(
        cls, observation_space: spaces.Space, action_space: spaces.Space, state_key: str | None, agent_ids: bool
    ) -> GroupView:
        """Returns the view of a group with Tuples of equal spaces; a `state_key` that observations lack is ignored.

        Raises:
            SpaceError: the spaces are not the spaces of a group, or the members cannot share a network.
        """
        observed = _one_of("observation_space", observation_space)
        choice = _one_of("action_space", action_space)
        if not isinstance(choice, spaces.Discrete):
            what = "The actions of the members of a group are not one discrete choice."
            fix = "enumerate a member's choices in one Discrete space, or use PPO"
            raise SpaceError(what, "action_space[0]", choice).expected("Discrete(n), the same for every member", fix)
        members, num_actions = len(_parts(action_space)), int(choice.n)
        if len(_parts(observation_space)) != members:
            raise SpaceError(
                "The number of actions of a group is not the number of its observations.",
                "action_space",
                f"{members} actions, {len(_parts(observation_space))} observations",
            ).expected("one action and one observation for each member", "correct the Tuple spaces of the group")
        keys = tuple(observed.spaces) if isinstance(observed, spaces.Dict) else ()
        hidden = tuple(key for key in keys if key in (ACTION_MASK, state_key))
        if keys and len(hidden) == len(keys):
            raise SpaceError(
                "The members of a group have nothing to observe.", "observation_space[0]", observed
            ).expected(
                f"an entry besides {list(hidden)}", "put observations under another key, or set state_key to None"
            )
        mask = observed.spaces.get(ACTION_MASK) if isinstance(observed, spaces.Dict) else None
        if mask is not None and mask.shape != (num_actions,):
            expected = f"MultiBinary({num_actions}), one entry for each action"
            raise SpaceError(
                "The action mask has the wrong width.", f"observation_space[0][{ACTION_MASK!r}]", mask
            ).expected(expected, "correct the mask's space, or the action space")
        return cls(members, num_actions, mask is not None, hidden, state_key if state_key in keys else None, agent_ids)

    def seen_space(self, observation_space: spaces.Space) -> spaces.Space:
        """The space of one member's view."""
        visible = self._visible_space(_parts(observation_space)[0])
        return spaces.Tuple([visible, spaces.Discrete(self.members)] if self.agent_ids else [visible])

    def state_space(self, observation_space: spaces.Space) -> spaces.Space:
        """The space of the global state; without a global state, the space of all members' observations together."""
        parts = _parts(observation_space)
        if self.state_key is None:
            return spaces.Tuple([self._visible_space(part) for part in parts])
        assert isinstance(parts[0], spaces.Dict)
        return parts[0][self.state_key]

    def seen(self, obs: Any) -> Any:
        """[M·B, ...] columns of `seen_space`, from the columns of B observations of the group."""
        columns = jax.tree.map(lambda *parts: jnp.concatenate(parts), *map(self._visible, obs))
        if not self.agent_ids:
            return (columns,)
        rows = jax.tree.leaves(columns)[0].shape[0] // self.members
        return columns, jnp.repeat(jnp.arange(self.members), rows)

    def state(self, obs: Any) -> Any:
        """[B, ...] columns of `state_space`."""
        if self.state_key is None:
            return tuple(map(self._visible, obs))
        columns = jax.tree.map(lambda *parts: jnp.stack(parts), *(member[self.state_key] for member in obs))
        # All present members observe the same state. An absent member observes zeros, but a filter may change them:
        # then only masks identify absent members.
        leaves = jax.tree.leaves(columns)
        rows = leaves[0].shape[1]
        if self.masked:
            present = self.present(obs).T
        else:
            present = sum((leaf != 0).reshape(self.members, rows, -1).any(axis=-1) for leaf in leaves) > 0
        first = jnp.argmax(present, axis=0)
        return jax.tree.map(lambda leaf: leaf[first, jnp.arange(rows)], columns)

    def valid(self, obs: Any) -> Bool[Array, "B M N"]:
        """Which actions each member can take, by its mask; all actions if the member is absent."""
        masks = self._masks(obs)
        return masks | ~masks.any(axis=-1, keepdims=True)

    def present(self, obs: Any) -> Bool[Array, "B M"]:
        """Which members are present; without masks, all members."""
        if not self.masked:
            return jnp.ones((jax.tree.leaves(obs)[0].shape[0], self.members), bool)
        return self._masks(obs).any(axis=-1)

    def _masks(self, obs: Any) -> Bool[Array, "B M N"]:
        return jnp.stack([jnp.asarray(member[ACTION_MASK]) for member in obs], axis=1) > 0

    def _visible(self, member: Any) -> Any:
        if not self.hidden:
            return member
        return {key: column for key, column in member.items() if key not in self.hidden}

    def _visible_space(self, space: spaces.Space) -> spaces.Space:
        if not self.hidden:
            return space
        assert isinstance(space, spaces.Dict)
        return spaces.Dict({key: part for key, part in space.spaces.items() if key not in self.hidden})


def by_member(columns: Any) -> Int[Array, "B M"]:
    """Returns a group's columns of actions as one array."""
    return jnp.stack([jnp.asarray(column) for column in columns], axis=1).astype(jnp.int32)


def _parts(space: spaces.Space) -> Sequence[Any]:
    assert isinstance(space, spaces.Tuple)
    return space.spaces


def _one_of(name: str, space: spaces.Space) -> spaces.Space:
    """Returns the space that all members have; raises SpaceError if their spaces differ."""
    if not isinstance(space, spaces.Tuple):
        raise SpaceError.is_not("The agent", "a group", name, space).expected(
            "a Tuple with an equal space for each member",
            "group the agents: env.with_agent_groups({'team': [...]}), or for PettingZoo "
            "from_pettingzoo(env).with_agent_groups(...); "
            "for single agents use DQN",
        )
    first, *others = space.spaces
    for place, other in enumerate(others, start=1):
        if not same_space(first, other):
            raise SpaceError("The members of a group have different spaces.", f"{name}[{place}]", other).expected(
                first,
                "pad observations and actions to the largest member's, with an 'action_mask'; or group each kind of "
                "agent separately",
            )
    return first
