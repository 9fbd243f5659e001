"""`ExternalEnv`: the calls of its players become rows, and the sampler's answers become their actions."""

import threading

import numpy as np
from gymnasium import spaces

from rollax import EnvError, EnvStoppedError, to_base_env
from rollax.env.external.external_env import ExternalEnv
from tests.env.external.worlds import Scripted, answer, in_threads, numbers, playing, seen
from tests.env.refused import refused
from tests.env.worlds import ACTION_SPACE, OBS_SPACE


class TestOneEpisode:
    def test_rows_and_actions(self):
        def script(env):
            episode = env.start_episode()
            env.log_returns(episode, 0.0, {"begins": True})
            first = env.get_action(episode, seen(1))
            env.log_returns(episode, 1.0, {"a": 1})
            env.log_returns(episode, 2, {"b": 2})
            env.actions = first, env.get_action(episode, seen(2))
            env.log_returns(episode, np.float32(0.5))
            env.end_episode(episode, seen(3))

        with playing(script) as base:
            assert base.reset_rows(np.arange(base.num_envs), [3]) is None
            polled = []
            for _ in range(3):
                polled.append(base.poll_rows())
                answer(base, polled[-1])
            assert [numbers(rows) for rows in polled] == [[1], [2], [3]]
            assert [rows.rewards.tolist() for rows in polled] == [[0], [3], [0.5]]
            assert [rows.starts.tolist() for rows in polled] == [[True], [False], [False]]
            assert [rows.acts.tolist() for rows in polled] == [[True], [True], [False]]
            assert [rows.terminateds.tolist() for rows in polled] == [[False], [False], [True]]
            assert not any(rows.truncateds.any() for rows in polled)
            assert [rows.ended_envs.tolist() for rows in polled] == [[], [], [1]]
            assert [rows.info_list() for rows in polled] == [[{"begins": True}], [{"a": 1, "b": 2}], [{}]]
            assert all(rows.env_index.tolist() == [1] and rows.slots is rows.env_index for rows in polled)
            assert (polled[0].agents, polled[0].trains, polled[0].obs.dtype) == (None, None, np.float32)
            assert base.reset_rows(np.array([0])) is None
            assert base.env.actions == (1, 2)
            assert [type(action) for action in base.env.actions] == [int, int]


class TestManyEpisodes:
    def test_episodes_of_many_threads_are_rows_of_one_poll(self):
        """One poll returns all 64 episodes, once all wait."""
        results: dict[int, list[int]] = {}

        def script(env):
            def play(n):
                episode = env.start_episode(n)
                results[n] = [env.get_action(episode, seen(n + step)) for step in range(3)]
                env.end_episode(episode, seen(0))

            in_threads(64, play)

        with playing(script) as base:
            base.reset_rows(np.arange(1))
            queue = base.env._external_episodes.queue
            wanted = [64, 64, 64, 64]
            for count in wanted:
                with queue.lock:
                    assert queue._arrived.wait_for(lambda count=count: _all_ready(queue, count), 60)
                rows = base.poll_rows()
                assert len(rows) == count
                assert sorted(rows.env_index.tolist()) == list(range(1, 65))
                answer(base, rows)
            assert results == {n: [(n + step) % 5 for step in range(3)] for n in range(64)}

    def test_an_episode_gets_the_lowest_free_index(self):
        def script(env):
            ids = [env.start_episode() for _ in range(5)]
            env.get_actions(dict.fromkeys(ids, seen(1)))
            for n in (3, 1):
                env.end_episode(ids[n], seen(2))
            rest = [ids[n] for n in (0, 2, 4)]
            env.get_actions(dict.fromkeys(rest, seen(3)))  # the ends have been polled by now
            fresh = [env.start_episode() for _ in range(3)]
            env.get_actions(dict.fromkeys([*fresh, *rest], seen(4)))

        with playing(script) as base:
            polled = [base.poll_rows()]
            while numbers(polled[-1])[-1] != 4:
                answer(base, polled[-1])
                if len(polled[-1].ended_envs):
                    base.reset_rows(polled[-1].ended_envs)
                polled.append(base.poll_rows())
            assert sorted(np.concatenate([rows.ended_envs for rows in polled]).tolist()) == [2, 4]
            assert polled[-1].env_index.tolist() == [2, 4, 6, 1, 3, 5]
            assert polled[-1].starts.tolist() == [True] * 3 + [False] * 3


