"""One contract for every kind of environment, through both views."""

import numpy as np
import pytest
from pettingzoo.utils.conversions import parallel_to_aec_wrapper

from rollax import EnvError, to_base_env
from rollax.env.rows import DEFAULT_AGENT
from tests.env.drive import drive
from tests.env.kinds import EXTERNAL, KINDS, PROCESSES
from tests.env.multi_agent.pettingzoo_worlds import Dance, Queue
from tests.env.old_worlds import OldClock, OldParty
from tests.env.refused import refused
from tests.env.worlds import ACTION_SPACE, OBS_SPACE, Clock, Party, action_for

EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
VIEWS = pytest.mark.parametrize("view", ["rows", "dicts"])
POLLS = 40


def seeds_for(num_envs: int) -> list[int]:
    return [2**32 - 50 + 7 * index for index in range(num_envs)]


@pytest.mark.short(every=3)
@pytest.mark.parametrize("name", [*KINDS, *EXTERNAL])
@VIEWS
@pytest.mark.parametrize(("num_envs", "split"), [(1, 1), (3, 1), (4, 3)])
def test_episodes_of_each_sub_environment_are_correct(name, view, num_envs, split):
    """First and final observations, rewards, flags, waiting and ended agents, and infos equal the bare env's."""
    kind = {**KINDS, **EXTERNAL}[name]
    env = kind.make(num_envs)
    traces = drive(env, view, 3 * POLLS if name in EXTERNAL else POLLS, seeds_for(num_envs), split)
    env.stop()
    for trace, seed in zip(traces, seeds_for(num_envs), strict=True):
        assert len(trace) > POLLS / 2
        assert any(moment.ended for moment in trace)
        for got, expected in zip(trace, kind.trace(seed, len(trace)), strict=True):
            assert got == expected


@pytest.mark.parametrize("kind", PROCESSES.values(), ids=PROCESSES.keys())
def test_episodes_of_processes_are_correct_through_both_views(kind):
    env = kind.make(2)
    for view in ("rows", "dicts"):
        for trace, seed in zip(drive(env, view, 15, seeds_for(2)), seeds_for(2), strict=True):
            assert trace == kind.trace(seed, len(trace))
    env.stop()
    assert env.env.closed


@pytest.mark.short(every=3)
@EVERY_KIND
def test_sub_environment_i_does_not_depend_on_their_number(kind):
    few, many, more = (drive(kind.make(n), "rows", 20, seeds_for(n)) for n in (1, 4, 8))
    shortest = min(len(trace) for trace in (*few, *many, *more))
    for index, trace in enumerate(more):
        assert trace[:shortest] == (many[index][:shortest] if index < 4 else trace[:shortest])
    assert few[0][:shortest] == many[0][:shortest]
    assert many[0][:shortest] != many[1][:shortest]


@pytest.mark.short(every=3)
@EVERY_KIND
@VIEWS
def test_the_same_seeds_give_the_same_episodes_again(kind, view):
    env = kind.make(2)
    once, again, other = (drive(env, view, 13, seeds) for seeds in (seeds_for(2), seeds_for(2), None))
    for index in range(2):
        shortest = min(len(once[index]), len(again[index]))
        assert once[index][:shortest] == again[index][:shortest]
        assert once[index][:5] != other[index][:5]
    env.stop()


def test_the_dict_view_returns_copies():
    """Also where the environment overwrites its arrays."""
    env = KINDS["vector of arrays"].make(2)
    obs, _ = env.try_reset(seeds=seeds_for(2))  # type: ignore[misc]
    before = {index: by_agent[DEFAULT_AGENT].copy() for index, by_agent in obs.items()}
    env.send_actions({index: {DEFAULT_AGENT: 3} for index in obs})
    env.poll()
    for index, by_agent in obs.items():
        np.testing.assert_array_equal(by_agent[DEFAULT_AGENT], before[index])


@pytest.mark.parametrize("name", ["id", "vector of arrays", "native DISABLED", "multi-agent"])
def test_reset_of_one_after_all_actions_were_sent(name):
    """The actions of the others are kept."""
    kind = KINDS[name]
    env = kind.make(3)
    obs, _ = env.try_reset(seeds=seeds_for(3))  # type: ignore[misc]
    env.send_actions({i: {agent: action_for(o) for agent, o in by_agent.items()} for i, by_agent in obs.items()})
    again, _ = env.try_reset(1, seeds=seeds_for(2)[1:])  # type: ignore[misc]
    env.send_actions({1: {agent: action_for(o) for agent, o in again[1].items()}})
    obs, rewards, *_ = env.poll()
    for index in range(3):
        expected = kind.trace(seeds_for(3)[index], 2)[1]
        assert [event.reward for event in expected.events] == list(rewards[index].values())
        got = {agent: tuple(o.tolist()) for agent, o in obs[index].items()}
        assert got == {event.agent: event.obs for event in expected.events if event.obs}
    env.stop()


