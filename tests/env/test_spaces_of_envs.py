"""Spaces that no policy supports are refused."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from rollax import BaseEnv, EnvError, MultiAgentEnv, SpaceError, VectorEnv, to_base_env
from tests.env.old_worlds import OldClock
from tests.env.refused import refused
from tests.env.worlds import ACTION_SPACE, OBS_SPACE, Clock, DictParties, ListVector, Party, RowClocks


class OldGymSpace:
    """A space of the package gym, Gymnasium's predecessor."""

    __module__ = "gym.spaces.box"


def low_above_high() -> spaces.Box:
    box = spaces.Box(-1, 1, (2, 3), np.float32)
    box.low[1, 2] = 5
    return box


def bounds_of_another_shape() -> spaces.Box:
    box = spaces.Box(-1, 1, (2,), np.float32)
    box.low = np.zeros(3, np.float32)
    return box


BAD = {
    "missing": (None, "This is not a Gymnasium space...got:      None"),
    "not Gymnasium's": (OldGymSpace(), "This is not a Gymnasium space...OldGymSpace...gymnasium.spaces"),
    "a dict": ({"a": OBS_SPACE}, "This is not a Gymnasium space...'a': Box...write gymnasium.spaces.Dict({...})"),
    "a list": ([OBS_SPACE], "This is not a Gymnasium space...[Box...write gymnasium.spaces.Tuple([...])"),
    "a number": (2, "This is not a Gymnasium space...got:      2...write gymnasium.spaces.Discrete(n)"),
    "text": (spaces.Text(5), "This kind of space is not supported...Text...Box, Discrete"),
    "inside": (spaces.Dict({"x": spaces.Tuple([OBS_SPACE, spaces.Text(3)])}), "not supported...key 'x', element 1"),
    "big-endian": (spaces.Box(-1, 1, (2,), ">f4"), "type of numbers...>f4, in the byte order of another machine"),
    "long double": (spaces.Box(-1, 1, (2,), np.longdouble), "type of numbers...f16...float32...astype"),
    "empty dict": (spaces.Dict({}), "The space has no elements"),
    "empty tuple": (spaces.Tuple([]), "The space has no elements"),
    "empty box": (spaces.Box(0, 1, (3, 0)), "The space has no elements...(3, 0)"),
    "low_above_high": (low_above_high(), "A bound of a Box has low > high...element (1, 2)...low 5.0, high 1.0"),
    "bounds_of_another_shape": (
        bounds_of_another_shape(),
        "bounds of a Box do not have its shape...shape (2,), low (3,), high (2,)",
    ),
}
KIND = pytest.mark.parametrize("kind", ["observation_space", "action_space"])
FAULT = pytest.mark.parametrize("fault", BAD.values(), ids=BAD.keys())


def single(env_class: type):
    """A subclass with another space."""

    def make(kind: str, space):
        return type("Odd", (env_class,), {kind: space})()

    return make


def with_space(env, prefix: str = ""):
    """An instance with another space."""

    def make(kind: str, space):
        made = env()
        setattr(made, prefix + kind, space)
        return made

    return make


KINDS = {
    "single": ("Odd, sub-environment 0, ", single(Clock)),
    "old": ("Odd, sub-environment 0, ", single(OldClock)),
    "vector": ("ListVector.", with_space(lambda: ListVector(2))),
    "native": ("SyncVectorEnv.single_", with_space(lambda: SyncVectorEnv([Clock] * 2), "single_")),
    "multi-agent": ("Odd, sub-environment 0, ", single(Party)),
    "rows": ("RowClocks.", with_space(lambda: RowClocks(2))),
    "dicts": ("DictParties.", with_space(lambda: DictParties(2))),
}
"""Where the space is, in errors, and a function that makes the environment."""


@KIND
@FAULT
@pytest.mark.parametrize("made", KINDS)
def test_every_kind(kind, fault, made):
    (space, says), (where, make) = fault, KINDS[made]
    if space is not None or made not in ("multi-agent", "rows", "dicts"):
        what, _, rest = says.partition("...")
        refused(SpaceError, to_base_env, make(kind, space), says=f"{what}...{where}{kind}...{rest}".removesuffix("..."))


