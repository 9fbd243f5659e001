"""Environments of other libraries as `JaxEnv`s.

They are stepped without the libraries' automatic resets, so that each episode has its real last observation. A library
is imported when the first of its environments is made.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import Space, spaces

from rollax.core.importing import JAX_ENV
from rollax.core.spaces import ACTION_MASK, Path, walk
from rollax.env.jax.jax_env import JaxEnv, MultiAgentJaxEnv, Outcome
from rollax.env.jax.wrappers import TimeLimit, limited
from rollax.errors import ConfigError, EnvError, missing_package, not_installed

_Named = tuple[Callable[..., JaxEnv], Callable[..., Any]]
"""Creator of an environment from the settings in `env_config`; callable with these settings, for errors."""

_BRAX_STEPS = 1000
_NEW_GYMNAX = "pip install 'gymnax>=1.0'"
_JAXMARL_MPE = "jaxmarl.environments.mpe."  # its constructors take any keyword


class BraxEnv(JaxEnv):
    """An environment of brax, without the wrappers of brax's training. Actions are in [-1, 1], as for brax's agents.

    Args:
        env: a `brax.envs.Env`.
    Raises:
        EnvError: a wrapper that resets, or ends episodes by a time limit.
    """

    def __init__(self, env: Any) -> None:
        self.env, inner = env, env
        while inner is not None:
            if type(inner).__module__ == "brax.envs.wrappers.training":
                got, expected = type(inner).__name__, "an environment as brax.envs.get_environment makes it"
                raise EnvError(
                    "The environment of brax has a wrapper of brax's training.", f"BraxEnv({type(env).__name__})", got
                ).expected(expected, "leave it out: rollax vectorizes, resets and sets max_episode_steps")
            inner = vars(inner).get("env")
        # Only traced, because running a reset that is not compiled as a whole compiles each operation separately.
        self.observation_space = _unbounded(jax.eval_shape(env.reset, jax.random.key(0)).obs)
        self.action_space = spaces.Box(-1, 1, (env.action_size,), np.float32)

    def __repr__(self) -> str:
        return f"BraxEnv({type(self.env).__name__})"

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = self.env.reset(key)
        return state, state.obs

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        state = self.env.step(state, action)
        return Outcome(state, state.obs, state.reward, jnp.asarray(state.done, bool))


class GymnaxEnv(JaxEnv):
    """An environment of gymnax, which truncates episodes after the number of steps in its parameters.

    Args:
        env: a `gymnax.environments.environment.Environment`.
        params: parameters of the environment; None for `env.default_params`.
    Raises:
        ConfigError: a gymnax before 1.0.
    """

    def __init__(self, env: Any, params: Any = None) -> None:
        if not hasattr(env, "is_truncated"):
            raise ConfigError(
                "gymnax is too old.", "env", "a version that does not tell time limits from ends"
            ).expected("gymnax 1.0 or newer", _NEW_GYMNAX)
        self.env, self.params = env, env.default_params if params is None else params
        convert = importlib.import_module("gymnax.environments.spaces").gymnax_space_to_gym_space
        obs, _ = jax.eval_shape(env.reset_env, jax.random.key(0), self.params)
        self.observation_space = walk(_in_dtype, convert(env.observation_space(self.params)), obs)
        self.action_space = convert(env.action_space(self.params))

    def __repr__(self) -> str:
        return f"GymnaxEnv({self.env.name})"

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        obs, state = self.env.reset_env(key, self.params)
        return state, obs

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        obs, state, reward, terminated, _ = self.env.step_env(key, state, action, self.params)
        return Outcome(state, obs, reward, terminated, self.env.is_truncated(state, self.params))


class PgxEnv(JaxEnv):
    """A game of pgx for one player. The observation is a Dict of `observation` and `action_mask`, the legal actions.

    Args:
        env: a `pgx.Env`.
    Raises:
        EnvError: a game for several players.
    """

    # Games that end only by a timer, which the player does not see and pgx reports as `terminated`.
    _ends_by_time = frozenset({"minatar-freeway"})

    def __init__(self, env: Any) -> None:
        if env.num_players != 1:
            raise EnvError("The game has several players.", f"PgxEnv({env.id})", f"{env.num_players} players").expected(
                "1", "use PettingZoo's version of the game: in environments in JAX, agents do not take turns"
            )
        self.env = env
        state = jax.eval_shape(env.init, jax.random.key(0))
        seen, legal = state.observation, state.legal_action_mask
        # As uint8, so that models treat boards and frames as images, and replay buffers stay small.
        observation = spaces.Box(0, 1, seen.shape, np.uint8) if seen.dtype == bool else _unbounded(seen)
        self.observation_space = spaces.Dict(
            {"observation": observation, ACTION_MASK: spaces.MultiBinary(legal.shape[0])}
        )
        self.action_space = spaces.Discrete(legal.shape[0])

    def __repr__(self) -> str:
        return f"PgxEnv({self.env.id})"

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = self.env.init(key)
        return state, self._seen(state)

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        state = self.env.step(state, action, key)
        over, never = state.terminated, jnp.bool_(False)
        ends = (never, over) if self.env.id in self._ends_by_time else (over, state.truncated)
        return Outcome(state, self._seen(state), state.rewards[0], *ends)

    def _seen(self, state: Any) -> dict[str, Any]:
        return {"observation": state.observation, ACTION_MASK: state.legal_action_mask}


class JaxMarlEnv(MultiAgentJaxEnv):
    """An environment of jaxmarl. Observations have no bounds, because jaxmarl's declared bounds are not always right.

    If all actions are discrete and the environment reports the available actions, an observation is a Dict of
    `observation` and `action_mask`.

    Args:
        env: a `jaxmarl.environments.multi_agent_env.MultiAgentEnv`, which has no time limit.
    """

    def __init__(self, env: Any) -> None:
        self.env, self.agents = env, tuple(env.agents)
        self.action_spaces = {agent: _action_space(env.action_space(agent)) for agent in self.agents}
        obs, state = jax.eval_shape(env.reset, jax.random.key(0))
        self._masked = all(isinstance(space, spaces.Discrete) for space in self.action_spaces.values())
        try:
            jax.eval_shape(env.get_avail_actions, state)
        except NotImplementedError:
            self._masked = False
        self.observation_spaces = {agent: self._space_of(agent, obs[agent]) for agent in self.agents}

    def __repr__(self) -> str:
        return f"JaxMarlEnv({type(self.env).__name__})"

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        obs, state = self.env.reset(key)
        return state, self._seen(obs, state)

    def step(self, state: Any, actions: Any, key: jax.Array) -> Outcome:
        obs, state, rewards, dones, _ = self.env.step_env(key, state, actions)
        return Outcome(
            state, self._seen(obs, state), {agent: rewards[agent] for agent in self.agents}, dones["__all__"]
        )

    def _space_of(self, agent: str, obs: Any) -> Space:
        action_space = self.action_spaces[agent]
        if not self._masked or not isinstance(action_space, spaces.Discrete):
            return _unbounded(obs)
        return spaces.Dict({"observation": _unbounded(obs), ACTION_MASK: spaces.MultiBinary(int(action_space.n))})

    def _seen(self, obs: Any, state: Any) -> dict[str, Any]:
        if not self._masked:
            return {agent: obs[agent] for agent in self.agents}
        legal = self.env.get_avail_actions(state)
        masks = {agent: jnp.asarray(legal[agent], jnp.int8) for agent in self.agents}
        return {agent: {"observation": obs[agent], ACTION_MASK: masks[agent]} for agent in self.agents}


def from_brax(env: Any) -> JaxEnv:
    """An environment of brax, truncated after 1000 steps, the default of `brax.envs.create`."""
    return TimeLimit(BraxEnv(env), _BRAX_STEPS)


def from_jaxmarl(env: Any, *limit: int | None) -> JaxEnv:
    """An environment of jaxmarl, truncated after its own limit of steps, or after `limit`."""
    env, own = _without_limit(env)
    steps = limit[0] if limit else own
    return JaxMarlEnv(env) if steps is None else TimeLimit(JaxMarlEnv(env), steps)


def brax(name: str) -> _Named:
    """`jax:brax/ant`; settings are arguments of the class, such as `backend`."""
    classes = _module("brax.envs")._envs
    _check_name("brax", name, classes)
    return limited(lambda **settings: BraxEnv(classes[name](**settings)), _BRAX_STEPS), classes[name]


def gymnax(name: str) -> _Named:
    """`jax:gymnax/CartPole-v1`; settings are fields of the environment's parameters, or keywords of its class."""
    library = _module_in_no_extra("gymnax", _NEW_GYMNAX)
    _check_name("gymnax", name, library.registered_envs)

    def make(**settings: Any) -> JaxEnv:
        if "max_episode_steps" in settings:
            settings["max_steps_in_episode"] = settings.pop("max_episode_steps")
        _, params = library.make(name)
        fields = {field.name for field in dataclasses.fields(params)} & settings.keys()
        env, params = library.make(name, **{key: settings[key] for key in settings.keys() - fields})
        return GymnaxEnv(env, params.replace(**{key: settings[key] for key in fields}))

    return make, type(library.make(name)[1])


