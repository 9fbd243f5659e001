"""Every kind of environment that rollax turns into a `BaseEnv`, all with the same clocks or parties."""

from collections.abc import Callable
from typing import Any, NamedTuple

from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rollax import BaseEnv, EnvContext, to_base_env
from rollax.env.registry import env_creator
from tests.env.drive import Trace, clock_trace, old_clock_trace, old_party_trace, party_trace
from tests.env.external.worlds import ResetClocks
from tests.env.multi_agent.pettingzoo_worlds import (
    Dance,
    Queue,
    dance_in_turns,
    dance_in_turns_trace,
    dance_trace,
    queue_trace,
)
from tests.env.old_worlds import OldClock, OldParty, OldVector
from tests.env.worlds import CLOCK_ID, ArrayVector, Clock, DictParties, ListVector, Party, RowClocks


class Kind(NamedTuple):
    """One kind of environment.

    Args:
        make: returns an environment with a given number of sub-environments.
        trace: returns the expected history of a sub-environment, by its seed and the number of moments.
        refuses: whether rollax checks that every waiting agent gets exactly one action.
    """

    make: Callable[[int], BaseEnv]
    trace: Callable[[int, int], Trace]
    refuses: bool = True


def copies(env: Any) -> Callable[[int], BaseEnv]:
    """Copies of an id, class or creator's environment."""
    creator, context = env_creator(env), EnvContext()
    return lambda num_envs: to_base_env(creator(context), lambda index: creator(context.at(index)), num_envs)


def synchronous(mode: AutoresetMode, copy: bool = True) -> Callable[[int], BaseEnv]:
    return lambda n: to_base_env(SyncVectorEnv([Clock] * n, copy=copy, autoreset_mode=mode))


def asynchronous(mode: AutoresetMode) -> Callable[[int], BaseEnv]:
    return lambda n: to_base_env(AsyncVectorEnv([Clock] * n, context="spawn", autoreset_mode=mode))


MODES = {mode.name: mode for mode in AutoresetMode}
KINDS: dict[str, Kind] = {
    "id": Kind(copies(CLOCK_ID), clock_trace),
    "class": Kind(copies(Clock), clock_trace),
    "creator": Kind(copies(lambda context: Clock(dict(context))), clock_trace),
    "vector of lists": Kind(lambda n: to_base_env(ListVector(n)), clock_trace),
    "vector of arrays": Kind(lambda n: to_base_env(ArrayVector(n)), clock_trace),
    **{f"native {name}": Kind(synchronous(mode), clock_trace) for name, mode in MODES.items()},
    **{f"native {name} in place": Kind(synchronous(mode, copy=False), clock_trace) for name, mode in MODES.items()},
    "columnar view": Kind(lambda n: to_base_env(RowClocks(n)), clock_trace, refuses=False),
    "multi-agent": Kind(copies(Party), party_trace),
    "dict view": Kind(lambda n: to_base_env(DictParties(n)), party_trace, refuses=False),
    "restarting dict view": Kind(lambda n: to_base_env(DictParties(n, True)), party_trace, refuses=False),
    "PettingZoo parallel": Kind(copies(Dance), dance_trace),
    "PettingZoo AEC": Kind(copies(Queue), queue_trace),
    "PettingZoo parallel as AEC": Kind(copies(dance_in_turns), dance_in_turns_trace),
    "old single": Kind(copies(OldClock), old_clock_trace),
    "old vector": Kind(lambda n: to_base_env(OldVector(n)), old_clock_trace),
    "old multi-agent": Kind(copies(OldParty), old_party_trace),
}
EXTERNAL = {"external": Kind(ResetClocks, old_clock_trace)}
"""They cannot be reset in the middle of an episode, and an end is either truncated or terminated."""
PROCESSES = {f"processes {name}": Kind(asynchronous(mode), clock_trace) for name, mode in MODES.items()}


def remote(env: Any) -> Callable[[int], BaseEnv]:
    """Copies in processes of their own, in lockstep."""
    creator, context = env_creator(env), EnvContext(remote=True)
    return lambda num_envs: to_base_env(None, lambda index: creator(context.at(index)), num_envs, True, 1e9)


REMOTE = {
    "remote": Kind(remote(Clock), clock_trace),
    "remote multi-agent": Kind(remote(Party), party_trace),
    "remote old single": Kind(remote(OldClock), old_clock_trace),
}
