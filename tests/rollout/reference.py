"""The rows that a sampler must return, computed from the logs of the environments, and the comparison with them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollax.batch import Fragment

ALL = "__all__"
Key = tuple[float, ...]


@dataclass
class Row:
    """The expected values of one row of a batch.

    `trajectory` is (sub-environment, episode, agent, number of the agent's trajectories in the episode so far).
    """

    trajectory: tuple
    obs: np.ndarray
    t: int
    prev_action: int
    prev_reward: float
    action: int | None = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    new_obs: np.ndarray | None = None
    episode_over: bool = False

    @property
    def complete(self) -> bool:
        return self.new_obs is not None

    @property
    def agent(self) -> Hashable:
        return self.trajectory[2]


@dataclass
class History:
    """The history of one sub-environment, read from its log one event at a time."""

    index: int
    rows: list[Row] = field(default_factory=list)
    episodes: list[tuple[float, int, dict[Hashable, list[float]]]] = field(default_factory=list)
    """Finished episodes: reward, length, and the returns of each agent's trajectories."""

    def __post_init__(self) -> None:
        self.episode, self.t = -1, 0
        self.open: dict[Hashable, Row] = {}
        self.trajectories: dict[Hashable, list[float]] = {}
        self.first_row = 0

    def read(self, events: Iterable[tuple[Any, ...]]) -> History:
        for kind, *event in events:
            if kind == "reset":
                self.episode, self.t, self.open, self.trajectories, self.first_row = (
                    self.episode + 1,
                    0,
                    {},
                    {},
                    len(self.rows),
                )
                for agent, obs in event[0].items():
                    self._see(agent, obs)
            else:
                self._step(*event)
        return self

    def _step(self, actions: dict, obs: dict, rewards: dict, terms: dict, truncs: dict) -> None:
        for agent, action in actions.items():
            assert self.open[agent].action is None, "an observation was acted on twice"
            self.open[agent].action = action
        assert all(row.action is not None for row in self.open.values()), "an observation was not acted on"
        self.t += 1
        over = terms[ALL] or truncs[ALL]
        for agent, row in self.open.items():
            row.reward += rewards.get(agent, 0.0)
            self.trajectories[agent][-1] += rewards.get(agent, 0.0)
        for agent in list(self.open):
            terminated, truncated = terms.get(agent, False), truncs.get(agent, False)
            if not (terminated or truncated):  # "__all__" counts for agents without a flag of their own
                terminated, truncated = terms[ALL], truncs[ALL]
            if terminated or truncated:
                row = self.open.pop(agent)
                row.terminated, row.truncated = terminated, truncated
                row.new_obs = obs.get(agent, row.obs)
            elif agent in obs:
                self._see(agent, obs[agent])
        for agent in obs:
            gone = terms.get(agent, False) or truncs.get(agent, False) or over
            if agent not in self.open and not gone:
                self._see(agent, obs[agent])
        if over:
            total = sum(reward for trajectories in self.trajectories.values() for reward in trajectories)
            self.episodes.append((total, self.t, self.trajectories))
            for row in self.rows[self.first_row :]:
                row.episode_over = True

    def _see(self, agent: Hashable, obs: np.ndarray) -> None:
        before = self.open.get(agent)
        if before is None:
            self.trajectories.setdefault(agent, []).append(0.0)
            trajectory = (self.index, self.episode, agent, len(self.trajectories[agent]))
            prev_action, prev_reward = 0, 0.0
        else:
            assert before.action is not None
            before.new_obs = obs
            trajectory, prev_action, prev_reward = before.trajectory, before.action, before.reward
        self.open[agent] = Row(trajectory, obs, self.t, prev_action, prev_reward)
        self.rows.append(self.open[agent])


def histories(envs: Iterable[Any]) -> list[History]:
    """The histories of these environments, from their logs."""
    return [History(index).read(env.log) for index, env in enumerate(envs)]


def expected_rows(envs: Iterable[Any]) -> dict[Key, Row]:
    """All complete rows, by their observations."""
    rows = [row for history in histories(envs) for row in history.rows if row.complete]
    by_obs = {_key(row.obs): row for row in rows}
    assert len(by_obs) == len(rows)
    return by_obs


class Auditor:
    """Compares consecutive fragments with the logs: no row is missing or doubled, and all values are correct.

    Args:
        envs: the sub-environments, which have logs.
        whole_episodes: fragments hold the rows of finished episodes; else all rows that are complete.
    """

    def __init__(self, envs: Iterable[Any], *, whole_episodes: bool = False) -> None:
        self.envs, self.whole_episodes = list(envs), whole_episodes
        self.seen: set[Key] = set()
        self.episode_ids: dict[int, tuple] = {}

    def check(self, fragments: Mapping[str, Fragment]) -> None:
        """Checks one fragment, right after it was sampled."""
        expected = expected_rows(self.envs)
        for fragment in fragments.values():
            self._check_batch(fragment, expected)
        due = {key for key, row in expected.items() if row.episode_over or not self.whole_episodes}
        assert self.seen == due, f"{len(due - self.seen)} rows are missing, {len(self.seen - due)} came too early"

    def _check_batch(self, batch: Fragment, expected: Mapping[Key, Row]) -> None:
        keys = [_key(obs) for obs in batch["obs"]]
        assert len(set(keys)) == len(keys)
        assert not self.seen.intersection(keys)
        self.seen.update(keys)
        rows = [expected[key] for key in keys]
        assert batch["actions"].tolist() == [row.action for row in rows]
        assert batch["rewards"].tolist() == [row.reward for row in rows]
        assert batch["terminateds"].tolist() == [row.terminated for row in rows]
        assert batch["truncateds"].tolist() == [row.truncated for row in rows]
        assert batch["t"].tolist() == [row.t for row in rows]
        assert batch["agent_id"].tolist() == [row.agent for row in rows]
        if "prev_actions" in batch:
            assert batch["prev_actions"].tolist() == [row.prev_action for row in rows]
            assert batch["prev_rewards"].tolist() == [row.prev_reward for row in rows]
        for episode_id, row in zip(batch["eps_id"].tolist(), rows, strict=True):
            assert self.episode_ids.setdefault(episode_id, row.trajectory[:2]) == row.trajectory[:2]
        assert len(set(self.episode_ids.values())) == len(self.episode_ids), "one episode under two ids"
        self._check_segments(keys, rows, batch)

    @staticmethod
    def _check_segments(keys: list[Key], rows: list[Row], fragment: Fragment) -> None:
        ends = fragment.ends.tolist()
        assert ends[-1] == len(rows) - 1
        assert [_key(obs) for obs in fragment.after["obs"]] == [_key(rows[end].new_obs) for end in ends]
        assert len({rows[end].trajectory for end in ends}) == len(ends), "a trajectory in two segments"
        for here, key_after, row_after in zip(range(len(rows)), keys[1:], rows[1:], strict=False):
            if not fragment.last[here]:
                assert rows[here].trajectory == row_after.trajectory
                assert _key(rows[here].new_obs) == key_after


def _key(obs: Any) -> Key:
    return tuple(np.asarray(obs).tolist())