def jaxmarl(name: str) -> _Named:
    """`jax:jaxmarl/MPE_simple_spread_v3`; settings are arguments of the class."""
    library = _module_in_no_extra("jaxmarl", "pip install jaxmarl")
    _check_name("jaxmarl", name, library.registered_envs)

    def make(**settings: Any) -> JaxEnv:
        limit = [settings.pop("max_episode_steps")] if "max_episode_steps" in settings else []
        env = library.make(name, **settings)
        if type(env).__module__.startswith(_JAXMARL_MPE):
            _refuse_ignored(env, settings, f"env_config, env='{JAX_ENV}jaxmarl/{name}'")
        return from_jaxmarl(env, *limit)

    return make, type(library.make(name))


def pgx(name: str) -> _Named:
    """`jax:pgx/minatar-breakout`; settings are arguments of the class, such as `sticky_action_prob`."""
    library = _module("pgx")
    _check_name("pgx", name, library.available_envs())
    game = type(library.make(name))
    return limited(lambda **settings: PgxEnv(game(**settings)), None), game


def _refuse_ignored(env: Any, settings: Iterable[str], where: str) -> None:
    """Raises ConfigError for a setting that is neither an argument of a constructor nor an attribute of `env`."""
    known = {name for base in type(env).__mro__ for name in inspect.signature(base.__init__).parameters}
    for key in settings:
        if key not in known and not hasattr(env, key):
            raise ConfigError.unknown(
                f"setting '{key}' of {type(env).__name__}", key, known - {"self", "args", "kwargs"}, where
            )


