"""Nested spaces, of observations and of actions, through every kind of environment and both views."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollax.core import spaces as columns
from rollax.core import trees
from tests.env.refused import raised
from tests.env.wraps import WRAPS

NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (6, 5, 3), np.uint8),
        "where": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-9, 9, (1,), np.float64)]),
        "gear": spaces.Discrete(3, start=-1),
        "more": spaces.Dict({"keys": spaces.MultiBinary(4), "dials": spaces.MultiDiscrete([[3, 2], [5, 4]])}),
    }
)
SPACES = {
    "dict": NESTED,
    "tuple": spaces.Tuple([spaces.Discrete(4), NESTED, spaces.MultiDiscrete([2, 3])]),
    "box": spaces.Box(-1, 1, (2, 3), np.float32),
    "discrete": spaces.Discrete(5, start=2),
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
    "multi-binary": spaces.MultiBinary(3),
    "images": spaces.Box(0, 255, (8, 7, 3), np.uint8),
}
EVERY_WRAP = pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS.keys())


class Sampler(gym.Env):
    """Returns samples of its space and records them and the actions; episodes of four steps."""

    def __init__(self, space: spaces.Space) -> None:
        self.observation_space = self.action_space = space
        self.given, self.got = [], []

    def reset(self, *, seed=None, options=None):
        self.given.append(self.observation_space.sample())
        return self.given[-1], {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.got.append(action)
        self.given.append(self.observation_space.sample())
        return self.given[-1], 0.0, len(self.got) % 4 == 0, False, {}


def made(wrap, space):
    envs = []

    def make():
        envs.append(Sampler(space))
        return envs[-1]

    return wrap(make, 3), envs


def assert_same(found, wanted):
    trees.tree_map(np.testing.assert_array_equal, found, wanted)
    assert [leaf.dtype for leaf in trees.leaves(found)] == [leaf.dtype for leaf in trees.leaves(wanted)]


@EVERY_WRAP
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
class TestNested:
    @pytest.mark.short(every=3)
    def test_rows(self, wrap, space):
        base, envs = made(wrap, space)
        space.seed(3)
        rows = base.reset_rows(np.arange(3))
        for _ in range(3):
            assert_same(rows.observations(None, space), columns.stack(space, [env.given[-1] for env in envs]))
            sent = columns.stack(space, [space.sample() for _ in envs])
            base.send_rows(rows, None, sent)
            rows = base.poll_rows()
            for env, wanted in zip(envs, trees.rows(sent), strict=True):
                assert_same(columns.stack(space, [env.got[-1]]), columns.stack(space, [wanted]))
        base.stop()

    @pytest.mark.short(every=3)
    def test_dicts(self, wrap, space):
        base, envs = made(wrap, space)
        obs, _ = base.try_reset()
        for _ in range(3):
            for index, by_agent in obs.items():
                for value in by_agent.values():
                    assert_same(columns.stack(space, [value]), columns.stack(space, [envs[index].given[-1]]))
            sent = {index: {agent: space.sample() for agent in by_agent} for index, by_agent in obs.items()}
            base.send_actions(sent)
            obs = base.poll()[0]
            for index, by_agent in sent.items():
                for value in by_agent.values():
                    assert_same(columns.stack(space, [envs[index].got[-1]]), columns.stack(space, [value]))


@EVERY_WRAP
def test_images_stay_uint8(wrap):
    base, _ = made(wrap, SPACES["images"])
    rows = base.reset_rows(np.arange(3))
    base.send_rows(rows, None, np.zeros((3, 8, 7, 3), np.uint8))
    rows = base.poll_rows()
    obs = rows.observations(None, base.observation_space)
    assert obs.dtype == np.uint8
    if not isinstance(rows.obs, list):
        assert obs is rows.obs


def test_numbers_without_axes():
    space = spaces.Dict({"angle": spaces.Box(-9, 9, (), np.float32)})
    for wrap in ("in turn", "vector of columns", "multi-agent", "dict view"):
        base, envs = made(WRAPS[wrap], space)
        rows = base.reset_rows(np.arange(3))
        assert_same(rows.observations(None, space), columns.stack(space, [env.given[-1] for env in envs]))
        base.send_rows(rows, None, {"angle": np.array([1, 2, 3], np.float32)})
        base.poll_rows()
        assert [float(env.got[0]["angle"]) for env in envs] == [1, 2, 3]


def test_lists_are_actions():
    base, envs = made(WRAPS["in turn"], SPACES["box"])
    obs, _ = base.try_reset()  # type: ignore[misc]
    base.send_actions({index: {agent: [[0.5] * 3] * 2 for agent in by_agent} for index, by_agent in obs.items()})
    base.poll()
    np.testing.assert_array_equal(envs[0].got[0], np.full((2, 3), 0.5, np.float32))


@pytest.mark.parametrize("values", [[[0.0, 1e39]], [np.array([0.0, 1e39])]])
def test_numbers_that_float32_cannot_hold(values):
    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    raised(ValueError, columns.stack, space, values, says="cannot represent")
    assert columns.stack(space, [[0.0, np.inf]]).tolist() == [[0, np.inf]]
