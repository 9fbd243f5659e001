"""Wrong columns of a broken environment: of a user's `VectorEnv`, of a `gymnasium.vector.VectorEnv`, and of a user's
columnar `BaseEnv`."""

import os
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.utils import batch_space

from rollax import BaseEnv, EnvError, Rows, VectorEnv, to_base_env
from rollax.env import checks
from rollax.env.rows import NO_ENVS
from tests.env.refused import play, refused
from tests.env.worlds import ACTION_SPACE, Counting

SPACE = spaces.Dict({"x": spaces.Box(-10, 10, (2,), np.float32), "n": spaces.Discrete(3)})
OBS = {"x": np.zeros((3, 2), np.float32), "n": np.zeros(3, np.int64)}
NO, YES, EVERYONE = np.zeros(3, bool), np.ones(3, bool), np.arange(3)
LATER = 60  # past the polls in which all values are checked


@pytest.fixture(autouse=True)
def fewer_checked_polls(monkeypatch):
    """Episodes without an end are checked for 50 polls, instead of 1000."""
    monkeypatch.setattr(checks.ObservationChecks, "MOST_POLLS", 50)


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
        parts = {"obs": OBS, "rewards": np.ones(3), "terminateds": NO, "truncateds": NO, "infos": infos}
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


class InRows(BaseEnv):
    """The same as a `BaseEnv`, whose reset is changed for `at` 0; `rows` is returned in the place of its rows."""

    num_envs, observation_space, action_space = 3, SPACE, ACTION_SPACE

    def __init__(self, at: int = 1, rows: Any = None, **changed: Any) -> None:
        self.at, self.rows, self.changed, self.count = at, rows, changed, 0

    def _result(self, rows: Rows) -> Any:
        if self.count < self.at:
            return rows
        return replace(rows, **self.changed) if self.rows is None else self.rows

    def reset_rows(self, env_index, seeds=None):
        return self._result(Rows.starting(env_index, env_index, OBS, infos=[{}] * 3))

    def send_rows(self, rows, selection, actions):
        pass

    def poll_rows(self):
        self.count += 1
        return self._result(Rows(EVERYONE, EVERYONE, OBS, np.ones(3), NO, NO, NO, YES, NO_ENVS, infos=[{}] * 3))


VECTORS, ALL_KINDS = (Columns, Native), (Columns, Native, InRows)
AT_ANY_TIME = pytest.mark.parametrize("at", [1, LATER])


def bad(kind, at, says, **changed):
    error = refused(EnvError, play, to_base_env(kind(at, **changed)), at, says=says)
    assert kind.__name__ in str(error)
    return error


def x_with(row: int, value: float) -> dict:
    x = np.zeros((3, 2), np.float32)
    x[row, 1] = value
    return {**OBS, "x": x}


X = {
    "shape": (np.zeros((3, 3), np.float32), "wrong shape...key 'x'...(3, 3)...(3, 2)...3 sub-environments"),
    "number": (OBS["x"][:2], "wrong shape...key 'x'...(2, 2)...(3, 2)"),
    "ragged": ([[1.0], [1.0, 2.0], [3.0]], "bservation...sub-environment 0...key 'x'...got:"),
    "generator": ((x for x in "abc"), "bservation...sub-environment 0...key 'x'...got:"),
    "scalar": (3, "bservation...sub-environment 0...key 'x'...got:"),
    "complex": (np.zeros((3, 2), complex), "bservation...sub-environment 0...key 'x'...got:"),
}
COLUMNS = {
    **{f"obs: {name}": ("obs", {**OBS, "x": x}, says) for name, (x, says) in X.items()},
    "obs: dtype": ("obs", {**OBS, "n": np.zeros(3)}, "cannot be cast safely...key 'n'...float64...int64"),
    "obs: NaN": ("obs", x_with(2, np.nan), "observation contains NaN or infinity...sub-environment 2, "),
    "obs: too few keys": ("obs", {"x": OBS["x"]}, "wrong keys...['x']...['n', 'x']"),
    "obs: too many keys": ("obs", {**OBS, "more": NO}, "wrong keys...['more', 'n', 'x']"),
    "rewards: shape": ("rewards", np.zeros((3, 1)), "not a real number...sub-environment 0...ndarray"),
    "rewards: text": ("rewards", [1, 2, "3"], "not a real number...sub-environment 2...str"),
    "rewards: NaN": ("rewards", [1, np.nan, np.inf], "reward is NaN or infinite...sub-environment 1...nan"),
    "rewards: infinity": ("rewards", np.array([np.inf, -np.inf, 0]), "NaN or infinite...sub-environment 0...inf"),
    "flags: dtype": ("truncateds", np.zeros(3), "truncated flag is not a boolean...sub-environment 0...0"),
    "flags: one": ("terminateds", [True, 1, False], "terminated flag is not a boolean...sub-environment 1...1"),
}


@pytest.mark.short(every=3)
@AT_ANY_TIME
@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize(("part", "value", "says"), COLUMNS.values(), ids=COLUMNS)
def test_columns(kind, at, part, value, says):
    bad(kind, at, says, **{part: value})


@pytest.mark.short(every=3)
@AT_ANY_TIME
@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("part", ["rewards", "terminateds", "truncateds"])
@pytest.mark.parametrize("value", [np.zeros(2), 1.0, None, {}])
def test_columns_of_another_length(kind, at, part, value):
    says = f"{part} has the wrong length...3, one for each" if kind is InRows else f"number of {part} is wrong...of 3"
    bad(kind, at, says, **{part: value})


