"""`PackedActing`: the actions of a small model, in a compiled call with few arrays."""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rollax.batch import Columns, SampleBatch
from rollax.core import trees
from rollax.policy.actor import Actor
from rollax.policy.checks import check_finite
from rollax.policy.update_plan import acting_bucket

_MOST_PARAMETERS = 1 << 15
_Form = tuple[tuple[int, ...], Any, int] | None
"""Shape, dtype and size of an action that is joined with the fetched columns; None if actions are not joined."""

_forms: WeakKeyDictionary[Actor, dict[Any, _Form]] = WeakKeyDictionary()
"""Actor -> (shape of an observation, whether it explores) -> form. Equal actors share forms and need no tracing."""


class PackedActing:
    """`compute_actions` of a policy without memory, for observations that the environment's adapter has checked.

    Each array that a compiled call takes or returns costs as much as a small layer. This class therefore joins arrays:
    all parameters into one array, once after each update; observations and random numbers into one array, a row for
    each observation; and actions and fetched columns into one array, which `columns_of` splits. The numbers are the
    same as from `compute_actions`.

    Args:
        policy: a `JaxPolicy`.
    """

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._params: Columns = {}
        self._joined_params: Any = None
        self._inputs: dict[tuple[int, int], np.ndarray] = {}
        self._forms = _forms.setdefault(policy.actor, {})
        self._action: Any = None  # the form of the last call's actions

    def actions(self, obs: trees.Tree, explore: bool) -> tuple[trees.Tree, trees.Tree]:
        """The actions for columns of N observations, and all columns [N, ...] in one tree, which `columns_of` splits.

        Raises:
            EnvError: an action mask allows no action, or an integer needs more than 32 bits.
        """
        policy = self._policy
        policy.check_masks(obs)
        policy.wide_integers.check(obs, policy.name)
        params, rows = policy.params, trees.length(obs)
        if params is not self._params:
            self._params, self._joined_params = params, _joined(params)
        size = acting_bucket(rows)
        noise = noise_seed = None
        if explore:
            noise = policy.exploration.noise(policy.acting_rng, size, policy.timestep)
            noise_seed = policy._draw_noise_seed()
        shape = None
        if isinstance(obs, np.ndarray) and obs.dtype == np.float32:
            shape = obs.shape[1:]
            obs, noise = self._row(obs, noise, size), None
        elif size != rows:
            obs = trees.pad(obs, size)
        arguments = self._joined_params, policy.extra, obs, noise, noise_seed
        key = shape, explore
        if key not in self._forms:
            self._forms[key] = _form(policy.actor, shape, explore, arguments)
        self._action = self._forms[key]
        out = _compiled(policy.actor, shape, explore, self._action is not None, *arguments)
        if self._action is None:
            actions, columns = trees.tree_map(lambda leaf: np.asarray(leaf)[:rows], out)
            return actions, (actions, columns)
        columns = np.asarray(out)[:rows]
        return self._actions_in(columns), columns

    def _row(self, obs: np.ndarray, noise: np.ndarray | None, size: int) -> np.ndarray:
        """[size, D + K] the observations and their random numbers; the array is the same object at each call."""
        rows = len(obs)
        width = obs.size // max(rows, 1)
        key = size, width if noise is None else width + noise.shape[1]
        if key not in self._inputs:
            self._inputs[key] = np.zeros(key, np.float32)
        inputs = self._inputs[key]
        inputs[:rows, :width] = obs.reshape(rows, width)
        if size != rows:
            inputs[rows:, :width] = 0
        if noise is not None:
            inputs[:, width:] = noise
        return inputs

    def _actions_in(self, columns: np.ndarray) -> np.ndarray:
        shape, dtype, width = self._action
        return columns[:, :width].view(dtype).reshape(len(columns), *shape)

    def columns_of(self, columns: trees.Tree) -> dict[str, Any]:
        """The actions and the fetched columns of R rows; NonFiniteError if the model's outputs were not finite."""
        policy = self._policy
        if self._action is None:
            actions, fetched = columns
        else:
            actions, fetched = self._actions_in(columns), columns[:, self._action[2] :].view(np.float32)
        fetches = policy.actor.fetches_of(fetched)
        check_finite(fetches[policy.checked_fetch], policy.name, policy.timestep)
        return {
            SampleBatch.ACTIONS: trees.tree_map(np.ascontiguousarray, actions),
            **{name: np.ascontiguousarray(column) for name, column in fetches.items()},
        }


def are_few(params: Columns) -> bool:
    """Whether joining the parameters makes acting faster."""
    size = sum(array.size for array in params.values())
    return size <= _MOST_PARAMETERS and all(array.dtype == np.float32 for array in params.values())


@jax.jit
def _joined(params: Columns) -> jax.Array:
    return jnp.concatenate([params[name].ravel() for name in sorted(params)])


def _form(actor: Actor, shape: tuple[int, ...] | None, explore: bool, arguments: tuple) -> _Form:
    actions, _ = jax.eval_shape(partial(_act, actor, shape, explore), *arguments)
    if not hasattr(actions, "dtype") or actions.dtype not in (np.int32, np.float32):
        return None
    return actions.shape[1:], actions.dtype, int(np.prod(actions.shape[1:], dtype=np.int64))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _compiled(actor: Actor, shape: tuple[int, ...] | None, explore: bool, joins: bool, *arguments: Any) -> Any:
    actions, fetched = _act(actor, shape, explore, *arguments)
    return _together(actions, fetched) if joins else (actions, fetched)


def _act(
    actor: Actor,
    shape: tuple[int, ...] | None,
    explore: bool,
    joined: jax.Array,
    extra: Columns,
    obs: Any,
    noise: Any,
    seed: Any,
) -> tuple[Any, jax.Array]:
    """Actions and fetched columns; with the `shape` of an observation, `obs` has observations and noise."""
    params, start = {}, 0
    for name, array in sorted(actor.split.params.items()):
        stop = start + int(np.prod(array.shape, dtype=np.int64))
        params[name], start = joined[start:stop].reshape(array.shape), stop
    if shape is not None:
        width = int(np.prod(shape, dtype=np.int64))
        obs, noise = obs[:, :width].reshape(-1, *shape), obs[:, width:] if explore else None
    actions, fetched, _ = actor.traced_actions(params, extra, {SampleBatch.OBS: obs}, noise, seed)
    return actions, fetched


def _together(actions: jax.Array, fetched: jax.Array) -> jax.Array:
    """[S, W] int32 the bits of actions and fetched columns."""
    parts = actions.reshape(len(actions), -1), fetched
    return jnp.concatenate([lax.bitcast_convert_type(part, jnp.int32) for part in parts], axis=1)
