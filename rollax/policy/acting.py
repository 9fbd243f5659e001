"""The forward passes of a policy's model, compiled: what to do, what it is worth, and how likely it was."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax import trees
from rollax.batch import SampleBatch
from rollax.errors import NonFiniteError
from rollax.models.distributions import ActionDistribution
from rollax.models.recurrent import run_model
from rollax.policy import action_masks
from rollax.policy.split_model import SplitModel

Columns = Mapping[str, Any]


class Acting:
    """Columns in, NumPy arrays out; each function is one compiled call.

    Args:
        split: the model.
        distribution: of the actions.
        masked: whether observations say which actions are valid.
        wanted: the batch columns that somebody reads; None for all.
    """

    def __init__(
        self, split: SplitModel, distribution: ActionDistribution, masked: bool, wanted: frozenset[str] | None
    ) -> None:
        self._split, self._distribution, self._masked = split, distribution, masked
        self._fetched = self._fetch_columns(wanted)
        self._act = jax.jit(partial(self._act_on_arrays, explore=True))
        self._act_greedily = jax.jit(partial(self._act_on_arrays, explore=False))
        self._value = jax.jit(self._values_of_arrays)
        self._logp = jax.jit(distribution.logp)

    def functions(self) -> Sequence[Any]:
        """The compiled functions whose versions `compilations` counts."""
        return self._act, self._act_greedily, self._value

    def forward(self, model: Any, columns: Columns) -> tuple[jax.Array, jax.Array, tuple]:
        """`(dist_inputs, values, state_out)` inside a compiled function; see `JaxPolicy.forward`."""
        obs = columns[SampleBatch.OBS]
        dist_inputs, values, state_out = run_model(model, columns)
        if SampleBatch.CRITIC_OBS in columns:
            values = model.critic(columns[SampleBatch.CRITIC_OBS])
        if self._masked:
            dist_inputs = self._distribution.mask(dist_inputs, obs[action_masks.KEY])
        return dist_inputs, values, state_out

    def actions(
        self, params: Columns, extra: Columns, columns: Columns, noise: np.ndarray | None, rows: int
    ) -> tuple[trees.Tree, list[np.ndarray], dict[str, np.ndarray]]:
        """`(actions, state_out, fetches)` of the first rows.

        Args:
            params: the parameters.
            extra: the model's other state.
            columns: [S, ...] what the model takes, padded.
            noise: [S, num_noise] uniform in [0, 1); None for the greedy actions.
            rows: N <= S, how many of them are real.
        """
        act = self._act_greedily if noise is None else self._act
        actions, packed, states = act(params, extra, columns, noise)
        table = np.asarray(packed)[:rows]
        fetches = {name: table[:, place] for name, place in self._fetched.items()}
        actions = trees.tree_map(lambda leaf: np.asarray(leaf)[:rows], actions)
        return actions, [np.asarray(part)[:rows] for part in states], fetches

    def values(self, params: Columns, extra: Columns, columns: Columns) -> np.ndarray:
        """[S] values of padded columns: those of the critic where `critic_obs` is among them."""
        return np.asarray(self._value(params, extra, columns))

    def logp(self, dist_inputs: np.ndarray, actions: trees.Tree) -> np.ndarray:
        """[N] log-probabilities of actions."""
        return np.array(self._logp(dist_inputs, actions))

    def _act_on_arrays(
        self, params: Columns, extra: Columns, columns: Columns, noise: Any, explore: bool
    ) -> tuple[Any, Any, tuple]:
        dist_inputs, values, states = self.forward(self._split.merge(params, extra), columns)
        d = self._distribution
        actions = d.sample(dist_inputs, noise) if explore else d.mode(dist_inputs)
        fetches = {
            SampleBatch.ACTION_LOGP: d.logp(dist_inputs, actions)[:, None],
            SampleBatch.VF_PREDS: values[:, None],
            SampleBatch.ACTION_DIST_INPUTS: dist_inputs,
        }
        # One array instead of three: each one that leaves a compiled function costs as much as a small layer.
        return actions, jnp.concatenate([fetches[name] for name in self._fetched], axis=1), states

    def _values_of_arrays(self, params: Columns, extra: Columns, columns: Columns) -> jax.Array:
        model = self._split.merge(params, extra)
        if SampleBatch.CRITIC_OBS in columns:
            return model.critic(columns[SampleBatch.CRITIC_OBS])
        return run_model(model, columns)[1]

    def _fetch_columns(self, wanted: frozenset[str] | None) -> dict[str, int | slice]:
        """Where each fetched column stands in the array that acting returns."""
        places: dict[str, int | slice] = {SampleBatch.ACTION_LOGP: 0}
        if wanted is None or SampleBatch.VF_PREDS in wanted:
            places[SampleBatch.VF_PREDS] = len(places)
        if wanted is None or SampleBatch.ACTION_DIST_INPUTS in wanted:
            places[SampleBatch.ACTION_DIST_INPUTS] = slice(len(places), len(places) + self._distribution.num_inputs)
        return places


def check_logp(logp: np.ndarray, policy_id: str, timestep: int) -> None:
    """Raises NonFiniteError, with the row, where a log-probability is not finite.

    Args:
        logp: [N] of the actions just chosen.
        policy_id: whose.
        timestep: environment steps trained on so far.
    """
    # A sum is finite unless an element is not: cheaper than looking at each.
    if not math.isfinite(logp.sum()):
        raise NonFiniteError(
            "The model's outputs are not finite: no action can be chosen.",
            where=f"policy {policy_id!r}, row {int(np.argmin(np.isfinite(logp)))} of {len(logp)}, "
            f"at timestep {timestep}",
            got="a NaN or infinite log-probability",
            expected="finite outputs",
            fix="look for NaN weights, or for observations too large for the model; observation_filter="
            "'MeanStdFilter' scales them",
        )
