"""`NullOptimizer`: the optimizer of a trainer that was opened to evaluate its policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollax.errors import ConfigError
from rollax.optimizers.optimizer import Optimizer, Stats


class NullOptimizer(Optimizer):
    """Does not learn, and requires no recorded data, no replay buffer and no remote workers.

    The state of the saved optimizer is kept unchanged, and saved again.
    """

    learns = False

    def _set_up(self) -> None:
        super()._set_up()
        self._state: dict[str, Any] = {}

    def step(self) -> Stats:
        """Raises ConfigError."""
        raise ConfigError(
            "This trainer was opened for evaluation only and cannot train.",
            "Trainer.train",
            "from_checkpoint(..., learn=False)",
        ).expected("learn=True, the default", "open the checkpoint without learn=False")

    def get_state(self) -> dict[str, Any]:
        """The state that was passed to `set_state`."""
        return self._state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Keeps the state of another optimizer."""
        self._state = dict(state)
