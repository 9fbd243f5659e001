"""A custom sampler: a plain loop over the rows of a poll, for one policy and one agent per sub-environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollax import Fragment, PPOTrainer, Sampler
from rollax.core import trees
from rollax.env.rows import Rows


@dataclass
class Trajectory:
    """The rows of one agent since the last fragment, and the observation after them."""

    number: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    next_obs: Any = None


class PlainSampler(Sampler):
    """Returns the same fragments as the library's sampler. An interrupted call drops what it has sampled."""

    rows: Any = None

    def sample(self) -> tuple[dict[str, Fragment], int]:
        (policy_id,) = self.runners
        steps = 0
        while steps < self.fragment_length * self.env.num_envs:
            steps += self.step()
        return {policy_id: self._fragment()}, steps

    def restart(self) -> None:
        self.rows = None
        self.running: dict[int, Trajectory] = {}
        self.trajectories: list[Trajectory] = []
        self.episodes.drop_running()

    def step(self) -> int:
        (runner,) = self.runners.values()
        rows: Any
        rows, self.rows = self.rows, None  # so that fresh episodes follow an interrupted step
        if rows is None:
            self.restart()
            rows = self.reset_rows(np.arange(self.env.num_envs), self.episodes.seeds())
            self.obs, self.acting = runner.filter(rows.obs, self.record), None
            self._begin(rows.env_index)
        actions, _, columns = runner.act(self.obs, self.explore, self.timestep, {})
        self.env.send_rows(rows, self.acting, runner.action_map(actions))
        columns = {"obs": self.obs, "actions": actions, **columns}
        rows = self.env.poll_rows()
        steps = self.episodes.add_rewards(rows)
        self.obs, self.acting = runner.filter(rows.obs, self.record), None
        columns |= {"rewards": np.float32(rows.rewards), "terminateds": rows.terminateds, "truncateds": rows.truncateds}
        for i, trajectory in self.running.items() if self.record else ():
            row = {name: trees.index(column, i) for name, column in columns.items()}
            trajectory.rows.append(row | {"eps_id": self.episodes["id"][i], "trajectory_id": trajectory.number})
            trajectory.next_obs = trees.index(self.obs, i)
        if len(ended := rows.ended_envs):
            self.episodes.end_trajectories(ended, np.zeros(len(ended), int), self.episodes["reward"][ended])
            self.episodes.end(ended)
            rows = self._joined(rows, self.reset_rows(ended), runner)
        self.rows = rows
        return steps

    def _joined(self, rows: Rows, started: Rows | None, runner: Any) -> Rows:
        """The rows that act next: those that go on, and the first ones of the next episodes."""
        going_on = np.flatnonzero(rows.acts)
        if started is None:  # at the end of an evaluation
            self.obs, self.acting = trees.index(self.obs, going_on), going_on
            return rows
        self._begin(started.env_index)
        first = runner.filter(started.obs, self.record)
        if (replaced := rows.replaced(started)) is not None:
            self.obs = trees.tree_map(np.copy, self.obs)  # a copy keeps the observations after the rows above
            trees.put(self.obs, started.env_index, first)
            return replaced
        self.obs = trees.concat((trees.index(self.obs, going_on), first))
        self.acting = np.append(going_on, len(rows) + np.arange(len(started)))
        return Rows.concat(rows, started)

    def _begin(self, env_index: np.ndarray) -> None:
        self.episodes.begin(env_index, several_agents=False)
        for i in env_index.tolist():
            self.running[i] = Trajectory(self.next_trajectory)
            self.trajectories.append(self.running[i])
            self.next_trajectory += 1

    def _fragment(self) -> Fragment:
        """The rows of all trajectories, one after another, and the next observation of each."""
        filled = [trajectory for trajectory in self.trajectories if trajectory.rows]
        columns: Any = trees.stack([row for trajectory in filled for row in trajectory.rows])
        ends = np.cumsum([len(trajectory.rows) for trajectory in filled]) - 1
        after = {"obs": trees.stack([trajectory.next_obs for trajectory in filled])}
        self.trajectories = sorted(self.running.values(), key=lambda trajectory: trajectory.number)
        for trajectory in self.trajectories:
            trajectory.rows = []
        return Fragment(columns, ends, after)


def main(iterations: int = 10) -> float:
    """Trains PPO on rows from this sampler, and returns the mean reward of the last episodes."""
    config = {"sampler": PlainSampler, "num_envs_per_worker": 8, "train_batch_size": 2048, "lr": 1e-3, "seed": 0}
    with PPOTrainer(env="CartPole-v1", config=config) as trainer:
        return trainer.fit({"training_iteration": iterations}).last["episode_reward_mean"] or 0.0


if __name__ == "__main__":
    assert main() >= 40
