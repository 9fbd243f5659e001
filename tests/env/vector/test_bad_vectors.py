"""Wrong columns of a broken vector environment: of a user's `VectorEnv` and of a `gymnasium.vector.VectorEnv`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.utils import batch_space

from rollax import EnvError, VectorEnv, to_base_env
from rollax.env import checks
from tests.env.refused import play, refused
from tests.env.worlds import ACTION_SPACE

SPACE = spaces.Dict({"x": spaces.Box(-10, 10, (2,), np.float32), "n": spaces.Discrete(3)})
OBS = {"x": np.zeros((3, 2), np.float32), "n": np.zeros(3, np.int64)}
NO = np.zeros(3, bool)
LATER = 60  # past the polls in which all values are checked


@pytest.fixture(autouse=True)
def fewer_checked_polls(monkeypatch):
    """Episodes without an end are checked for 50 polls, instead of 1000."""
    monkeypatch.setattr(checks.FirstEpisodes, "MOST_POLLS", 50)


class Columns(VectorEnv):
    """Three copies, which return the changed columns from one step on."""

    def __init__(self, at: int = 1, **changed: Any) -> None:
        super().__init__(SPACE, ACTION_SPACE, 3)
        self.at, self.changed, self.count = at, changed, 0

    def vector_reset(self, seeds=None, options=None):
        return self.changed.get("reset", (OBS, [{}] * 3))

    def vector_step(self, actions):
        return self.result([{}] * 3)

    def result(self, infos):
        self.count += 1
        parts = {"obs": OBS, "rewards": np.ones(3), "terms": NO, "truncs": NO, "infos": infos}
        if self.count >= self.at:
            if "step" in self.changed:
                return self.changed["step"]
            if "raises" in self.changed:
                raise self.changed["raises"]
            parts |= {key: value for key, value in self.changed.items() if key in parts}
        return tuple(parts.values())


class Native(gym.vector.VectorEnv):
    """The same as a `gymnasium.vector.VectorEnv`."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    num_envs, single_observation_space, single_action_space = 3, SPACE, ACTION_SPACE
    observation_space, action_space = batch_space(SPACE, 3), batch_space(ACTION_SPACE, 3)

    def __init__(self, at: int = 1, **changed: Any) -> None:
        self.columns = Columns(at, **changed)

    def reset(self, *, seed=None, options=None):
        return self.columns.changed.get("reset", (OBS, {}))

    def step(self, actions):
        return self.columns.result({})


BOTH = pytest.mark.parametrize("kind", [Columns, Native])
WHEN = pytest.mark.parametrize("at", [1, LATER])


def bad(kind, at, says, **changed):
    return refused(EnvError, play, to_base_env(kind(at, **changed)), at, says=says)


@BOTH
@WHEN
class TestStep:
    @pytest.mark.parametrize("result", [None, 3, (OBS, NO, NO, {}), (OBS, NO, NO, NO, {}, {})])
    def test_other_than_five_values(self, kind, at, result):
        bad(kind, at, f"did not return five values...{kind.__name__}", step=result)

    @pytest.mark.parametrize("part", ["rewards", "terms", "truncs"])
    @pytest.mark.parametrize("value", [np.zeros(2), 1.0, None, {}])
    def test_columns_of_another_length(self, kind, at, part, value):
        name = {"rewards": "rewards", "terms": "terminateds", "truncs": "truncateds"}[part]
        bad(kind, at, f"The number of {name} is wrong...{kind.__name__}...of 3", **{part: value})

    def test_rewards(self, kind, at):
        bad(kind, at, "not a real number...sub-environment 0...ndarray", rewards=np.zeros((3, 1)))
        bad(kind, at, "not a real number...sub-environment 2...str", rewards=[1, 2, "3"])
        bad(kind, at, "reward is NaN or infinite...sub-environment 1...nan", rewards=[1, np.nan, np.inf])
        bad(kind, at, "reward is NaN or infinite...sub-environment 0...inf", rewards=np.array([np.inf, -np.inf, 0]))

    def test_flags(self, kind, at):
        bad(kind, at, "truncated flag is not a boolean...sub-environment 0...0", truncs=np.zeros(3))
        bad(kind, at, "terminated flag is not a boolean...sub-environment 1...1", terms=[True, 1, False])

    def test_observations(self, kind, at):
        wrong = np.zeros((3, 3), np.float32)
        bad(kind, at, "wrong shape...key 'x'...(3, 3)...(3, 2)...3 sub-environments", obs={**OBS, "x": wrong})
        bad(kind, at, "wrong shape...(2, 2)...(3, 2)", obs={**OBS, "x": OBS["x"][:2]})
        bad(kind, at, "wrong keys...['x']...['n', 'x']", obs={"x": OBS["x"]})
        bad(kind, at, "wrong keys...['more', 'n', 'x']", obs={**OBS, "more": NO})
        bad(kind, at, "cannot be cast safely...key 'n'...float64...int64", obs={**OBS, "n": np.zeros(3)})
        value = np.zeros((3, 2), np.float32)
        value[2, 1] = np.nan
        bad(kind, at, "observation contains NaN or infinity...sub-environment 2, ", obs={**OBS, "x": value})

    def test_float64_is_cast_and_warns_once(self, kind, at, caplog):
        base = to_base_env(kind(at, obs={**OBS, "x": np.ones((3, 2))}))
        obs = play(base, at + 3).observations(None, SPACE)
        assert obs["x"].dtype == np.float32
        assert (obs["x"] == 1).all()
        assert caplog.text.count("cast to float32. Logged once.") == 1

    def test_raises(self, kind, at):
        cause = KeyError("gone")
        error = bad(
            kind,
            at,
            f"KeyError...{kind.__name__}...[0, 0, 0]" if kind is Columns else "Native...array([0, 0, 0]",
            raises=cause,
        )
        assert error.__cause__ is cause