def _in_dtype(space: Space, path: Path, obs: Any) -> Space:
    """The space, with the dtype of the observations if it declares integers for floats, as in gymnax's Catch."""
    if not isinstance(space, spaces.Box) or np.can_cast(obs.dtype, np.dtype(space.dtype), "same_kind"):
        return space
    return spaces.Box(space.low, space.high, dtype=obs.dtype)


def _unbounded(shapes: Any) -> Space:
    """The unbounded space of an array, or of a dict of arrays."""
    if hasattr(shapes, "shape"):
        return spaces.Box(-np.inf, np.inf, shapes.shape, np.float32)
    return spaces.Dict({key: _unbounded(part) for key, part in shapes.items()})


def _action_space(space: Any) -> Space:
    """The Gymnasium space for a space of jaxmarl."""
    if hasattr(space, "n"):
        return spaces.Discrete(int(space.n))
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), space.shape) for bound in (space.low, space.high))
    return spaces.Box(low, high)


def _without_limit(env: Any) -> tuple[Any, int | None]:
    """A copy of an environment of jaxmarl without its time limit, and the limit in steps."""
    env = _copied(env)  # not in place: a creator may return the same object again
    inner = env
    if "_env" in vars(env):  # SMAX with enemies has SMAX inside
        inner = env._env = _copied(env._env)
    limit = getattr(inner, "max_steps", None)
    if limit is not None:
        inner.max_steps = np.iinfo(np.int32).max
    return env, limit


def _copied(env: Any) -> Any:
    """A shallow copy; `copy.copy` recurses for ever in a class whose `__getattr__` reads attributes."""
    copied = object.__new__(type(env))
    vars(copied).update(vars(env))
    return copied


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise not_installed(package, error, where="env", package=package, extra="jaxenvs") from error


def _module_in_no_extra(name: str, fix: str) -> Any:
    """Imports a library that is in no extra of rollax, because the library excludes the newest Gymnasium."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        # The library may be installed and lack its requirements, as after `pip install --no-deps`.
        missing = missing_package(error) or name
        fix = fix if missing == name else f"pip install {missing}"
        raise not_installed(name, error, where="env", package=name, fix=fix) from error


def _check_name(library: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise ConfigError.unknown(f"environment of {library}", name, known, f"env {JAX_ENV}{library}/{name}")
