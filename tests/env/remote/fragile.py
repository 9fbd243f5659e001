"""Environments that fail on request, and record what happens to them."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rollax import EnvContext
from rollax.env.rows import Rows
from tests.env.worlds import ACTION_SPACE, OBS_SPACE, AsAgents

GO_ON, RAISE, DIE, HANG, END = range(5)
"""The actions, also those of agent "a" of the parties."""


class EventLog:
    """The events of one test's environments, in all processes.

    Args:
        path: the file that all processes append to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, *words: Any) -> None:
        with self.path.open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def count(self, *words: Any) -> int:
        """The number of lines that begin with these words."""
        start = " ".join(map(str, words))
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return sum(line == start or line.startswith(f"{start} ") for line in lines)


class Fragile(gym.Env):
    """One agent whose actions cause the failures.

    The observation is [steps taken, vector index, a random number]. Keys of the config: "event_log", an EventLog;
    "bad_resets", how many raise at first; "bad_makes", how many raise after the first one; "slow_resets", indices whose
    resets take 0.3 s.
    """

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def __init__(self, context: EnvContext) -> None:
        self.context, self.event_log = context, context["event_log"]
        self.index = context.vector_index
        self.event_log.note("made", self.index, os.getpid())
        if 1 < self.event_log.count("made") <= 1 + context.get("bad_makes", 0):
            raise RuntimeError("no license")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.event_log.note("reset", self.index, seed)
        if self.event_log.count("reset", self.index) <= self.context.get("bad_resets", 0):
            raise ValueError("no level")
        if self.index in self.context.get("slow_resets", ()):
            time.sleep(0.3)
        self.count = 0
        return self._obs(), {}

    def step(self, action):
        self.event_log.note("step", self.index, action)
        if action == RAISE:
            raise ValueError("a door fell off")
        if action == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == HANG:
            time.sleep(600)
        self.count += 1
        return self._obs(), 1.0, bool(action == END), False, {}

    def _obs(self):
        return np.array([self.count, self.index, self.np_random.random()], np.float32)

    def leave(self):
        """Ends the process."""
        sys.exit(3)

    def close(self):
        self.event_log.note("closed", self.index)


class FragileParty(AsAgents):
    """Agents "a" and "b"; the actions of "a" cause the failures."""

    def __init__(self, context: EnvContext) -> None:
        super().__init__(Fragile(context), "a", "b")


def act(env, rows: Rows, actions: dict[int, int] | None = None) -> Rows:
    """Sends actions by sub-environment, GO_ON where none is given, and polls once."""
    acting = np.flatnonzero(rows.acts)
    chosen = [(actions or {}).get(index, GO_ON) for index in rows.env_index[acting].tolist()]
    env.send_rows(rows, acting, np.array(chosen))
    return env.poll_rows()