@BOTH
@pytest.mark.parametrize("result", [OBS, None, (OBS, {}, {})])
def test_reset(kind, result):
    refused(
        EnvError, play, to_base_env(kind(reset=result)), 1, says=f"reset() did not return (obs, info...{kind.__name__}"
    )


@pytest.mark.parametrize("kind", [Columns, Native])
@pytest.mark.parametrize("at", [1, LATER])
@pytest.mark.parametrize("x", [[[1.0], [1.0, 2.0], [3.0]], (x for x in "abc"), 3, np.zeros((3, 2), complex)])
def test_values_that_are_not_columns(kind, at, x):
    """Also ragged lists and generators, at any step."""
    says = f"bservation...{kind.__name__}, sub-environment 0...key 'x'...got:"
    refused(EnvError, play, to_base_env(kind(at, obs={**OBS, "x": x})), at, says=says)


@pytest.mark.parametrize("infos", [{}, [{}] * 2, None])
def test_infos_of_a_user_s_vector_env(infos):
    bad(Columns, 1, "The number of infos is wrong...Columns...of 3", infos=infos)
    bad(Columns, 0, "The number of infos is wrong...Columns...of 3", reset=(OBS, infos))
    bad(Columns, 1, "info is not a dict...Columns, sub-environment 1", infos=[{}, 3, {}])


@pytest.mark.parametrize("infos", [[3], 3, None, [{}, {}, 1]])
def test_infos_of_a_native_vector_env(infos):
    class Says(Native):
        def reset(self, *, seed=None, options=None):
            return OBS, infos if at == 0 else {}

        def step(self, actions):
            return *super().step(actions)[:4], infos

    for at, call in ((0, "reset()"), (1, "step()")):
        says = f"The info is not a dict...Says, {call}"
        refused(EnvError, play, to_base_env(Says()), at, says=says)


def test_lists_of_the_wrong_length():
    one = {"x": np.zeros(2, np.float32), "n": 1}
    bad(Columns, 1, "The number of observations is wrong...2 of them...of 3", obs=[one, one])
    assert len(play(to_base_env(Columns(obs=(one, one, one))), 1)) == 3


def test_out_of_bounds_warns_once(caplog):
    for kind in (Columns, Native):
        play(to_base_env(kind(obs={**OBS, "n": np.array([0, 1, 7])})), 2)
    assert (
        caplog.text.count("sub-environment 2, step(), key 'n': an observation is outside its space Discrete(3): 7") == 1
    )


class Breaks(gym.Env):
    observation_space, action_space = SPACE["x"], ACTION_SPACE

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        raise ZeroDivisionError("by nothing")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's log
def test_a_process_that_raises():
    base = to_base_env(AsyncVectorEnv([Breaks] * 2, context="spawn"))
    says = "ZeroDivisionError in step(): by nothing...AsyncVectorEnv...array([0, 0])"
    error = refused(EnvError, play, base, 1, says=says)
    assert isinstance(error.__cause__, ZeroDivisionError)
    base.stop()
