"""Environments in JAX by name, and what happens in them."""

from typing import Any

import jax

from rollax.env.making import make_base_env
from rollax.env.registry import EnvContext, env_creator

MODEL = {"fcnet_hiddens": (4,)}


def make(name: str, num_envs: int = 1, **env_config: Any) -> Any:
    return make_base_env(env_creator(name), EnvContext(env_config), num_envs)


def the_env(name: str, **env_config: Any) -> Any:
    return make(name, **env_config).get_sub_environments()[0]


def end_of(env: Any, action: Any, most: int = 9) -> tuple[int, bool, bool]:
    """After how many steps of one action it ends, and whether by a termination and by a truncation."""
    outcomes = outcomes_of(env, action, most)
    return len(outcomes), bool(outcomes[-1].terminated), bool(outcomes[-1].truncated)


def outcomes_of(env: Any, action: Any, steps: int) -> list[Any]:
    """The outcomes of one action again and again, until an end."""
    (state, _), step = jax.jit(env.reset)(jax.random.key(0)), jax.jit(env.step)
    found = []
    for number in range(steps):
        found.append(step(state, action, jax.random.key(number)))
        state = found[-1].state
        if found[-1].terminated or found[-1].truncated:
            break
    return found
