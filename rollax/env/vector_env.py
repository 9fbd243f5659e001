"""`VectorEnv`: several copies of a single-agent environment stepped together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from rollax.env import checks
from rollax.errors import EnvError, SpaceError
from rollax.spaces import check_space, same_space


class VectorEnv:
    """Abstract: `num_envs` sub-environments with one observation and one action space.

    A user with a batched simulator subclasses it; `VectorEnv.wrap` makes one from single environments.

    Args:
        observation_space: of one sub-environment.
        action_space: of one sub-environment.
        num_envs: how many there are.
    """

    def __init__(self, observation_space: gym.Space, action_space: gym.Space, num_envs: int) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.num_envs = num_envs

    def vector_reset(
        self, seeds: Sequence[int | None] | None = None, options: Sequence[dict | None] | None = None
    ) -> tuple[Any, Sequence[dict]]:
        """Resets every sub-environment.

        Returns:
            `(obs, infos)`, one entry per sub-environment; obs is a list of observations, or columns.
        """
        pairs = [
            self.reset_at(i, None if seeds is None else seeds[i], None if options is None else options[i])
            for i in range(self.num_envs)
        ]
        return [obs for obs, _ in pairs], [info for _, info in pairs]

    def reset_at(self, index: int, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Resets one sub-environment: `(obs, info)`."""
        raise NotImplementedError

    def vector_step(self, actions: Sequence[Any]) -> tuple[Any, Any, Any, Any, Sequence[dict]]:
        """Steps every sub-environment once.

        Args:
            actions: one per sub-environment.
        Returns:
            `(obs, rewards, terminateds, truncateds, infos)`, lists or arrays with one entry per sub-environment. The
            last step of an episode returns its real last observation; nothing is reset here.
        """
        raise NotImplementedError

    def get_sub_environments(self) -> list[Any]:
        """The single environments, where there are any."""
        return []

    def try_render_at(self, index: int) -> Any:
        """A frame of one sub-environment, or None where it cannot be drawn."""
        return None

    def close(self) -> None:
        """Releases what the environment holds."""

    @staticmethod
    def wrap(
        make_env: Callable[[int], gym.Env] | None = None,
        existing_envs: Sequence[gym.Env] = (),
        num_envs: int = 1,
    ) -> VectorEnv:
        """Auto-vectorizes single environments: inference is batched, the environments step one after another.

        Args:
            make_env: makes the sub-environment of a given vector index.
            existing_envs: those that there are already; the rest comes from `make_env`.
            num_envs: how many in all.
        """
        return SteppedInTurn(make_env, existing_envs, num_envs)


class SteppedInTurn(VectorEnv):
    """Single Gymnasium environments behind the `VectorEnv` interface."""

    def __init__(
        self, make_env: Callable[[int], gym.Env] | None, existing_envs: Sequence[gym.Env], num_envs: int
    ) -> None:
        self.envs = list(existing_envs)
        for index in range(len(self.envs), num_envs):
            if make_env is None:
                raise EnvError(
                    "Too few environments.",
                    where="VectorEnv.wrap",
                    got=f"{len(self.envs)} existing, no make_env",
                    expected=f"{num_envs}",
                    fix="pass make_env, a function of the vector index, or as many existing_envs as num_envs",
                )
            self.envs.append(make_env(index))
        first = self.envs[0]
        for kind in ("observation_space", "action_space"):
            check_space(getattr(first, kind, None), f"{_name(first)}.{kind}")
        super().__init__(first.observation_space, first.action_space, len(self.envs))
        for index, env in enumerate(self.envs[1:], 1):
            for kind in ("observation_space", "action_space"):
                if not same_space(getattr(env, kind), getattr(first, kind)):
                    raise SpaceError(
                        "Sub-environments with different spaces.",
                        where=f"{_name(env)}.{kind}, sub-environment {index}",
                        got=getattr(env, kind),
                        expected=getattr(first, kind),
                        fix="give every copy the same spaces; dynamics may differ",
                    )
        self._in_first_episode = [0] * self.num_envs  # 0: not yet reset; 1: in its first episode; 2: past it
        self._watched = self.num_envs

    def reset_at(self, index: int, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        env = self.envs[index]
        try:
            result = env.reset(seed=seed, options=options)
        except Exception as error:
            raise checks.failed(error, "reset()", self._where(index)) from error
        if self._in_first_episode[index] < 2:
            self._in_first_episode[index] += 1
            self._watched -= self._in_first_episode[index] == 2
            obs, info = checks.check_reset(result, self._where(index))
            checks.check_observation(self.observation_space, obs, f"{self._where(index)}, reset()")
        return result

    def vector_step(self, actions: Sequence[Any]) -> tuple[Any, Any, Any, Any, Sequence[dict]]:
        index, results = 0, []
        try:
            for index, env in enumerate(self.envs):  # noqa: B007  the error message needs it
                results.append(env.step(actions[index]))
        except Exception as error:
            raise checks.failed(error, "step()", self._where(index), actions[index]) from error
        try:
            obs, rewards, terminateds, truncateds, infos = zip(*results, strict=True)
        except ValueError:
            for index, result in enumerate(results):
                checks.check_step(result, self._where(index))
            raise
        if self._watched:
            self._check_in_full(results)
        return list(obs), rewards, terminateds, truncateds, infos

    def _check_in_full(self, results: list) -> None:
        for index, result in enumerate(results):
            if self._in_first_episode[index] == 1:
                obs = checks.check_step(result, self._where(index))[0]
                checks.check_observation(self.observation_space, obs, f"{self._where(index)}, step()")

    def get_sub_environments(self) -> list[Any]:
        return self.envs

    def try_render_at(self, index: int) -> Any:
        return self.envs[index].render()

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _where(self, index: int) -> str:
        return f"{_name(self.envs[index])}, sub-environment {index}"


def _name(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else type(getattr(env, "unwrapped", env)).__name__
