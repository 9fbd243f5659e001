"""Idle episodes end, and episodes, pending requests, ids and values are limited."""

import asyncio
from typing import Any

import pytest

from rollax.errors import ConfigError
from rollax.serving.limits import Limits
from rollax.serving.protocol import StartEpisode
from rollax.serving.service import Service
from tests.serving.service_session import X, refused, with_service
from tests.serving.stand_in_backend import StandIn


@with_service(answers=False, idle_timeout_s=10.0)
async def test_idle_time_counts_from_the_response(session):
    session.start()
    session.start("waits")
    waiting = session.act("waits")
    session.now = 9.0
    first = session.act()
    session.now = 15.0
    assert session.service.expire() == 0  # an episode that waits for an action is not idle
    session.backend.answer()
    session.backend.answer()
    await asyncio.gather(first, waiting)
    session.now = 24.0
    assert session.service.expire() == 0
    session.now = 25.5
    assert session.service.expire() == 2
    assert "idle for too long" in str(refused(410, session.act))
    assert session.service.sessions.expired == 2
    assert session.backend.calls[2:] == [("drop", "e"), ("drop", "waits")]


def test_limits_must_be_an_instance_of_limits():
    with pytest.raises(ConfigError, match="The limits have the wrong type"):
        Service(StandIn(), {"max_episodes": 3})  # pyright: ignore[reportArgumentType]


@with_service(idle_timeout_s=float("inf"), requests_per_s=5.0)
async def test_an_infinite_limit_is_null_in_every_encoding(session):
    limits = session("hello").limits
    assert (limits["idle_timeout_s"], limits["requests_per_s"]) == (None, 5.0)


def test_a_timer_drops_idle_episodes():
    async def main() -> None:
        backend = StandIn()
        service = Service(backend, Limits(idle_timeout_s=0.01))
        service.start()
        service.call("start_episode", StartEpisode(episode_id="e"), "me")
        async with asyncio.timeout(60):
            while len(service.sessions):
                await asyncio.sleep(0.01)
        assert ("drop", "e") in backend.calls
        service.close()

    asyncio.run(main())


@with_service(max_episodes=3, max_episodes_per_client=2, retry_after_s=0.5)
async def test_caps_on_episodes(session):
    session.start("1")
    session.start("2")
    error = refused(429, session.start, "3")
    assert (error.parts["where"], error.retry_after_s) == ("max_episodes_per_client", 0.5)
    session.client = "another"
    session.start("3")
    assert refused(429, session.start, "4").parts["where"] == "max_episodes"
    session.client = "me"
    session.act("1")
    session.end("1")
    session.start("4")
    assert session("statistics")["clients"] == 2


@with_service(answers=False, max_pending=3, max_pending_per_client=2, max_episodes_per_request=4)
async def test_caps_on_pending_requests(session):
    for name in "abcd":
        session.start(name)
    futures = [session.act("a"), session.act("b")]
    error = refused(429, session.act, "c")
    assert (error.parts["where"], error.retry_after_s) == ("max_pending_per_client", 1.0)
    session.client = "another"
    futures.append(session.act("c"))
    assert refused(429, session.act, "d").parts["where"] == "max_pending"
    refused(413, session, "get_actions", observations=dict.fromkeys("abcde", X))
    for _ in range(3):
        session.backend.answer()
    await asyncio.gather(*futures)
    futures = [session.act("d")]
    session.backend.answer()
    await asyncio.gather(*futures)


@with_service(max_id_length=8)
async def test_ids_are_limited(session):
    for name in ("", "x" * 9):
        refused(422, session.start, name)
        refused(422, session.start, "e", request_id=name)
    session.start("x" * 8)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1e10, True, {"a": 1.0}])
@with_service(learns=True)
async def test_rewards_of_a_learning_server_are_finite_and_limited(session, reward):
    session.start()
    session.act()
    refused(422, session.reward, reward)
    session.reward(1e6)


@with_service(learns=True)
async def test_infos_of_a_learning_server_are_plain(session):
    session.start()
    session.act()
    deep: Any = "x"
    for _ in range(40):
        deep = [deep]
    for info in ({"a": float("nan")}, {"a": b"bytes"}, {"a": deep}, {"a": {1: 2}}, {"a": 2**70}):
        refused(422, session.reward, 1.0, info=info)
    session.reward(1.0, info={"a": {"b": [1, 2.5, True, None, "text"]}})
