"""Stacks of observations of every kind: their spaces, and their contents around the ends of episodes."""

from collections import deque
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

from rollax import BaseEnv, ConfigError, EnvContext, SpaceError
from rollax.core.spaces import check_space, same_space, stack
from rollax.env.frame_stack import FrameStack
from rollax.env.making import EnvSettings, make_base_env
from rollax.env.rows import Rows
from rollax.env.stacking import begun, joined, latest, pushed, stack_axis, stacked_space
from tests.env.drive import Trace, drive
from tests.env.external.worlds import Scripted
from tests.env.kinds import KINDS
from tests.env.refused import refused
from tests.env.test_contract import seeds_for

IMAGE = partial(spaces.Box, 0, 255, dtype=np.uint8)


def stacks_of(trace: Trace, count: int) -> Trace:
    """A history with stacks in place of single observations."""
    latest: dict = {}
    stacked = []
    for events, ended in trace:
        for place, event in enumerate(events):
            if event.obs is None or not (event.waits or event.terminated or event.truncated):
                continue
            if event.reward is None:
                latest[event.agent] = deque([event.obs] * count, maxlen=count)
            latest[event.agent].append(event.obs)
            events[place] = event._replace(obs=sum(latest[event.agent], ()))
        stacked.append((events, ended))
    return stacked


@pytest.mark.short(every=5)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("view", ["rows", "dicts"])
def test_stacks_of_every_kind(name, view):
    """Also the last observation of an episode, whatever the environment does at its end."""
    env, seeds = FrameStack(KINDS[name].make(3), 3), seeds_for(3)
    for trace, seed in zip(drive(env, view, 40, seeds), seeds, strict=True):
        assert any(moment.ended for moment in trace)
        assert trace == stacks_of(KINDS[name].trace(seed, len(trace)), 3)
    env.stop()


@pytest.mark.parametrize(
    ("space", "stacked", "axis"),
    [
        (spaces.Box(-1, np.array([1, 2], np.float32)), spaces.Box(-1, np.array([1, 2] * 3, np.float32)), None),
        (spaces.Box(0, 1, ()), spaces.Box(0, 1, (3,)), None),
        (IMAGE((8, 9, 2)), IMAGE((8, 9, 6)), -1),
        (IMAGE((2, 8, 9)), IMAGE((6, 8, 9)), -3),
        (IMAGE((8, 9)), IMAGE((8, 9, 3)), -1),
        (IMAGE((4, 8, 9, 2)), IMAGE((12, 8, 9, 2)), -4),
        (spaces.Box(0, 1, (8, 9)), spaces.Box(0, 1, (8, 27)), None),
        (spaces.Discrete(4, start=-1), spaces.MultiDiscrete([4, 4, 4], start=[-1, -1, -1]), None),
        (spaces.MultiDiscrete([2, 5]), spaces.MultiDiscrete([2, 5, 2, 5, 2, 5]), None),
        (spaces.MultiBinary(2), spaces.MultiBinary(6), None),
    ],
)
def test_spaces_and_order(space, stacked, axis):
    """A stack is in its space. It has the oldest observation first, and drops it for a new one."""
    assert same_space(stacked_space(space, 3), stacked)
    assert stack_axis(stacked, 3) == axis
    space.seed(1)
    first, second, third = (stack(space, [space.sample() for _ in range(2)]) for _ in range(3))
    stacks = begun(space, 3, first)
    assert all(stacked.contains(row) for row in stacks)
    stacks = pushed(space, 3, pushed(space, 3, stacks, second), third)
    assert np.array_equal(latest(space, 3, stacks), third)
    assert np.array_equal(joined(space, 3, (first, second, third)), stacks)
    for part, obs in zip(np.split(stacks, 3, axis=axis or -1), (first, second, third), strict=True):
        assert np.array_equal(part.reshape(obs.shape), obs)


def test_stacks_of_images_whose_shape_tells_another_axis_of_the_channels_are_refused():
    for shape, count in (((7, 9, 3), 3), ((3, 16, 8), 3), ((6, 9, 4), 2)):
        refused(SpaceError, stacked_space, IMAGE(shape), count, says=str(shape))
    assert stacked_space(IMAGE((7, 9, 3)), 2).shape == (7, 9, 6)
    assert stacked_space(IMAGE((7, 7, 3)), 4).shape == (7, 7, 12)


def test_masks_and_available_actions_are_not_stacked():
    mask, actions = spaces.MultiBinary(4), spaces.Box(0, 1, (4, 2))
    space = spaces.Dict({"x": spaces.Discrete(3), "action_mask": mask, "avail_actions": actions})
    stacked = stacked_space(space, 2)
    check_space(stacked, "observation_space")
    assert stacked == spaces.Dict({"x": spaces.MultiDiscrete([3, 3]), "action_mask": mask, "avail_actions": actions})
    one, other = ({"x": np.array([x]), "action_mask": np.full((1, 4), x), "avail_actions": x} for x in (1, 2))
    both = pushed(space, 2, begun(space, 2, one), other)
    assert (both["x"].tolist(), both["action_mask"].tolist(), both["avail_actions"]) == ([[1, 2]], [[2] * 4], 2)


class Unlike(BaseEnv):
    """Two agents with spaces of their own. The second one ends and begins anew in each poll, in the same slot."""

    observation_spaces = {"a": spaces.Box(0, 9, (1,)), "b": spaces.Discrete(90)}
    action_spaces = dict.fromkeys("ab", spaces.Discrete(2))
    possible_agents = ("a", "b")
    polls = 0

    def reset_rows(self, env_index, seeds=None):
        return Rows.starting(np.zeros(2, int), np.arange(2), [[0.0], 10], agents=["a", "b"])

    def poll_rows(self):
        self.polls += 1
        number, ends, starts = self.polls, np.array([False, True, False]), np.array([False, False, True])
        agents, obs = ["a", "b", "b"], [[number], 10 * number + 5, 10 * number + 10]
        columns = np.zeros(3, int), np.array([0, 1, 1]), obs, np.zeros(3), ends, ends & ~ends, starts, ~ends
        return Rows(*columns, ended_envs=np.empty(0, int), agents=agents)

    def send_rows(self, rows, selection, actions):
        pass


def test_agents_with_spaces_of_their_own_and_two_rows_of_a_slot():
    env = FrameStack(Unlike(), 2)
    assert env.observation_space is None
    assert env.observation_spaces == {"a": spaces.Box(0, 9, (2,)), "b": spaces.MultiDiscrete([90, 90])}
    rows = env.reset_rows(np.array([0]))
    assert rows is not None
    assert [obs.tolist() for obs in rows.obs] == [[0, 0], [10, 10]]
    assert [obs.tolist() for obs in env.poll_rows().obs] == [[0, 1], [10, 15], [20, 20]]
    assert [obs.tolist() for obs in env.poll_rows().obs] == [[1, 2], [20, 25], [30, 30]]


def test_environments_that_cannot_be_stacked():
    class Spaceless(Unlike):
        observation_spaces = {"a": spaces.Discrete(2)}

    refused(SpaceError, lambda: FrameStack(Spaceless(), 2), says="agent 'b'...observation_spaces")
    for key in ("frame_stack", "action_repeat"):
        settings, says = EnvSettings(**{key: 2}), f"{key} has no effect...external"
        refused(ConfigError, lambda s=settings: make_base_env(lambda c: Scripted(print), EnvContext(), 1, s), says=says)
