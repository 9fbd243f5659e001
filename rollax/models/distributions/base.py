"""What every action distribution can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rollax.errors import ShapeError, SpaceError

Actions = Any
"""Columns of an action space: an array [B, ...], or a dict or tuple of columns (see `rollax.spaces`)."""

MASKED_LOGIT = -1e30
"""Stands for log 0 in logits and log-probabilities: `exp` of it is exactly 0, and sums and gradients stay finite."""

# The caller's uniform noise may be 0 or 1 after rounding to float32. These are the nearest float32 numbers at which
# neither tail of any transform used here is infinite; they are as fine as the noise itself (multiples of 2**-24).
NOISE_MIN = 2.0**-24
NOISE_MAX = 1.0 - 2.0**-24


class ActionDistribution(ABC):
    """A family of distributions over the actions of one space; a row of `inputs` holds the parameters of one member.

    Instances are immutable and hashable, so that a jitted function may close over one or take it as a static argument.
    Every method is batch-first, pure, and differentiable in `inputs`. Shapes are checked while tracing, which costs
    nothing at run time; each raises ShapeError.
    """

    @property
    @abstractmethod
    def num_inputs(self) -> int:
        """Width of `inputs`: what the model has to put out."""

    @property
    @abstractmethod
    def num_noise(self) -> int:
        """Uniform numbers that sampling one row takes."""

    @property
    def num_mask(self) -> int:
        """Width of `action_mask`: one entry per choice of each discrete action; 0 where nothing can be masked."""
        return 0

    def sample(self, inputs: Float[Array, "B N"], noise: Float[Array, "B U"]) -> Actions:
        """One action per row, a deterministic function of the noise.

        Args:
            inputs: [B, num_inputs] parameters. Gaussians are differentiable in them (reparametrized).
            noise: [B, num_noise] independent uniform numbers in (0, 1), as `numpy.random.Generator.random` or
                `jax.random.uniform` gives them in float32; exact zeros and ones are moved inside by 2**-24.
        Returns:
            Columns of the action space, [B, ...]; no action that a mask forbids.
        """
        self._check_inputs(inputs)
        self._check("noise", noise, (inputs.shape[0], self.num_noise))
        return self._sample(inputs, noise)

    def sample_and_logp(
        self, inputs: Float[Array, "B N"], noise: Float[Array, "B U"]
    ) -> tuple[Actions, Float[Array, "B"]]:
        """`sample`, and the log-probability of what it drew; for Gaussians cheaper and more accurate than two calls.

        A SquashedGaussian's value differs from `logp` where tanh rounds to its limits (see there): for the
        importance ratios of PPO take `logp` on both sides, for SAC's reparametrized gradient take this.
        """
        self._check_inputs(inputs)
        self._check("noise", noise, (inputs.shape[0], self.num_noise))
        return self._sample_and_logp(inputs, noise)

    def mode(self, inputs: Float[Array, "B N"]) -> Actions:
        """The greedy action of each row, [B, ...]: the most probable choice, or the (squashed) mean."""
        self._check_inputs(inputs)
        return self._mode(inputs)

    def logp(self, inputs: Float[Array, "B N"], actions: Actions) -> Float[Array, "B"]:
        """Log-probability (or log-density) of one action per row, summed over the parts of the action.

        A discrete action that is masked or out of range gets about `MASKED_LOGIT` instead of minus infinity.
        """
        self._check_inputs(inputs)
        return self._logp(inputs, actions)

    def entropy(self, inputs: Float[Array, "B N"]) -> Float[Array, "B"]:
        """Entropy of each row in nats; exact, except for SquashedGaussian (see there)."""
        self._check_inputs(inputs)
        return self._entropy(inputs)

    def kl(self, inputs: Float[Array, "B N"], other_inputs: Float[Array, "B N"]) -> Float[Array, "B"]:
        """KL(p || q) of each row in nats, p given by `inputs` and q by `other_inputs`; exact for every distribution."""
        self._check_inputs(inputs)
        self._check("other_inputs", other_inputs, (inputs.shape[0], self.num_inputs))
        return self._kl(inputs, other_inputs)

    def mask(
        self,
        inputs: Float[Array, "B N"],
        action_mask: Float[Array, "B M"] | Int[Array, "B M"] | Bool[Array, "B M"],
    ) -> Float[Array, "B N"]:
        """Inputs under which a forbidden choice has a probability of exactly 0, and its logit a gradient of 0.

        Args:
            inputs: [B, num_inputs] parameters.
            action_mask: [B, num_mask] 1 where a choice is allowed, 0 where it is not; every discrete action keeps one
                allowed choice (not checked here: values are not known while tracing).
        Raises:
            SpaceError: nothing in this action space can be masked.
            ShapeError: a mask of another width.
        """
        if not self.num_mask:
            raise SpaceError(
                "An action mask for an action space that has no discrete choices.",
                where=f"{type(self).__name__}.mask",
                got=self,
                expected="Discrete or MultiDiscrete actions, or a Dict or Tuple with some",
                fix="leave 'action_mask' out of the observation",
            )
        self._check_inputs(inputs)
        self._check("action_mask", action_mask, (inputs.shape[0], self.num_mask))
        return self._mask(inputs, action_mask)

    @abstractmethod
    def _sample(self, inputs: Array, noise: Array) -> Actions: ...

    def _sample_and_logp(self, inputs: Array, noise: Array) -> tuple[Actions, Array]:
        actions = self._sample(inputs, noise)
        return actions, self._logp(inputs, actions)

    @abstractmethod
    def _mode(self, inputs: Array) -> Actions: ...

    @abstractmethod
    def _logp(self, inputs: Array, actions: Actions) -> Array: ...

    @abstractmethod
    def _entropy(self, inputs: Array) -> Array: ...

    @abstractmethod
    def _kl(self, inputs: Array, other_inputs: Array) -> Array: ...

    def _mask(self, inputs: Array, action_mask: Array) -> Array:
        raise NotImplementedError(f"{type(self).__name__} has num_mask > 0 but no _mask")

    def _check_inputs(self, inputs: Array) -> None:
        # Any number of rows is right, so the first size is taken from the array itself.
        self._check("inputs", inputs, (*jnp.shape(inputs)[:1], self.num_inputs))

    def _check(self, name: str, array: Array, expected: tuple[int, ...]) -> None:
        got = jnp.shape(array)
        if got != expected:
            raise ShapeError(
                f"{type(self).__name__} got {name} of the wrong shape.",
                where=self,
                got=got,
                expected=expected,
                fix="pass one row per action; num_inputs, num_noise and num_mask are the widths of the flat arguments",
            )
