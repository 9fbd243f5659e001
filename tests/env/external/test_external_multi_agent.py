"""`ExternalMultiAgentEnv`: trajectories that begin, wait, end and begin again within an episode."""

import threading

import numpy as np
from gymnasium import spaces

from rollax import MultiAgentError
from rollax.env.views import dicts_of
from tests.env.external.worlds import ScriptedAgents, answer, in_threads, playing, seen
from tests.env.refused import refused
from tests.waiting import until


def columns_of(rows) -> list[tuple]:
    """The columns of each row: agent, observation, reward, starts, acts, terminated, truncated."""
    columns = (rows.rewards, rows.starts, rows.acts, rows.terminateds, rows.truncateds)
    seen_numbers = [None if value is None else float(value[0]) for value in rows.obs]
    return list(zip(rows.agents, seen_numbers, *(column.tolist() for column in columns), strict=True))


def polled(base, count: int, action: int | None = None) -> list:
    rows = []
    for _ in range(count):
        rows.append(base.poll_rows())
        answer(base, rows[-1], action)
        if len(rows[-1].ended_envs):
            base.reset_rows(rows[-1].ended_envs)
    return rows


def test_turns_rewards_and_ends():
    def script(env):
        episode = env.start_episode()
        env.actions = [env.get_action(episode, {"a": seen(1), "b": seen(2)})]
        # A refused call adds none of its rewards and infos.
        refused(MultiAgentError, env.log_returns, episode, {"a": 1.0, "z": 2.0}, {"a": {"k": 1}}, says="never acted")
        env.log_returns(episode, {"a": 1.0, "b": 10.0}, {"a": {"n": 1}})
        env.actions.append(env.get_action(episode, {"a": seen(3)}))
        env.log_returns(episode, {"b": 20})  # while another agent acts
        env.log_returns(episode, {"a": 2.0, "b": 40.0})
        env.actions.append(env.get_action(episode, {"b": seen(4), "c": seen(5)}))
        env.log_returns(episode, {"b": 80.0})
        env.end_agents(episode, {"b": seen(6)}, truncated=True)
        env.actions.append(env.get_action(episode, {"b": seen(7)}))
        env.log_returns(episode, {"b": 1.0, "c": 5.0})
        env.end_agents(episode, {"c": None})
        env.end_episode(episode, {"b": seen(8), "z": seen(9)})

    with playing(script, ScriptedAgents) as base:
        first, second, third, again, last = polled(base, 5)
        no, yes = False, True
        assert columns_of(first) == [("a", 1, 0, yes, yes, no, no), ("b", 2, 0, yes, yes, no, no)]
        assert columns_of(second) == [("a", 3, 1, no, yes, no, no)]
        assert columns_of(third) == [("b", 4, 70, no, yes, no, no), ("c", 5, 0, yes, yes, no, no)]
        assert columns_of(again) == [("b", 6, 80, no, no, no, yes), ("b", 7, 0, yes, yes, no, no)]
        assert columns_of(last) == [
            ("c", None, 5, no, no, yes, no),
            ("a", None, 2, no, no, yes, no),
            ("b", 8, 1, no, no, yes, no),
        ]
        assert [rows.ended_envs.tolist() for rows in (again, last)] == [[], [1]]
        assert base.env.actions == [{"a": 1, "b": 2}, {"a": 3}, {"b": 4, "c": 0}, {"b": 2}]
        assert second.info_list() == [{"n": 1}]
        assert first.info_list() == [{}, {}]
        slots = dict(zip(first.agents, first.slots.tolist(), strict=True))
        assert sorted(slots.values()) == [0, 1]
        assert second.slots.tolist() == [slots["a"]]
        assert third.slots.tolist() == [slots["b"], 2]
        assert again.slots.tolist() == [slots["b"], 3]
        assert len({rows.env_index[0] for rows in (first, last)}) == 1


def test_an_episode_whose_agents_have_all_ended():
    def script(env):
        episode = env.start_episode()
        env.get_action(episode, {"a": seen(1)})
        env.end_agents(episode, {"a": seen(2)})
        env.end_episode(episode, {})

    with playing(script, ScriptedAgents) as base:
        rows = polled(base, 2)
        assert columns_of(rows[1]) == [("a", 2, 0, False, False, True, False)]
        assert [polled.ended_envs.tolist() for polled in rows] == [[], [1]]
        assert dicts_of(rows[1])[2:4] == ({1: {"a": True, "__all__": True}}, {1: {"a": False, "__all__": False}})


def test_dicts_have_the_end_of_an_agent_before_its_return():
    def script(env):
        episode = env.start_episode()
        env.get_action(episode, {"a": seen(1), "b": seen(2)})
        env.log_returns(episode, {"a": 3.0})
        env.end_agents(episode, {"a": seen(3)})
        env.get_action(episode, {"a": seen(4)})
        env.end_episode(episode, {})

    with playing(script, ScriptedAgents) as base:
        base.poll()
        base.send_actions({1: {"a": 0, "b": 0}})
        obs, rewards, terminateds, *_ = base.poll()
        assert (obs[1]["a"][0], rewards, terminateds) == (3, {1: {"a": 3.0}}, {1: {"a": True, "__all__": False}})
        obs, rewards, terminateds, *_ = base.poll()
        assert (obs[1]["a"][0], rewards, terminateds) == (4, {1: {"a": None}}, {1: {"a": False, "__all__": False}})
        base.send_actions({1: {"a": 0}})
        assert base.poll()[2] == {1: {"a": True, "b": True, "__all__": True}}


