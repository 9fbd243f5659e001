"""Repeated actions: `RepeatedSteps` for a Gymnasium environment, `ActionRepeat` for any kind that is not in JAX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rollax.core import trees
from rollax.env.base_env import BaseEnv
from rollax.env.checks import sum_of_rewards
from rollax.env.env_wrapper import EnvWrapper
from rollax.env.rows import COLUMNS, Rows


class RepeatedSteps(gym.Wrapper):
    """Takes each action a number of times, or until the episode ends; the reward is the sum over these steps.

    `ActionRepeat` does the same for any kind of environment. `RepeatedSteps` is three times as fast, and
    sub-environments with it stay in lockstep.

    Args:
        times: steps for which each action is taken.
    """

    def __init__(self, env: gym.Env, times: int) -> None:
        super().__init__(env)
        self.as_written = getattr(env, "as_written", env)
        self._times = times

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Repeats the action, and returns the outcome of the last step with the sum of the rewards of all steps."""
        total, steps = 0.0, 0
        while True:
            # A copy, because the environment may write into its action.
            obs, reward, terminated, truncated, info = self.env.step(trees.copied(action))
            total, steps = sum_of_rewards([total, reward]), steps + 1
            if terminated or truncated or steps == self._times:
                return obs, total, terminated, truncated, info


class _Sent(NamedTuple):
    """The actions of one call of `send_rows`, for the slots that still repeat them."""

    number: int
    slots: np.ndarray
    actions: trees.Tree


class ActionRepeat(EnvWrapper):
    """Repeats each action of an agent a number of times, or until the agent's trajectory ends.

    A poll has a row of an agent only when the agent needs a new action, or when its trajectory begins or ends. The
    reward of the row is the sum of the agent's rewards since its last row. The observations and infos in between are
    dropped. Each agent has a counter of its own, because one sub-environment may begin an episode while the others
    repeat an action.

    Args:
        times: steps for which each action is taken.
    """

    def __init__(self, env: BaseEnv, times: int) -> None:
        super().__init__(env)
        self._times = times
        # Indexed by slot.
        self._left, self._envs, self._latest = (np.zeros(env.num_envs, np.int64) for _ in range(3))
        self._rewards = np.zeros(env.num_envs)
        self._sent: list[_Sent] = []
        self._calls = 0

    def __repr__(self) -> str:
        return f"ActionRepeat({self.env!r}, {self._times})"

    @property
    def in_lockstep(self) -> bool:  # type: ignore[override]
        """Whether each poll has a row for each sub-environment."""
        return self.env.in_lockstep and self.env.num_envs == 1

    def poll_rows(self) -> Rows:
        while True:
            rows = self._decided(self.env.poll_rows())
            if len(rows) or len(rows.ended_envs) or len(rows.dropped_envs):
                return rows

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        slots = np.array(rows.slots if selection is None else rows.slots[selection])
        kept = trees.copied(actions)  # first, because the environment may write into its actions
        self.env.send_rows(rows, selection, actions)
        self._calls += 1
        self._left[slots], self._latest[slots] = self._times - 1, self._calls
        self._envs[slots] = rows.env_index if selection is None else rows.env_index[selection]
        self._sent.append(_Sent(self._calls, slots, kept))

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows | None:
        self._stop_in(env_index)
        rows = self.env.reset_rows(env_index, seeds)
        return None if rows is None else self._decided(rows)

    def rest_rows(self, env_index: np.ndarray) -> bool:
        self._stop_in(env_index)
        return self.env.rest_rows(env_index)

    def _stop_in(self, env_index: np.ndarray) -> None:
        """Ends all repetitions in these sub-environments."""
        if self._left.any():
            self._left[np.isin(self._envs, env_index)] = 0

    def _decided(self, rows: Rows) -> Rows:
        """Returns the rows of agents that need an action, begin or end; the other agents repeat their actions."""
        self._make_room(int(rows.slots.max(initial=-1)) + 1)
        self._stop_in(rows.dropped_envs)
        slots = rows.slots
        ends = rows.starts | rows.terminateds | rows.truncateds | rows.given()
        hidden = (self._left[slots] > 0) & ~ends
        repeats = hidden & rows.acts
        shown = (~hidden).nonzero()[0]
        rewards = np.where(rows.starts, 0.0, rows.rewards + self._rewards[slots])
        self._left[slots[shown]] = 0
        self._rewards[slots] = np.where(hidden, rewards, 0.0)
        self._repeat(rows, repeats.nonzero()[0])
        return _some(replace(rows, rewards=rewards), shown)

    def _repeat(self, rows: Rows, repeats: np.ndarray) -> None:
        """Sends the last actions of some rows again, and drops actions that are no longer repeated."""
        row_of = np.full(len(self._left), -1)
        row_of[rows.slots[repeats]] = repeats
        sent, self._sent = self._sent, []
        for number, slots, actions in sent:
            going_on = ((self._left[slots] > 0) & (self._latest[slots] == number)).nonzero()[0]
            if not len(going_on):
                continue
            if len(going_on) < len(slots):
                slots, actions = slots[going_on], trees.index(actions, going_on)
            self._sent.append(_Sent(number, slots, actions))
            ready = (row_of[slots] >= 0).nonzero()[0]
            if len(ready):
                self.env.send_rows(rows, row_of[slots[ready]], trees.index(actions, ready))
        self._left[rows.slots[repeats]] -= 1

    def _make_room(self, slots: int) -> None:
        if slots > len(self._left):
            more = np.zeros(2 * slots - len(self._left), np.int64)
            self._left, self._envs, self._latest, self._rewards = (
                np.append(column, more) for column in (self._left, self._envs, self._latest, self._rewards)
            )


def _some(rows: Rows, chosen: np.ndarray) -> Rows:
    if len(chosen) == len(rows):
        return rows
    place = {row: new for new, row in enumerate(chosen.tolist())}

    def by_row(values: dict[int, Any] | None) -> dict[int, Any] | None:
        return {place[row]: value for row, value in values.items() if row in place} if values else None

    return replace(
        rows,
        **{name: getattr(rows, name)[chosen] for name in COLUMNS},
        obs=[rows.obs[row] for row in place] if isinstance(rows.obs, list) else trees.index(rows.obs, chosen),
        agents=None if rows.agents is None else [rows.agents[row] for row in place],
        infos=lambda: [rows.info_list()[row] for row in place],
        given_actions=by_row(rows.given_actions),
        given_logps=by_row(rows.given_logps),
        trains=None if rows.trains is None else rows.trains[chosen],
        in_order=False,
    )
