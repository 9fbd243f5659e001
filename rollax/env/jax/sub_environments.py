"""N copies of a `JaxEnv` as pure functions of all copies at once, which a sampler compiles together with policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import lax

from rollax.core.spaces import Path, check_space, path_text, walk
from rollax.core.trees import Tree
from rollax.env.jax.jax_env import JaxEnv, Outcome, agents_of
from rollax.env.multi_agent.multi_agent_env import space_of
from rollax.env.rows import ALL, DEFAULT_AGENT
from rollax.errors import EnvError, text_of

ByAgent = Mapping[str, Tree]
"""Agent id -> its observations or actions, [N, ...]."""


class EpisodeState(NamedTuple):
    """The running episodes, one row for each sub-environment.

    Args:
        state: the states of the environments.
        obs: the observations of the environments, by agent.
        key: [N] random keys, which stay the same until the next seeded reset.
        draws: [N] uint32, how often each key was used: the k-th reset or step, from 0, gets `fold_in(key, k)`, so that
            the random numbers of a sub-environment do not depend on the number of sub-environments.
    """

    state: Any
    obs: ByAgent
    key: jax.Array
    draws: jax.Array


class SubEnvironments:
    """The functions `begin`, `restart` and `advance` of all sub-environments, which callers compile.

    Observations and actions are by agent here, also in an environment of one agent.

    Args:
        env: the environment, the same for all.
        name: of the environment, in errors.
    Attributes:
        agents: the ids of the agents.
        several: whether the environment itself has observations, actions and rewards by agent.
        observation_spaces, action_spaces: by agent.
    Raises:
        SpaceError: a missing or unsupported space.
        EnvError: `reset` or `step` returns wrong structures, shapes or dtypes.
    """

    def __init__(self, env: JaxEnv, name: str) -> None:
        self.env, self.name = env, name
        agents = agents_of(env)
        self.several, self.agents = agents is not None, (DEFAULT_AGENT,) if agents is None else agents
        self._check_agents()
        self.observation_spaces, self.action_spaces = (
            {agent: self._space_of(agent, kind) for agent in self.agents}
            for kind in ("observation_space", "action_space")
        )
        self._check()

    def begin(self, seeds: jax.Array) -> EpisodeState:
        """Begins all episodes from [N] uint32 seeds."""
        return jax.vmap(lambda seed: self._episode(jax.random.key(seed), jnp.uint32(0)))(seeds)

    def restart(self, running: EpisodeState, over: jax.Array) -> EpisodeState:
        """Begins new episodes where [N] `over` is true; the others continue."""

        def begun(running: EpisodeState) -> EpisodeState:
            return replaced(running, over, jax.vmap(self._episode)(running.key, running.draws))

        return lax.cond(over.any(), begun, lambda running: running, running)

    def advance(self, running: EpisodeState, actions: ByAgent) -> tuple[EpisodeState, Outcome]:
        """Steps all sub-environments with [N, ...] actions of each agent, without any reset.

        The outcome has the observations by agent, as `EpisodeState`, and a `reward` of shape [N, number of agents].
        """
        return jax.vmap(self._step)(running, actions)

    def _episode(self, key: jax.Array, draws: jax.Array) -> EpisodeState:
        state, obs = self.env.reset(jax.random.fold_in(key, draws))
        return EpisodeState(_arrays(state), self._observed(obs), key, draws + 1)

    def _step(self, running: EpisodeState, actions: ByAgent) -> tuple[EpisodeState, Outcome]:
        actions = {agent: to_dtypes(space, actions[agent]) for agent, space in self.action_spaces.items()}
        key = jax.random.fold_in(running.key, running.draws)
        outcome = self.env.step(running.state, actions if self.several else actions[DEFAULT_AGENT], key)
        rewards = self._by_agent(outcome.reward)
        outcome = Outcome(
            _arrays(outcome.state),
            self._observed(outcome.obs),
            jnp.stack([jnp.asarray(rewards[agent], jnp.float32) for agent in self.agents]),
            jnp.asarray(outcome.terminated),
            jnp.asarray(outcome.truncated),
        )
        return EpisodeState(outcome.state, outcome.obs, running.key, running.draws + 1), outcome

    def _by_agent(self, part: Any) -> Any:
        return part if self.several else {DEFAULT_AGENT: part}

    def _observed(self, obs: Any) -> ByAgent:
        obs = self._by_agent(obs)
        return {agent: to_dtypes(space, obs[agent]) for agent, space in self.observation_spaces.items()}

    def _space_of(self, agent: str, kind: str) -> spaces.Space:
        space = space_of(self.env, kind, agent)
        check_space(space, f"{self.name}.{kind}" + (f", agent {agent!r}" if self.several else ""))
        assert space is not None
        return space

    def _check_agents(self) -> None:
        agents = self.agents
        if not agents or len({*agents}) < len(agents) or not all(isinstance(a, str) and a != ALL for a in agents):
            expected = "a tuple of different strings, one for each agent"
            raise self._refuse("The agents do not have ids of their own.", "agents", agents, expected)

    def _check(self) -> None:
        """Raises EnvError for a wrong shape or dtype, by tracing one reset of two sub-environments and one step."""
        key = jax.eval_shape(jax.random.key, 0)
        state, obs = self._traced_reset(jax.eval_shape(jax.random.split, key))
        self._check_obs(obs, "reset()")
        actions = {agent: walk(_empty, space) for agent, space in self.action_spaces.items()}
        action = actions if self.several else actions[DEFAULT_AGENT]
        outcome = self._traced("step", self.env.step, _arrays_like(state), action, key, expected="an Outcome")
        if not isinstance(outcome, Outcome):
            raise self._refuse("step() did not return an Outcome.", "step()", type(outcome).__name__, "rollax.Outcome")
        self._check_obs(outcome.obs, "step()")
        before, after = (jax.tree.map(_described, _arrays_like(part)) for part in (state, outcome.state))
        if jax.tree.flatten(before) != jax.tree.flatten(after):  # a class of the state may compare arrays in its __eq__
            raise self._refuse(
                "step() returned a state of a different structure than reset().", "step(), state", after, before
            )
        self._check_ids(outcome.reward, "step(), reward")
        for agent, reward in self._by_agent(outcome.reward).items():
            self._check_number("reward", reward, f"step(), reward{self._of(agent)}", "fiu", "a real number")
        for part in ("terminated", "truncated"):
            self._check_number(part, getattr(outcome, part), f"step(), {part}", "b", "a boolean")

    def _check_number(self, part: str, value: Any, where: str, kinds: str, expected: str) -> None:
        value = _arrays_like(value)
        if not hasattr(value, "shape"):
            raise self._refuse(f"The {part} is not {expected}.", where, value, expected)
        if value.shape != () or value.dtype.kind not in kinds:
            raise self._refuse(f"The {part} is not {expected}.", where, _described(value), expected)

    def _traced(self, call: str, function: Any, *args: Any, expected: str) -> Any:
        try:
            result = jax.eval_shape(function, *args)
        except Exception as error:
            got = f"{type(error).__name__}: {(text_of(error).splitlines() or [''])[0]}"
            raise EnvError(f"{call}() cannot be compiled.", f"{self.name}.{call}()", got).expected(
                f"a function that JAX traces, which returns {expected}",
                "write it with jax.numpy, without Python branches on values; the traceback above shows where",
            ) from error
        if not (isinstance(result, tuple) and (call == "step" or len(result) == 2)):
            raise self._refuse(f"{call}() did not return {expected}.", f"{call}()", type(result).__name__, expected)
        return result

    def _traced_reset(self, two_keys: Any) -> tuple[Any, Any]:
        """The state and observations of one of two sub-environments; EnvError for a part without an axis for both."""
        of_one: list[Any] = []

        def reset(key: jax.Array) -> Any:
            result = self.env.reset(key)
            of_one.append(jax.tree.map(jax.typeof, result))
            return result

        of_two = self._traced("reset", jax.vmap(reset), two_keys, expected="(state, obs)")
        for (path, two), one in zip(jax.tree.leaves_with_path(of_two), jax.tree.leaves(of_one[-1]), strict=True):
            if two.shape != (2, *one.shape):
                raise self._refuse(
                    "A part of the state or observation has no axis for sub-environments.",
                    f"reset(), (state, obs){jax.tree_util.keystr(path)}",
                    f"{_described(two)} for two sub-environments, {_described(one)} for one",
                    f"{one.dtype} {(2, *one.shape)}, as jax.vmap(env.reset) returns it",
                    "store what sub-environments share in attributes, not in the state; of MuJoCo's MJX, take the "
                    "implementation in JAX, impl='jax', not the one in Warp",
                )
        return of_one[-1]

    def _check_ids(self, part: Any, where: str) -> None:
        if self.several and not (isinstance(part, dict) and part.keys() == {*self.agents}):
            got = list(part) if isinstance(part, dict) else part
            raise self._refuse(
                "The value is not a dict by agent.", where, got, f"a dict with the keys {list(self.agents)}"
            )

    def _check_obs(self, obs: Any, call: str) -> None:
        self._check_ids(obs, f"{call}, obs")
        for agent, part in self._by_agent(obs).items():
            self._check_obs_of(part, self.observation_spaces[agent], f"{call}, obs{self._of(agent)}")

    def _check_obs_of(self, obs: Any, space: spaces.Space, where: str) -> None:
        def check(leaf: spaces.Space, path: Path, part: Any) -> None:
            part = _arrays_like(part)
            assert leaf.dtype is not None
            if part.shape != (leaf.shape or ()) or not np.can_cast(part.dtype, leaf.dtype, "same_kind"):
                expected = f"shape {leaf.shape}, {leaf.dtype}, of {leaf}"
                got = _described(part)
                raise self._refuse(
                    "The observation does not have the shape or dtype of its space.",
                    where + path_text(path),
                    got,
                    expected,
                )

        try:
            walk(check, space, obs)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise self._refuse(
                "The observation does not have the structure of its space.", where, obs, space
            ) from error

    def _of(self, agent: str) -> str:
        return f" of {agent!r}" if self.several else ""

    def _refuse(self, what: str, where: str, got: Any, expected: Any, fix: str = "correct the environment") -> EnvError:
        return EnvError(what, f"{self.name}.{where}", got).expected(expected, fix)


def joined(by_agent: ByAgent, agents: Sequence[str]) -> Tree:
    """The rows [N · k, ...] of k agents with equal spaces, adjacent for each sub-environment; traced by JAX."""

    def rows(*parts: jax.Array) -> jax.Array:
        return jnp.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:])

    return jax.tree.map(rows, *(by_agent[agent] for agent in agents))


def split(rows: Tree, agents: Sequence[str]) -> dict[str, Tree]:
    """Splits the rows of `joined` by agent; traced by JAX."""

    apart = jax.tree.map(lambda leaf: jnp.moveaxis(leaf.reshape(-1, len(agents), *leaf.shape[1:]), 1, 0), rows)
    return {agent: jax.tree.map(itemgetter(place), apart) for place, agent in enumerate(agents)}


def to_dtypes(space: spaces.Space, tree: Tree) -> Tree:
    """The tree as arrays in the dtypes of its space, in 64 bits only if JAX enables them; traced by JAX."""
    return walk(_to_dtype, space, tree)


def replaced(rows: Any, chosen: jax.Array, new: Any) -> Any:
    """The rows [N, ...] of a tree, replaced by the rows of `new` where [N] `chosen` is true; traced by JAX."""
    return jax.tree.map(lambda a, b: jnp.where(chosen.reshape(-1, *[1] * (b.ndim - 1)), a, b), new, rows)


def _arrays(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)


def _arrays_like(tree: Any) -> Any:
    """Shapes and dtypes, also of Python numbers."""
    return jax.eval_shape(_arrays, tree)


def _described(value: Any) -> str:
    return f"{value.dtype} {value.shape}"


def _to_dtype(space: spaces.Space, path: Path, part: Any) -> jax.Array:
    return jnp.asarray(part).astype(jax.dtypes.canonicalize_dtype(space.dtype))


def _empty(space: spaces.Space, path: Path) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(space.shape or (), jax.dtypes.canonicalize_dtype(space.dtype))
