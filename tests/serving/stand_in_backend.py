"""A backend without a policy, which records its calls, and answers at once or on request."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rollax.core.space_json import space_to_json
from rollax.errors import PolicyError, RequestError
from rollax.serving.backend import Backend, OnActions
from rollax.serving.protocol import Actions, Episode, Hello, PolicyInfo, Submitted

OBS, ACTIONS = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(3)
MASKED = spaces.Dict({"action_mask": spaces.MultiBinary(3), "x": OBS})
AGENTS = {"a": (OBS, ACTIONS), "b": (OBS, ACTIONS), "boxes": (spaces.Discrete(4), spaces.Box(-1.0, 1.0, (1,)))}


def _recorded(name: str) -> Any:
    """A method that records its arguments under this name."""
    return lambda self, *arguments: self._call(name, *arguments)


class StandIn(Backend):
    """Answers every request with the action 2.

    Attributes:
        answers: whether requests are answered at once; otherwise `answer` answers them.
        asked: pending requests for actions: (observations, on_done).
        calls: all other calls.
    """

    def __init__(
        self,
        observation_space: Space = OBS,
        action_space: Space = ACTIONS,
        *,
        multi_agent: bool = False,
        learns: bool = False,
        answers: bool = True,
    ) -> None:
        self.spaces = observation_space, action_space
        self.multi_agent, self.learns, self.answers = multi_agent, learns, answers
        self.asked: list[tuple[Mapping[str, Any], OnActions]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.refuses = False
        self.closed = 0

    def hello(self) -> Hello:
        policy = PolicyInfo(space_to_json(self.spaces[0]), space_to_json(self.spaces[1]), False)
        return Hello(1, "stand-in", self.learns, self.multi_agent, {"default_policy": policy}, 1, [], {})

    @property
    def version(self) -> int:
        return 7

    def close(self) -> None:
        self.closed += 1

    def spaces_of(self, episode_id: str | None, agent_id: str | None) -> tuple[Space, Space]:
        if agent_id is None:
            return self.spaces
        if agent_id not in AGENTS:
            raise PolicyError("No such agent.", got=agent_id)
        return AGENTS[agent_id]

    @property
    def verbs(self) -> list[str]:
        """The names of the calls."""
        return [call[0] for call in self.calls]

    def _call(self, *call: Any) -> None:
        if self.refuses:
            raise RequestError("The backend refuses.", status=418)
        self.calls.append(call)

    def request_actions(self, observations: Mapping[str, Any], on_done: OnActions) -> None:
        if self.refuses:
            raise RequestError("The backend refuses.", status=418)
        self.asked.append((observations, on_done))
        if self.answers:
            self.answer()

    def answer(self, result: BaseException | None = None) -> None:
        """Answers the oldest request."""
        observations, on_done = self.asked.pop(0)
        two = np.int64(2)
        actions = {key: dict.fromkeys(obs, two) if self.multi_agent else two for key, obs in observations.items()}
        on_done(Actions(actions, self.version) if result is None else result)

    start_episode, log_action, log_returns, end_agents, end_episode, drop_episode = map(
        _recorded, ("start", "log_action", "log_returns", "end_agents", "end", "drop")
    )

    def submit(self, episodes: list[Episode]) -> Submitted:
        self._call("submit", episodes)
        return Submitted(accepted=len(episodes), too_old=0, version=self.version)

    def weights(self, policy_id: str) -> bytes:
        return policy_id.encode()

    def onnx(self, policy_id: str) -> bytes:
        raise PolicyError("This policy has no ONNX model.", got=policy_id)

    def statistics(self) -> dict[str, Any]:
        return {"of": "the backend"}
