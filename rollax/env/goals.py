"""`GoalFunctions`: rewards and terminations of a goal environment, computed for goals that the caller passes."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rollax.core import trees
from rollax.core.cleanup import cleanup_on_error
from rollax.core.spaces import leaves, stack
from rollax.env import checks
from rollax.env.base_env import BaseEnv
from rollax.env.making import make_base_env
from rollax.env.registry import EnvContext, EnvCreator
from rollax.errors import EnvError, NonFiniteError

_REWARD = "compute_reward"
GoalFunction = Callable[[Any, Any, dict[str, Any]], Any]
"""`compute_reward` or `compute_terminated`: `(achieved_goal, desired_goal, info)` -> a number or a flag."""


class GoalFunctions:
    """Calls `compute_reward` and `compute_terminated` of an environment, for columns of goals.

    The functions are methods of an environment that is made for them and never reset. A copy of this object in another
    process makes an environment of its own there.

    A function is called once for all rows if it can compute many rows at once, otherwise once for each row. A test with
    a few rows of random goals decides this. The `info` of each call is {}.

    Source: Gymnasium-Robotics, `GoalEnv`: after each step, the reward is `compute_reward` of the achieved goal in the
        new observation and of the desired goal.

    Args:
        creator: makes the environment, as in a worker.
        context: the `env_config`.
        goal_space: the space of one goal.
    Raises:
        EnvError: the environment has no `compute_reward`, or a function fails.
    """

    def __init__(self, creator: EnvCreator, context: EnvContext, goal_space: spaces.Space) -> None:
        self._made_from = creator, context, goal_space
        base_env = make_base_env(creator, context, 1)
        with cleanup_on_error(base_env.stop):
            self.name = checks.env_name(_envs_of(base_env)[0])
            reward, terminated = (_method(base_env, name) for name in (_REWARD, "compute_terminated"))
            if reward is None:
                raise EnvError(
                    "The environment computes no rewards of other goals.", self.name, "no compute_reward"
                ).expected(
                    "a method compute_reward(achieved_goal, desired_goal, info), or one for columns of goals",
                    "write it, or leave hindsight_goals out",
                )
            goals = _random_goals(goal_space)
            self._reward = _of_columns(reward, *goals, f"{self.name}, compute_reward")
            self._terminated = None
            if terminated is not None:
                self._terminated = _of_columns(terminated, *goals, f"{self.name}, compute_terminated")
        weakref.finalize(self, base_env.stop)

    def __reduce__(self) -> tuple[Any, ...]:
        return GoalFunctions, self._made_from

    def rewards(self, achieved: trees.Tree, desired: trees.Tree) -> NDArray[np.float32]:
        """[N] float32 rewards of steps with these achieved and desired goals; NonFiniteError for a NaN or infinity."""
        rewards = self._reward(achieved, desired)
        if not np.isfinite(rewards).all():
            raise NonFiniteError.not_finite("compute_reward", self.name, rewards[~np.isfinite(rewards)][0])
        return rewards.astype(np.float32)

    def terminated(self, achieved: trees.Tree, desired: trees.Tree) -> NDArray[np.bool_]:
        """[N] whether the steps terminate the episode; all False without `compute_terminated`."""
        if self._terminated is None:
            return np.zeros(trees.length(achieved), np.bool_)
        return self._terminated(achieved, desired).astype(np.bool_)


def computes_rewards(base_env: BaseEnv) -> bool:
    return _method(base_env, _REWARD) is not None


def _envs_of(base_env: BaseEnv) -> list[Any]:
    return [*base_env.get_sub_environments()[:1], getattr(base_env, "env", base_env)]


def _method(base_env: BaseEnv, name: str) -> GoalFunction | None:
    """The method of the first sub-environment, its wrappers, or its vector environment; None if none has it."""
    for env in _envs_of(base_env):
        try:
            return env.get_wrapper_attr(name) if hasattr(env, "get_wrapper_attr") else getattr(env, name)
        except AttributeError:
            continue
    return None


def _random_goals(space: spaces.Space) -> tuple[trees.Tree, trees.Tree]:
    """Columns of achieved and desired goals, some of them equal.

    There are more rows than elements along each axis of a goal, so that a result with one entry per element has
    another shape than one with an entry per row.
    """
    rows = 2 + max((size for _, leaf in leaves(space) for size in leaf.shape or ()), default=1)
    space = copy.deepcopy(space)  # seeding changes it
    space.seed(0)
    achieved = [space.sample() for _ in range(rows)]
    desired = [*achieved[: rows // 2], *(space.sample() for _ in range(rows - rows // 2))]
    return stack(space, achieved), stack(space, desired)


def _of_columns(
    function: GoalFunction, achieved: trees.Tree, desired: trees.Tree, where: str
) -> Callable[[trees.Tree, trees.Tree], NDArray]:
    """Returns a function of columns of goals; the given examples show whether one call can compute all rows."""

    def each_row(achieved: trees.Tree, desired: trees.Tree) -> NDArray:
        pairs = zip(trees.rows(achieved), trees.rows(desired), strict=True)
        return checked([_called(function, *pair, where) for pair in pairs], trees.length(achieved))

    def all_rows(achieved: trees.Tree, desired: trees.Tree) -> NDArray:
        return checked(_called(function, achieved, desired, where), trees.length(achieved))

    def checked(values: Any, rows: int) -> NDArray:
        column = np.asarray(values)
        if column.shape != (rows,) or column.dtype.kind not in "fiub":
            raise EnvError.wrong_shape("The results for goals have", where, values, "one number or flag for each goal")
        return column

    by_row = each_row(achieved, desired)
    try:
        at_once = all_rows(achieved, desired)
    except EnvError:
        return each_row
    return all_rows if np.allclose(at_once, by_row) else each_row


def _called(function: GoalFunction, achieved: Any, desired: Any, where: str) -> Any:
    try:
        return function(achieved, desired, {})
    except Exception as error:
        raise checks.failed(error, "a call with two goals and the info {}", where) from error
