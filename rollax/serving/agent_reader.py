"""`AgentReader`: checks the values of one kind of agent, in requests and with local inference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rollax.core import trees
from rollax.core.space_codec import Where, mask_starts
from rollax.core.spaces import ACTION_MASK, choices, have_choices, leaves
from rollax.errors import InvalidRequestError
from rollax.policy.mask_checks import are_allowed
from rollax.serving.protocol import Trajectory
from rollax.serving.values import SpaceValues, plain, unpack

_LARGEST = float(np.finfo(np.float32).max)
_HIGHEST_LOGP_OF_DENSITY = 1e4


class AgentReader:
    """Reads the observations, actions and trajectories of one kind of agent.

    Args:
        largest: the largest absolute value of a number, unless a bound of its space is higher; None: no such limit.
    """

    def __init__(self, observation_space: Any, action_space: Any, largest: float | None) -> None:
        self._observations = SpaceValues(observation_space, largest=largest)
        self._actions = SpaceValues(action_space, largest=largest, bounded=True)
        self.spaces, self._largest = (observation_space, action_space), largest  # keeps id() keys of `Readers` valid
        self._mask_starts = mask_starts(observation_space, action_space)
        numbers = sum(int(np.prod(leaf.shape or ())) for _, leaf in leaves(action_space))
        # A density can be above 1, a probability cannot.
        self._highest_logp = 1e-3 if numbers == len(choices(action_space)) else _HIGHEST_LOGP_OF_DENSITY

    def columns(self, values: Sequence[Any], where: Where, *, masks: bool = True) -> trees.Tree:
        """Columns of observations. `masks`: whether an action follows, so that masks must have a valid action."""
        columns = self._observations.columns(values, where)
        if masks and self._mask_starts is not None:
            self._check_masks(columns[ACTION_MASK], where)
        return columns

    def observation(self, value: Any, where: str, *, masks: bool = True) -> Any:
        """One observation; see `columns`."""
        return trees.index(self.columns([value], lambda _: where, masks=masks), 0)

    def action(self, obs: Any, action: Any, where: str) -> Any:
        """Checks and returns the action that was logged for this observation."""
        column = self._actions.columns([action], lambda _: where)
        if self._mask_starts is not None:
            self._check_allowed(obs[ACTION_MASK][None], column, lambda _: where)
        return trees.index(column, 0)

    def trajectory(self, trajectory: Trajectory, where: str) -> None:
        """Checks a trajectory and turns its columns into arrays."""
        steps = len(trajectory.actions)
        lengths = {"obs": len(trajectory.obs) - 1, "rewards": len(trajectory.rewards)}
        for name in ("action_logp", "t", "infos"):
            if getattr(trajectory, name) is not None:
                lengths[name] = len(getattr(trajectory, name))
        if not steps or any(length != steps for length in lengths.values()):
            got = f"{steps} actions, {lengths['obs'] + 1} obs, {lengths}"
            raise InvalidRequestError("The columns of the trajectory differ in length.", where, got).expected(
                "T actions, rewards and other columns, T + 1 observations, T at least 1"
            )
        if trajectory.terminated and trajectory.truncated:
            raise InvalidRequestError("The trajectory is both terminated and truncated.", where)
        obs = self._observations.columns(trajectory.obs, lambda row: f"{where}.obs[{row}]")
        actions = self._actions.columns(trajectory.actions, lambda row: f"{where}.actions[{row}]")
        if self._mask_starts is not None:
            masks = obs[ACTION_MASK][:-1]
            self._check_masks(masks, lambda row: f"{where}.obs[{row}]")
            self._check_allowed(masks, actions, lambda row: f"{where}.actions[{row}]")
        trajectory.obs, trajectory.actions = obs, actions
        for row, reward in enumerate(trajectory.rewards):
            check_finite_number(reward, "reward", f"{where}.rewards[{row}]", self._largest)
        trajectory.rewards = np.array(trajectory.rewards, np.float64)  # type: ignore[assignment]
        if trajectory.action_logp is not None:
            trajectory.action_logp = self._logp(trajectory.action_logp, f"{where}.action_logp")  # type: ignore[assignment]
        if trajectory.infos is not None:
            infos = enumerate(trajectory.infos)
            trajectory.infos = [read_plain(info, "An info", f"{where}.infos[{row}]") for row, info in infos]
        t = trajectory.t
        if t is not None and (t[0] < 0 or t[-1] >= 2**31 or any(later <= earlier for earlier, later in pairwise(t))):
            raise InvalidRequestError("The times do not increase.", f"{where}.t", expected="increasing, 0 to 2**31 - 1")

    def _logp(self, values: Sequence[float], where: str) -> np.ndarray:
        for row, value in enumerate(values):
            # There is no lower limit: a random or clipped action may be far from a narrow distribution.
            check_finite_number(value, "log-probability", f"{where}[{row}]")
            if value > self._highest_logp:
                what, place = "The log-probability is too high.", f"{where}[{row}]"
                raise InvalidRequestError(what, place, value, expected=f"at most {self._highest_logp:g}")
        return np.array(values, np.float32)

    def _check_masks(self, masks: np.ndarray, where: Where) -> None:
        """Refuses masks without a valid action."""
        assert self._mask_starts is not None
        allowed = have_choices(masks, self._mask_starts).all(axis=1)
        if not allowed.all():
            raise InvalidRequestError.no_valid_action(where(int(np.argmin(allowed))), "no entry above 0")

    def _check_allowed(self, masks: np.ndarray, actions: trees.Tree, where: Where) -> None:
        """Refuses logged actions that their masks forbid."""
        allowed = are_allowed(masks, actions, self.spaces[1])
        if not allowed.all():
            row = int(np.argmin(allowed))
            what, action = "The logged action is not allowed by its action mask.", str(plain(trees.index(actions, row)))
            fix = "log the action as the environment took it, with the mask of its observation"
            raise InvalidRequestError(what, where(row), action).expected("an action with a 1 in the mask", fix)


def check_same_agents(observations: Mapping[str, Any], actions: Mapping[str, Any], episode_id: str) -> None:
    """Raises InvalidRequestError unless the logged actions and the observations are of the same agents."""
    if observations.keys() != actions.keys():
        what, fix = "The logged actions are not of the same agents as the observations.", "log one for each observation"
        raise InvalidRequestError.wrong_keys(what, f"episode {episode_id!r}", actions, observations).fix(fix)


def check_finite_number(value: Any, what: str, where: str, largest: float | None = None) -> float:
    """The number as a float; InvalidRequestError if it is not a finite number, or too large."""
    if type(value) is not float and type(value) is not int:
        raise InvalidRequestError(f"The {what} is not a number.", where, value, expected="a number")
    if type(value) is float and math.isnan(value):
        raise InvalidRequestError(f"The {what} is NaN.", where, value, expected="a finite number")
    if abs(value) > (_LARGEST if largest is None else largest):
        limit = "a finite float32" if largest is None else f"a number from {-largest:g} to {largest:g}"
        raise InvalidRequestError(f"The {what} is too large.", where, value, expected=limit)
    return float(value)


def read_plain(value: Any, what: str, where: str, *, depth: int = 16) -> Any:
    """A value of finite numbers, strings, booleans, None, lists, and dicts with string keys; packed arrays as lists.

    InvalidRequestError if it contains other values, or is nested more deeply than `depth`.
    """
    if value is None or isinstance(value, str | bool) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list) and depth > 0:
        return [read_plain(part, what, where, depth=depth - 1) for part in value]
    if isinstance(value, dict) and depth > 0:
        if not all(isinstance(key, str) for key in value):
            raise InvalidRequestError(f"{what} has a key that is not a string.", where, value)
        if isinstance(value.get("data"), bytes):
            return read_plain(unpack(value, where).tolist(), what, where, depth=depth - 1)
        return {key: read_plain(part, what, where, depth=depth - 1) for key, part in value.items()}
    raise InvalidRequestError(f"{what} has a value that is not plain.", where, value).expected(
        "finite numbers, strings, booleans, null, and lists and objects of those, up to 16 levels",
        "convert the value to one of these",
    )
