"""`VectorEnv`: several copies of a single-agent environment stepped together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium as gym

from rollax.core.spaces import ACTION_MASK
from rollax.env import checks
from rollax.env.adapters import has_base
from rollax.env.checks import env_name
from rollax.env.copies import EnvCopies, Resets, Spaces, close_all, space_of
from rollax.errors import EnvError, page

_SB3 = "stable_baselines3.common.vec_env"


class VectorEnv:
    """Abstract environment of `num_envs` sub-environments with the same observation space and action space.

    Batched simulators are subclasses; `VectorEnv.wrap` makes a `VectorEnv` from single environments.

    Args:
        observation_space: space of one sub-environment's observations.
        action_space: space of one sub-environment's actions.
        num_envs: the number of sub-environments.
    """

    name = ""
    """Name in error messages; empty for the name of the class."""
    lost: Sequence[int] = ()
    """Sub-environments that failed in the last `vector_step` and have no results; they are reset next."""
    seeds_every_episode = True
    """Whether `reset_at` begins an episode from a given seed, as ES and ARS require."""

    def __init__(self, observation_space: gym.Space, action_space: gym.Space, num_envs: int) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.num_envs = num_envs

    def __repr__(self) -> str:
        name = f"{self.name}, " if self.name else ""
        return f"{type(self).__name__}({name}num_envs={getattr(self, 'num_envs', '?')})"

    def vector_reset(
        self, seeds: Sequence[int | None] | None = None, options: Sequence[dict | None] | None = None
    ) -> tuple[Any, Sequence[dict]]:
        """Resets all sub-environments; returns `(obs, infos)`, with `obs` as a list or as columns.

        Both have one entry for each sub-environment.
        """
        pairs, name = [], self.name or type(self).__name__
        for i in range(self.num_envs):
            pair = self.reset_at(i, None if seeds is None else seeds[i], None if options is None else options[i])
            pairs.append(checks.check_reset(pair, f"{name}, sub-environment {i}, reset_at()"))
        return [obs for obs, _ in pairs], [info for _, info in pairs]

    def reset_at(self, index: int, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Resets one sub-environment.

        Args:
            index: the sub-environment, from 0.
            seed: seed of its random stream; None continues it.
            options: as in Gymnasium's `reset`.
        Returns:
            `(obs, info)`, one observation and its info dict.
        """
        raise NotImplementedError

    def vector_step(self, actions: Sequence[Any]) -> tuple[Any, Any, Any, Any, Sequence[dict]]:
        """Steps every sub-environment once, with one action each.

        Returns:
            `(obs, rewards, terminateds, truncateds, infos)`, lists or arrays with one entry per sub-environment
            not in `lost`. The last step of an episode returns its last observation: `vector_step` resets nothing.
        """
        raise NotImplementedError

    def get_sub_environments(self) -> list[Any]:
        """The single environments, if there are any."""
        return []

    def try_render_at(self, index: int) -> Any:
        """A frame of one sub-environment, or None if it cannot be drawn."""
        return None

    def close(self) -> None:
        """Releases the resources of the environment."""

    @staticmethod
    def wrap(
        make_env: Callable[[int], gym.Env] | None = None, existing_envs: Sequence[gym.Env] = (), num_envs: int = 1
    ) -> VectorEnv:
        """Vectorizes single environments: inference is batched, the environments step one after another.

        Args:
            make_env: makes the sub-environment of a vector index, if it is not among the existing ones.
            existing_envs: the first sub-environments.
            num_envs: the total number.
        Returns:
            A `VectorEnv` whose `vector_step` raises EnvError for a sub-environment without a running episode.
        """
        return SteppedInTurn(EnvCopies(existing_envs, make_env, num_envs))


