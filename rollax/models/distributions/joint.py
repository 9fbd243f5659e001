"""The distribution over actions that are a Dict or Tuple of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax import lax
from jaxtyping import Array

from rollax.errors import ShapeError
from rollax.models.distributions.base import ActionDistribution, Actions


@dataclass(frozen=True)
class Joint(ActionDistribution):
    """Independent parts, each with a distribution of its own, which may be a Joint again.

    Inputs, noise and mask of the parts lie side by side in the order of the space. A part without discrete choices
    has no columns in the mask.

    Args:
        parts: the distribution of each part.
        keys: the keys of a Dict space; None for a Tuple.
    """

    parts: tuple[ActionDistribution, ...]
    keys: tuple[str, ...] | None = None

    @property
    def num_inputs(self) -> int:
        return sum(part.num_inputs for part in self.parts)

    @property
    def num_noise(self) -> int:
        return sum(part.num_noise for part in self.parts)

    @property
    def num_mask(self) -> int:
        return sum(part.num_mask for part in self.parts)

    def _sample(self, inputs: Array, noise: Array) -> Actions:
        rows = zip(self.parts, self._inputs(inputs), self._noise(noise), strict=True)
        return self._joined([part.sample(i, u) for part, i, u in rows])

    def _sample_and_logp(self, inputs: Array, noise: Array) -> tuple[Actions, Array]:
        rows = zip(self.parts, self._inputs(inputs), self._noise(noise), strict=True)
        actions, logps = zip(*(part.sample_and_logp(i, u) for part, i, u in rows), strict=True)
        return self._joined(actions), _total(logps)

    def _mode(self, inputs: Array) -> Actions:
        return self._joined([part.mode(i) for part, i in zip(self.parts, self._inputs(inputs), strict=True)])

    def _logp(self, inputs: Array, actions: Actions) -> Array:
        rows = zip(self.parts, self._inputs(inputs), self._separated(actions), strict=True)
        return _total([part.logp(i, a) for part, i, a in rows])

    def _entropy(self, inputs: Array) -> Array:
        return _total([part.entropy(i) for part, i in zip(self.parts, self._inputs(inputs), strict=True)])

    def _kl(self, inputs: Array, other_inputs: Array) -> Array:
        rows = zip(self.parts, self._inputs(inputs), self._inputs(other_inputs), strict=True)
        return _total([part.kl(i, o) for part, i, o in rows])

    def _mask(self, inputs: Array, action_mask: Array) -> Array:
        widths = [part.num_mask for part in self.parts]
        rows = zip(self.parts, self._inputs(inputs), lax.split(action_mask, widths, axis=1), strict=True)
        return lax.concatenate([part.mask(i, m) if part.num_mask else i for part, i, m in rows], 1)

    def _inputs(self, inputs: Array) -> Sequence[Array]:
        return lax.split(inputs, [part.num_inputs for part in self.parts], axis=1)

    def _noise(self, noise: Array) -> Sequence[Array]:
        return lax.split(noise, [part.num_noise for part in self.parts], axis=1)

    def _joined(self, actions: Sequence[Actions]) -> Actions:
        return tuple(actions) if self.keys is None else dict(zip(self.keys, actions, strict=True))

    def _separated(self, actions: Actions) -> Sequence[Actions]:
        if self.keys is None and isinstance(actions, tuple | list) and len(actions) == len(self.parts):
            return actions
        if self.keys is not None and isinstance(actions, Mapping) and actions.keys() == set(self.keys):
            return [actions[key] for key in self.keys]
        raise ShapeError(
            "Actions that do not have the structure of the action space.",
            where="Joint.logp",
            got=f"{type(actions).__name__} {list(actions) if isinstance(actions, Mapping) else ''}".strip(),
            expected=f"a tuple of {len(self.parts)} columns" if self.keys is None else f"a dict of {list(self.keys)}",
            fix="pass columns as rollax.spaces.stack gives them",
        )


def _total(values: Sequence[Array]) -> Array:
    return sum(values[1:], start=values[0])
