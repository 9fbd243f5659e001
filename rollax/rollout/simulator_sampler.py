"""`SimulatorSampler`: samples a simulator that runs on the device but is not written in JAX, step by step."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.env.jax.torch_vector_env import Received, TorchBaseEnv
from rollax.policy.traced_acting import Decisions
from rollax.rollout.compiled_sampler import Carry, CompiledSampler, Rows

log = logging.getLogger("rollax.sampling")


class SimulatorSampler(CompiledSampler):
    """A `CompiledSampler` for a `TorchBaseEnv`: single steps are compiled, not a whole fragment.

    Each step is a compiled call that acts, a step of the simulator, and a compiled call that writes a row. The rows of
    a fragment are collected on the device; none is fetched before the last step.
    """

    env: TorchBaseEnv  # type: ignore[assignment]

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._decide = jax.jit(self._traced_decide)
        self._empty = jax.jit(self._traced_empty, static_argnames=("steps", "learning"))
        self._put = jax.jit(self._traced_put, static_argnames="learning", donate_argnames="rows")
        self.roll = self._rolled
        self._latest: Rows | None = None  # the rows of the last call, as long as nothing has been recorded from them

    def taken_back(self) -> None:
        """Drops the steps of the last call. A simulator cannot go back, so fresh episodes begin at the next call.

        Raises:
            EnvError, NonFiniteError: numbers in the rows of these steps are not finite.
        """
        latest, self._latest = self._latest, None
        if latest is not None:
            rows = self._on_host(jax.tree.map(np.asarray, latest), frozenset())
            for i, one in self.compiled.items():
                one.acting.fetches(rows.columns[i].packed)
        log.warning("The steps of a simulator cannot be undone: a train batch is dropped, and fresh episodes begin.")

    def _advanced(self, carry: Carry) -> None:
        super()._advanced(carry)
        self._latest = None

    def _rolled(
        self, params: Any, extra: Any, carry: Carry, noise: Any, *, steps: int, learning: frozenset[str]
    ) -> tuple[Carry, Rows]:
        """Plays `steps` steps; for arguments and result see `traced_rollout`."""
        noise, rows = jax.device_put(noise), None
        for step in range(steps):
            decided, actions = self._decide(params, extra, carry, noise, step)
            received = self.env.step_on_device(actions)
            if rows is None:
                rows = self._empty(carry, decided, received, steps=steps, learning=learning)
            carry, rows = self._put(carry, decided, received, step, rows=rows, learning=learning)
        assert rows is not None
        self._latest = rows
        return carry, rows

    # Traced by JAX.

    def _traced_decide(
        self, params: Any, extra: Any, carry: Carry, noise: Any, step: jax.Array
    ) -> tuple[dict[str, Decisions], dict[str, Any]]:
        """The decisions of a step, and the actions to send; `noise` has the random numbers of all steps."""
        of_step = None if noise is None else jax.tree.map(lambda part: part[step], noise)
        return self.traced_decisions(params, extra, carry, of_step)

    def _traced_row(
        self, carry: Carry, decided: dict[str, Decisions], received: Received, learning: frozenset[str]
    ) -> tuple[Carry, Rows]:
        begun, outcome = self.env.traced_outcome(received)
        policies, row = self.traced_rows(carry, decided, outcome, begun, learning)
        return Carry((), policies), row

    def _traced_empty(
        self, carry: Carry, decided: dict[str, Decisions], received: Received, steps: int, learning: frozenset[str]
    ) -> Rows:
        """Rows of zeros for `steps` steps."""
        _, row = jax.eval_shape(partial(self._traced_row, learning=learning), carry, decided, received)
        outcomes = (jnp.zeros((*column.shape, steps), column.dtype) for column in row[:3])
        columns = jax.tree.map(lambda leaf: jnp.zeros((len(leaf) * steps, *leaf.shape[1:]), leaf.dtype), row.columns)
        return Rows(*outcomes, columns=columns)

    def _traced_put(
        self,
        carry: Carry,
        decided: dict[str, Decisions],
        received: Received,
        step: jax.Array,
        rows: Rows,
        learning: frozenset[str],
    ) -> tuple[Carry, Rows]:
        """The carry after a step, and `rows` with the row of the step; neither shares memory with the simulator."""
        carry, row = self._traced_row(carry, decided, received, learning)

        def put(column: jax.Array, part: jax.Array) -> jax.Array:
            """The column [R · T, ...] of R trajectories, with `part` [R, ...] written at this step of each."""
            by_step = column.reshape(len(part), -1, *part.shape[1:])
            return by_step.at[:, step].set(part).reshape(column.shape)

        outcomes = (column.at[..., step].set(part) for column, part in zip(rows[:3], row[:3], strict=True))
        return carry, Rows(*outcomes, columns=jax.tree.map(put, rows.columns, row.columns))
