"""A client of a service with a stand-in backend and a clock that the test sets."""

from __future__ import annotations

from typing import Any

import pytest

from rollax.errors import RequestError
from rollax.serving.limits import Limits
from rollax.serving.protocol import EndEpisode, GetAction, LogReturns, StartEpisode
from rollax.serving.service import Service
from tests.serving.stand_in_backend import StandIn

X = [0.5, -0.5]


class Session:
    """Sends requests to a service as one client, with a clock that the test sets."""

    def __init__(self, backend: StandIn, **limits: Any) -> None:
        self.now = 0.0
        self.backend = backend
        self.service = Service(backend, Limits(**limits), clock=lambda: self.now)
        self.service.start()
        self.client = "me"

    def __call__(self, verb: str, request: Any = None) -> Any:
        return self.service.call(verb, request, self.client)

    def start(self, episode_id: str = "e", **fields: Any) -> str:
        return self("start_episode", StartEpisode(episode_id=episode_id, **fields)).episode_id

    def act(self, episode_id: str = "e", obs: Any = X, **fields: Any) -> Any:
        return self("get_action", GetAction(episode_id=episode_id, obs=obs, **fields))

    def reward(self, reward: Any = 1.0, episode_id: str = "e", **fields: Any) -> Any:
        return self("log_returns", LogReturns(episode_id=episode_id, reward=reward, **fields))

    def end(self, episode_id: str = "e", obs: Any = X, **fields: Any) -> Any:
        return self("end_episode", EndEpisode(episode_id=episode_id, obs=obs, **fields))


def refused(status: int, call: Any, *arguments: Any, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        call(*arguments, **fields)
    assert caught.value.status == status, str(caught.value)
    return caught.value
