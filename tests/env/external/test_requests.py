"""Requests for actions without a waiting thread, lost episodes, and interrupted polls."""

import threading

import numpy as np
import pytest

from rollax import EnvError, EnvStoppedError
from rollax.env.external import episode as external_episode
from rollax.env.external import queue as external_queue
from rollax.env.external.queue import PollInterruptedError, QueueFullError
from rollax.env.rows import DEFAULT_AGENT
from tests.env.external.worlds import ScriptedAgents, answer, playing, seen
from tests.env.refused import refused
from tests.waiting import LONG


@pytest.fixture
def base():
    end = threading.Event()

    def script(env):
        end.wait(LONG)

    with playing(script) as base:
        base.env.close = end.set
        base.reset_rows(np.arange(1))
        yield base


def ask(base, then=lambda actions: None, **numbers: float) -> None:
    """Starts episodes, and requests an action for each in one call."""
    for name in numbers:
        base.env.start_episode(name)
    base.env.request_actions({name: seen(number) for name, number in numbers.items()}, then)


class TestRequests:
    def test_a_callback_gets_the_actions(self, base):
        got = []
        ask(base, got.append, a=1, b=2)
        ask(base, got.append, c=3)
        assert got == []
        rows = base.poll_rows()
        assert len(rows) == 3
        answer(base, rows, 1)
        assert got == [{"a": 1, "b": 1}, {"c": 1}]

    def test_the_callback_can_make_the_next_request(self, base):
        got = []

        def again(actions):
            got.append(actions)
            if len(got) < 3:
                base.env.request_actions({"a": seen(len(got))}, again)

        ask(base, again, a=0)
        for _ in range(3):
            answer(base, base.poll_rows(), 0)
        assert got == [{"a": 0}] * 3

    def test_other_requests_are_answered_where_a_callback_raises(self, base):
        got = []
        ask(base, lambda actions: 1 / 0, a=1)
        ask(base, got.append, b=1)
        says = "request_actions raised ZeroDivisionError...Scripted"
        refused(EnvError, answer, base, base.poll_rows(), 1, says=says)
        base.env.request_actions({"a": seen(1)}, lambda actions: 1 / 0)
        base.env.request_actions({"b": seen(1)}, got.append)
        refused(EnvError, base.stop, says=says)
        assert got[0] == {"b": 1}
        assert isinstance(got[1], EnvStoppedError)

    def test_a_second_one_is_refused_while_the_first_waits(self, base):
        ask(base, a=0)
        refused(EnvError, base.env.request_actions, {"a": seen(0)}, print, says="still waits for an action")
        refused(EnvError, base.env.request_actions, {"b": seen(0)}, print, says="Unknown episode")
        refused(EnvError, base.env.request_actions, {}, print, says="without an observation")

    @pytest.mark.long
    def test_ten_thousand_pending_requests_need_no_thread(self, base):
        before, got = threading.active_count(), []
        for number in range(10_000):
            ask(base, got.append, **{str(number): 0})
        assert threading.active_count() == before
        answer(base, base.poll_rows(), 0)
        assert len(got) == 10_000


class TestDroppedEpisodes:
    def test_a_dropped_episode_frees_its_index(self, base):
        ask(base, a=1, b=2)
        answer(base, base.poll_rows())
        base.env.drop_episode("a")
        rows = base.poll_rows()
        assert len(rows) == 0
        assert rows.dropped_envs.tolist() == [1]
        assert base.reset_rows(rows.over_envs()) is None
        refused(EnvError, base.env.request_actions, {"a": seen(1)}, print, says="has ended")
        base.env.start_episode("c")
        base.env.request_actions({"b": seen(2), "c": seen(3)}, lambda actions: None)
        rows = base.poll_rows()
        assert dict(zip(rows.env_index.tolist(), rows.starts.tolist(), strict=True)) == {2: False, 1: True}

    def test_a_pending_request_is_still_answered(self, base):
        got = []
        ask(base, got.append, a=1)
        base.env.drop_episode("a")
        answer(base, base.poll_rows(), 1)
        assert got == [{"a": 1}]
        assert base.poll_rows().dropped_envs.tolist() == [1]

    def test_an_episode_without_actions_leaves_no_row(self, base):
        base.env.start_episode("a")
        base.env.drop_episode("a")
        ask(base, b=1)
        rows = base.poll_rows()
        assert len(rows) == 1
        assert not len(rows.dropped_envs)

    def test_an_episode_of_agents(self):
        end = threading.Event()
        with playing(lambda env: end.wait(LONG), ScriptedAgents) as base:
            base.env.close = end.set
            base.reset_rows(np.arange(1))
            base.env.start_episode("a")
            base.env.request_actions({"a": {"x": seen(1), "y": seen(2)}}, lambda actions: None)
            answer(base, base.poll_rows())
            base.env.end_agents("a", {"x": seen(3)})
            base.env.drop_episode("a")
            rows = base.poll_rows()
            assert (len(rows), rows.dropped_envs.tolist()) == (0, [1])
            assert base._alive == {}


def test_a_full_queue_refuses_calls_that_do_not_wait(base, monkeypatch):
    monkeypatch.setattr(external_queue, "MOST_QUEUED", 2)
    episodes = base.env._external_episodes
    base.env.start_episode("a")

    def log():
        episodes.log("a", {DEFAULT_AGENT: seen(1)}, {DEFAULT_AGENT: 0}, blocking=False)

    log()
    log()
    refused(QueueFullError, log, says="again later")
    base.poll_rows()
    log()


def test_known_log_probabilities_are_in_their_rows(base):
    for name in "bc":
        base.env.start_episode(name)
    ask(base, a=0)
    base.env._external_episodes.log("b", {DEFAULT_AGENT: seen(1)}, {DEFAULT_AGENT: 1}, {DEFAULT_AGENT: -0.5})
    base.env.log_action("c", seen(2), 0)
    rows = base.poll_rows()
    assert rows.given_actions == {1: 1, 2: 0}
    assert rows.given_logps == {1: -0.5}


def test_polls_raise_until_the_interrupt_is_lifted(base):
    raised = []

    def poll():
        with pytest.raises(PollInterruptedError):
            base.poll_rows()
        raised.append(True)

    thread = threading.Thread(target=poll)
    thread.start()
    base.interrupt(True)
    thread.join(LONG)
    assert raised == [True]
    with pytest.raises(PollInterruptedError):
        base.poll_rows()
    base.interrupt(False)
    ask(base, a=1)
    assert len(base.poll_rows()) == 1


def test_pending_infos_are_bounded(base, monkeypatch):
    monkeypatch.setattr(external_episode, "_MOST_INFOS", 10)
    ask(base, a=0)
    answer(base, base.poll_rows(), 0)
    for number in range(10):
        base.env.log_returns("a", 1.0, {f"key {number}": number})
    refused(EnvError, base.env.log_returns, "a", 1.0, {"one more": 1}, says="Too many infos")
    base.env.log_returns("a", 1.0)
    base.env.request_actions({"a": seen(0)}, print)
    assert base.poll_rows().rewards.tolist() == [11.0]  # the refused call adds nothing
    base.env.log_returns("a", 1.0, {"one more": 1})
