"""Streams of batches like those of rollout workers: concurrent trajectories, cut into fragments at any row."""

from typing import Any

import numpy as np

from rollax.batch import Fragment, SampleBatch
from rollax.core import trees

Row = dict[str, Any]


class TrajectoryStream:
    """Several sub-environments with random observations; every row has a unique action.

    Args:
        envs: number of sub-environments.
        rng: source of all randomness.
        stack: observations are stacks of this many 2×3 images (with few colours, so that some are equal by chance); 1:
        they are the numbers of the trajectory and of the step.
        padding: first images of a stack when a trajectory begins: copies of the first observed image, or zeros.
        ends: the probability of a termination at each step, and also of a truncation.
    """

    def __init__(
        self, envs: int, rng: np.random.Generator, *, stack: int = 1, padding: str = "reset", ends: float = 0.1
    ) -> None:
        self._rng, self._stack, self._padding, self._ends = rng, stack, padding, ends
        self._trajectory, self._t, self._obs = list(range(envs)), [0] * envs, [np.zeros(0)] * envs
        self._slots, self._actions = envs, 0
        for env in range(envs):
            self._obs[env] = self._first(env)

    def fragment(self, steps: int, idle: float = 0.0) -> list[Row]:
        """The rows of `steps` steps of the sub-environments, segment by segment; each waits with probability `idle`."""
        acting = [env for env in range(len(self._trajectory)) if self._rng.random() >= idle]
        return [row for env in acting or [0] for row in self._segments(env, steps)]

    def _segments(self, env: int, steps: int) -> list[Row]:
        rows = []
        for step in range(steps):
            self._actions += 1
            ending = self._rng.random() / self._ends
            row = self._row(env, actions=self._actions, rewards=float(self._rng.integers(1, 10)))
            row["terminateds"], row["truncateds"] = ending < 1, 1 <= ending < 2
            rows.append(row)
            self._t[env] += 1
            self._obs[env] = self._next(env)
            if row["truncateds"] or (step == steps - 1 and not row["terminateds"]):
                rows.append(self._row(env, bootstrap=True, final=row["truncateds"]))
            if row["terminateds"] or row["truncateds"]:
                self._trajectory[env], self._t[env] = self._slots, 0
                self._slots += 1
                self._obs[env] = self._first(env)
        return rows

    def _row(self, env: int, **more: Any) -> Row:
        row = {"obs": self._obs[env], "actions": 0, "rewards": 0.0, "terminateds": False, "truncateds": False}
        return {**row, "trajectory_id": self._trajectory[env], "bootstrap": False, "final": False, **more}

    def _image(self) -> np.ndarray:
        return self._rng.integers(0, 2, (2, 3), dtype=np.uint8)

    def _first(self, env: int) -> np.ndarray:
        if self._stack == 1:
            return np.array([self._trajectory[env], self._t[env]], np.float32)
        image = self._image()
        before = image if self._padding == "reset" else np.zeros_like(image)
        return np.stack([before] * (self._stack - 1) + [image])

    def _next(self, env: int) -> np.ndarray:
        if self._stack == 1:
            return self._first(env)
        return np.concatenate([self._obs[env][1:], self._image()[None]])


def batch_of(rows: list[Row]) -> Fragment:
    """A fragment of these rows."""
    dtypes = {"actions": np.int64, "rewards": np.float32, "trajectory_id": np.int64}
    columns = {
        name: np.array([row[name] for row in rows], dtypes.get(name, np.bool_))
        for name in ("actions", "rewards", "terminateds", "truncateds", "trajectory_id", "bootstrap")
    }
    return fragment_of(SampleBatch({"obs": np.stack([row["obs"] for row in rows]), **columns}))


def fragment_of(batch: SampleBatch) -> Fragment:
    """The fragment of a batch with a bootstrap row after each segment that does not terminate."""
    observed = batch["bootstrap"]
    bounds = np.flatnonzero(observed | batch["terminateds"])
    ends = np.cumsum(~observed)[bounds] - 1
    after = {"obs": trees.index(batch["obs"], bounds)}
    rows = batch.rows(~observed).to_dict()
    del rows["bootstrap"]
    return Fragment(rows, ends, after)