class SteppedInTurn(VectorEnv):
    """Single Gymnasium environments behind the `VectorEnv` interface."""

    def __init__(self, copies: EnvCopies) -> None:
        self.envs = copies.make()
        self.name = env_name(self.envs[0])
        observation_space, action_space = (space_of(self.envs[0], kind, copies.declared) for kind in Spaces._fields)
        super().__init__(observation_space, action_space, len(self.envs))
        _warn_of_unread_masks(self.envs[0], self.name, observation_space)
        warn_of_own_statistics(self.envs[0], self.name)
        self._steps = [env.step for env in self.envs]
        self._resets = _resets_of(copies, self.envs)
        self.resting: frozenset[int] = frozenset()
        """Sub-environments without a running episode, which `vector_step` does not step."""
        self._over = set(range(self.num_envs))
        """Sub-environments to reset: their episode is over, or has not begun."""

    def reset_at(self, index: int, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        where = self._where(index)
        given = {} if options is None else {"options": options}  # an env's `reset` may take a seed only
        result = self._resets.reset(index, where, seed, **given)
        self._steps[index] = self.envs[index].step
        self._over.discard(index)
        return checks.check_reset(result, f"{where}, reset()")

    def vector_step(self, actions: Sequence[Any]) -> tuple[Any, Any, Any, Any, Sequence[dict]]:
        if self._over and not self._over <= self.resting:
            raise self._not_running(min(self._over - self.resting))
        results: list[Any] = []
        lost: list[int] = []
        add, self.lost = results.append, lost
        steps, turns = self._steps, range(self.num_envs)
        if self.resting:
            turns = [index for index in turns if index not in self.resting]
            steps, actions = ([column[index] for index in turns] for column in (steps, actions))
        while (turn := len(results) + len(lost)) < len(turns):
            try:
                for step, action in zip(steps[turn:], actions[turn:], strict=True):
                    add(step(action))
            except Exception as error:
                turn = len(results) + len(lost)
                index = turns[turn]
                failure = checks.failed(error, "step()", self._where(index), actions[turn])
                self._resets.failed(index, failure, error)
                lost.append(index)
                self._over.add(index)
        if not results:
            return [], [], [], [], []
        stepped = [index for index in turns if index not in lost] if lost else turns
        try:
            obs, rewards, terminateds, truncateds, infos = zip(*results, strict=True)
        except (ValueError, TypeError):
            for index, result in zip(stepped, results, strict=True):
                checks.check_step(result, self._where(index))
            raise
        flags = zip(stepped, terminateds, truncateds, strict=True)
        try:
            ended = [index for index, terminated, truncated in flags if terminated or truncated]
        except ValueError:  # an array of several values is no flag: `VectorBaseEnv` refuses it
            ended = []
        self._over.update(ended)
        self._resets.stepped(stepped, ended)
        return list(obs), rewards, terminateds, truncateds, infos

    def _not_running(self, index: int) -> EnvError:
        return EnvError(
            "A sub-environment was stepped without a running episode.", self._where(index), checks.NO_EPISODE
        ).expected(
            "a reset before the first step, and after a step that terminates or truncates the episode",
            f"call reset_at({index}), or vector_reset() for all, before vector_step",
        )

    def get_sub_environments(self) -> list[Any]:
        return [getattr(env, "as_written", env) for env in self.envs]

    def try_render_at(self, index: int) -> Any:
        return frame_of(self.envs[index])

    def close(self) -> None:
        close_all(self.envs)

    def _where(self, index: int) -> str:
        return f"{env_name(self.envs[index])}, sub-environment {index}"


def _resets_of(copies: EnvCopies, envs: list[Any]) -> Resets:
    if not copies.restart_failed:
        return Resets(envs)
    from rollax.env.restarting import Restarts  # loaded only where it is used

    return Restarts(copies, envs)


def frame_of(env: Any) -> Any:
    """A frame of an environment, or None if it cannot be drawn."""
    if getattr(env, "render_mode", None) is None and getattr(env, "spec", None) is not None:
        return None  # Gymnasium's environments would only warn that they have no mode
    try:
        return env.render() if hasattr(env, "render") else None
    except NotImplementedError:
        return None


def _warn_of_unread_masks(env: Any, name: str, observation_space: gym.Space) -> None:
    """Logs once that a method `action_masks`, as MaskablePPO of sb3_contrib requires, is not called."""
    env = getattr(env, "as_written", env)
    has = getattr(env, "has_wrapper_attr", lambda attribute: hasattr(env, attribute))
    if has("action_masks") and ACTION_MASK not in getattr(observation_space, "spaces", ()):
        checks.warn_once(
            "unread mask",
            name,
            f"{name} has a method action_masks, which is not called, so the actions that it excludes are chosen too. "
            f"Return the mask in the observation, as the entry {ACTION_MASK!r} of a Dict; "
            f"{page('policies-and-models', 'action-masks')} has an example.",
        )


def warn_of_own_statistics(env: Any, name: str) -> None:
    """Logs once that a wrapper normalizes observations by running statistics, which only this environment has."""
    for layer in _layers(env):
        if has_base(layer, "gymnasium.wrappers.NormalizeObservation"):
            updated = layer.update_running_mean
        elif has_base(layer, f"{_SB3}.VecNormalize"):
            updated = layer.norm_obs and layer.training
        else:
            continue
        if updated:
            wrapper = type(layer).__name__
            checks.warn_once(
                "own statistics",
                name,
                f"{name} has the wrapper {wrapper}, whose statistics are only in this copy of the environment: other "
                "copies, evaluations and restored runs begin new ones, and a loaded policy has none, so the policy "
                "sees other observations there. Set the config key observation_filter='MeanStdFilter' instead.",
            )


def _layers(env: Any) -> Iterator[Any]:
    """Yields an environment, the environments that it wraps, and its first sub-environment, from the outside in."""
    env = getattr(env, "as_written", env)
    while env is not None:
        yield env
        if isinstance(env, gym.Wrapper | gym.vector.VectorWrapper):
            env = env.env
        elif has_base(env, f"{_SB3}.VecEnvWrapper"):
            env = env.venv
        elif isinstance(env, gym.vector.SyncVectorEnv) or has_base(env, f"{_SB3}.DummyVecEnv"):
            env = env.envs[0]
        else:
            return
