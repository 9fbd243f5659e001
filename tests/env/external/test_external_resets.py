"""`ExternalEnv`: a reset in the middle of episodes, as after an evaluation."""

import threading

import numpy as np

from tests.env.external.worlds import answer, numbers, playing, seen
from tests.waiting import LONG, until


def test_a_pending_request_starts_a_new_trajectory():
    def script(env):
        episode = env.start_episode("waits")
        env.get_action(episode, seen(1))
        env.log_returns(episode, 7.0)
        env.answer = env.get_action(episode, seen(2))
        env.log_returns(episode, 8.0)
        env.end_episode(episode, seen(3))

    with playing(script) as base:
        answer(base, base.poll_rows())
        before = base.poll_rows()
        assert base.reset_rows(np.arange(1)) is None
        again = base.poll_rows()
        assert (numbers(before), numbers(again)) == ([2], [2])
        assert (before.starts.tolist(), again.starts.tolist()) == ([False], [True])
        assert (before.rewards.tolist(), again.rewards.tolist()) == ([7.0], [0.0])
        answer(base, again)
        last = base.poll_rows()
        assert (last.rewards.tolist(), last.ended_envs.tolist()) == ([8.0], [1])
        assert base.env.answer == 2


def test_the_end_of_a_discarded_trajectory_is_skipped():
    end, following = threading.Event(), threading.Event()

    def script(env):
        for episode in ("forgotten", "next"):
            env.start_episode(episode)
            env.get_action(episode, seen(1))
            env.log_returns(episode, 1.0)
            end.wait()
            env.end_episode(episode, seen(2))
            following.wait()

    with playing(script) as base:
        answer(base, base.poll_rows())
        base.reset_rows(np.arange(1))
        end.set()
        queue, polled = base.env._external_episodes.queue, []
        until(lambda: queue._ready)
        poll = threading.Thread(target=lambda: polled.append(base.poll_rows()))
        poll.start()
        until(lambda: queue._awaited and not queue._ready)  # it has skipped the end, and waits for more
        following.set()
        poll.join(LONG)
        (rows,) = polled
        assert (rows.starts.tolist(), rows.env_index.tolist(), rows.ended_envs.tolist()) == ([True], [1], [])


def test_an_episode_between_requests_continues_as_a_new_trajectory():
    go = threading.Event()

    def script(env):
        env.start_episode("silent")
        env.get_action("silent", seen(1))
        env.log_returns("silent", 5.0)
        go.wait()
        env.log_returns("silent", 6.0)
        env.get_action("silent", seen(2))
        env.log_returns("silent", 7.0)
        env.end_episode("silent", seen(3))

    with playing(script) as base:
        answer(base, base.poll_rows())
        base.reset_rows(np.arange(1))
        go.set()
        rows = base.poll_rows()
        assert (rows.starts.tolist(), rows.rewards.tolist()) == ([True], [0.0])
        answer(base, rows)
        assert base.poll_rows().rewards.tolist() == [7.0]
