"""Environments of every kind with one agent that return one wrong value at one moment, and are otherwise correct."""

from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rollax import BaseEnv, ExternalEnv, VectorEnv
from rollax.env import checks
from rollax.env.remote.env_host import EnvHost
from rollax.env.rows import Rows
from rollax.processes.actors import LocalActors

BOX, ACTIONS = spaces.Box(-10, 10, (2,), np.float32), spaces.Discrete(2)
DICT = spaces.Dict({"x": BOX, "k": spaces.Discrete(3)})
FIRST_RESET, FIRST_STEP, LATE_STEP, LATE_RESET = "first reset", "first step", "late step", "late reset"
STEPS = {FIRST_STEP: 1, LATE_STEP: 29}
RESETS = {FIRST_RESET: 1, LATE_RESET: 10}
EPISODE = 3  # steps; the first eight episodes end long before the late moments
PARTS = ("obs", "reward", "terminated", "truncated", "info")


class Fault(NamedTuple):
    """A wrong value, and the moment at which it is returned.

    Args:
        place: "whole" for the whole result of a call, one of `PARTS`, or "agents" for a change of the dicts by agent.
        value: the wrong value; a `Made` makes it; for the place "agents", a function of the five dicts.
        moment: one of the four moments.
        space: observation space.
    """

    place: str
    value: Any
    moment: str
    space: gym.Space = BOX

    def in_place(self, place: str, good: Any) -> Any:
        """The value in a place at the moment of the fault."""
        if place != self.place:
            return good
        return self.value() if isinstance(self.value, Made) else self.value


class Made(NamedTuple):
    """A value that is made for each use, such as a generator."""

    make: Callable[[], Any]

    def __call__(self) -> Any:
        return self.make()


def good_obs(space: gym.Space) -> Any:
    zeros = np.zeros(2, np.float32)
    return zeros if space is BOX else {"x": zeros, "k": 1}


class Core:
    """One agent's sub-environment; it counts its resets and steps."""

    def __init__(self, fault: Fault, broken: bool = True) -> None:
        self.fault, self.broken, self.resets, self.steps = fault, broken, 0, 0

    @property
    def at_fault(self) -> bool:
        return self.broken and (
            self.resets == RESETS.get(self.fault.moment)
            if self.resetting
            else self.steps == STEPS.get(self.fault.moment)
        )

    def reset(self) -> Any:
        self.resetting, self.count = True, 0
        self.resets += 1
        put = self.fault.in_place if self.at_fault else lambda place, good: good
        return put("whole", (put("obs", good_obs(self.fault.space)), put("info", {})))

    def step(self) -> Any:
        self.resetting = False
        self.steps, self.count = self.steps + 1, self.count + 1
        put = self.fault.in_place if self.at_fault else lambda place, good: good
        good = (good_obs(self.fault.space), 1.0, self.count == EPISODE, False, {})
        return put("whole", tuple(map(put, PARTS, good)))


class AttackedEnv(gym.Env):
    """A single environment."""

    action_space = ACTIONS

    def __init__(self, fault: Fault, broken: bool = True) -> None:
        self.core, self.observation_space = Core(fault, broken), fault.space

    def reset(self, *, seed=None, options=None):
        return self.core.reset()

    def step(self, action):
        return self.core.step()


class AttackedOld:
    """The old Gym interface: `reset() -> obs`, four values of a step."""

    action_space = ACTIONS

    def __init__(self, fault: Fault, broken: bool = True) -> None:
        self.core, self.observation_space = Core(fault, broken), fault.space

    def reset(self):
        result = self.core.reset()
        return result[0] if isinstance(result, tuple) and len(result) == 2 else result

    def step(self, action):
        result = self.core.step()
        return (*result[:3], result[4]) if isinstance(result, tuple) and len(result) == 5 else result


def cores(fault: Fault) -> list[Core]:
    return [Core(fault, False), Core(fault)]


def column(values: list[Any]) -> Any:
    """The values as an array if they can be stacked, else as a list."""
    try:
        return np.array(values)
    except Exception:
        return values


def columns(space: gym.Space, values: list[Any]) -> Any:
    if space is BOX:
        return column(values)
    if not all(isinstance(value, dict) for value in values):
        return values
    keys = [key for key in values[1] if key in values[0]] + [key for key in values[1] if key not in values[0]]
    return {key: column([value.get(key, 0) for value in values]) for key in keys}


class AttackedVector(VectorEnv):
    """A user's vector environment.

    Args:
        fault: the fault of its second sub-environment.
        in_columns: whether it returns arrays.
    """

    def __init__(self, fault: Fault, in_columns: bool = False) -> None:
        super().__init__(fault.space, ACTIONS, 2)
        self.cores, self.in_columns = cores(fault), in_columns

    def reset_at(self, index, seed=None, options=None):
        return self.cores[index].reset()

    def vector_step(self, actions):
        results = [core.step() for core in self.cores]
        if self.cores[1].at_fault and self.cores[1].fault.place == "whole":
            return results[1]
        obs, rewards, terms, truncs, infos = map(list, zip(*results, strict=True))
        return columns(self.observation_space, obs) if self.in_columns else obs, rewards, terms, truncs, infos


