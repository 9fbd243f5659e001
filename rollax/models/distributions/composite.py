"""`Composite`: the distribution over a Dict or Tuple space, for any library of arrays."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollax.errors import ShapeError
from rollax.models.distributions import ActionDistribution, Actions, Array


@dataclass(frozen=True)
class Composite(ActionDistribution):
    """Independent distributions of the parts of a Dict or Tuple space, possibly nested.

    Inputs, noise and mask of the parts are concatenated in the order of the space. A part without discrete choices has
    no columns in the mask.
    """

    parts: tuple[ActionDistribution, ...]
    keys: tuple[Any, ...] | None = None  # None for a Tuple

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
        rows = zip(self.parts, self._inputs(inputs), self._split(action_mask, widths), strict=True)
        return self._concatenated([part.mask(i, m) if part.num_mask else i for part, i, m in rows])

    @abstractmethod
    def _split(self, columns: Array, widths: Sequence[int]) -> Sequence[Array]:
        """The parts [B, width] of columns [B, sum of the widths]."""

    @abstractmethod
    def _concatenated(self, parts: Sequence[Array]) -> Array:
        """[B, sum of the widths] of parts [B, width]."""

    def _inputs(self, inputs: Array) -> Sequence[Array]:
        return self._split(inputs, [part.num_inputs for part in self.parts])

    def _noise(self, noise: Array) -> Sequence[Array]:
        return self._split(noise, [part.num_noise for part in self.parts])

    def _joined(self, actions: Sequence[Actions]) -> Actions:
        return tuple(actions) if self.keys is None else dict(zip(self.keys, actions, strict=True))

    def _separated(self, actions: Actions) -> Sequence[Actions]:
        if self.keys is None and isinstance(actions, tuple | list) and len(actions) == len(self.parts):
            return actions
        if self.keys is not None and isinstance(actions, Mapping) and actions.keys() == set(self.keys):
            return [actions[key] for key in self.keys]
        got = f"{type(actions).__name__} {list(actions) if isinstance(actions, Mapping) else ''}".strip()
        expected = f"a tuple of {len(self.parts)} columns" if self.keys is None else f"a dict of {list(self.keys)}"
        raise ShapeError(
            "The actions do not have the structure of the action space.", f"{type(self).__name__}.logp", got
        ).expected(expected, "pass columns as rollax.core.spaces.stack returns them")


def _total(values: Sequence[Array]) -> Array:
    return sum(values[1:], start=values[0])