class TestLoggedActions:
    def test_rows(self):
        def script(env):
            episode, obs = env.start_episode(), seen(0)
            for n in range(3):
                obs[0] = n  # changes after the call do not change what has been logged
                env.log_action(episode, obs, n)
                env.log_returns(episode, 10.0 * n)
            env.answer = env.get_action(episode, seen(4))
            env.end_episode(episode, seen(5))

        with playing(script) as base:
            for n in range(3):
                rows = base.poll_rows()
                assert numbers(rows) == [n]
                assert rows.given_actions == {0: n}
                assert not rows.acts.any()
                assert rows.starts.tolist() == [n == 0]
                assert rows.rewards.tolist() == [10.0 * max(n - 1, 0)]
            rows = base.poll_rows()
            assert rows.given_actions is None
            assert rows.rewards.tolist() == [20.0]
            answer(base, rows)
            assert base.poll_rows().ended_envs.tolist() == [1]
            assert base.env.answer == 4

    def test_parallel_episodes_keep_their_order(self):
        logged = threading.Event()

        def script(env):
            for n in range(4):
                env.start_episode(n)
                for step in range(3):
                    env.log_action(n, seen(10 * n + step), 0)
                env.end_episode(n, seen(10 * n + 3))
            logged.set()

        with playing(script) as base:
            base.reset_rows(np.arange(1))
            assert logged.wait(60)
            for step in range(4):
                assert numbers(base.poll_rows()) == [step, 10 + step, 20 + step, 30 + step]


class TestSpaces:
    def test_nested_spaces(self):
        obs_space = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Tuple([spaces.Discrete(3)])})
        action_space = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))])

        def script(env):
            ids = [env.start_episode(), env.start_episode()]
            obs = {"a": [0.5, -0.5], "b": (2,)}  # any value of the space's shape
            env.actions = env.get_actions(dict.fromkeys(ids, obs))
            env.log_action(ids[0], obs, (1, [0.25, 0.5]))
            env.get_action(ids[1], obs)

        with playing(script, Scripted, obs_space, action_space) as base:
            rows = base.poll_rows()
            assert rows.obs["a"].tolist() == [[0.5, -0.5]] * 2
            assert rows.obs["b"][0].tolist() == [2, 2]
            sent = (np.array([0, 1]), np.array([[0.1, 0.2], [0.3, 0.4]], np.float32))
            base.send_rows(rows, None, sent)
            sent[1][:] = 9  # the sampler's arrays, which are its own
            while not (rows := base.poll_rows()).given_actions:
                answer(base, rows, 0)
            taken = rows.given_actions[0]
            assert taken[0] == 1
            np.testing.assert_array_equal(taken[1], np.array([0.25, 0.5], np.float32))
            first, second = base.env.actions.values()
            assert (first[0], second[0]) == (0, 1)
            np.testing.assert_array_equal(second[1], np.array([0.3, 0.4], np.float32))

    def test_attributes_of_the_base_env(self):
        env = Scripted(lambda env: None)
        base = to_base_env(env)
        assert base.get_sub_environments() == [env]
        assert (base.observation_space, base.action_space, base.num_envs) == (OBS_SPACE, ACTION_SPACE, 1)
        assert base.try_render() is None
        assert base._thread is None  # run() starts with the first poll
        base.stop()
        refused(EnvStoppedError, base.poll_rows, says="was stopped")
        assert base._thread is None

    def test_a_missing_call_of_super_is_refused(self):
        class WithoutSuper(ExternalEnv):
            def __init__(self):
                pass

        refused(EnvError, to_base_env, WithoutSuper(), says="not set up...WithoutSuper.__init__...super().__init__")


def test_a_reward_before_the_first_action_warns_once(caplog):
    def script(env):
        episode = env.start_episode()
        env.log_returns(episode, 4.0)
        env.log_returns(episode, 5.0)
        env.get_action(episode, seen(1))
        env.get_action(episode, seen(2))

    with playing(script) as base:
        rows = base.poll_rows()
        assert rows.rewards.tolist() == [0.0]
        answer(base, rows)
        assert base.poll_rows().rewards.tolist() == [0.0]
    assert "a reward of 4.0 before the first action" in caplog.text
    assert "5.0" not in caplog.text


def _all_ready(queue, count: int) -> bool:
    queue._awaited = count  # the thread that puts the last one notifies
    return len(queue._ready) >= count
