"""Refuses settings for layers that a policy does not have, and layers, batches and models that are too large."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gymnasium import Space, spaces

from rollax.config import TrainerConfig
from rollax.core.memory import check_fits, gib
from rollax.core.spaces import leaves, space_text
from rollax.errors import ConfigError, PolicyError
from rollax.models.config import ModelConfig
from rollax.models.features import MIN_IMAGE_SIDE, ImageLayout

_OF_MEMORY = ("use_lstm", "use_gru", "use_attention")
_OF_ACTOR_CRITICS = ("free_log_std", "vf_share_layers")
_OF_IMAGES = ("conv_filters", "conv_activation", "conv_dense")
_COPIES = 4  # parameters, gradients, and the two moments of Adam
_NUMBER = 4
_ROW = 16  # reward, value, log-probability and flags


def check_layers(config: ModelConfig, policy_class: str, *, memory: bool = False) -> None:
    """Raises ConfigError for a setting of `ActorCritic` models; `memory` allows the settings of layers with memory."""
    for name in _OF_ACTOR_CRITICS if memory else (*_OF_MEMORY, *_OF_ACTOR_CRITICS):
        if getattr(config, name):
            raise ConfigError(
                "The setting is for actor-critic models, but the algorithm has different networks.",
                where=f"config key 'model.{name}', for {policy_class}",
                got=getattr(config, name),
                expected="the sizes of the default layers (fcnet_hiddens, fcnet_activation, conv_filters, ...), or a "
                "custom_model",
                fix=f"leave {name} out, or use PPO",
            )


def check_convolutions(config: ModelConfig, observation_spaces: Iterable[Space], where: str) -> None:
    """Raises ConfigError for a setting of convolutions if none of the observation spaces has an image."""
    default = ModelConfig()
    given = next((name for name in _OF_IMAGES if getattr(config, name) != getattr(default, name)), None)
    boxes = [leaf for space in observation_spaces for _, leaf in leaves(space) if isinstance(leaf, spaces.Box)]
    if given is not None and not any(ImageLayout.of(box) for box in boxes):
        raise ConfigError(
            f"{given} has no effect: no observation is an image.",
            where=f"config key 'model.{given}', for {where}",
            got=", ".join(map(space_text, boxes)) or "observations without a Box",
            expected=f"a Box of rank 3 with two sides of at least {MIN_IMAGE_SIDE}, or of uint8 and rank 2 or 4",
            fix=f"leave {given} out, pad smaller images to that size, or set a custom_model",
        )


def check_sizes(observation_space: Space, action_space: Space, config: TrainerConfig, where: str) -> None:
    """Raises ConfigError if a layer, an update or a fragment of the policy `where` cannot fit into the memory."""
    model = config.model
    if model.custom_model is None:
        widths = [*model.fcnet_hiddens]
        widths += 2 * [model.lstm_cell_size] if model.use_lstm or model.use_gru else []
        if model.use_attention:
            heads = model.attention_num_heads * model.attention_head_dim
            widths += [*(model.attention_dim, heads), *(model.attention_dim, model.attention_position_wise_mlp_dim)]
        outputs = sum(_width(leaf) for _, leaf in leaves(action_space))
        widths += [*getattr(config, "hiddens", ()), outputs * getattr(config, "num_atoms", 1)]
        key = f"{where}: observation_space, action_space, model.fcnet_hiddens and the like"
        check_layers_fit(observation_space, widths, key)
    row = _ROW + sum(
        math.prod(leaf.shape) * leaf.dtype.itemsize
        for _, leaf in leaves(observation_space)
        if leaf.shape is not None and leaf.dtype is not None
    )
    if model.use_attention:  # the column `state_in`
        row += _NUMBER * model.attention_num_transformer_units * model.attention_memory * model.attention_dim
    key = "config key 'train_batch_size'"
    fix = "lower train_batch_size, or rollout_fragment_length and num_envs_per_worker"
    check_fits(f"A batch of {config.train_batch_size:,} rows", config.train_batch_size * row, key, fix)
    rows = config.fragment_length * config.num_envs_per_worker
    key = "config keys 'rollout_fragment_length' and 'num_envs_per_worker'"
    check_fits(f"A fragment of {rows:,} rows", rows * row, key, fix)
    passes = getattr(config, "num_sgd_iter", 1)
    key = "config keys 'num_sgd_iter' and 'train_batch_size'"
    order = passes * config.train_batch_size * _NUMBER
    check_fits(f"The order of the rows in {passes:,} epochs", order, key, "lower num_sgd_iter or train_batch_size")


def check_layers_fit(observation_space: Space, widths: Iterable[int], where: str) -> None:
    """Raises ConfigError if a layer of a network from observations to layers of `widths` cannot fit into the memory."""
    # Leaves of rank 3 or more are images, which convolutions encode.
    inputs = sum(_width(leaf) for _, leaf in leaves(observation_space) if len(leaf.shape or ()) < 3)
    largest = max(pairwise([inputs, *widths]), key=math.prod)
    check_fits(
        f"A layer of {largest[0]:,} inputs and {largest[1]:,} outputs",
        math.prod(largest) * _NUMBER * _COPIES,
        where,
        "use smaller spaces or layers, such as Box or MultiDiscrete in place of a Discrete with many values",
    )


def _width(leaf: Space) -> int:
    """The width of a layer's inputs or outputs for a leaf, with discrete values one-hot."""
    supported = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    return spaces.flatdim(leaf) if isinstance(leaf, supported) else 0


_ANYWAY = 64 << 20  # bytes that are always allowed
_USES = 2  # an evaluator may build the policies a second time


@dataclass
class _Left:
    size: int


_LEFT: ContextVar[_Left | None] = ContextVar("bytes of models that may still be built", default=None)


def weights_in(state: Any) -> Mapping[str, Any]:
    """The weights in the stored state of a policy; empty if it has none."""
    weights = state.get("weights") if isinstance(state, Mapping) else None
    return weights if isinstance(weights, Mapping) else {}


@contextmanager
def models_as_large_as(weights: Iterable[Mapping[str, Any]]) -> Iterator[None]:
    """A context in which `check_model_size` refuses models that together are much larger than all of these weights.

    Args:
        weights: for each policy, name -> array.
    """
    sizes = [math.prod(array.shape) * 4 for policy in weights for array in policy.values() if hasattr(array, "shape")]
    token = _LEFT.set(_Left(_ANYWAY + _USES * sum(sizes)))
    try:
        yield
    finally:
        _LEFT.reset(token)


def check_model_size(shapes: Callable[[], Mapping[str, tuple[int, ...]]], where: str) -> None:
    """Raises PolicyError if a model is too large for the weights in the file that describes it.

    Outside of `models_as_large_as` it does nothing.

    Args:
        shapes: returns name -> shape of the arrays of the model, without building it.
        where: the policy, in errors.
    """
    left = _LEFT.get()
    if left is None:
        return
    size = sum(math.prod(shape) * 4 for shape in shapes().values())
    if size > left.size:
        fix = "use the 'model' and the spaces that the weights were made with, or another copy of the file"
        raise PolicyError(
            "The model is much larger than the stored weights.", where, f"a model of {gib(size)}"
        ).expected(f"at most {gib(left.size)}, for the size of the stored weights", fix)
    left.size -= size
