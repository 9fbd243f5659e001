"""Wrong values that a broken environment returns are refused, in every kind of environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollax import EnvError, to_base_env
from tests.env.refused import play, refused
from tests.env.worlds import ACTION_SPACE
from tests.env.wraps import WRAPS

BOX = spaces.Box(-10, 10, (2,), np.float32)
DICT = spaces.Dict({"a": BOX, "b": spaces.Discrete(3)})
NATIVE = {name for name in WRAPS if name.startswith("native")}
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


def kinds(*left_out: str) -> Any:
    return pytest.mark.parametrize("wrap", [name for name in WRAPS if name not in left_out])


OBS, REWARD, TERMINATED, TRUNCATED, INFO = range(5)
SECOND = "sub-environment 1..."


@kinds("multi-agent", "dict view", "old")  # Gymnasium's own code unpacks it, and old environments return no info
@pytest.mark.parametrize("value", [np.zeros(2, np.float32), None, (np.zeros(2, np.float32), None), (1, {}, 3)])
def test_reset(wrap, value):
    """It must return `(obs, info)`; Gymnasium's own vector environments unpack that themselves."""
    says = "" if wrap in NATIVE else "reset() did not return (obs, info)...sub-environment 1...got:"
    refused(EnvError, play, faulty(wrap, "reset", value), 1, says=says)


@kinds("dict view")
@pytest.mark.parametrize("value", [None, (np.zeros(2, np.float32), 1.0, False, {}), (1, 2, 3, 4, 5, 6), 7])
@pytest.mark.parametrize("at", [1, LATER])
def test_step(wrap, value, at):
    if wrap == "old" and isinstance(value, tuple) and len(value) == 4:
        return  # allowed for the old interface
    says = "step() did not return five values...sub-environment 1" if wrap == "in turn" else ""
    refused(EnvError, play, faulty(wrap, "step", value, at), at + 20, says=says)


@kinds(*NATIVE)
@pytest.mark.parametrize("value", [np.zeros(3, np.float32), np.zeros((2, 1), np.float32), 0.0, None])
@pytest.mark.parametrize("at", [1, LATER])
def test_shape(wrap, value, at):
    if wrap == "vector of columns":
        return  # Gymnasium's own code stacks them
    if value is None and at == LATER:
        refused(EnvError, play, faulty(wrap, OBS, value, at), at, says=f"{SECOND}got:      ")
        return
    says = f"The observation has the wrong shape...{SECOND}got:...expected: shape (2,)"
    refused(EnvError, play, faulty(wrap, OBS, value, at), at, says=says)


def test_a_dict_in_place_of_an_array():
    class Several(gym.Env):
        observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return {"ann": np.zeros(2), "bob": np.zeros(2)}, {}

    says = "wrong shape...got:      a dict with the keys ['ann', 'bob']...gymnasium.spaces.Dict...MultiAgentEnv"
    refused(EnvError, to_base_env(Several()).try_reset, 0, says=says)


@kinds("vector of columns", *NATIVE)
@pytest.mark.parametrize(
    "value",
    [np.array(["a", "b"]), np.array([1j, 2]), np.array([None, 1.0]), [[1.0], 2.0], np.array([1, 2], "datetime64[D]")],
)
@pytest.mark.parametrize("at", [1, LATER])
def test_dtype(wrap, value, at):
    says = f"The dtype of the observation cannot be cast safely...{SECOND}got:...expected: float32"
    refused(EnvError, play, faulty(wrap, OBS, value, at), at, says=says)


@kinds("vector of columns", *NATIVE)
@pytest.mark.parametrize("at", [1, LATER])
@pytest.mark.parametrize(
    ("space", "value"),
    [(BOX, np.array([1e300, 0.0])), (spaces.Box(0, 255, (2,), np.uint8), np.array([256, 0]))],
)
def test_numbers_that_the_dtype_cannot_hold(wrap, space, value, at):
    says = f"The observation cannot be represented in {space.dtype}...{SECOND}got:      {value.dtype}"
    refused(EnvError, play, faulty(wrap, OBS, value, at, space), at, says=says)


@kinds("vector of columns", *NATIVE)
@pytest.mark.parametrize("at", [1, LATER])
def test_fractions_for_an_integer_dtype(wrap, at):
    base = faulty(wrap, OBS, {"a": np.zeros(2, np.float32), "b": 1.5}, at, space=DICT)
    refused(
        EnvError,
        play,
        base,
        at,
        says=f"The dtype of the observation cannot be cast safely...{SECOND}key 'b'...float64...int64",
    )


@kinds("vector of columns", *NATIVE)
def test_float64_is_cast_and_warns_once(wrap, caplog):
    base = faulty(wrap, OBS, np.full(2, 0.5))
    rows = play(base, 1)
    obs = rows.observations(None, base.observation_space)
    assert obs.dtype == np.float32
    np.testing.assert_array_equal(obs[1], [0.5, 0.5])
    play(faulty(wrap, OBS, np.full(2, 0.5)), 1)
    assert caplog.text.count("sub-environment 1") == 1
    assert "observations of dtype float64 are cast to float32. Logged once." in caplog.text


