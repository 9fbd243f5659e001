"""`Gradients` of a minibatch, and `by_due_parts`: a version of them for each set of parts that make a gradient step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rollax.batch import Columns


class Gradients(NamedTuple):
    """The loss of one minibatch, and what follows from it."""

    loss: jax.Array
    gradients: Columns  # name of a parameter -> gradient; zeros for parts that wait
    statistics: Columns
    extra: Columns  # the new one
    found: Columns  # name of a statistic that only some steps have -> [] whether this step has it


def by_due_parts(
    every: Mapping[str, int], updates_before: Any, version_of: Callable[[frozenset[str]], Gradients]
) -> Gradients:
    """The gradients of the gradient step after `updates_before` others.

    Each version is compiled for its own parts, so that what the others need is not computed.

    Args:
        every: part of the model -> k, for a part that makes each k-th step only.
        updates_before: [] the number of gradient steps so far.
        version_of: the gradients of a step in which these parts wait.
    """
    intervals = sorted(set(every.values()) - {1})
    if not intervals:
        return version_of(frozenset())
    # One for each combination of intervals that are not due, in the order of the numbers with these binary digits.
    versions: list[Callable[[], Gradients]] = []
    for waits in itertools.product((False, True), repeat=len(intervals)):
        waiting = set(itertools.compress(intervals, waits))
        versions.append(partial(version_of, frozenset(part for part in every if every[part] in waiting)))
    found = [jax.eval_shape(version).statistics for version in versions]
    shapes = {name: shape for statistics in found for name, shape in statistics.items()}
    in_all = {name for name in shapes if all(name in statistics for statistics in found)}

    def completed(version: Callable[[], Gradients]) -> Gradients:
        made = version()
        statistics = {
            name: jnp.broadcast_to(made.statistics.get(name, 0), shape.shape).astype(shape.dtype)
            for name, shape in shapes.items()
        }
        present = {name: jnp.array(name in made.statistics) for name in shapes if name not in in_all}
        return made._replace(statistics=statistics, found=present)

    number = 0
    for interval in intervals:
        number = 2 * number + ((updates_before + 1) % interval != 0)
    return lax.switch(number, [partial(completed, version) for version in versions])
