"""`TracedActing`: a policy that acts inside a compiled function, for several steps in one call."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rollax.batch import Columns, SampleBatch
from rollax.core.introspection import overrides
from rollax.policy.checks import check_finite
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.policy import Policy
from rollax.policy.update_plan import acting_bucket


class Decisions(NamedTuple):
    """What a policy returns for B rows; `TracedActing.fetches` splits `packed` [B, W] into columns."""

    actions: Any
    packed: Any
    states: tuple[Any, ...]


class TracedActing:
    """Acts as `compute_actions` does, for a policy for which `why_only_stepwise` returns an empty text.

    This class reads private attributes of the policy, because policy and environment are compiled into one function.
    """

    def __init__(self, policy: JaxPolicy) -> None:
        self._policy = policy

    def draw_noise(self, calls: int, rows: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the random numbers of `calls` calls of `compute_actions` with exploration.

        They are [calls, rows, K] numbers, and [calls] seeds for a noisy model, or None for any other model.
        """
        policy, size = self._policy, acting_bucket(rows)
        draw = policy.exploration.noise
        drawn = [(draw(policy.acting_rng, size, policy.timestep), policy._draw_noise_seed()) for _ in range(calls)]
        noise, seeds = zip(*drawn, strict=True)
        return np.stack(noise)[:, :rows], np.stack(seeds) if policy.actor.noisy else None

    def act(self, params: Columns, extra: Columns, columns: Columns, noise: Any) -> Decisions:
        """Returns the decisions for any number of rows; traced by JAX.

        `noise` has the numbers and the seed of one call, from `draw_noise`; None for greedy actions. Other arguments
        are as for `JaxPolicy.greedy_actions`, but the last parts of `state_in` are the exploration state, if any.
        """
        policy, parts = self._policy, len(self._policy.memory.initial_state)
        state, seed = columns.get(SampleBatch.STATE_IN, ()), None
        exploring = state[parts:]
        if noise is not None:
            noise, seed = noise
            noise, exploring = policy.exploration.advance(noise, exploring)
        inputs = {**columns, SampleBatch.STATE_IN: state[:parts]}
        actions, packed, states = policy.actor.traced_actions(params, extra, inputs, noise, seed)
        return Decisions(actions, packed, (*states, *exploring))

    def fetches(self, packed: np.ndarray) -> dict[str, np.ndarray]:
        """The `fetches` of `compute_actions`, with the same NonFiniteError, for any number of rows."""
        policy = self._policy
        fetches = policy.actor.fetches_of(packed)
        check_finite(fetches[policy.checked_fetch], policy.name, policy.timestep)
        return fetches


def why_only_stepwise(policy: Policy) -> str:
    """Returns why a policy cannot act for several steps in one compiled call; an empty text if it can."""
    if not isinstance(policy, JaxPolicy):
        return "a policy that is no JaxPolicy"
    if overrides(type(policy), JaxPolicy, "compute_actions"):
        return "compute_actions of its own"
    return "noise in its parameters" if policy.exploration.overrides("acting_params") else ""