@KIND
def test_a_method_in_the_place_of_a_space(kind):
    """It is no environment of PettingZoo, whose methods take an agent."""

    def method(self):
        return OBS_SPACE

    method.__name__ = kind
    odd = type("Odd", (Clock,), {kind: method})()
    refused(SpaceError, to_base_env, odd, says=f"not a Gymnasium space...Odd...{kind}...write @property above the")


def test_no_spaces():
    env = type("NoSpaces", (gym.Env,), {"reset": print, "step": print})()
    refused(SpaceError, to_base_env, env, says="not a Gymnasium space...NoSpaces, sub-environment 0, observation_space")


def test_the_policies_of_a_multi_agent_env_can_define_the_spaces():
    class Own(MultiAgentEnv):
        def reset(self, *, seed=None, options=None):
            return {"a": 0, "b": [1, 2]}, {}

        def step(self, actions):
            return {"a": actions["a"]}, {}, {"__all__": False}, {"__all__": False}, {}

    base = to_base_env(Own())
    assert base.observation_space is None
    assert base.action_space is None
    obs, _ = base.try_reset()  # type: ignore[misc]
    assert obs == {0: {"a": 0, "b": [1, 2]}}
    base.send_actions({0: {"a": {"deep": (3, 4)}, "b": np.ones(2)}})
    assert base.poll()[0] == {0: {"a": {"deep": (3, 4)}}}


class TestCopies:
    def test_other_spaces(self):
        class Wide(Clock):
            observation_space = spaces.Box(-1, 1, (4,), np.float32)

        class Silent(Party):
            action_space = None

        says = "different spaces...Wide, sub-environment 1, observation_space...(4,)...(3,)"
        refused(SpaceError, to_base_env, Clock(), lambda index: Wide(), 2, says=says)
        says = "different spaces...Silent, sub-environment 2, action_space...None...Discrete(5)"
        refused(SpaceError, to_base_env, Party(), lambda index: Silent() if index == 2 else Party(), 3, says=says)

    @pytest.mark.parametrize("world", [Clock, Party])
    def test_copies_that_are_none(self, world):
        env = world()
        says = f"the same environment twice...{world.__name__}"
        refused(EnvError, to_base_env, env, lambda index: env, 2, says=says)
        refused(EnvError, to_base_env, env, None, 3, says="too few environments...1 environments, no make_env...3")
        says = "This is not an environment...sub-environment 1...None"
        refused(EnvError, to_base_env, env, lambda index: None, 2, says=says)

    def test_wrap(self):
        made = []
        env = VectorEnv.wrap(lambda index: made.append(index) or Clock(), existing_envs=[Clock()], num_envs=3)
        assert made == [1, 2]
        assert env.num_envs == 3
        assert VectorEnv.wrap(lambda index: Clock(), num_envs=2).num_envs == 2
        assert VectorEnv.wrap(existing_envs=[Clock(), Clock()]).num_envs == 2


@pytest.mark.parametrize("value", [None, 3, object()])
def test_no_environment(value):
    refused(EnvError, to_base_env, value, says="This is not an environment...to_base_env...creator")


class TestViews:
    def test_half_a_view(self):
        half = {"observation_space": OBS_SPACE, "action_space": ACTION_SPACE, "poll": print, "send_actions": print}
        says = "overrides neither all methods...Half...poll, send_actions...poll_rows"
        refused(EnvError, type("Half", (BaseEnv,), half), says=says)

    def test_an_abstract_subclass_needs_no_view(self):
        class Base(BaseEnv):
            def help(self):
                return 3

        whole = type("Whole", (Base,), {"poll_rows": print, "send_rows": print, "reset_rows": print})
        assert whole().help() == 3
        refused(EnvError, Base, says="overrides neither all methods...none")
