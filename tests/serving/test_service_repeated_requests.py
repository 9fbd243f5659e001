"""A request that arrives twice is executed once."""

import asyncio

from rollax.serving.protocol import Action, Done
from tests.serving.service_session import X, refused, with_service


@with_service()
async def test_a_repeated_request_is_executed_once(session):
    first = session("start_episode", request_id="s")
    assert session("start_episode", request_id="s") == first
    e = first.episode_id
    for _ in range(2):
        assert session.act(e, request_id="1") == Action(2, 7)
        session.reward(1.0, e, request_id="2")
        session("log_action", episode_id=e, obs=X, action=0, request_id="3")
    for _ in range(3):
        assert session.end(e, request_id="4") == Done()
    refused(410, session.end, e, request_id="5")
    refused(410, session.end, e)
    assert session.backend.verbs == ["start", "log_returns", "log_action", "end"]
    assert session.service.sessions.ended == 1


@with_service(answers=False)
async def test_a_request_repeated_while_the_first_one_runs_gets_the_same_answer(session):
    session.start()
    first, second = asyncio.ensure_future(session.act(request_id="r")), session.act(request_id="r")
    assert len(session.backend.asked) == 1
    await asyncio.sleep(0)
    first.cancel()  # the connection of the first request is lost
    session.backend.answer()
    assert await second == Action(2, 7)
    assert session.act(request_id="r") == Action(2, 7)
    assert session.backend.asked == []


@with_service(answers=False)
async def test_request_ids_are_separate_for_each_verb(session):
    session.start()
    first = session.act(request_id="1")
    assert session.reward(request_id="1") == Done()
    session.backend.answer()
    assert await first == Action(2, 7)
    assert session.backend.verbs == ["start", "log_returns"]


@with_service()
async def test_two_clients_that_count_their_requests_have_their_own_episodes(session):
    first = session("start_episode", request_id="0").episode_id
    assert session("start_episode", request_id="0", episode_id="mine").episode_id == "mine"
    session.act("mine")
    second = session("start_episode", request_id="0").episode_id
    assert len({first, second, "mine"}) == 3


@with_service()
async def test_the_last_few_responses_are_remembered(session):
    session.start()
    session.act()
    for number in range(20):
        session.reward(1.0, request_id=str(number))
    session.reward(1.0, request_id="19")
    assert len(session.backend.calls) == 21
    (running,) = session.service.sessions
    assert len(running.responses) == 4
