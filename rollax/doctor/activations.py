"""The outputs of a model's hidden units, read from its jaxpr, for any model in JAX and without hooks in the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex

from rollax.batch import Fragment, SampleBatch
from rollax.core import trees
from rollax.models.actor_with_critics import values_of_actions
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.policy import Policy

_ROWS = 2048
_FUNCTIONS = frozenset({"relu", "elu", "gelu", "silu"})
"""Activation functions of JAX, by their names in a jaxpr."""


def hidden_activations(policy: Policy, rows: Fragment) -> dict[str, np.ndarray]:
    """Returns layer -> [N, units], the outputs of the activation functions for at most 2048 of the rows.

    Layers are numbered in the order in which the model computes them; convolutions are left out. The result is empty
    for policies with memory, and for policies that are not in JAX.
    """
    if not isinstance(policy, JaxPolicy) or policy.get_initial_state() or not len(rows):
        return {}
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), _ROWS)).astype(np.int64)
    columns = {SampleBatch.OBS: trees.index(rows[SampleBatch.OBS], chosen)}
    if SampleBatch.CRITIC_OBS in rows:
        columns[SampleBatch.CRITIC_OBS] = trees.index(rows[SampleBatch.CRITIC_OBS], chosen)
    model = policy.current_model()
    found = _outputs_of_units(lambda of: policy.forward(model, of), columns)
    critics = getattr(model, "critics", None)
    if critics is not None:
        actions = trees.index(rows[SampleBatch.ACTIONS], chosen)
        found += _outputs_of_units(
            lambda of: values_of_actions(critics, of[0], of[1], policy.action_space),
            (columns[SampleBatch.OBS], actions),
        )
    return {f"hidden layer {number}": part for number, part in enumerate(found, start=1)}


def _outputs_of_units(function: Callable[[Any], Any], argument: Any) -> list[np.ndarray]:
    """The [N, units] outputs of the activation functions in a function of N rows; one array per ensemble member."""
    rows = trees.length(argument if isinstance(argument, dict) else argument[0])
    closed = jax.make_jaxpr(function)(argument)
    units = [equation.outvars[0] for equation in closed.jaxpr.eqns if _is_activation(equation)]
    if not units:
        return []
    jaxpr = closed.jaxpr.replace(outvars=units, debug_info=closed.jaxpr.debug_info.with_unknown_names())
    found = map(np.asarray, jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, closed.consts))(*jax.tree.leaves(argument)))
    layers = []
    for outputs in found:
        if outputs.ndim == 2 and outputs.shape[0] == rows and outputs.shape[1] > 1:
            layers.append(outputs)
        elif outputs.ndim == 3 and outputs.shape[1] == rows:  # [members, N, units]
            layers += [*outputs]
    return layers


def _is_activation(equation: Any) -> bool:
    if equation.primitive.name == "custom_jvp_call":
        return any(map(_is_activation, equation.params["call_jaxpr"].jaxpr.eqns))
    return equation.primitive.name == "tanh" or equation.params.get("name") in _FUNCTIONS


def leaves_of(tree: trees.Tree) -> Iterator[tuple[str, np.ndarray]]:
    """The leaves of columns [N, ...], with the paths of a Dict or Tuple."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        yield jax.tree_util.keystr(path), np.asarray(leaf)
