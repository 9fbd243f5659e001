"""Checks of the optimizer of an algorithm that overrides `make_optimizer`."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from rollax.batch import Columns
from rollax.errors import PolicyError
from rollax.policy.objective import AlgorithmObjective
from rollax.policy.update_plan import part_of

_FIRST_STEPS = 8  # some of them may be 0, in a warm-up or while gradients are accumulated


def check_own_optimizer(objective: AlgorithmObjective, params: Columns) -> None:
    """Raises PolicyError for an optimizer that steps against the gradient, or moves parts whose step is not due.

    An optimizer with its own learning rate, such as `optax.adam(lr)`, would increase the loss, because updates subtract
    `lr` times its steps.
    """
    first, total = _first_steps(objective, params)
    where, every = f"{objective.algorithm.label}, make_optimizer", objective.plan.every
    if total < 0:
        raise PolicyError(
            "The optimizer reverses the sign of the gradient, so updates would increase the loss.",
            where=where,
            got="steps against the gradient, as those of optax.adam(lr)",
            expected="an optimizer without a learning rate; updates subtract lr times its steps",
            fix="return optax.scale_by_adam() or the like, and set the config key lr",
        )
    if moved := sorted({part_of(n) for n, step in first.items() if every.get(part_of(n), 1) > 1 and step.any()}):
        raise PolicyError(
            "The optimizer moves parts of the model in gradient steps that the plan skips for these parts.",
            where=where,
            got=f"a first step of {moved}, and a plan with every={dict(every)}",
            expected="an optimizer for each part, which moves it only in the steps of the plan",
            fix="return by_part(optimizers, self.plan.every), of rollax.policy.gradient_transforms",
        )


@partial(jax.jit, static_argnums=0)
def _first_steps(objective: AlgorithmObjective, params: Columns) -> tuple[Columns, jax.Array]:
    """The first step for gradients of 1 and parameters of 0, and [] the sum over the first 8 steps."""
    optimizer = optax.with_extra_args_support(objective.optimizer)
    zeros = jax.tree.map(jnp.zeros_like, dict(params))
    gradients = jax.tree.map(jnp.ones_like, zeros)

    def step(state: Any, _: None) -> tuple[Any, tuple[Any, jax.Array]]:
        steps, state = optimizer.update(gradients, state, zeros, lr=1.0)
        return state, (steps, sum(map(jnp.sum, jax.tree.leaves(steps)), jnp.zeros(())))

    _, (steps, sums) = lax.scan(step, optimizer.init(zeros), length=_FIRST_STEPS)
    return jax.tree.map(lambda of_each: of_each[0], steps), sums.sum()
