"""`PackedActing`: the explored or greedy actions of a small model, with all of its parameters in one array."""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from rollax.batch import Columns, SampleBatch
from rollax.core import trees
from rollax.policy.acting import Acting
from rollax.policy.acting_device import cpu_beside_gpu
from rollax.policy.finite import check_finite
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.minibatches import acting_bucket
from rollax.policy.policy import Policy
from rollax.policy.traced_acting import only_acts_stepwise

_MOST_PARAMETERS = 1 << 15

_compiled: WeakKeyDictionary[Acting, tuple[Any, Any]] = WeakKeyDictionary()


class PackedActing:
    """`compute_actions` of a policy without memory, for observations that the environment's adapter has checked.

    Each array that a compiled function takes costs as much as a small layer, so the parameters are concatenated once
    for each version of them. The numbers are the same.
    """

    def __init__(self, policy: JaxPolicy) -> None:
        self._policy = policy
        self._params: Columns = {}
        self._packed: Any = None
        acting = policy._acting
        if acting not in _compiled:
            shapes = {name: array.shape for name, array in policy.params.items()}
            _compiled[acting] = jax.jit(_pack), jax.jit(partial(_act, acting.traced_actions, shapes))
        self._pack, self._act = _compiled[acting]
        self.fetches_of = acting.fetches_of

    def actions(self, obs: trees.Tree, explore: bool) -> tuple[trees.Tree, np.ndarray]:
        """The actions for columns of N observations, and all fetched columns [N, W], which `fetches_of` takes apart.

        Raises:
            EnvError: an action mask allows no action, or an integer needs more than 32 bits.
            NonFiniteError: the model's outputs are not finite.
        """
        policy = self._policy
        policy.check_masks(obs)
        policy.wide_integers.check(obs, policy.name)
        params, rows = policy.params, trees.length(obs)
        if params is not self._params:
            self._params, self._packed = params, self._pack(params)
        size = acting_bucket(rows)
        if size != rows:
            obs = trees.pad(obs, size)
        noise = noise_seed = None
        if explore:
            noise = policy.exploration.noise(policy.acting_rng, size, policy.timestep)
            noise_seed = policy._draw_noise_seed()
        actions, packed = self._act(self._packed, policy.extra, obs, noise, noise_seed)
        actions, fetched = trees.tree_map(lambda leaf: np.asarray(leaf)[:rows], actions), np.asarray(packed)[:rows]
        check_finite(self.fetches_of(fetched)[policy._checked_fetch], policy.name, policy.timestep)
        return actions, fetched


def acts_packed(policy: Policy) -> bool:
    """Whether `PackedActing` can act for a policy, and is faster."""
    if only_acts_stepwise(policy) or not isinstance(policy, JaxPolicy) or cpu_beside_gpu() is not None:
        return False
    params = policy.params.values()
    small = sum(array.size for array in params) <= _MOST_PARAMETERS
    return small and not policy.get_initial_state() and all(array.dtype == np.float32 for array in params)


def _pack(params: Columns) -> jax.Array:
    return jnp.concatenate([params[name].ravel() for name in sorted(params)])


def _act(
    traced: Any, shapes: dict[str, tuple[int, ...]], packed: jax.Array, extra: Columns, obs: Any, noise: Any, seed: Any
) -> tuple[Any, jax.Array]:
    params, start = {}, 0
    for name in sorted(shapes):
        stop = start + int(np.prod(shapes[name], dtype=np.int64))
        params[name], start = packed[start:stop].reshape(shapes[name]), stop
    actions, fetched, _ = traced(params, extra, {SampleBatch.OBS: obs}, noise, seed)
    return actions, fetched