def test_reset_of_one_after_all_actions_were_sent_together():
    class Long(Clock):
        def reset(self, *, seed=None, options=None):
            result = super().reset(seed=seed)
            self.length = 100
            return result

    env = to_base_env(Long(), lambda index: Long(), 3)
    env.send_rows(env.reset_rows(np.arange(3)), None, np.array([0, 0, 0]))
    env.send_rows(env.poll_rows(), None, np.array([1, 2, 3]))
    env.send_rows(env.reset_rows(np.array([1])), None, np.array([4]))
    assert env.poll_rows().obs[:, 1].tolist() == [1, 4, 3]  # the second number of an observation is the action


@EVERY_KIND
def test_spaces_and_sub_environments(kind):
    env = kind.make(3)
    assert env.num_envs == 3
    assert env.observation_space == OBS_SPACE
    assert env.action_space == ACTION_SPACE
    assert [type(part) for part in env.get_sub_environments()] in [
        [cls] * 3 for cls in (Clock, Party, OldClock, OldParty, Dance, Queue, parallel_to_aec_wrapper)
    ]
    env.stop()


@EVERY_KIND
def test_stop_closes_all(kind):
    before = Clock.open_count + Party.open_count
    env = kind.make(3)
    assert Clock.open_count + Party.open_count == before + 3
    env.stop()
    assert Clock.open_count + Party.open_count == before


def test_environments_without_frames():
    """`tests/env/recording` draws frames of every kind."""
    assert KINDS["id"].make(2).try_render(1) is None
    assert to_base_env(Clock()).try_render() is None


def test_an_env_needs_only_reset_and_step():
    class Bare:
        observation_space, action_space = OBS_SPACE, ACTION_SPACE

        def __init__(self) -> None:
            self.clock = Clock()
            self.reset, self.step = self.clock.reset, self.clock.step

    env = to_base_env(Bare())
    trace = drive(env, "rows", 20, [5])[0]
    assert trace == KINDS["class"].trace(5, len(trace))
    assert env.try_render() is None
    env.stop()


STRICT = pytest.mark.parametrize(
    "kind", [k for k in KINDS.values() if k.refuses], ids=[n for n, k in KINDS.items() if k.refuses]
)


@STRICT
class TestAnswers:
    def rows(self, env):
        rows = env.reset_rows(np.arange(env.num_envs), seeds_for(env.num_envs))
        return rows, np.zeros(len(rows), np.int64)

    def test_steps_and_actions_before_the_reset(self, kind):
        env = kind.make(2)
        refused(EnvError, env.poll_rows, says="begun")
        refused(EnvError, env.poll, says="begun")
        refused(EnvError, env.send_actions, {0: {"agent0": 0}})

    def test_step_after_the_end(self, kind):
        env = kind.make(1)
        rows, _ = self.rows(env)
        while not len(rows.ended_envs):
            acting = np.flatnonzero(rows.acts)
            env.send_rows(rows, acting, np.zeros(len(acting), np.int64))
            rows = env.poll_rows()
        if getattr(env, "mode", None) is None or env.mode.name != "NEXT_STEP":
            refused(EnvError, env.poll_rows, says="over")

    def test_missing_action(self, kind):
        env = kind.make(2)
        rows, actions = self.rows(env)
        env.send_rows(rows, np.arange(len(rows) - 1), actions[1:])
        assert "sub-environment 1" in str(refused(EnvError, env.poll_rows, says="no action"))

    def test_two_actions_for_one_agent(self, kind):
        env = kind.make(2)
        rows, actions = self.rows(env)
        env.send_rows(rows, None, actions)
        refused(EnvError, env.send_rows, rows, np.array([1]), actions[:1])

    def test_action_for_an_agent_that_does_not_wait(self, kind):
        env = kind.make(2)
        env.try_reset(seeds=seeds_for(2))
        refused(EnvError, env.send_actions, {0: {"nobody": 3}}, says="sub-environment 0...'nobody'")
