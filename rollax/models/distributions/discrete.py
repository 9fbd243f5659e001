"""Distributions over discrete actions: Categorical, MultiCategorical and Bernoulli."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from rollax.models.distributions import (
    LOWEST_LOGIT,
    MASKED_LOGIT,
    NOISE_MAX,
    NOISE_MIN,
    PADDING_LOGIT,
    Bits,
    Choices,
    OneChoice,
)


@dataclass(frozen=True)
class Categorical(OneChoice):
    """A distribution over one choice; see `OneChoice`."""

    def _sample(self, inputs: Array, noise: Array) -> Array:
        return _inverse_cdf(inputs, noise[:, 0]) + self.start

    def _mode(self, inputs: Array) -> Array:
        return jnp.argmax(inputs, axis=-1).astype(jnp.int32) + self.start

    def _logp(self, inputs: Array, actions: Array) -> Array:
        self._check("actions", actions, inputs.shape[:1])
        return _choice_logp(inputs, jnp.asarray(actions).astype(jnp.int32) - self.start)

    def _entropy(self, inputs: Array) -> Array:
        return _entropy(inputs)

    def _kl(self, inputs: Array, other_inputs: Array) -> Array:
        return _kl(inputs, other_inputs)

    def _mask(self, inputs: Array, action_mask: Array) -> Array:
        valid = jnp.asarray(action_mask) > 0
        return masked(inputs, valid | ~valid.any(axis=-1, keepdims=True))


@dataclass(frozen=True)
class MultiCategorical(Choices):
    """A distribution over several choices; see `Choices`.

    All choices are padded to the size of the largest, so that the number of operations does not depend on how many
    choices there are.
    """

    def _sample(self, inputs: Array, noise: Array) -> Array:
        # If a logit is NaN, padding may be drawn; the minimum keeps the choice in range.
        return self._actions(jnp.minimum(_inverse_cdf(self._padded(inputs), noise), np.array(self.nvec, np.int32) - 1))

    def _mode(self, inputs: Array) -> Array:
        return self._actions(jnp.argmax(self._padded(inputs), axis=-1).astype(jnp.int32))

    def _logp(self, inputs: Array, actions: Array) -> Array:
        rows = inputs.shape[0]
        self._check("actions", actions, (rows, *self.shape))
        choices = jnp.asarray(actions).astype(jnp.int32).reshape(rows, -1) - np.array(self.start, np.int32)
        return _choice_logp(self._padded(inputs), choices).sum(-1)

    def _entropy(self, inputs: Array) -> Array:
        return _entropy(self._padded(inputs)).sum(-1)

    def _kl(self, inputs: Array, other_inputs: Array) -> Array:
        return _kl(self._padded(inputs), self._padded(other_inputs)).sum(-1)

    def _mask(self, inputs: Array, action_mask: Array) -> Array:
        return masked(inputs, jnp.asarray(action_mask) > 0)

    def _padded(self, inputs: Float[Array, "B N"]) -> Float[Array, "B D K"]:
        rows, width = inputs.shape[0], max(self.nvec)
        if min(self.nvec) == width:
            return inputs.reshape(rows, -1, width)
        # A split, whose gradient is a concatenation; a gather has a slow scatter as gradient.
        parts = lax.split(inputs, self.nvec, axis=1)
        padded = [jnp.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=PADDING_LOGIT) for p in parts]
        return jnp.stack(padded, axis=1)

    def _actions(self, choices: Int[Array, "B D"]) -> Array:
        return (choices + np.array(self.start, np.int32)).reshape(-1, *self.shape)


@dataclass(frozen=True)
class Bernoulli(Bits):
    """A distribution over bits; see `Bits`."""

    def _sample(self, inputs: Array, noise: Array) -> Array:
        return self._actions(jnp.clip(noise, NOISE_MIN, NOISE_MAX) < jax.nn.sigmoid(inputs))

    def _mode(self, inputs: Array) -> Array:
        return self._actions(inputs > 0)

    def _logp(self, inputs: Array, actions: Array) -> Array:
        rows = inputs.shape[0]
        self._check("actions", actions, (rows, *self.shape))
        bits = jnp.asarray(actions).reshape(rows, -1)
        off = jnp.where(bits == 0, jax.nn.log_sigmoid(-inputs), MASKED_LOGIT)
        return jnp.where(bits == 1, jax.nn.log_sigmoid(inputs), off).sum(-1)

    def _entropy(self, inputs: Array) -> Array:
        # In terms of |logit|, so that large terms do not cancel when a bit is nearly certain.
        size = jnp.abs(inputs)
        return (jax.nn.softplus(-size) + size * jax.nn.sigmoid(-size)).sum(-1)

    def _kl(self, inputs: Array, other_inputs: Array) -> Array:
        on, off = jax.nn.sigmoid(inputs), jax.nn.sigmoid(-inputs)
        on_ratio = jax.nn.log_sigmoid(inputs) - jax.nn.log_sigmoid(other_inputs)
        off_ratio = jax.nn.log_sigmoid(-inputs) - jax.nn.log_sigmoid(-other_inputs)
        return (on * on_ratio + off * off_ratio).sum(-1)

    def _actions(self, bits: Bool[Array, "B D"]) -> Array:
        return bits.astype(jnp.int8).reshape(-1, *self.shape)


def masked(logits: Float[Array, "*S K"], valid: Bool[Array, "*S K"]) -> Float[Array, "*S K"]:
    """Logits or values of choices, with invalid choices far below all others; NaN stays NaN."""
    return jnp.where(valid, jnp.maximum(logits, LOWEST_LOGIT), MASKED_LOGIT)


def _shifted(logits: Float[Array, "*S K"]) -> Float[Array, "*S K"]:
    logits = jnp.maximum(logits, PADDING_LOGIT)  # a model may mask with minus infinity, and 0 · ∞ is NaN
    # The shift does not change probabilities, so that it needs no gradient.
    return logits - lax.stop_gradient(logits.max(axis=-1, keepdims=True))


def _log_probs(logits: Float[Array, "*S K"]) -> Float[Array, "*S K"]:
    shifted = _shifted(logits)
    return shifted - jnp.log(jnp.exp(shifted).sum(axis=-1, keepdims=True))


def _choice_logp(logits: Float[Array, "*S K"], choices: Int[Array, "*S"]) -> Float[Array, "*S"]:
    """Log-probability of each choice; MASKED_LOGIT if it is out of range."""
    size = logits.shape[-1]
    # A comparison instead of a gather: it is fused with the softmax, and its gradient is not a scatter.
    taken = choices[..., None] == np.arange(size, dtype=np.int32)
    logp = jnp.where(taken, _log_probs(logits), 0.0).sum(axis=-1)
    return jnp.where((choices >= 0) & (choices < size), logp, MASKED_LOGIT)


def _inverse_cdf(logits: Float[Array, "*S K"], noise: Float[Array, "*S"]) -> Int[Array, "*S"]:
    """Returns the first choice of positive probability whose cumulative probability exceeds the noise.

    If there is none, it is the last choice of positive probability: the noise may be 1, and a cumulative sum that is
    computed as a tree may, by rounding, decrease, rise at a masked choice, or end too low. This method needs one
    uniform number per action; the Gumbel-max trick needs K.
    """
    size = logits.shape[-1]
    weights = jnp.exp(_shifted(logits))
    cumulative = jnp.cumsum(weights, axis=-1)
    threshold = noise[..., None] * cumulative[..., -1:]
    # The choice with the lowest key is returned. The key of choice k is 3K if its probability is 0, else k if its
    # cumulative sum exceeds the noise, else 2K - k.
    # NaN weights count as positive, so that the action is in range until the model's outputs are checked.
    index = np.arange(size, dtype=np.int32)
    key = jnp.where(weights != 0, jnp.where(cumulative > threshold, index, 2 * size - index), 3 * size).min(axis=-1)
    return jnp.where(key < size, key, 2 * size - key)


def _entropy(logits: Float[Array, "*S K"]) -> Float[Array, "*S"]:
    log_probs = _log_probs(logits)
    return -(jnp.exp(log_probs) * log_probs).sum(axis=-1)


def _kl(logits: Float[Array, "*S K"], other: Float[Array, "*S K"]) -> Float[Array, "*S"]:
    log_probs = _log_probs(logits)
    return (jnp.exp(log_probs) * (log_probs - _log_probs(other))).sum(axis=-1)
