"""A client of a service with a stand-in backend and a clock that the test sets."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rollax.errors import RequestError
from rollax.serving.limits import Limits
from rollax.serving.protocol import REQUESTS
from rollax.serving.service import Service
from tests.serving.stand_in_backend import OBS, StandIn

X = [0.5, -0.5]


class Session:
    """Sends requests to a service as one client, with a clock that the test sets."""

    def __init__(self, backend: StandIn, **limits: Any) -> None:
        self.now = 0.0
        self.backend = backend
        self.service = Service(backend, Limits(**limits), clock=lambda: self.now)
        self.service.start()
        self.client = "me"

    def __call__(self, verb: str, **fields: Any) -> Any:
        kind = REQUESTS.get(verb)
        return self.service.call(verb, None if kind is None else kind(**fields), self.client)

    def start(self, episode_id: str = "e", **fields: Any) -> str:
        return self("start_episode", episode_id=episode_id, **fields).episode_id

    def act(self, episode_id: str = "e", obs: Any = X, **fields: Any) -> Any:
        return self("get_action", episode_id=episode_id, obs=obs, **fields)

    def reward(self, reward: Any = 1.0, episode_id: str = "e", **fields: Any) -> Any:
        return self("log_returns", episode_id=episode_id, reward=reward, **fields)

    def end(self, episode_id: str = "e", obs: Any = X, **fields: Any) -> Any:
        return self("end_episode", episode_id=episode_id, obs=obs, **fields)


def with_service(
    observation_space: Any = OBS,
    *,
    backend: type[StandIn] = StandIn,
    answers: bool = True,
    multi_agent: bool = False,
    learns: bool = False,
    **limits: Any,
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Runs a test's coroutine with a `Session`, whose service is closed in any case."""

    def decorated(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        async def play(*instance: Any, **arguments: Any) -> None:
            made = backend(observation_space, multi_agent=multi_agent, learns=learns, answers=answers)
            session = Session(made, **limits)
            try:
                await test(*instance, session=session, **arguments)
            finally:
                session.service.close()

        def run(*instance: Any, **arguments: Any) -> None:
            asyncio.run(play(*instance, **arguments))

        others = [given for given in inspect.signature(test).parameters.values() if given.name != "session"]
        run.__signature__, run.__name__, run.__doc__ = inspect.Signature(others), test.__name__, test.__doc__  # type: ignore[attr-defined]
        return run

    return decorated


def refused(status: int, call: Any, *arguments: Any, says: str | None = None, **fields: Any) -> RequestError:
    """The error of a call, which has this status and matches the pattern `says`."""
    with pytest.raises(RequestError, match=says) as caught:
        call(*arguments, **fields)
    assert caught.value.status == status, str(caught.value)
    return caught.value