@AT_ANY_TIME
@pytest.mark.parametrize("kind", VECTORS)
class TestVectors:
    @pytest.mark.parametrize("result", [None, 3, (OBS, NO, NO, {}), (OBS, NO, NO, NO, {}, {})])
    def test_other_than_five_values(self, kind, at, result):
        bad(kind, at, "did not return five values", step=result)

    def test_raises(self, kind, at):
        cause, actions = KeyError("gone"), "[0, 0, 0]" if kind is Columns else "array([0, 0, 0]"
        assert bad(kind, at, f"KeyError...{kind.__name__}...{actions}", raises=cause).__cause__ is cause

    @pytest.mark.parametrize("result", [OBS, None, (OBS, {}, {})])
    def test_reset(self, kind, at, result):
        bad(kind, at, "reset() did not return (obs, info", reset=result)


class TestRows:
    @pytest.mark.parametrize("at", [0, 1, LATER])
    @pytest.mark.parametrize(
        ("changed", "says"),
        [
            ({"terminateds": YES}, "A row both acts and has ended...sub-environment 0"),
            ({"agents": ["a"]}, "agents has the wrong length...1 of them"),
            ({"in_order": True, "slots": np.array([0, 2, 1])}, "not in order...[0 1 2], slots [0 2 1]"),
            ({"infos": [{}, 3, {}]}, "info is not a dict...sub-environment 1"),
            ({"infos": [{}]}, "infos has the wrong length...1 of them"),
            *[({"rows": rows}, "did not return Rows...rollax.Rows") for rows in ((OBS, {}), {"obs": OBS}, 3)],
        ],
    )
    def test_rows(self, changed, says, at):
        assert ("reset_rows()" if at == 0 else "poll_rows()") in str(bad(InRows, at, says, **changed))

    def test_a_base_env_is_returned_unchanged(self):
        env = InRows(at=9)
        assert to_base_env(to_base_env(env)) is env
        # Its dict view has the values of the same rows.
        started = env.try_reset()
        env.send_actions({i: {"agent0": 0} for i in started[0]})
        assert env.poll()[1] == {i: {"agent0": 1.0} for i in range(3)}

    @pytest.mark.parametrize("slots", [[0, 1, 2], [1, 0, 2]])
    def test_several_agents_in_order(self, slots):
        """The first two slots are agents of one sub-environment."""
        places = {"env_index": np.array([0, 0, 1]), "agents": ["a", "b", "a"], "slots": np.array(slots)}
        env = to_base_env(InRows(in_order=True, **places))
        env.reset_rows(EVERYONE)
        if slots == [0, 1, 2]:
            assert env.poll_rows().in_order
        else:
            refused(EnvError, env.poll_rows, says="not in order...slots [1 0 2]")


@pytest.mark.parametrize("kind", ALL_KINDS)
class TestWarnings:
    @AT_ANY_TIME
    def test_float64_is_cast_and_warns_once(self, kind, at, caplog):
        for _ in range(2):
            obs = play(to_base_env(kind(at, obs={**OBS, "x": np.ones((3, 2))})), at + 3).observations(None, SPACE)
            assert obs["x"].dtype == np.float32
            assert (obs["x"] == 1).all()
        assert caplog.text.count("cast to float32. Logged once.") == 1

    def test_out_of_bounds(self, kind, caplog):
        for _ in range(2):
            play(to_base_env(kind(obs={**OBS, "n": np.array([0, 1, 7])})), 2)
        assert caplog.text.count("key 'n': an observation is outside its space Discrete(3): 7") == 1
        assert "sub-environment 2, " in caplog.text


@pytest.mark.parametrize("infos", [{}, [{}] * 2, None])
def test_infos_of_a_user_s_vector_env(infos):
    bad(Columns, 1, "The number of infos is wrong...of 3", infos=infos)
    bad(Columns, 0, "The number of infos is wrong...of 3", reset=(OBS, infos))
    bad(Columns, 1, "info is not a dict...Columns, sub-environment 1", infos=[{}, 3, {}])


@pytest.mark.parametrize("infos", [[3], 3, None, [{}, {}, 1]])
def test_infos_of_a_native_vector_env(infos):
    bad(Native, 1, "The info is not a dict...Native, step()", infos=infos)
    bad(Native, 0, "The info is not a dict...Native, reset()", reset=(OBS, infos))


def test_lists_of_the_wrong_length():
    one = {"x": np.zeros(2, np.float32), "n": 1}
    bad(Columns, 1, "The number of observations is wrong...2 of them...of 3", obs=[one, one])
    assert len(play(to_base_env(Columns(obs=(one, one, one))), 1)) == 3


class Breaks(Counting):
    def step(self, action):
        raise ZeroDivisionError("by nothing")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's log
def test_a_process_that_raises():
    base = to_base_env(AsyncVectorEnv([Breaks] * 2, context="spawn"))
    says = "ZeroDivisionError in step(): by nothing...AsyncVectorEnv...array([0, 0])"
    assert isinstance(refused(EnvError, play, base, 1, says=says).__cause__, ZeroDivisionError)
    base.stop()


class Exits(Counting):
    def step(self, action):
        os._exit(1)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's log
def test_a_process_that_ends():
    env = AsyncVectorEnv([Counting, Exits], context="spawn")
    base = to_base_env(env)
    with pytest.raises(EnvError):
        play(base, 1)
    base.stop()  # it does not wait for the reply of the first process, which has come already
    assert env.closed
    base.stop()


def broken_close(**settings):
    raise BrokenPipeError("its process is gone")


@pytest.mark.parametrize("env", [Columns(), gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")])], ids=repr)
def test_an_error_of_close_is_named(env, monkeypatch):
    monkeypatch.setattr(env, "close", broken_close)
    refused(EnvError, to_base_env(env).stop, says="BrokenPipeError in close(): its process is gone")