def test_each_agent_can_have_its_own_thread():
    actions = {}

    def script(env):
        env.start_episode("shared")

        def play(number):
            agent = "ab"[number]
            actions[agent] = [env.get_action("shared", {agent: seen(number + n)})[agent] for n in range(3)]

        in_threads(2, play)
        env.end_episode("shared", {})

    with playing(script, ScriptedAgents) as base:
        while not len((rows := polled(base, 1)[0]).ended_envs):
            assert len(rows) == 1  # one event of an episode at a time
        assert sorted(rows.agents) == ["a", "b"]
        assert actions == {"a": [0, 1, 2], "b": [1, 2, 3]}


def test_many_episodes_in_one_call_and_by_several_policies():
    def script(env):
        ids = [env.start_episode(n, training_enabled=n != 1) for n in range(3)]
        questions = {n: {agent: seen(n + i) for i, agent in enumerate("ab"[: n + 1])} for n in ids}
        env.answers = env.get_actions(questions)
        assert env.get_actions({}) == {}
        env.get_actions(questions)

    with playing(script, ScriptedAgents) as base:
        rows = base.poll_rows()
        assert rows.env_index.tolist() == [1, 2, 2, 3, 3]
        assert sorted(rows.slots.tolist()) == [0, 1, 2, 3, 4]
        assert rows.trains.tolist() == [True, False, False, True, True]
        values = rows.observations(None, base.observation_space)[:, 0].astype(int)
        for agent in "ba":
            mine = np.array([row for row in range(5) if rows.agents[row] == agent])
            base.send_rows(rows, mine, values[mine])
        base.poll_rows()
        assert base.env.answers == {0: {"a": 0}, 1: {"a": 1, "b": 2}, 2: {"a": 2, "b": 3}}


def test_reset_while_agents_wait():
    """One of two waiting agents is answered: the other's request is polled again, and new trajectories begin."""

    def script(env):
        episode = env.start_episode()
        env.get_action(episode, {"a": seen(1), "b": seen(2), "c": seen(3)})
        env.log_returns(episode, {"a": 1.0, "b": 2.0, "c": 3.0})
        env.answer = env.get_action(episode, {"a": seen(4), "b": seen(5)})
        env.log_returns(episode, {"a": 10.0, "b": 20.0, "c": 30.0})
        env.get_action(episode, {"a": seen(6), "b": seen(7)})
        env.end_episode(episode, {"c": seen(8)})

    with playing(script, ScriptedAgents) as base:
        polled(base, 1)
        base.send_rows(base.poll_rows(), np.array([0]), np.array([2]))
        base.reset_rows(np.arange(1))
        again, later, last = polled(base, 3, action=3)
        assert columns_of(again) == [("b", 5, 0, True, True, False, False)]
        assert columns_of(later) == [("a", 6, 0, True, True, False, False), ("b", 7, 20, False, True, False, False)]
        assert base.env.answer == {"a": 2, "b": 3}
        # The reset discarded c's trajectory too, and c has not acted since: no row reports its end.
        assert columns_of(last) == [
            ("a", None, 0, False, False, True, False),
            ("b", None, 0, False, False, True, False),
        ]
        assert last.ended_envs.tolist() == [1]


def test_repeated_requests_come_before_requests_queued_meanwhile():
    def script(env):
        episode = env.start_episode()
        other = threading.Thread(target=lambda: (env.asked.wait(), env.get_action(episode, {"b": seen(2)})))
        other.start()
        env.get_action(episode, {"a": seen(1)})
        other.join()

    class Two(ScriptedAgents):
        asked = threading.Event()

    with playing(script, Two) as base:
        assert columns_of(base.poll_rows()) == [("a", 1, 0, True, True, False, False)]
        Two.asked.set()
        until(lambda: base.env._external_episodes.queue._ready)
        base.reset_rows(np.arange(1))
        assert [columns_of(rows)[0][0] for rows in polled(base, 2)] == ["a", "b"]


def test_policies_can_define_the_spaces():
    """Then observations of any kind pass unchanged, and logged ones are copied."""

    def script(env):
        obs = {"small": np.zeros(1), "large": np.zeros(5)}
        env.start_episode(0)
        env.log_action(0, obs, {"small": np.array([1]), "large": 7})
        obs["small"][0] = 9
        env.actions = env.get_action(0, obs)
        env.get_action(0, obs)

    with playing(script, ScriptedAgents, None, None) as base:
        assert (base.observation_space, base.action_space) == (None, None)
        logged = base.poll_rows()
        assert [value.tolist() for value in logged.obs] == [[0.0], [0.0] * 5]
        assert logged.given_actions == {0: np.array([1]), 1: 7}
        asked = base.poll_rows()
        assert [value.tolist() for value in asked.obs] == [[9.0], [0.0] * 5]
        base.send_rows(asked, np.array([1]), np.array([2]))
        base.send_rows(asked, np.array([0]), {"x": np.array([[0.5]])})
        base.poll_rows()
        assert base.env.actions["large"] == 2
        assert base.env.actions["small"]["x"].tolist() == [0.5]


def test_only_one_space_is_given():
    def script(env):
        env.get_action(env.start_episode(), {"a": 1})

    with playing(script, ScriptedAgents, None, spaces.Discrete(2)) as base:
        rows = base.poll_rows()
        assert rows.obs == [1]
        base.send_rows(rows, None, np.array([1]))
        until(lambda: not base.env._external_episodes.queue.waiting)
