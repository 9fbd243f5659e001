"""A service that returns the sent values: an upper bound for policy servers, and a stand-in for one in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any

from rollax.serving import protocol
from rollax.serving.limits import Limits


class EchoService:
    """Has the interface of `rollax.serving.service.Service`; the action for an observation is the observation.

    Attributes:
        calls: verb, request and client of the quick verbs, in the order of arrival, if `record` is set.
    """

    def __init__(self, limits: Limits | None = None, *, record: bool = False) -> None:
        self.limits, self.addresses = limits or Limits(), list[str]()
        self.calls: list[tuple[str, Any, Hashable]] = []
        self.version = 0
        self._record = record

    def start(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    def call(self, verb: str, request: Any, client: Hashable) -> Any:
        """Answers at once."""
        if verb == "get_actions":
            return protocol.Actions(request.observations, self.version)
        if verb == "get_action":
            return protocol.Action(request.obs, self.version)
        if self._record:
            self.calls.append((verb, request, client))
        if verb == "start_episode":
            return protocol.Started(request.episode_id or "episode")
        if verb == "submit_episodes":
            return protocol.Submitted(len(request.episodes), 0, self.version)
        if verb == "statistics":
            return {"version": self.version, "episodes_running": 0}
        if verb == "health":
            return protocol.Health("ok", self.version, episodes=0, pending=0)
        if verb == "hello":
            return protocol.Hello(
                protocol.PROTOCOL_VERSION,
                "echo",
                False,
                False,
                {"default_policy": protocol.PolicyInfo({}, {}, False)},
                self.version,
                self.addresses,
                self.limits.as_numbers(),
            )
        return protocol.Done()

    def weights(self, policy_id: str) -> asyncio.Future[bytes]:
        """Bytes with the names of the policy and the version."""
        return self._ready(f"weights of {policy_id}, version {self.version}".encode())

    def onnx(self, policy_id: str) -> asyncio.Future[bytes]:
        """The same for the policy as ONNX."""
        return self._ready(f"ONNX of {policy_id}, version {self.version}".encode())

    def _ready(self, content: bytes) -> asyncio.Future[bytes]:
        future = asyncio.get_running_loop().create_future()
        future.set_result(content)
        return future
