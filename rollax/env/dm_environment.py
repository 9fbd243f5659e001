"""DeepMind's `dm_env.Environment` as a `gymnasium.Env`; dm_env itself is never imported here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rollax.core.spaces import Path, walk
from rollax.env import checks
from rollax.errors import EnvError, SpaceError

_FIRST, _LAST = 0, 2  # of dm_env.StepType


class DMEnvironment(gym.Env):
    """A `dm_env.Environment` with spaces made from its specs, and five values of `step` made from each `TimeStep`.

    `LAST` with discount 0 is terminated, with any other discount truncated. Floating-point observations become
    float32. Actions get the dtype of their spec and stay inside its bounds.
    """

    def __init__(self, env: Any) -> None:
        self.env = self.as_written = env
        self.name = type(env).__name__
        self._action_spec = env.action_spec()
        self.observation_space = _space(env.observation_spec(), f"{self.name}.observation_spec()")
        self.action_space = _space(self._action_spec, f"{self.name}.action_spec()", acts=True)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        if seed is not None:
            checks.warn_once(
                "seed",
                self.name,
                f"{self.name} does not accept a seed in reset(): pass it to the constructor, as a key of env_config.",
            )
        step = self.env.reset()
        return self._observation(step), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        step = self.env.step(_action(self._action_spec, action))
        if step.step_type == _FIRST:
            raise EnvError("A step started an episode.", f"{self.name}.step()", "StepType.FIRST").expected(
                "MID or LAST until reset() is called",
                "return StepType.FIRST only from reset(), and from step() after StepType.LAST",
            )
        last, discount = step.step_type == _LAST, step.discount
        if not last and discount is not None and np.ndim(discount) == 0 and discount != 1:
            checks.warn_once(
                "discount",
                self.name,
                f"{self.name}: discount {discount} in the middle of an episode is ignored; the config's gamma counts.",
            )
        terminated = last and bool(np.all(discount == 0))
        return self._observation(step), step.reward, terminated, last and not terminated, {}

    def _observation(self, step: Any) -> Any:
        return walk(_as_float32, self.observation_space, step.observation)

    def close(self) -> None:
        self.env.close()


def _as_float32(space: spaces.Space, path: Path, value: Any) -> Any:
    return value if space.dtype != np.float32 else np.asarray(value, np.float32)


def _action(spec: Any, action: Any) -> Any:
    """An action in the structure and dtypes of its spec, clipped, as rounding to float32 can exceed a bound."""
    if isinstance(spec, Mapping):
        return {key: _action(part, action[key]) for key, part in spec.items()}
    if isinstance(spec, tuple | list):
        parts = [_action(part, action[i]) for i, part in enumerate(spec)]
        return getattr(spec, "_make", type(spec))(parts)
    cast = np.asarray(action, spec.dtype)[()]
    return np.clip(cast, spec.minimum, spec.maximum) if cast.dtype.kind == "f" and hasattr(spec, "minimum") else cast


def _space(spec: Any, where: str, *, acts: bool = False) -> spaces.Space:
    """The space of a spec, or of a nested dict, list or tuple of specs."""
    if isinstance(spec, Mapping):
        return spaces.Dict([(key, _space(part, f"{where}[{key!r}]", acts=acts)) for key, part in spec.items()])
    if isinstance(spec, tuple | list):
        return spaces.Tuple([_space(part, f"{where}[{i}]", acts=acts) for i, part in enumerate(spec)])
    shape, dtype = tuple(getattr(spec, "shape", ())), np.dtype(getattr(spec, "dtype", object))
    if dtype.kind not in "biuf":
        raise SpaceError("The spec has no corresponding space.", where, spec).expected(
            "numbers or booleans, in dicts, lists or tuples", "leave this part out of the observations"
        )
    if dtype.kind == "b":
        return spaces.MultiBinary(shape) if shape else spaces.Discrete(2)
    if hasattr(spec, "num_values"):
        return spaces.Discrete(int(spec.num_values))
    low, high = _bounds(spec, shape, dtype)
    if acts and dtype.kind in "iu":
        count = high.astype(np.int64) - low.astype(np.int64) + 1
        if shape:
            return spaces.MultiDiscrete(count, start=low.astype(np.int64))
        return spaces.Discrete(int(count), start=int(low))
    kept: Any = np.float32 if dtype.kind == "f" else dtype.type
    with np.errstate(over="ignore"):  # a bound out of the range of float32 is no bound
        low, high = low.astype(kept), high.astype(kept)
    return spaces.Box(low, high, shape, kept)  # type: ignore[arg-type]


def _bounds(spec: Any, shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Minimum and maximum of a spec; the limits of the dtype if the spec has none."""
    ends = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    low, high = (getattr(spec, name, end) for name, end in zip(("minimum", "maximum"), ends, strict=True))
    return np.broadcast_to(np.asarray(low, dtype), shape), np.broadcast_to(np.asarray(high, dtype), shape)