@kinds()
@pytest.mark.parametrize("value", [[np.nan, 1], [1, np.inf], [np.inf, -np.inf]])
@pytest.mark.parametrize("at", [1, END_OF_EPISODE])
def test_nan_observation(wrap, value, at):
    says = f"The observation contains NaN or infinity...{SECOND}finite numbers"
    refused(EnvError, play, faulty(wrap, OBS, np.array(value, np.float32), at), at + 20, says=says)


@kinds("vector of columns", *NATIVE)
@pytest.mark.parametrize(
    "value", [{"a": np.zeros(2)}, {"a": np.zeros(2), "b": 0, "c": 1}, {"x": np.zeros(2), "b": 0}, np.zeros(2), None]
)
@pytest.mark.parametrize("at", [1, LATER])
def test_dict_keys(wrap, value, at):
    if value is None and at == LATER:
        return  # a multi-agent environment refuses an observation that is None
    says = f"The Dict observation has the wrong keys...{SECOND}got:...expected: ['a', 'b']"
    refused(EnvError, play, faulty(wrap, OBS, value, at, space=DICT), at, says=says)


@kinds()
def test_out_of_bounds_warns_once(wrap, caplog):
    for _ in range(2):
        play(faulty(wrap, OBS, np.array([0, 11], np.float32)), 3)
    assert caplog.text.count("an observation is outside its space Box(-10.0, 10.0, (2,), float32): [ 0. 11.]") == 1
    assert "sub-environment 1" in caplog.text


@kinds(*NATIVE)
@pytest.mark.parametrize("value", ["1.0", [1.0], np.ones(1), 1j, [[1], 2], {}])
@pytest.mark.parametrize("at", [1, LATER])
def test_reward_is_no_number(wrap, value, at):
    says = f"The reward is not a real number...{SECOND}got:      {type(value).__name__}"
    refused(EnvError, play, faulty(wrap, REWARD, value, at), at, says=says)


@kinds()
def test_no_reward(wrap):
    refused(
        EnvError, play, faulty(wrap, REWARD, None), 1, says="reward" if wrap in NATIVE else "not a real number...None"
    )


@kinds()
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.float32(np.inf)])
@pytest.mark.parametrize("at", [1, END_OF_EPISODE])
def test_nan_reward(wrap, value, at):
    says = f"The reward is NaN or infinite...{SECOND}got:      {float(value)}...finite float"
    refused(EnvError, play, faulty(wrap, REWARD, value, at), at + 20, says=says)


@kinds()
@pytest.mark.parametrize("value", [1e39, -1e300])
def test_reward_that_float32_cannot_hold(wrap, value):
    says = f"The reward is too large for float32...{SECOND}got:      {float(value)}...3.4e+38"
    refused(EnvError, play, faulty(wrap, REWARD, value, END_OF_EPISODE), END_OF_EPISODE + 20, says=says)


@kinds(*NATIVE)
@pytest.mark.parametrize("value", [0, None, "yes", np.zeros(1, bool)])
@pytest.mark.parametrize(("place", "name"), [(TERMINATED, "terminated"), (TRUNCATED, "truncated")])
@pytest.mark.parametrize("at", [1, LATER])
def test_flag(wrap, value, place, name, at):
    name = "terminated" if wrap == "old" else name  # it has only one flag
    says = f"The {name} flag is not a boolean...{SECOND}got:      {type(value).__name__}...True or False"
    refused(EnvError, play, faulty(wrap, place, value, at), at, says=says)


@kinds(*NATIVE)
@pytest.mark.parametrize("at", [1, LATER])
def test_info(wrap, at):
    says = f"The info is not a dict...{SECOND}got:      list"
    refused(EnvError, play, faulty(wrap, INFO, [3], at), at, says=says)


@kinds("dict view")
@pytest.mark.parametrize("at", [1, LATER])
def test_an_env_that_raises(wrap, at):
    """The message names the sub-environment, where it is known, and the action; the cause is kept."""
    cause = ZeroDivisionError("by nothing")
    error = refused(EnvError, play, faulty(wrap, "raise", cause, at), at + 20, says="ZeroDivisionError in ")
    assert error.__cause__ is cause
    if wrap in ("in turn", "multi-agent", "old"):
        assert "sub-environment 1" in str(error)
    assert "action " in str(error)
    assert "by nothing" in str(error)


@pytest.mark.parametrize(
    ("place", "value"), [(REWARD, {"a": 1.0}), (TERMINATED, {"a": True}), (TRUNCATED, {"a": False})]
)
def test_values_by_agent(place, value):
    """The class has to be another one, not the value."""
    refused(EnvError, play, faulty("in turn", place, value), 1, says="got:      dict...a subclass of MultiAgentEnv")
