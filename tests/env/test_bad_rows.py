"""Wrong values that a user's own columnar `BaseEnv` returns are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax import BaseEnv, EnvError, Rows, to_base_env
from rollax.env.rows import NO_ENVS
from tests.env.refused import play, refused
from tests.env.worlds import ACTION_SPACE

SPACE = spaces.Dict({"x": spaces.Box(-10, 10, (2,), np.float32), "n": spaces.Discrete(3)})
OBS = {"x": np.zeros((3, 2), np.float32), "n": np.zeros(3, np.int64)}
NO, YES = np.zeros(3, bool), np.ones(3, bool)
LATER = 1100  # past the polls in which all values are checked


class Columns(BaseEnv):
    """Three sub-environments; at poll `at`, or at the reset for 0, they return the changed columns."""

    num_envs, observation_space, action_space = 3, SPACE, ACTION_SPACE

    def __init__(self, at: int = 1, rows: Any = None, **changed: Any) -> None:
        self.at, self.rows, self.changed, self.count = at, rows, changed, 0

    def _result(self, rows: Rows) -> Any:
        if self.count != self.at:
            return rows
        return replace(rows, **self.changed) if self.rows is None else self.rows

    def reset_rows(self, env_index, seeds=None):
        return self._result(Rows.starting(env_index, env_index, OBS, infos=[{}] * 3))

    def send_rows(self, rows, selection, actions):
        pass

    def poll_rows(self):
        self.count += 1
        everyone = np.arange(3)
        return self._result(Rows(everyone, everyone, OBS, np.ones(3), NO, NO, NO, YES, NO_ENVS, infos=[{}] * 3))


def changed_at(row: int, value: Any) -> dict:
    x = np.zeros((3, 2), np.float32)
    x[row, 1] = value
    return {**OBS, "x": x}


BAD = {
    "18 shape": ({"obs": {**OBS, "x": np.zeros((3, 3), np.float32)}}, "wrong shape...key 'x'...(3, 3)...(3, 2)"),
    "18 rows": ({"obs": {**OBS, "x": OBS["x"][:2]}}, "wrong shape...key 'x'...(2, 2)...(3, 2)"),
    "19 dtype": ({"obs": {**OBS, "n": np.full(3, 0.5)}}, "cannot be cast safely...key 'n'...float64...int64"),
    "20 NaN": (
        {"obs": changed_at(2, np.nan)},
        "observation contains NaN or infinity...sub-environment 2, agent 'agent0'",
    ),
    "21 keys": ({"obs": {"x": OBS["x"]}}, "wrong keys...['x']...['n', 'x']"),
    "22 reward": ({"rewards": ["1", 2, 3]}, "not a real number...sub-environment 0...str"),
    "22 rewards": ({"rewards": np.ones((3, 1))}, "not a real number...sub-environment 0...ndarray"),
    "22 number": ({"rewards": np.ones(2)}, "rewards has the wrong length...2 of them...3, one for each row"),
    "22 none": ({"rewards": None}, "rewards has the wrong length...NoneType"),
    "23 reward": ({"rewards": np.array([1, np.inf, 1])}, "reward is NaN or infinite...sub-environment 1...inf"),
    "24 flags": ({"terminateds": np.zeros(3)}, "The terminated flag is not a boolean...sub-environment 0"),
    "24 number": ({"truncateds": NO[:1]}, "truncateds has the wrong length...1 of them"),
    "25 ended": ({"terminateds": YES}, "A row both acts and has ended...sub-environment 0"),
    "agents": ({"agents": ["a"]}, "agents has the wrong length...1 of them"),
    "order": ({"in_order": True, "slots": np.array([0, 2, 1])}, "not in order...[0 1 2], slots [0 2 1]"),
}


@pytest.mark.parametrize(("changed", "says"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("at", [0, 1, LATER])
def test_columns(changed, says, at):
    call = "reset_rows()" if at == 0 else "poll_rows()"
    error = refused(EnvError, play, to_base_env(Columns(at, **changed)), at, says=says)
    assert "Columns, " in str(error)
    assert call in str(error)


@pytest.mark.parametrize("rows", [(OBS, {}), {"obs": OBS}, 3])
@pytest.mark.parametrize("at", [0, 1])
def test_no_rows(rows, at):
    refused(
        EnvError,
        play,
        to_base_env(Columns(at, rows=rows)),
        at,
        says="did not return Rows...Columns, ...rollax.Rows",
    )


def test_info():
    refused(EnvError, play, to_base_env(Columns(infos=[{}, 3, {}])), 1, says="info is not a dict...sub-environment 1")
    refused(EnvError, play, to_base_env(Columns(infos=[{}])), 1, says="infos has the wrong length...1 of them")


def test_warns_once(caplog):
    for _ in range(2):
        base = to_base_env(Columns(obs={**OBS, "x": np.full((3, 2), 11.0)}))
        rows = play(base, 1)
        assert rows.obs["x"].dtype == np.float32
        play(base, 2)
    assert caplog.text.count("cast to float32. Logged once.") == 1
    assert caplog.text.count("outside its space Box(-10.0, 10.0, (2,), float32): [11. 11.]") == 1


def test_a_base_env_is_returned_unchanged():
    env = Columns(at=-1)
    assert to_base_env(env) is env
    assert to_base_env(to_base_env(env)) is env
    # Its dict view has the values of the same rows.
    started = env.try_reset()
    assert started is not None
    env.send_actions({i: {"agent0": 0} for i in started[0]})
    assert env.poll()[1] == {i: {"agent0": 1.0} for i in range(3)}


def test_rows_of_several_agents_in_order():
    # Slots 0, 1, 2 in order, of which the first two are agents of one sub-environment.
    places = {"env_index": np.array([0, 0, 1]), "agents": ["a", "b", "a"]}
    env = to_base_env(Columns(at=1, in_order=True, **places), None, 3)
    env.reset_rows(np.arange(3))
    assert env.poll_rows().in_order
    env = to_base_env(Columns(at=1, in_order=True, slots=np.array([1, 0, 2]), **places), None, 3)
    env.reset_rows(np.arange(3))
    with pytest.raises(EnvError, match=r"(?s)not in order.*slots \[1 0 2\]"):
        env.poll_rows()
