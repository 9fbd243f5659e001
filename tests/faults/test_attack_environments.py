"""Every fault of an environment's output, in every kind of environment, early and late: refused in words that help.

The numbers are those of the list of what is refused, 16 to 30. 25 (a step before the reset or after the end) and 29 (an
action for an agent that has ended or is absent) are mistakes of whoever drives the environment: a worker's sampler
makes none, and tests/env/test_contract.py drives each kind wrongly.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rollax import Policy
from rollax.env.remote import remote_base_env
from rollax.errors import RollaxError
from rollax.evaluation.rollout_worker import RolloutWorker
from tests.env.refused import FORM
from tests.faults.attacked import (
    ALL,
    BOX,
    DICT,
    FIRST_RESET,
    FIRST_STEP,
    LATE_RESET,
    LATE_STEP,
    AttackedAgents,
    AttackedDicts,
    AttackedEnv,
    AttackedExternal,
    AttackedExternalAgents,
    AttackedNative,
    AttackedOld,
    AttackedParallel,
    AttackedRows,
    AttackedTurns,
    AttackedVector,
    Fault,
    Made,
    envs_here,
)

ZERO = np.zeros(2, np.float32)


class First(Policy):
    """Action 0."""

    def compute_actions(self, obs, **context):
        return np.zeros(len(next(iter(obs.values())) if isinstance(obs, dict) else obs), np.int64), [], {}


def second_broken(make: Callable[..., Any]) -> Callable[[Fault], Any]:
    """A creator of copies, the second of which has the fault."""
    return lambda fault: lambda context: make(fault, context.vector_index == 1)


def alone(make: Callable[..., Any], *arguments: Any) -> Callable[[Fault], Any]:
    return lambda fault: lambda context: make(fault, *arguments)


KINDS: dict[str, Callable[[Fault], Any]] = {
    "single": second_broken(AttackedEnv),
    "old": second_broken(AttackedOld),
    "vector of lists": alone(AttackedVector),
    "vector of columns": alone(AttackedVector, True),
    **{f"native {mode.name}": alone(AttackedNative, mode) for mode in AutoresetMode},
    "columnar view": alone(AttackedRows),
    "multi-agent": second_broken(AttackedAgents),
    "dict view": alone(AttackedDicts),
    "parallel": second_broken(AttackedParallel),
    "AEC": second_broken(AttackedTurns),
    "external": alone(AttackedExternal),
    "external multi-agent": alone(AttackedExternalAgents),
    "remote": second_broken(AttackedEnv),
    "remote multi-agent": second_broken(AttackedAgents),
}
EXTERNAL = {"external", "external multi-agent"}
SEVERAL = {"multi-agent", "dict view", "parallel", "remote multi-agent"}
NATIVE = {f"native {mode.name}" for mode in AutoresetMode}

# Number and name -> (place, value, space). What is None, raw or of another type stands for the wrong type as such.
OBSERVATIONS: dict[str, tuple[Any, Any]] = {
    "18 three": (np.zeros(3, np.float32), BOX),
    "18 an axis too many": (np.zeros((2, 1), np.float32), BOX),
    "18 a scalar": (0.0, BOX),
    "18 None": (None, BOX),
    "18 ragged": ([[1.0], 2.0], BOX),
    "18 generator": (Made(lambda: (x for x in (0.0, 1.0))), BOX),
    "18 in a Dict": ({"x": np.zeros(3, np.float32), "k": 1}, DICT),
    "19 complex": (np.array([1j, 2]), BOX),
    "19 dates": (np.array(["2020", "2021"], "datetime64[Y]"), BOX),
    "19 strings": (np.array(["a", "b"]), BOX),
    "19 objects": (np.array([None, 1.0]), BOX),
    "19 too large": (np.array([1e300, 0.0]), BOX),
    "19 a fraction": ({"x": ZERO, "k": 1.5}, DICT),
    "19 complex in a Dict": ({"x": np.array([1j, 2]), "k": 1}, DICT),
    "20 NaN": (np.array([np.nan, 0], np.float32), BOX),
    "20 infinite": (np.array([0, np.inf], np.float32), BOX),
    "20 NaN in a Dict": ({"x": np.array([np.nan, 0], np.float32), "k": 1}, DICT),
    "21 a key less": ({"x": ZERO}, DICT),
    "21 a key more": ({"x": ZERO, "k": 1, "y": 1}, DICT),
    "21 another key": ({"x": ZERO, "y": 1}, DICT),
    "21 no dict": (ZERO, DICT),
}
WHOLE: dict[str, Any] = {
    "16 obs alone": ZERO,
    "16 None": None,
    "16 three values": (1, {}, 3),
    "16 no info": (ZERO, None),
    "17 None": None,
    "17 four values": (ZERO, 1.0, False, {}),
    "17 six values": (1, 2, 3, 4, 5, 6),
    "17 a number": 7,
    "17 generator": Made(lambda: (x for x in ())),
}
STEP: dict[str, tuple[str, Any]] = {
    "22 a string": ("reward", "1.0"),
    "22 None": ("reward", None),
    "22 an array": ("reward", np.ones(1)),
    "22 complex": ("reward", 1j),
    "22 a list": ("reward", [1.0]),
    "23 NaN": ("reward", np.nan),
    "23 infinite": ("reward", np.float32(-np.inf)),
    "24 terminated 0": ("terminated", 0),
    "24 terminated None": ("terminated", None),
    "24 terminated an array": ("terminated", np.zeros(2, bool)),
    "24 truncated yes": ("truncated", "yes"),
    "24 truncated 1": ("truncated", 1),
    "24 info None": ("info", None),
    "24 info a list": ("info", [1]),
}


def put(part: int, agent: Any, value: Any) -> Callable[[tuple], tuple]:
    """A change of the dicts by agent: one entry more. The parts of a reset are obs and infos."""

    def change(dicts: tuple) -> tuple:
        at = part if len(dicts) == 5 else {0: 0, 4: 1}.get(part)
        return dicts if at is None else tuple({**d, agent: value} if i == at else d for i, d in enumerate(dicts))

    return change


def drop(*parts: int) -> Callable[[tuple], tuple]:
    return lambda dicts: tuple(
        {key: value for key, value in d.items() if key != ALL} if i in parts else d for i, d in enumerate(dicts)
    )


def nobody(dicts: tuple) -> tuple:
    return ({}, {}, {ALL: False}, {ALL: False}, {}) if len(dicts) == 5 else ({}, {})


def instead(part: int, value: Any) -> Callable[[tuple], tuple]:
    return lambda dicts: tuple(value if i == part else d for i, d in enumerate(dicts))


AGENTS: dict[str, Callable[[tuple], tuple]] = {
    "26 in obs": put(0, "x", ZERO),
    "26 in rewards": put(1, "x", 0.0),
    "26 in terminateds": put(2, "x", False),
    "26 in truncateds": put(3, "x", False),
    "26 in infos": put(4, "x", {}),
    "27 no __all__": drop(2, 3),
    "27 one __all__": drop(3),
    "28 a reward for nobody": put(1, "c", 1.0),
    "30 nobody acts": nobody,
    "16 obs no dict": instead(0, [ZERO]),
    "17 rewards no dict": instead(1, 1.0),
    "17 flags no dict": instead(2, False),
}
OF_STEPS = ("17", "27", "28", "26 in rewards", "26 in terminateds", "26 in truncateds")


EXCUSES: list[tuple[set[str], Callable[[str, Fault], bool], str]] = [
    (
        {"native NEXT_STEP", "native SAME_STEP"},
        lambda name, fault: fault.moment == LATE_RESET and fault.place == "whole",
        "it resets inside of step(), which returns five values",
    ),
    (
        {"native SAME_STEP"},
        lambda name, fault: fault.moment == LATE_RESET and fault.place == "info",
        "the infos of that reset go with those of the step",
    ),
    (
        EXTERNAL,
        lambda name, fault: fault.place in ("whole", "agents", "terminated"),
        "it calls rollax, and returns neither tuples nor a flag of that name",
    ),
    (EXTERNAL, lambda name, fault: fault.place == "info" and at_reset(fault), "an episode begins without an info"),
    (EXTERNAL, lambda name, fault: fault.place == "truncated", "it is said at an episode's end only"),
    ({"external"}, lambda name, fault: name == "24 info None", "log_returns(info=None) is a call without one"),
    ({"old"}, lambda name, fault: name in ("16 obs alone", "17 four values"), "its own interface"),
    ({"old"}, lambda name, fault: fault.place == "info" and at_reset(fault), "its reset returns no info"),
    ({"old"}, lambda name, fault: name == "16 no info", "its reset returns no info: those are two observations"),
    ({"old"}, lambda name, fault: fault.place == "truncated", "it has one flag"),
    (
        {"AEC"},
        lambda name, fault: fault.place == "whole" and at_reset(fault),
        "its reset returns nothing; what last() returns is among the faults of steps",
    ),
    ({"parallel"}, lambda name, fault: name.startswith("27"), "it has no __all__"),
    (
        {"columnar view", "dict view"},
        lambda name, fault: name == "16 None" and fault.moment == FIRST_RESET,
        "None says that episodes begin by themselves",
    ),
]
"""Cells where nothing is to be refused: kinds, which faults, and why."""


def at_reset(fault: Fault) -> bool:
    return fault.moment in (FIRST_RESET, LATE_RESET)


def accepted(kind: str, name: str, fault: Fault) -> bool:
    """Whether nothing is to be refused."""
    return any(kind in kinds and of(name, fault) for kinds, of, _ in EXCUSES)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fails after so long."""

    def ring(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(creator: Any, fault: Fault, *, remote: bool = False) -> str:
    """What is wrong with how a worker meets a fault; empty where all is right."""
    config: dict[str, Any] = {"num_envs_per_worker": 2, "rollout_fragment_length": 6}
    config |= {"remote_worker_envs": remote, "remote_env_batch_wait_ms": 1e6 if remote else 0.0}
    worker = RolloutWorker(creator(fault), First, config=config)
    try:
        with within(60.0):
            for _ in range(30):
                worker.sample()
    except RollaxError as error:
        text = str(error)
        if not FORM.match(text):
            return f"not in the form of an error: {text}"
        if not re.search("attacked", text, re.IGNORECASE):
            return f"does not name the environment: {text}"
        return ""
    except TimeoutError:
        return "hangs"
    except BaseException as error:
        return f"raw {type(error).__name__}: {error}"
    finally:
        worker.stop()
    return "silent"


def faults(moment: str) -> Iterator[tuple[str, Fault]]:
    """All of a moment, by number and name."""
    resets = moment in (FIRST_RESET, LATE_RESET)
    for name, (value, space) in OBSERVATIONS.items():
        yield name, Fault("obs", value, moment, space)
    for name, value in WHOLE.items():
        if name.startswith("16") == resets:
            yield name, Fault("whole", value, moment)
    for name, (place, value) in STEP.items():
        if place == "info" or not resets:
            yield name, Fault(place, value, moment)
    for name, change in AGENTS.items():
        if not (resets and name.startswith(OF_STEPS)) and (resets or not name.startswith("16")):
            yield name, Fault("agents", change, moment)


@pytest.mark.long
@pytest.mark.parametrize("moment", [FIRST_RESET, FIRST_STEP, LATE_STEP, LATE_RESET])
@pytest.mark.parametrize("kind", KINDS)
def test_every_fault(kind, moment, monkeypatch):
    monkeypatch.setattr(remote_base_env, "ray_envs", envs_here)
    wrong, tried = [], 0
    for name, fault in faults(moment):
        if (fault.place == "agents" and kind not in SEVERAL) or accepted(kind, name, fault):
            continue
        tried += 1
        problem = outcome(KINDS[kind], fault, remote=kind.startswith("remote"))
        if problem:
            wrong.append(f"{name}: {problem}")
    assert tried >= 20
    assert not wrong, f"{len(wrong)} of {tried}\n" + "\n".join(wrong)


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (AttackedEnv, Fault("obs", OBSERVATIONS["18 generator"][0], LATE_STEP)),
        (AttackedEnv, Fault("obs", OBSERVATIONS["19 complex"][0], LATE_RESET)),
        (AttackedEnv, Fault("whole", None, FIRST_STEP)),
        (AttackedEnv, Fault("reward", np.nan, LATE_STEP)),
        (AttackedAgents, Fault("agents", AGENTS["26 in infos"], LATE_STEP)),
        (AttackedAgents, Fault("agents", AGENTS["30 nobody acts"], FIRST_RESET)),
    ],
)
def test_in_processes(make, fault):
    """The same with real processes: what a generator is there cannot travel."""
    assert not outcome(second_broken(make), fault, remote=True)
