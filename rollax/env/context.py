"""`EnvContext`: the `env_config` of a creator, with the worker and the copy that the environment is made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollax.frozen import thawed


class EnvContext(dict[str, Any]):
    """The dict `env_config`, with the worker and the copy that the environment is made for.

    Args:
        env_config: the user's settings; their dicts and lists are copied.
        worker_index: 0 for the driver's own worker, else 1 to `num_workers`.
        vector_index: of the copy within the worker.
        num_workers: the number of remote workers.
        remote: the environment runs in its own actor.
    """

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        *,
        worker_index: int = 0,
        vector_index: int = 0,
        num_workers: int = 0,
        remote: bool = False,
    ) -> None:
        super().__init__(thawed(dict(env_config or {})))
        self.worker_index = worker_index
        self.vector_index = vector_index
        self.num_workers = num_workers
        self.remote = remote

    def at(self, vector_index: int) -> EnvContext:
        """The same context for another copy."""
        return EnvContext(
            self,
            worker_index=self.worker_index,
            vector_index=vector_index,
            num_workers=self.num_workers,
            remote=self.remote,
        )
