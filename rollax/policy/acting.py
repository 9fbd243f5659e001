"""The forward passes of a policy's model, compiled: actions, values and log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.batch import Columns, SampleBatch
from rollax.core import trees
from rollax.core.spaces import ACTION_MASK
from rollax.errors import PolicyError
from rollax.models.distributions.base import ActionDistribution
from rollax.models.outputs import Outputs, run_model, values_of_critic
from rollax.policy.exploration.exploration import Exploration
from rollax.policy.split_model import SplitModel


class Acting:
    """Each function is one compiled call on padded columns [S, ...]; without arrays, so that equal policies share it.

    Args:
        masks: the distribution that masks invalid actions; None where observations have no action masks.
        wanted: the batch columns to fetch; None for all.
        noisy: whether the model explores in training mode.
        forward: the forward pass, where it is not the method of this class.
    """

    def __init__(
        self,
        split: SplitModel,
        exploration: Exploration,
        masks: ActionDistribution | None,
        wanted: frozenset[str] | None,
        noisy: bool = False,
        forward: Callable[[Any, Columns], Outputs] | None = None,
    ) -> None:
        self._split, self._exploration, self._masks, self._noisy = split, exploration, masks, noisy
        self._forward = self.forward if forward is None else forward
        self._fetched = self._fetch_columns(wanted)
        self._act = jax.jit(self.traced_actions)
        self._modes = jax.jit(self.checked_greedy)
        self.values = jax.jit(self._values)
        self.outputs = jax.jit(self._outputs)

    def functions(self) -> Sequence[Any]:
        """The compiled functions whose versions `compilations` counts."""
        return self._act, self._modes, self.values, self.outputs

    def forward(self, model: Any, columns: Columns) -> Outputs:
        """The model's outputs inside a compiled function; see `JaxPolicy.forward`."""
        out = run_model(model, columns)
        if SampleBatch.CRITIC_OBS in columns:
            out = out._replace(value=values_of_critic(model, columns[SampleBatch.CRITIC_OBS]))
        out = out._replace(policy=_precise(out.policy), value=None if out.value is None else _precise(out.value))
        if self._masks is not None:
            out = out._replace(policy=self._masks.mask(out.policy, columns[SampleBatch.OBS][ACTION_MASK]))
            if self._exploration.outputs_are_values:
                out = out._replace(value=out.policy.max(axis=-1))
        return out

    def actions(
        self,
        params: Columns,
        extra: Columns,
        columns: Columns,
        noise: np.ndarray | None,
        rows: int,
        noise_seed: Any = None,
    ) -> tuple[trees.Tree, list[np.ndarray], dict[str, np.ndarray]]:
        """`(actions, state_out, fetches)` of the first `rows` rows.

        `noise` is [S, K], from `Exploration.noise`; None for the greedy actions. `noise_seed` is [] uint32, the seed of
        a noisy model that explores.
        """
        actions, packed, states = self._act(params, extra, columns, noise, noise_seed)
        actions = trees.tree_map(lambda leaf: np.array(leaf)[:rows], actions)  # writable, unlike arrays of JAX
        return actions, [np.asarray(part)[:rows] for part in states], self.fetches_of(np.asarray(packed)[:rows])

    def fetches_of(self, packed: np.ndarray) -> dict[str, np.ndarray]:
        """The fetched columns of N rows, which acting returns in one array [N, W]."""
        return {name: packed[:, place] for name, place in self._fetched.items()}

    def modes(self, params: Columns, extra: Columns, obs: trees.Tree, rows: int) -> tuple[trees.Tree, bool]:
        """`(greedy actions of the first rows, whether the model's outputs allow to choose them)`; without memory."""
        actions, finite = self._modes(params, extra, {SampleBatch.OBS: obs})
        actions = trees.tree_map(lambda leaf: np.asarray(leaf)[:rows], actions)
        return actions, bool(np.asarray(finite)[:rows].all())

    def traced_actions(
        self, params: Columns, extra: Columns, columns: Columns, noise: Any, noise_seed: Any
    ) -> tuple[Any, Any, tuple]:
        """`(actions, packed, state_out)`, with all fetched columns in `packed`; traced by JAX."""
        explore, exploration = noise is not None, self._exploration
        model = self._split.merge(params, extra, exploring=explore and self._noisy, noise_seed=noise_seed)
        out = self._forward(model, columns)
        actions = exploration.sample(out.policy, noise) if explore else exploration.mode(out.policy)
        values = jnp.zeros(len(out.policy)) if out.value is None else out.value
        fetches = {**exploration.fetches(out.policy, actions), SampleBatch.VF_PREDS: values[:, None]}
        # One array instead of three: each one that leaves a compiled function costs as much as a small layer.
        return actions, jnp.concatenate([fetches[name] for name in self._fetched], axis=1), out.state

    def greedy(self, params: Columns, extra: Columns, columns: Columns) -> tuple[Any, jax.Array, tuple]:
        """`(actions, outputs, state_out)` for B rows, with the model's outputs; see `JaxPolicy.greedy_actions`."""
        out = self._forward(self._split.merge(params, extra), columns)
        return self._exploration.mode(out.policy), out.policy, tuple(out.state)

    def checked_greedy(self, params: Columns, extra: Columns, columns: Columns) -> tuple[Any, jax.Array]:
        """`(greedy actions, [B] whether the model's outputs allow to choose them)`; traced by JAX.

        The check is that of `compute_actions`: a model may mask by minus infinity, where the log-probability is finite.
        """
        actions, outputs, _ = self.greedy(params, extra, columns)
        checked = self._exploration.fetches(outputs, actions)[next(iter(self._exploration.fetched))]
        return actions, jnp.isfinite(checked).all(axis=-1)

    def _outputs(self, params: Columns, extra: Columns, columns: Columns) -> tuple[jax.Array, tuple]:
        """[S, num_inputs] the model's outputs, those of invalid actions masked, and the states for the next step."""
        out = self._forward(self._split.merge(params, extra), columns)
        return out.policy, tuple(out.state)

    def _values(self, params: Columns, extra: Columns, columns: Columns) -> jax.Array:
        """[S] state values; with `critic_obs` those of the centralized critic."""
        model = self._split.merge(params, extra)
        if SampleBatch.CRITIC_OBS in columns:
            return _precise(values_of_critic(model, columns[SampleBatch.CRITIC_OBS]))
        values = self._forward(model, columns).value
        if values is None:
            raise PolicyError(
                "The model returns no values.",
                where="compute_values",
                got=f"Outputs(value=None) of {type(model).__name__}",
                expected="[N] state values",
                fix="return values from the model: `Outputs(policy=..., value=...)`",
            )
        return values

    def _fetch_columns(self, wanted: frozenset[str] | None) -> dict[str, int | slice]:
        """The index or slice of each fetched column in the packed array."""
        places: dict[str, int | slice] = {}
        start = 0
        for number, (name, width) in enumerate({**self._exploration.fetched, SampleBatch.VF_PREDS: 1}.items()):
            if number == 0 or wanted is None or name in wanted:
                places[name] = (
                    start if width == 1 and name != SampleBatch.ACTION_DIST_INPUTS else slice(start, start + width)
                )
                start += width
        return places


def _precise(output: jax.Array) -> jax.Array:
    """Arrays of half precision as float32, because log-probabilities and errors would be inexact."""
    return output.astype(jnp.float32) if output.dtype.itemsize < 4 else output
