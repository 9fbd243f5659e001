"""DeepMind's environments: specs become spaces, and time steps become Gymnasium's five values."""

from types import MappingProxyType
from typing import NamedTuple

import dm_env
import numpy as np
import pytest
from dm_env import specs
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from rollax import EnvError, SpaceError, check_env, to_base_env
from rollax.env.dm_environment import DMEnvironment
from tests.env.refused import refused


class Catch(dm_env.Environment):
    """Episodes of three steps, of which `end` is the last."""

    def __init__(self, env_config=None, end=dm_env.termination, action_spec=None, observation_spec=None):
        self.end, self.actions = end, []
        self._action_spec = action_spec or specs.DiscreteArray(3)
        self._observation_spec = observation_spec or specs.Array((2,), float)

    def action_spec(self):
        return self._action_spec

    def observation_spec(self):
        return self._observation_spec

    def reset(self):
        self.count = 0
        return dm_env.restart(np.zeros(2))

    def step(self, action):
        self.actions.append(action)
        self.count += 1
        obs = np.full(2, self.count / 3)
        return self.end(1.0, obs) if self.count == 3 else dm_env.transition(0.5, obs)


def test_steps():
    env = DMEnvironment(Catch())
    obs, info = env.reset()
    assert (obs.dtype, obs.tolist(), info) == (np.float32, [0, 0], {})
    obs, *outcome = env.step(1)
    assert (obs.dtype, outcome) == (np.float32, [0.5, False, False, {}])
    assert type(env.env.actions[0]) is np.int32


@pytest.mark.parametrize(
    ("end", "terminated", "truncated"),
    [
        (dm_env.termination, True, False),
        (dm_env.truncation, False, True),
        (lambda reward, obs: dm_env.truncation(reward, obs, discount=0.9), False, True),
        (lambda reward, obs: dm_env.truncation(reward, obs, discount=0.0), True, False),
    ],
)
def test_ends(end, terminated, truncated):
    env = DMEnvironment(Catch(end=end))
    env.reset()
    last = [env.step(0) for _ in range(3)][-1]
    assert last[1:4] == (1.0, terminated, truncated)


ANY = np.iinfo(np.int32)
ONE = specs.DiscreteArray(3)


@pytest.mark.parametrize(
    ("spec", "observed", "acted"),
    [
        (specs.DiscreteArray(4), Discrete(4), Discrete(4)),
        (specs.Array((2, 3), float), *[Box(-np.inf, np.inf, (2, 3), np.float32)] * 2),
        (specs.BoundedArray((2,), float, [-1, 0], 2.0), *[Box(np.float32([-1, 0]), np.float32([2, 2]))] * 2),
        (specs.BoundedArray((), int, 2, 5), Box(2, 5, (), np.int64), Discrete(4, start=2)),
        (specs.BoundedArray((2,), int, [0, 1], 3), Box(np.array([0, 1]), np.array([3, 3]), dtype=np.int64), None),
        (specs.BoundedArray((8, 8, 3), np.uint8, 0, 255), Box(0, 255, (8, 8, 3), np.uint8), None),
        (specs.Array((), np.int32), Box(ANY.min, ANY.max, (), np.int32), None),
        (specs.Array((3,), bool), MultiBinary((3,)), MultiBinary((3,))),
        (specs.Array((), bool), Discrete(2), Discrete(2)),
        (
            {"a": specs.DiscreteArray(2), "b": [specs.Array((1,), np.float32)]},
            *[Dict({"a": Discrete(2), "b": Tuple([Box(-np.inf, np.inf, (1,), np.float32)])})] * 2,
        ),
    ],
    ids=str,
)
def test_spaces_of_specs(spec, observed, acted):
    env = DMEnvironment(Catch(action_spec=spec, observation_spec=spec))
    assert env.observation_space == observed
    assert acted is None or env.action_space == acted


def test_integer_actions_with_bounds():
    env = DMEnvironment(Catch(action_spec=specs.BoundedArray((2,), int, [0, 1], 3)))
    assert env.action_space == MultiDiscrete([4, 3], start=[0, 1])


def test_a_spec_without_a_space():
    env = Catch(observation_spec=specs.StringArray(()))
    refused(SpaceError, DMEnvironment, env, says="The spec has no corresponding space")


class Pair(NamedTuple):
    first: object
    second: object


@pytest.mark.parametrize(
    ("spec", "action", "got"),
    [
        (MappingProxyType({"a": MappingProxyType({"b": ONE})}), {"a": {"b": 2}}, {"a": {"b": 2}}),
        (Pair(ONE, [ONE]), (1, (2,)), Pair(1, [2])),
    ],
    ids=["mappings", "named tuples"],
)
def test_actions_and_observations_of_nested_specs(spec, action, got):
    env = DMEnvironment(Catch(action_spec=spec, observation_spec=spec))
    env.env.step = lambda given: dm_env.transition(env.env.actions.append(given), got)
    obs, *_ = env.step(action)
    assert env.action_space.contains(action)
    assert (env.env.actions, obs) == ([got], action)
    assert type(env.env.actions[0]) is type(got)


def test_actions_stay_inside_their_bounds():
    """0.1 as float32 is a little more than 0.1."""
    spec = specs.BoundedArray((2,), float, -0.1, 0.1)
    env = DMEnvironment(Catch(action_spec=spec))
    env.reset()
    env.step(env.action_space.high)
    spec.validate(env.env.actions[0])
    assert env.env.actions[0].tolist() == [0.1, 0.1]


def test_a_discount_in_the_middle_warns_once(caplog):
    class Discounted(Catch):
        def step(self, action):
            return super().step(action)._replace(discount=0.5)

    env = DMEnvironment(Discounted())
    env.reset()
    env.step(0)
    env.step(0)
    assert caplog.text.count("discount 0.5 in the middle of an episode is ignored") == 1


def test_a_step_that_begins_an_episode():
    class Restarting(Catch):
        def step(self, action):
            return self.reset()

    env = DMEnvironment(Restarting())
    env.reset()
    refused(EnvError, env.step, 0, says="A step started an episode...Restarting.step()...StepType.FIRST")


def test_check_and_copies():
    report = check_env(Catch)
    assert (report.kind, report.name) == ("dm_env.Environment", "Catch")
    assert report.warnings == ()
    assert [finding.name for finding in report.findings] == ["seed"]
    base = to_base_env(Catch(), lambda index: Catch(), 2)
    assert [type(env) for env in base.get_sub_environments()] == [Catch] * 2
