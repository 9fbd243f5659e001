"""External environments that run a test's script, and one of the contract tests that plays clocks."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from rollax import BaseEnv, EnvStoppedError, ExternalEnv, ExternalMultiAgentEnv, to_base_env
from rollax.env.copies import EnvCopies
from rollax.env.external.external_base_env import ExternalBaseEnv
from rollax.env.rows import Rows
from tests import waiting
from tests.env.worlds import ACTION_SPACE, OBS_SPACE, Clock, action_for
from tests.waiting import LONG


def seen(number: float) -> np.ndarray:
    """An observation that contains its number; the policy of all tests returns the action `number % 5` for it."""
    return np.array([number, 0, number / 1000 + 1e-4], np.float32)


def numbers(rows) -> list[float]:
    """The numbers of the observations of some rows."""
    return rows.obs[:, 0].tolist()


class _RunsScript:
    """Its `run()` calls a given function with the environment."""

    def __init__(self, script: Callable[[Any], Any], *spaces: Any):
        super().__init__(*spaces or (OBS_SPACE, ACTION_SPACE))
        self.script = script

    def run(self):
        self.script(self)


class Scripted(_RunsScript, ExternalEnv):
    """For one agent."""


class ScriptedAgents(_RunsScript, ExternalMultiAgentEnv):
    """For many agents."""


@contextmanager
def playing(script: Callable[[Any], Any], kind: type = Scripted, *spaces: Any) -> Iterator[BaseEnv]:
    """The base env of a script; all waits end with the block, and no thread is left."""
    threads = set(threading.enumerate())
    base = to_base_env(kind(script, *spaces))
    try:
        yield base
    finally:
        base.stop()
        left = set(threading.enumerate()) - threads
        for thread in left:
            thread.join(LONG)
        assert not any(thread.is_alive() for thread in left)


def answer(base: BaseEnv, rows: Rows, action: int | None = None) -> None:
    """Answers every waiting row, with the policy of all tests or with one action."""
    acting = np.flatnonzero(rows.acts)
    if len(acting):
        values = rows.observations(acting, base.observation_space)
        actions = [action_for(value) for value in values] if action is None else [action] * len(acting)
        base.send_rows(rows, acting, np.array(actions, np.int64))


def in_threads(count: int, play: Callable[[int], Any]) -> None:
    """Plays in `count` threads at once, until all are done or the environment is stopped."""

    def guarded(index: int) -> None:
        with suppress(EnvStoppedError):
            play(index)

    waiting.in_threads(count, guarded)


class ExternalClocks(ExternalEnv):
    """Clocks in a thread of their own, with one call per moment for all; ended ones wait for a reset."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(OBS_SPACE, ACTION_SPACE)
        self.clocks = [Clock() for _ in range(num_envs)]
        self.resets: queue.SimpleQueue[list[tuple[int, int | None]] | None] = queue.SimpleQueue()

    def run(self):
        running: dict[int, tuple[Any, np.ndarray]] = {}
        while True:
            while len(running) < len(self.clocks):
                resets = self.resets.get()
                if resets is None:
                    return
                for i, seed in resets:
                    running[i] = self.start_episode(), self.clocks[i].reset(seed=seed)[0]
            running = {i: running[i] for i in range(len(self.clocks))}
            actions = self.get_actions(dict(running.values()))
            for i, (episode, _) in list(running.items()):
                obs, reward, terminated, truncated, info = self.clocks[i].step(actions[episode])
                self.log_returns(episode, reward, info)
                running[i] = episode, obs
                if terminated or truncated:
                    self.end_episode(episode, obs, truncated)
                    del running[i]

    def close(self):
        self.resets.put(None)
        for clock in self.clocks:
            clock.close()


class ResetClocks(ExternalBaseEnv):
    """Passes resets to its clocks, so that a sub-environment is always the same clock, numbered from 0."""

    def __init__(self, num_envs: int) -> None:
        self.clocks = ExternalClocks(num_envs)
        super().__init__(EnvCopies((self.clocks,)))
        self.num_envs = num_envs

    def poll_rows(self):
        rows = super().poll_rows()
        rows.env_index, rows.ended_envs = rows.env_index - 1, rows.ended_envs - 1
        return rows

    def reset_rows(self, env_index, seeds=None):
        super().reset_rows(env_index + 1)
        indices = env_index.tolist()
        self.clocks.resets.put(list(zip(indices, seeds or [None] * len(indices), strict=True)))
