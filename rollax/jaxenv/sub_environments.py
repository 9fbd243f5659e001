"""N copies of a `JaxEnv` as pure functions of all of them at once, for the sampler that compiles them with a policy."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import lax

from rollax.errors import EnvError
from rollax.jaxenv.jax_env import JaxEnv, Outcome
from rollax.spaces import Path, check_space, path_text, walk
from rollax.trees import Tree


class Running(NamedTuple):
    """The running episodes, one row for each sub-environment.

    Args:
        state: of the environments.
        obs: what they observe.
        key: one random key each, the same from one seeded reset to the next.
        draws: [N] uint32, how often each key was used: the k-th reset or step gets `fold_in(key, k)`, so that the
            numbers of a sub-environment do not depend on how many others there are.
    """

    state: Any
    obs: Any
    key: jax.Array
    draws: jax.Array


class SubEnvironments:
    """The functions `begin`, `restart` and `advance` of all sub-environments, which callers compile.

    Args:
        env: the environment, the same for all.
        name: of the environment, in errors.
    Raises:
        SpaceError: a missing or unsupported space.
        EnvError: `reset` or `step` does not return what it must, as far as shapes and dtypes show it.
    """

    def __init__(self, env: JaxEnv, name: str) -> None:
        self.env, self.name = env, name
        for kind in ("observation_space", "action_space"):
            check_space(getattr(env, kind, None), f"{name}.{kind}")
        self._check()

    def begin(self, seeds: jax.Array) -> Running:
        """Episodes that begin from [N] uint32 seeds."""
        return jax.vmap(lambda seed: self._episode(jax.random.key(seed), jnp.uint32(0)))(seeds)

    def restart(self, running: Running, over: jax.Array) -> Running:
        """Begins new episodes where [N] `over`; the others go on."""

        def begun(running: Running) -> Running:
            return replaced(running, over, jax.vmap(self._episode)(running.key, running.draws))

        return lax.cond(over.any(), begun, lambda running: running, running)

    def advance(self, running: Running, actions: Tree) -> tuple[Running, Outcome]:
        """Steps all by [N, ...] actions. Nothing is reset; `obs` of the outcome is that of `Running`."""
        return jax.vmap(self._step)(running, actions)

    def _episode(self, key: jax.Array, draws: jax.Array) -> Running:
        state, obs = self.env.reset(jax.random.fold_in(key, draws))
        return Running(_arrays(state), self._observed(obs), key, draws + 1)

    def _step(self, running: Running, action: Tree) -> tuple[Running, Outcome]:
        action = walk(_to_dtype, self.env.action_space, action)
        outcome = self.env.step(running.state, action, jax.random.fold_in(running.key, running.draws))
        outcome = Outcome(
            _arrays(outcome.state),
            self._observed(outcome.obs),
            jnp.asarray(outcome.reward, jnp.float32),
            jnp.asarray(outcome.terminated),
            jnp.asarray(outcome.truncated),
        )
        return Running(outcome.state, outcome.obs, running.key, running.draws + 1), outcome

    def _observed(self, obs: Any) -> Tree:
        return walk(_to_dtype, self.env.observation_space, obs)

    def _check(self) -> None:
        """Raises EnvError for a wrong shape or dtype, by tracing one reset and one step."""
        key = jax.eval_shape(jax.random.key, 0)
        state, obs = self._traced("reset", self.env.reset, key, expected="(state, obs)")
        self._check_obs(obs, "reset()")
        action = walk(_empty, self.env.action_space)
        outcome = self._traced("step", self.env.step, _arrays_like(state), action, key, expected="an Outcome")
        if not isinstance(outcome, Outcome):
            raise self._refuse("step() did not return an Outcome.", "step()", type(outcome).__name__, "rollax.Outcome")
        self._check_obs(outcome.obs, "step()")
        before, after = (jax.tree.map(_described, _arrays_like(part)) for part in (state, outcome.state))
        if before != after:
            raise self._refuse("step() returned another state than reset().", "step(), state", after, before)
        for part in ("reward", "terminated", "truncated"):
            value = _arrays_like(getattr(outcome, part))
            kinds = "fiu" if part == "reward" else "b"
            if value.shape != () or value.dtype.kind not in kinds:
                expected = "a real number" if part == "reward" else "a boolean"
                raise self._refuse(f"A {part} that is not {expected}.", f"step(), {part}", _described(value), expected)

    def _traced(self, call: str, function: Any, *args: Any, expected: str) -> Any:
        try:
            result = jax.eval_shape(function, *args)
        except Exception as error:
            raise EnvError(
                f"{call}() cannot be compiled.",
                where=f"{self.name}.{call}()",
                got=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
                expected=f"a function that JAX traces, which returns {expected}",
                fix="write it with jax.numpy, without Python branches on values; the traceback above shows where",
            ) from error
        if not (isinstance(result, tuple) and (call == "step" or len(result) == 2)):
            raise self._refuse(f"{call}() did not return {expected}.", f"{call}()", type(result).__name__, expected)
        return result

    def _check_obs(self, obs: Any, call: str) -> None:
        def check(leaf: spaces.Space, path: Path, part: Any) -> None:
            part = _arrays_like(part)
            assert leaf.dtype is not None
            if part.shape != (leaf.shape or ()) or not np.can_cast(part.dtype, leaf.dtype, "same_kind"):
                where = f"{call}, obs{path_text(path)}"
                expected = f"shape {leaf.shape}, {leaf.dtype}, of {leaf}"
                raise self._refuse("An observation outside of its space.", where, _described(part), expected)

        try:
            walk(check, self.env.observation_space, obs)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            space = self.env.observation_space
            raise self._refuse("An observation of another structure.", f"{call}, obs", obs, space) from error

    def _refuse(self, what: str, where: str, got: Any, expected: Any) -> EnvError:
        return EnvError(what, where=f"{self.name}.{where}", got=got, expected=expected, fix="correct the environment")


def replaced(rows: Any, chosen: jax.Array, new: Any) -> Any:
    """The rows [N, ...] of a tree, with those of `new` where [N] `chosen`; traced by JAX."""
    return jax.tree.map(lambda a, b: jnp.where(chosen.reshape(-1, *[1] * (b.ndim - 1)), a, b), new, rows)


def _arrays(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)


def _arrays_like(tree: Any) -> Any:
    """Shapes and dtypes, also of Python's numbers."""
    return jax.eval_shape(_arrays, tree)


def _described(value: Any) -> str:
    return f"{value.dtype} {value.shape}"


def _to_dtype(space: spaces.Space, path: Path, part: Any) -> jax.Array:
    return jnp.asarray(part).astype(jax.dtypes.canonicalize_dtype(space.dtype))


def _empty(space: spaces.Space, path: Path) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(space.shape or (), jax.dtypes.canonicalize_dtype(space.dtype))