class AttackedNative(gym.vector.VectorEnv):
    """A native vector environment of one autoreset mode."""

    def __init__(self, fault: Fault, mode: AutoresetMode) -> None:
        self.num_envs, self.cores, self.over = 2, cores(fault), [False, False]
        self.single_observation_space, self.single_action_space = fault.space, ACTIONS
        self.metadata = {"autoreset_mode": mode}
        self.mode, self.space = mode, fault.space

    def _joined(self, results: list[Any]) -> Any:
        bad = next((c for c in self.cores if c.broken and c.at_fault and c.fault.place == "whole"), None)
        if bad is not None:
            return results[1]
        obs, *rest = map(list, zip(*results, strict=True))
        return columns(self.space, obs), *map(column, rest[:-1]), self._infos(rest[-1])

    def _infos(self, infos: list[Any]) -> Any:
        return {} if all(info == {} for info in infos) else infos

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask", np.ones(2, bool))
        for core in self.cores:
            core.last = core.last if hasattr(core, "last") else None
        results = [core.reset() if mask[i] else (good_obs(self.space), {}) for i, core in enumerate(self.cores)]
        return self._joined(results)

    def step(self, actions):
        results, final = [], [None, None]
        for i, core in enumerate(self.cores):
            if self.over[i] and self.mode is AutoresetMode.NEXT_STEP:
                result = core.reset()
                result = (result[0], 0.0, False, False, result[1]) if core.fault.place != "whole" else result
                result = result if len(result) == 5 else (good_obs(self.space), 0.0, False, False, {})
            else:
                result = core.step()
            results.append(result)
        joined = self._joined(results)
        if not (isinstance(joined, tuple) and len(joined) == 5):
            return joined
        self.over = [core.count == EPISODE for core in self.cores]
        if self.mode is AutoresetMode.SAME_STEP and any(self.over):
            final = results[0][0], results[1][0]
            fresh = [core.reset() for core in self.cores]  # both episodes end together
            obs = columns(self.space, [fresh[0][0], fresh[1][0]])
            kept = np.empty(2, object)
            kept[:] = final
            return obs, *joined[1:4], {"final_obs": kept, "_final_obs": np.ones(2, bool)}
        return joined


def play(env: Any, several: bool) -> None:
    """The thread of an external environment."""
    core = env.core
    while not env.stopped:
        episode = env.start_episode()
        obs, info = core.reset()
        for _ in range(EPISODE):
            env.get_action(episode, {"a": obs} if several else obs)
            obs, reward, _, truncated, info = core.step()
            env.log_returns(episode, {"a": reward} if several else reward, {"a": info} if several else info)
        env.end_episode(episode, {"a": obs} if several else obs, truncated)


class AttackedExternal(ExternalEnv):
    """An external environment with one agent."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.space, ACTIONS)
        self.core = Core(fault)

    def run(self):
        play(self, False)


class AttackedRows(BaseEnv):
    """The columnar view."""

    num_envs, action_space = 2, ACTIONS

    def __init__(self, fault: Fault) -> None:
        self.observation_space, self.cores = fault.space, cores(fault)

    def reset_rows(self, env_index, seeds=None):
        results = [self.cores[i].reset() for i in env_index.tolist()]
        if self.cores[1].at_fault and self.cores[1].fault.place == "whole":
            return results[-1]
        values, infos = map(list, zip(*results, strict=True))
        obs = columns(self.observation_space, [good_obs(self.observation_space), *values][-2:])
        return Rows.starting(env_index, env_index, obs, infos=infos)

    def send_rows(self, rows, selection, actions):
        pass

    def poll_rows(self):
        both, no = np.arange(2), np.zeros(2, bool)
        results = [core.step() for core in self.cores]
        if self.cores[1].at_fault and self.cores[1].fault.place == "whole":
            return results[1]
        obs, rewards, terms, truncs, infos = map(list, zip(*results, strict=True))
        over = np.array([core.count == EPISODE for core in self.cores])
        return Rows(
            *(both, both, columns(self.observation_space, obs), column(rewards), column(terms), column(truncs), no),
            *(~over, both[over]),
            infos=infos,
        )


class PicklingHost(EnvHost):
    """Pickles and unpickles results, as between processes."""

    def _attempt(self, doing, call, action=None):
        value = super()._attempt(doing, call, action)
        try:
            return cloudpickle.loads(cloudpickle.dumps(value))
        except TypeError as error:
            raise checks.failed(error, doing, self._where) from error


def envs_here(copies: Any, *_: Any) -> LocalActors:
    """Replaces `ray_envs`: the hosts are in this process."""
    return LocalActors(lambda index, restarts: PicklingHost(index, copies.make_one, declared=copies.declared))
