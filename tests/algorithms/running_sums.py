"""Sampled rows for policies with running statistics of sums of rewards, and runs that are restored with them."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from rollax import Trainer, load_policy
from rollax.batch import Fragment
from rollax.rollout.postprocess import postprocess
from tests.algorithms.tables import f32


def fragment(
    rewards: Any, slots: list[int], ends: list[int], *, trajectories: Any = None, terminated: Any = (), heads: Any = ()
) -> Fragment:
    """Rows whose segments end at `ends`, each of a trajectory of its own unless there are `trajectories`."""
    count = len(rewards)
    numbers = np.searchsorted(ends, np.arange(count)) if trajectories is None else np.array(trajectories)
    zeros = {name: np.zeros(count, np.int64) for name in ("obs", "new_obs", "actions")}
    return Fragment(
        {
            **zeros,
            "action_logp": np.full(count, np.log(0.5), np.float32),
            "rewards": f32(*rewards),
            "vf_preds": np.zeros((count, *heads), np.float32),
            "terminateds": np.isin(np.arange(count), terminated),
            "truncateds": np.zeros(count, bool),
            "slot": np.array(slots),
            "trajectory_id": numbers,
            "eps_id": numbers,
        },
        ends,
        {"obs": np.zeros(len(ends), np.int64)},
    )


def postprocessed(policy: Any, rows: Fragment) -> Any:
    """The rows as sampling passes them to a policy."""
    return postprocess({"default_policy": rows}, {"default_policy": policy})["default_policy"]


def moments(trainer: Trainer) -> dict[str, np.ndarray]:
    """The running statistics of the default policy, without its observation filter."""
    filters = trainer.worker.get_filters()["default_policy"]
    return {name: value for name, value in filters.items() if name.startswith("~/")}


def train_until(trainer: Trainer, *filled: str) -> Any:
    """The first result of CartPole that has episodes and these parts of its `info`; each step has the reward 1."""
    result: Any = trainer.train()
    while result["episode_reward_mean"] is None or not all(result["info"][name] for name in filled):
        result = trainer.train()
    assert result["episode_reward_mean"] == result["episode_len_mean"]
    return result


def check_restored_run(trainer: Trainer, make: Callable[[], Any], folder: Path, statistics: Collection[str]) -> None:
    """A run of `make()` restored from the trainer continues exactly; a loaded policy has its statistics too."""
    path, stored = trainer.save(folder, exact=True), moments(trainer)
    with make() as restored:
        restored.restore(path)
        np.testing.assert_equal(moments(restored), stored)
        learned = [one.train()["info"]["learner"] for one in (trainer, restored)]
        assert learned[0] == learned[1]
        np.testing.assert_equal(moments(restored), moments(trainer))
    loaded: Any = load_policy(path).policy
    counts = {name: loaded.running_statistics[name].count for name in statistics}
    assert counts == {name: stored[f"~/{name}/count"] for name in statistics}
