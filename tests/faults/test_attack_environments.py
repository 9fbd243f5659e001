"""All faults of an environment's output, in every kind of environment, early and late, are refused with a useful error.

Steps before the reset or after the end, and actions for agents that have ended or are absent, are mistakes of the
caller: a worker's sampler makes none, and `tests/env/test_contract.py` tests them in each kind.
"""

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
from rollax.rollout.worker import RolloutWorker
from tests.env.refused import FORM
from tests.faults.attacked import (
    BOX,
    DICT,
    FIRST_RESET,
    FIRST_STEP,
    LATE_RESET,
    LATE_STEP,
    AttackedEnv,
    AttackedExternal,
    AttackedNative,
    AttackedOld,
    AttackedRows,
    AttackedVector,
    Fault,
    Made,
    envs_here,
)
from tests.faults.attacked_agents import (
    ALL,
    AttackedAgents,
    AttackedDicts,
    AttackedExternalAgents,
    AttackedParallel,
    AttackedTurns,
)

ZERO = np.zeros(2, np.float32)


class First(Policy):
    """Always action 0."""

    def compute_actions(self, obs, **context):
        return np.zeros(len(next(iter(obs.values())) if isinstance(obs, dict) else obs), np.int64), [], {}


def second_broken(make: Callable[..., Any]) -> Callable[[Fault], Any]:
    """A creator of copies, of which the second has the fault."""
    return lambda fault: lambda context: make(fault, context.vector_index == 1)


def single_env(make: Callable[..., Any], *arguments: Any) -> Callable[[Fault], Any]:
    return lambda fault: lambda context: make(fault, *arguments)


KINDS: dict[str, Callable[[Fault], Any]] = {
    "single": second_broken(AttackedEnv),
    "old": second_broken(AttackedOld),
    "vector of lists": single_env(AttackedVector),
    "vector of columns": single_env(AttackedVector, True),
    **{f"native {mode.name}": single_env(AttackedNative, mode) for mode in AutoresetMode},
    "columnar view": single_env(AttackedRows),
    "multi-agent": second_broken(AttackedAgents),
    "dict view": single_env(AttackedDicts),
    "parallel": second_broken(AttackedParallel),
    "AEC": second_broken(AttackedTurns),
    "external": single_env(AttackedExternal),
    "external multi-agent": single_env(AttackedExternalAgents),
    "remote": second_broken(AttackedEnv),
    "remote multi-agent": second_broken(AttackedAgents),
}
EXTERNAL = {"external", "external multi-agent"}
SEVERAL = {"multi-agent", "dict view", "parallel", "remote multi-agent"}
NATIVE = {f"native {mode.name}" for mode in AutoresetMode}

# Name -> (value, space).
OBSERVATIONS: dict[str, tuple[Any, Any]] = {
    "shape: three": (np.zeros(3, np.float32), BOX),
    "shape: an axis too many": (np.zeros((2, 1), np.float32), BOX),
    "shape: a scalar": (0.0, BOX),
    "shape: None": (None, BOX),
    "shape: ragged": ([[1.0], 2.0], BOX),
    "shape: generator": (Made(lambda: (x for x in (0.0, 1.0))), BOX),
    "shape: in a Dict": ({"x": np.zeros(3, np.float32), "k": 1}, DICT),
    "dtype: complex": (np.array([1j, 2]), BOX),
    "dtype: dates": (np.array(["2020", "2021"], "datetime64[Y]"), BOX),
    "dtype: strings": (np.array(["a", "b"]), BOX),
    "dtype: objects": (np.array([None, 1.0]), BOX),
    "dtype: too large": (np.array([1e300, 0.0]), BOX),
    "dtype: a fraction": ({"x": ZERO, "k": 1.5}, DICT),
    "dtype: complex in a Dict": ({"x": np.array([1j, 2]), "k": 1}, DICT),
    "not finite: NaN": (np.array([np.nan, 0], np.float32), BOX),
    "not finite: infinite": (np.array([0, np.inf], np.float32), BOX),
    "not finite: NaN in a Dict": ({"x": np.array([np.nan, 0], np.float32), "k": 1}, DICT),
    "keys: one missing": ({"x": ZERO}, DICT),
    "keys: one too many": ({"x": ZERO, "k": 1, "y": 1}, DICT),
    "keys: another key": ({"x": ZERO, "y": 1}, DICT),
    "keys: no dict": (ZERO, DICT),
}
WHOLE: dict[str, Any] = {
    "reset: obs alone": ZERO,
    "reset: None": None,
    "reset: three values": (1, {}, 3),
    "reset: no info": (ZERO, None),
    "step: None": None,
    "step: four values": (ZERO, 1.0, False, {}),
    "step: six values": (1, 2, 3, 4, 5, 6),
    "step: a number": 7,
    "step: generator": Made(lambda: (x for x in ())),
}
STEP: dict[str, tuple[str, Any]] = {
    "reward type: a string": ("reward", "1.0"),
    "reward type: None": ("reward", None),
    "reward type: an array": ("reward", np.ones(1)),
    "reward type: complex": ("reward", 1j),
    "reward type: a list": ("reward", [1.0]),
    "reward: NaN": ("reward", np.nan),
    "reward: infinite": ("reward", np.float32(-np.inf)),
    "terminated 0": ("terminated", 0),
    "terminated None": ("terminated", None),
    "terminated an array": ("terminated", np.zeros(2, bool)),
    "truncated yes": ("truncated", "yes"),
    "truncated 1": ("truncated", 1),
    "info None": ("info", None),
    "info a list": ("info", [1]),
}


