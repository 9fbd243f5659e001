"""Wrong values that a broken environment returns are refused, in every kind of environment."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollax import EnvError
from tests.env.refused import play, refused
from tests.env.worlds import ACTION_SPACE
from tests.env.wraps import WRAPS

BOX = spaces.Box(-10, 10, (2,), np.float32)
DICT = spaces.Dict({"a": BOX, "b": spaces.Discrete(3)})
BYTES = spaces.Box(0, 255, (2,), np.uint8)
NATIVE = [name for name in WRAPS if name.startswith("native")]
SINGLES = [name for name in WRAPS if name not in {*NATIVE, "vector of columns"}]
"""The kinds that return single values; in the others, code of Gymnasium stacks or casts them."""
EPISODE = 20
LATER = 30  # after the first episode, in which all values are checked
END_OF_EPISODE = 40  # the last step of an episode


class Faulty(gym.Env):
    """At one step the second copy replaces one of the values that it returns.

    Args:
        second: whether this is that copy.
        place: "reset", "step", or one of the five values.
        value: the replacement.
        at: the step; episodes are EPISODE steps long.
    """

    action_space = ACTION_SPACE

    def __init__(self, second: bool, place: Any, value: Any, at: int, space: spaces.Space) -> None:
        self.second, self.place, self.value, self.at, self.count = second, place, value, at, 0
        self.observation_space = space
        self.good = space.sample() if space is not BOX else np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        if self.second and self.place == "reset":
            return self.value
        return self.good, {}

    def step(self, action):
        self.count += 1
        result: list = [self.good, 1.0, self.count % EPISODE == 0, False, {}]
        if self.second and self.count == self.at:
            if self.place == "raise":
                raise self.value
            if self.place == "step":
                return self.value
            if self.place != "reset":
                result[self.place] = self.value
        return tuple(result)


def faulty(wrap: str, place: Any, value: Any, at: int = 1, space: spaces.Space = BOX):
    """Two copies in one kind of environment, of which the second is broken."""
    copies = []

    def make():
        copies.append(Faulty(bool(copies), place, value, at, space))
        return copies[-1]

    return WRAPS[wrap](make, 2)


OBS, REWARD, TERMINATED, TRUNCATED, INFO = range(5)
FLAGS = [0, None, "yes", np.zeros(1, bool)]


class Fault(NamedTuple):
    """Wrong values in one place, and what their error says; `at`: the steps at which they are returned."""

    place: Any
    values: list[Any]
    says: str
    at: tuple[int, ...] = (1, LATER)
    kinds: Sequence[str] = SINGLES
    space: spaces.Space = BOX


KEYS = [{"a": np.zeros(2)}, {"a": np.zeros(2), "b": 0, "c": 1}, {"x": np.zeros(2), "b": 0}, np.zeros(2)]
FAULTS = {
    "shape": Fault(OBS, [np.zeros(3, np.float32), np.zeros((2, 1), np.float32), 0.0], "wrong shape...{second}...(2,)"),
    "no observation": Fault(OBS, [None], "wrong shape...{second}got:      None", at=(1,)),
    "dtype": Fault(
        OBS,
        [np.array(["a", "b"]), np.array([1j, 2]), [None, 1.0], [[1.0], 2.0], np.array([1, 2], "datetime64[D]")],
        "cannot be cast safely...{second}...expected: float32",
    ),
    "a number beyond float32": Fault(OBS, [np.array([1e300, 0.0])], "represented in float32...{second}...float64"),
    "a number beyond uint8": Fault(OBS, [np.array([256, 0])], "represented in uint8...{second}...int64", space=BYTES),
    "a fraction of an integer": Fault(
        OBS, [{"a": np.zeros(2, np.float32), "b": 1.5}], "cast safely...{second}key 'b'...float64...int64", space=DICT
    ),
    "keys": Fault(OBS, KEYS, "wrong keys...{second}...['a', 'b']", space=DICT),
    "no dict": Fault(OBS, [None], "wrong keys...{second}got:", at=(1,), space=DICT),
    "NaN": Fault(
        OBS,
        [np.array(value, np.float32) for value in ([np.nan, 1], [1, np.inf], [np.inf, -np.inf])],
        "The observation contains NaN or infinity...{second}finite numbers",
        at=(1, END_OF_EPISODE),
        kinds=[*WRAPS],
    ),
    "reward": Fault(REWARD, ["1.0", [1.0], np.ones(1), 1j, [[1], 2], {}], "not a real number...{second}...{type}"),
    "no reward": Fault(REWARD, [None], "not a real number...{second}", at=(1,)),
    "no reward of a vector": Fault(REWARD, [None], "reward", at=(1,), kinds=[*NATIVE, "vector of columns"]),
    "NaN reward": Fault(
        REWARD,
        [np.nan, -np.inf, np.float32(np.inf)],
        "The reward is NaN or infinite...{second}got:      {value}...finite float",
        at=(1, END_OF_EPISODE),
        kinds=[*WRAPS],
    ),
    "a reward beyond float32": Fault(
        REWARD, [1e39, -1e300], "too large for float32...{second}got:      {value}...3.4e+38", kinds=[*WRAPS]
    ),
    "terminated": Fault(TERMINATED, FLAGS, "The terminated flag is not a boolean...{second}got:      {type}"),
    "truncated": Fault(TRUNCATED, FLAGS, "flag is not a boolean...{second}got:      {type}...True or False"),
    "info": Fault(INFO, [[3]], "info is not a dict...{second}got:      list", kinds=[*SINGLES, "vector of columns"]),
}


@pytest.mark.short(every=3)
@pytest.mark.parametrize(
    ("wrap", "fault"), [(wrap, fault) for fault, (*_, kinds, _) in FAULTS.items() for wrap in kinds]
)
def test_wrong_values(wrap, fault):
    place, values, says, steps, _, space = FAULTS[fault]
    for value in values:
        shown = float(value) if "{value}" in says else value
        second = "sub-environment 1, agent 'a'..." if wrap in ("multi-agent", "dict view") else "sub-environment 1..."
        expected = says.format(second=second, type=type(value).__name__, value=shown)
        for at in steps:
            refused(EnvError, play, faulty(wrap, place, value, at, space), at + EPISODE, says=expected)


@pytest.mark.parametrize("wrap", WRAPS)
class TestCalls:
    @pytest.mark.parametrize("value", [np.zeros(2, np.float32), None, (np.zeros(2, np.float32), None), (1, {}, 3)])
    def test_reset(self, wrap, value):
        """It must return `(obs, info)`; Gymnasium's own vector environments unpack that themselves."""
        if wrap not in ("multi-agent", "dict view", "old"):  # their wrappers unpack it, and "old" returns no info
            says = "" if wrap in NATIVE else "reset() did not return (obs, info)...sub-environment 1...got:"
            refused(EnvError, play, faulty(wrap, "reset", value), 1, says=says)

    @pytest.mark.parametrize("value", [None, (np.zeros(2, np.float32), 1.0, False, {}), (1, 2, 3, 4, 5, 6), 7])
    @pytest.mark.parametrize("at", [1, LATER])
    def test_step(self, wrap, value, at):
        of_old = wrap == "old" and isinstance(value, tuple) and len(value) == 4
        if wrap != "dict view" and not of_old:
            says = "step() did not return five values...sub-environment 1" if wrap == "in turn" else ""
            refused(EnvError, play, faulty(wrap, "step", value, at), at + 20, says=says)

    @pytest.mark.parametrize("at", [1, LATER])
    def test_raises(self, wrap, at):
        """The message names the sub-environment, where it is known, and the action; the cause is kept."""
        if wrap != "dict view":
            cause = ZeroDivisionError("by nothing")
            known = "sub-environment 1..." if wrap in ("in turn", "multi-agent", "old") else ""
            says = f"ZeroDivisionError in ...by nothing...{known}action "
            assert refused(EnvError, play, faulty(wrap, "raise", cause, at), at + 20, says=says).__cause__ is cause

    def test_out_of_bounds_warns_once(self, wrap, caplog):
        for _ in range(2):
            play(faulty(wrap, OBS, np.array([0, 11], np.float32)), 3)
        assert caplog.text.count("an observation is outside its space Box(-10.0, 10.0, (2,), float32): [ 0. 11.]") == 1
        assert "sub-environment 1" in caplog.text


@pytest.mark.parametrize("wrap", SINGLES)
def test_float64_is_cast_and_warns_once(wrap, caplog):
    for _ in range(2):
        base = faulty(wrap, OBS, np.full(2, 0.5))
        obs = play(base, 1).observations(None, base.observation_space)
        assert (obs.dtype, obs[1].tolist()) == (np.float32, [0.5, 0.5])
    assert caplog.text.count("sub-environment 1") == 1
    assert "observations of dtype float64 are cast to float32. Logged once." in caplog.text


def test_a_dict_in_place_of_an_array():
    says = "wrong shape...got:      a dict with the keys ['ann', 'bob']...gymnasium.spaces.Dict...MultiAgentEnv"
    base = faulty("in turn", "reset", ({"ann": np.zeros(2), "bob": np.zeros(2)}, {}))
    refused(EnvError, play, base, 0, says=says)


@pytest.mark.parametrize(
    ("place", "value"), [(REWARD, {"a": 1.0}), (TERMINATED, {"a": True}), (TRUNCATED, {"a": False})]
)
def test_values_by_agent(place, value):
    """The class has to be another one, not the value."""
    refused(EnvError, play, faulty("in turn", place, value), 1, says="got:      dict...a subclass of MultiAgentEnv")
