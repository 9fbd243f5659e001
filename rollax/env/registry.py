"""Registered environments, and the creator of an environment from its name, path, class or function."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from rollax.core.frozen import thawed
from rollax.core.importing import JAX_ENV, REGISTERED, ImportPath, StoredCode, import_module, import_object
from rollax.errors import ConfigError, page, repr_of

_OLD_ATARI = re.compile(r"(\w+?)(?:NoFrameskip|Deterministic)-v[04]")
_CREATORS_BY_PREFIX = {
    "ALE/": "rollax.env.atari:AtariCreator",
    JAX_ENV: "rollax.env.jax.names:JaxCreator",
    "pettingzoo/": "rollax.env.multi_agent.pettingzoo_env:pettingzoo_creator",
}

_REGISTERED_BY = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid"}
"""Beginning of an id -> the package that registers such ids when it is imported."""


class EnvContext(dict[str, Any]):
    """The dict `env_config`, with the indices of the worker and of the sub-environment that is made.

    Args:
        env_config: the user's settings; their dicts and lists are copied.
        worker_index: 0 for the driver's own worker, else 1 to `num_workers`.
        vector_index: index of the sub-environment within the worker.
        num_workers: the number of remote workers.
        remote: the environment runs in its own actor.
    """

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        *,
        worker_index: int = 0,
        vector_index: int = 0,
        num_workers: int = 0,
        remote: bool = False,
    ) -> None:
        super().__init__(thawed(dict(env_config or {})))
        self.worker_index = worker_index
        self.vector_index = vector_index
        self.num_workers = num_workers
        self.remote = remote

    def at(self, vector_index: int) -> EnvContext:
        """Returns the context of another sub-environment of the worker."""
        return EnvContext(
            self,
            worker_index=self.worker_index,
            vector_index=vector_index,
            num_workers=self.num_workers,
            remote=self.remote,
        )


EnvCreator = Callable[[EnvContext], Any]
_creators: dict[str, EnvCreator] = {}


def register_env(name: str, creator: EnvCreator) -> None:
    """Makes `name` usable as an environment; a later registration of the same name replaces the earlier one.

    Args:
        name: name of the environment in configs and on the command line.
        creator: takes one `EnvContext`, returns an environment of any kind.
    """
    if not callable(creator):
        raise ConfigError("The creator is not callable.", f"register_env({name!r})", creator).expected(
            "a function of one EnvContext, or a class", "pass the class itself, or lambda context: MyEnv(context)"
        )
    _creators[name] = creator
    REGISTERED.add(name)


def registered_envs() -> list[str]:
    """The names registered in this process."""
    return sorted(_creators)


def registered_creators() -> dict[str, EnvCreator]:
    return dict(_creators)


def env_creator(env: Any) -> EnvCreator:
    """The creator of an environment, from an id, a registered name, `module:Class`, a class, or a function.

    Raises:
        ConfigError: an unknown id (the error suggests the nearest ones), a value of another kind, or a `module:Class`
            that cannot be imported, or is no `ImportPath` and so may come from a file; see `named_by_caller`.
    """
    if isinstance(env, str):
        if env in _creators:
            return _creators[env]
        _, colon, name = env.partition(":")
        if colon and not env.startswith(tuple(_CREATORS_BY_PREFIX)):
            # Gymnasium's form "module:id": importing the module registers the id.
            import_module(env, f"env={env!r}")
            return _from_id(name) if name in gym.registry else env_creator(import_object(env, f"env={env!r}"))
        return _from_id(env)
    if inspect.isclass(env) or callable(env):
        return env
    what, fix = "The value is neither the name of an environment nor a creator.", "pass one of those"
    if hasattr(env, "step") and hasattr(env, "reset"):
        what = "The value is an environment, not what creates environments."
        own = _spec_of(env)
        made = f"env=lambda context: {type(env).__name__}(...)" if own is None else _as_arguments(own)
        fix = f"pass what creates it, {made}: each worker creates its own copies"
    raise ConfigError(what, "env", env).expected(
        "a Gymnasium id, a registered name, 'module:Class', a class taking env_config, or a creator function", fix
    )


def _spec_of(env: Any) -> EnvSpec | None:
    """Returns the spec from which Gymnasium makes an equal environment; None if there is none."""
    try:
        spec = env.spec
        found = isinstance(spec, EnvSpec) and spec.id in gym.registry and not spec.additional_wrappers
    except Exception:  # a property of a user's class
        return None
    return spec if found else None


def _as_arguments(spec: EnvSpec) -> str:
    usual = gym.spec(spec.id)
    given = {key: value for key, value in spec.kwargs.items() if value is not None and usual.kwargs.get(key) != value}
    if spec.max_episode_steps != usual.max_episode_steps:
        given["max_episode_steps"] = spec.max_episode_steps
    config = f", config={{'env_config': {repr_of(given)}}}" if given else ""
    return f"env={spec.id!r}{config}"


def _from_id(env_id: str) -> EnvCreator:
    import_atari_if_named(env_id)
    for prefix, creator in _CREATORS_BY_PREFIX.items():
        if env_id.startswith(prefix) and (prefix != "ALE/" or env_id in gym.registry):
            return import_object(ImportPath(creator), f"env={env_id!r}")(env_id)
    env_id = id_without_module(env_id, f"env={env_id!r}")
    try:
        gym.spec(env_id)
    except gym.error.Error as error:
        known = [*_creators, *gym.registry]
        near = difflib.get_close_matches(env_id, known, n=3, cutoff=0.5)
        raise ConfigError("Unknown environment.", "env", f"{env_id!r} ({error})").expected(
            f"an id such as {', '.join(map(repr, near))}" if near else "a Gymnasium id or a registered name",
            _fix_of_unknown(env_id),
        ) from error
    return _IdCreator(env_id)


def id_without_module(env_id: Any, where: str) -> str:
    """The id in Gymnasium's registry. For "module:id", the module is imported if the string is an `ImportPath`.

    `gymnasium.make` and `gymnasium.spec` would import any module, so they get only ids that this function returns.
    """
    if isinstance(env_id, StoredCode):
        raise env_id.error()
    if not isinstance(env_id, str):
        raise ConfigError("This is not the id of an environment.", where=where, got=env_id, expected="a Gymnasium id")
    if ":" in env_id:
        import_module(env_id, where)
    return env_id.rpartition(":")[2]


def _fix_of_unknown(env_id: str) -> str:
    if game := _OLD_ATARI.fullmatch(env_id):
        return f"write 'ALE/{game[1]}-v5', which is preprocessed; see {page('atari-and-video')}"
    for prefix, module in _REGISTERED_BY.items():
        if env_id.startswith(prefix):
            return f"write '{module}:{env_id}', or correct the name"
    module, dot, name = env_id.rpartition(".")
    if dot and all(part.isidentifier() for part in env_id.split(".")):
        return f"write '{module}:{name}' for a class in a module, or correct the name"
    return (
        "correct the name, install the package that registers it, or call register_env(name, creator); for the command "
        "line, in a module that you pass as --import MODULE"
    )


class _IdCreator:
    """Makes the environment of a Gymnasium id; `env_config` holds keywords of `gymnasium.make`."""

    def __init__(self, env_id: str) -> None:
        self.env_id = env_id

    def __reduce__(self) -> tuple[Any, ...]:
        # The registration is pickled too, because another process may lack it.
        return _of_spec, (self.env_id, gym.spec(self.env_id))

    def __call__(self, context: EnvContext) -> gym.Env:
        # rollax checks the results of environments, so Gymnasium's checker would only cost a call per step.
        return gym.make(self.env_id, **{"disable_env_checker": True, **context})

    @property
    def entry_point(self) -> Callable[..., Any]:
        found: Any = gym.spec(self.env_id).entry_point
        return found if callable(found) else load_env_creator(found)


def _of_spec(env_id: str, spec: EnvSpec) -> _IdCreator:
    gym.registry.setdefault(spec.id, spec)
    return _IdCreator(env_id)


def import_atari_if_named(env_id: str) -> None:
    """Registers ale-py's ids, if `env_id` begins with "ALE/"; `ConfigError` if ale-py is not installed."""
    if env_id.startswith("ALE/"):
        import_object(ImportPath("rollax.env.atari:register_games"), f"env={env_id!r}")()
