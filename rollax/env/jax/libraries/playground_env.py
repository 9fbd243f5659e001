"""Environments of MuJoCo Playground: `jax:playground/CartpoleBalance`. They have the interface of brax."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rollax.core.importing import JAX_ENV
from rollax.env.jax.jax_env import JaxEnv
from rollax.env.jax.libraries.brax_env import BraxEnv
from rollax.env.jax.libraries.library import NamedEnv, check_name, library_module
from rollax.env.jax.wrappers import JaxActionRepeat, TimeLimit
from rollax.errors import ConfigError


class PlaygroundEnv(BraxEnv):
    """An environment of MuJoCo Playground, without the wrappers of its training. Actions are in [-1, 1].

    Args:
        env: a `mujoco_playground.MjxEnv` with the implementation of MJX in JAX, `impl="jax"`.
    Raises:
        EnvError: a wrapper that vectorizes or resets the environment, or ends episodes by a time limit.
    """

    _made_by = "mujoco_playground.registry.load"


def from_playground(env: Any, *limit: int | None) -> JaxEnv:
    """An environment with the `action_repeat` of its config, truncated after its `episode_length`, or after `limit`.

    As in Playground's training, `episode_length` counts the repeated steps; `limit` counts actions.
    """
    repeats = env._config.action_repeat
    steps = limit[0] if limit else -(-env._config.episode_length // repeats)
    made: JaxEnv = PlaygroundEnv(env)
    made = made if repeats == 1 else JaxActionRepeat(made, repeats)
    return made if steps is None else TimeLimit(made, steps)


def creator(name: str) -> NamedEnv:
    """`jax:playground/CartpoleBalance`; settings are entries of its config, such as `"reward_config.scales.energy"`."""
    registry = _registry()
    check_name("playground", name, registry.ALL_ENVS)

    def make(**settings: Any) -> JaxEnv:
        limit = [settings.pop("max_episode_steps")] if "max_episode_steps" in settings else []
        config = registry.get_default_config(name)
        if "impl" in config:
            config.impl = "jax"  # states of the default, MJX-Warp, have no axis for sub-environments
        _set(config, settings, f"env_config, env='{JAX_ENV}playground/{name}'")
        return from_playground(registry.load(name, config=config), *limit)

    return make, registry.load


def names() -> Iterable[str]:
    return _registry().ALL_ENVS


def _registry() -> Any:
    return library_module("mujoco_playground", "playground", extra="playground").registry


def _set(config: Any, settings: Mapping[str, Any], where: str) -> None:
    known = dict(_entries(config.to_dict()))
    for key, value in settings.items():
        if key not in known:
            raise ConfigError.unknown("setting of the environment", key, known, where)
        try:
            config.update_from_flattened_dict({key: value})
        except TypeError as error:
            expected = f"{type(known[key]).__name__}, as {known[key]!r}"
            raise ConfigError.is_not(f"The setting {key!r}", expected, where, value) from error


def _entries(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the entries of a nested config, with the names of its levels joined by dots."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _entries(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