def put(part: int, agent: Any, value: Any) -> Callable[[tuple], tuple]:
    """A change of the dicts by agent that adds an entry. The parts of a reset are obs and infos."""

    def change(dicts: tuple) -> tuple:
        at = part if len(dicts) == 5 else {0: 0, 4: 1}.get(part)
        return dicts if at is None else tuple({**d, agent: value} if i == at else d for i, d in enumerate(dicts))

    return change


def drop(*parts: int) -> Callable[[tuple], tuple]:
    return lambda dicts: tuple(
        {key: value for key, value in d.items() if key != ALL} if i in parts else d for i, d in enumerate(dicts)
    )


def no_agents(dicts: tuple) -> tuple:
    return ({}, {}, {ALL: False}, {ALL: False}, {}) if len(dicts) == 5 else ({}, {})


def instead(part: int, value: Any) -> Callable[[tuple], tuple]:
    return lambda dicts: tuple(value if i == part else d for i, d in enumerate(dicts))


AGENTS: dict[str, Callable[[tuple], tuple]] = {
    "undeclared in obs": put(0, "x", ZERO),
    "undeclared in rewards": put(1, "x", 0.0),
    "undeclared in terminateds": put(2, "x", False),
    "undeclared in truncateds": put(3, "x", False),
    "undeclared in infos": put(4, "x", {}),
    "__all__: missing": drop(2, 3),
    "__all__: in one dict only": drop(3),
    "a reward for an absent agent": put(1, "c", 1.0),
    "nobody acts": no_agents,
    "reset: obs no dict": instead(0, [ZERO]),
    "step: rewards no dict": instead(1, 1.0),
    "step: flags no dict": instead(2, False),
}
OF_STEPS = (
    "step:",
    "__all__:",
    "a reward",
    "undeclared in rewards",
    "undeclared in terminateds",
    "undeclared in truncateds",
)


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
    ({"external"}, lambda name, fault: name == "info None", "log_returns(info=None) is a call without one"),
    ({"old"}, lambda name, fault: name in ("reset: obs alone", "step: four values"), "its own interface"),
    ({"old"}, lambda name, fault: fault.place == "info" and at_reset(fault), "its reset returns no info"),
    ({"old"}, lambda name, fault: name == "reset: no info", "its reset returns no info: those are two observations"),
    ({"old"}, lambda name, fault: fault.place == "truncated", "it has one flag"),
    (
        {"AEC"},
        lambda name, fault: fault.place == "whole" and at_reset(fault),
        "its reset returns nothing; what last() returns is among the faults of steps",
    ),
    ({"parallel"}, lambda name, fault: name.startswith("__all__:"), "it has no __all__"),
    (
        {"columnar view", "dict view"},
        lambda name, fault: name == "reset: None" and fault.moment == FIRST_RESET,
        "None says that episodes begin by themselves",
    ),
]
"""Combinations of kind and fault that are not refused: kinds, a condition on the fault, the reason."""


def at_reset(fault: Fault) -> bool:
    return fault.moment in (FIRST_RESET, LATE_RESET)


def accepted(kind: str, name: str, fault: Fault) -> bool:
    """Whether the fault is not refused in this kind."""
    return any(kind in kinds and of(name, fault) for kinds, of, _ in EXCUSES)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises TimeoutError after some seconds."""

    def ring(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def problem_of(creator: Any, fault: Fault, *, remote: bool = False) -> str:
    """The problem with a worker's reaction to a fault, or an empty string."""
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
    """All faults of a moment, with their names."""
    resets = moment in (FIRST_RESET, LATE_RESET)
    for name, (value, space) in OBSERVATIONS.items():
        yield name, Fault("obs", value, moment, space)
    for name, value in WHOLE.items():
        if name.startswith("reset:") == resets:
            yield name, Fault("whole", value, moment)
    for name, (place, value) in STEP.items():
        if place == "info" or not resets:
            yield name, Fault(place, value, moment)
    for name, change in AGENTS.items():
        if not (resets and name.startswith(OF_STEPS)) and (resets or not name.startswith("reset:")):
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
        problem = problem_of(KINDS[kind], fault, remote=kind.startswith("remote"))
        if problem:
            wrong.append(f"{name}: {problem}")
    assert tried >= 20
    assert not wrong, f"{len(wrong)} of {tried}\n" + "\n".join(wrong)


@pytest.mark.long
@pytest.mark.usefixtures("small_ray")  # Ray of another test may import from another folder
@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (AttackedEnv, Fault("obs", OBSERVATIONS["shape: generator"][0], LATE_STEP)),
        (AttackedEnv, Fault("obs", OBSERVATIONS["dtype: complex"][0], LATE_RESET)),
        (AttackedEnv, Fault("whole", None, FIRST_STEP)),
        (AttackedEnv, Fault("reward", np.nan, LATE_STEP)),
        (AttackedAgents, Fault("agents", AGENTS["undeclared in infos"], LATE_STEP)),
        (AttackedAgents, Fault("agents", AGENTS["nobody acts"], FIRST_RESET)),
    ],
)
def test_in_processes(make, fault):
    """The same with real processes, where for example a generator cannot be pickled."""
    assert not problem_of(second_broken(make), fault, remote=True)
