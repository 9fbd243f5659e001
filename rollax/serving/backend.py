"""`Backend`: the part of a policy server that chooses actions and receives experience."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gymnasium import Space

from rollax import __version__
from rollax.config.json_form import space_to_json
from rollax.core import trees
from rollax.policy.policy import Policy
from rollax.serving.protocol import PROTOCOL_VERSION, Actions, Episode, Hello, PolicyInfo, Submitted

OnActions = Callable[[Actions | BaseException], None]


class Observations(Mapping[str, Any]):
    """Episode id -> observation, of single-agent episodes.

    Attributes:
        ids: ids of the episodes.
        columns: the same observations as columns [N, ...], in the order of `ids`.
    """

    __slots__ = ("_rows", "columns", "ids")

    def __init__(self, ids: Sequence[str], columns: trees.Tree) -> None:
        self.ids, self.columns = ids, columns
        self._rows: dict[str, Any] | None = None

    def __getitem__(self, episode_id: str) -> Any:
        if self._rows is None:
            self._rows = dict(zip(self.ids, trees.rows(self.columns), strict=True))
        return self._rows[episode_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)


class Backend(ABC):
    """Answers requests with a trained policy (`PolicyBackend`), or for a run that learns (`TrainingBackend`).

    The server has validated the requests: episodes are running, ids are strings, values belong to their spaces and have
    the types of those spaces. With several agents an observation, action or reward is a dict by agent id. Methods do
    not block, except for `submit`, `weights` and `onnx`, which the server calls in a thread. The server calls the other
    methods in the thread of its event loop. A method raises a RollaxError for a request that it cannot execute: the
    response has the status of a RequestError, 503 for an EnvStoppedError, or 422 for other errors.
    """

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:  # noqa: B027  most backends need none
        """Called once in the thread of the server's event loop, before the first request."""

    def close(self) -> None:  # noqa: B027  as above
        """Called once after the last request."""

    @abstractmethod
    def spaces_of(self, episode_id: str | None, agent_id: str | None) -> tuple[Space, Space]:
        """The observation and action space of an agent of an episode.

        With a single agent, this is called once, with None for both. Return the same objects for equal spaces: values
        of one space object are checked together.

        Raises:
            RollaxError: there is no such agent.
        """

    @abstractmethod
    def hello(self) -> Hello:
        """The description of the server, without its addresses and limits, which the server adds."""

    @property
    @abstractmethod
    def version(self) -> int:
        """The version of the weights that act."""

    @abstractmethod
    def start_episode(self, episode_id: str, training_enabled: bool) -> None:
        """Starts an episode."""

    @abstractmethod
    def request_actions(self, observations: Mapping[str, Any], on_done: OnActions) -> None:
        """Requests actions for episode id -> observation.

        Returns at once. `on_done` is called once, in any thread, with the actions or an error; it does not block.
        Actions are values of the action space, or plain values.
        """

    @abstractmethod
    def log_action(self, episode_id: str, obs: Any, action: Any) -> None:
        """Records an action that the policy did not choose."""

    @abstractmethod
    def log_returns(self, episode_id: str, reward: Any, info: Mapping[str, Any] | None) -> None:
        """Adds to the rewards of the last actions."""

    @abstractmethod
    def end_agents(self, episode_id: str, observations: Mapping[str, Any], truncated: bool) -> None:
        """Ends some agents of a running episode."""

    @abstractmethod
    def end_episode(self, episode_id: str, obs: Any, truncated: bool) -> None:
        """Ends an episode."""

    @abstractmethod
    def drop_episode(self, episode_id: str) -> None:
        """Drops an episode that expired or ended without an action, and its steps that are not part of a batch yet."""

    @abstractmethod
    def submit(self, episodes: list[Episode]) -> Submitted:
        """Accepts whole episodes that were played elsewhere."""

    @abstractmethod
    def weights(self, policy_id: str) -> bytes:
        """The policy for local inference, as safetensors: arrays, and a description of the policy in the metadata.

        The server keeps the results of this method and of `onnx` until the version changes.
        """

    @abstractmethod
    def onnx(self, policy_id: str) -> bytes:
        """The policy as an ONNX model."""

    @abstractmethod
    def statistics(self) -> dict[str, Any]:
        """The content of the live page about the run: the learning curve, counters, and so on."""


def hello_of(policies: Mapping[str, Policy], *, learns: bool, multi_agent: bool, version: int) -> Hello:
    """The `Hello` of a backend with these policies, without addresses and limits, which the server adds."""
    return Hello(
        protocol=PROTOCOL_VERSION,
        server=f"rollax {__version__}",
        learns=learns,
        multi_agent=multi_agent,
        policies={
            policy_id: PolicyInfo(
                observation_space=space_to_json(policy.observation_space),
                action_space=space_to_json(policy.action_space),
                recurrent=bool(policy.memory_of(1, None, None, None)["state_batches"]),
            )
            for policy_id, policy in policies.items()
        },
        version=version,
        addresses=[],
        limits={},
    )
