"""The `BaseEnv` of one worker, from a creator or from an environment of any kind."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, cast

import gymnasium as gym
from gymnasium.error import DependencyNotInstalled

from rollax.core.cleanup import cleanup_on_error
from rollax.env import checks
from rollax.env.adapters import EXTERNAL_CLASSES, JAX_ENV_CLASS, SINGLE_ENV_CLASS, adapted, adapter_of
from rollax.env.base_env import BaseEnv
from rollax.env.copies import EnvCopies, Spaces
from rollax.env.registry import EnvContext
from rollax.errors import INSTALLS, ConfigError, RollaxError, not_installed, repr_of, text_of

CallConvention = Literal["context", "keywords", "nothing"]
_NAMES_OF_CONTEXT = {"", "config", "env_config", "environment_config", "cfg", "env_cfg", "conf", "c"}
_NAMES_OF_CONTEXT |= {"context", "env_context", "ctx", "env_args", "args", "params", "settings", "options"}
_ENDS_OF_CONTEXT = ("config", "cfg", "conf", "context", "ctx")
_NAMES_OF_SETTINGS = {"render_mode", "max_steps", "max_episode_steps", "size", "seed"}
_ANY = (inspect.Parameter.empty, Any, "Any")  # "Any" with postponed annotations
_DICT = re.compile(r"\b(EnvContext|dict|Dict|Mapping)\b")


@dataclass(frozen=True, slots=True)
class EnvSettings:
    """How the sub-environments of a worker run: the arguments of `to_base_env`, `wrappers` and `ray_address`.

    `wrappers` is the config key `env_wrappers`. `ray_address` is the Ray cluster of remote sub-environments, if this
    process has no connection; see `started_ray`.
    """

    remote_envs: bool = False
    remote_env_batch_wait_ms: float = 0.0
    remote_env_timeout_s: float | None = None
    restart_failed_sub_environments: bool = False
    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None
    action_repeat: int = 1
    frame_stack: int = 1
    wrappers: Sequence[Any] = ()
    ray_address: str | None = None


DEFAULT_SETTINGS = EnvSettings()


def make_base_env(
    creator: Callable[[EnvContext], Any], context: EnvContext, num_envs: int, settings: EnvSettings = DEFAULT_SETTINGS
) -> BaseEnv:
    """Makes the `BaseEnv` of one worker: with the creator's `make_base_env` or `make_vector`, or else from copies.

    Args:
        creator: makes an environment from an `EnvContext`.
        context: context of the first environment.
        num_envs: the number of sub-environments; a vector environment has its own number.
        settings: how the sub-environments run.
    Raises:
        ConfigError: an `env_config` that the environment does not accept.
        EnvError: the creator raised.
    """

    def make_env(index: int) -> Any:
        env = _make(creator, context.at(index))
        if not settings.wrappers:
            return env
        from rollax.env.wrapping import in_wrappers  # loaded only where it is used

        return in_wrappers(env, settings.wrappers)

    if hasattr(creator, "make_base_env"):
        return creator.make_base_env(context, num_envs, settings)
    try:
        if settings.remote_envs:
            context.remote = True
            return from_instance(None, make_env, num_envs, settings)
        # Wrappers apply to single environments, so with wrappers a creator's vector environment is not used.
        make_vector = None if settings.wrappers else getattr(creator, "make_vector", None)
        # `make_env` passes a copy of the context, because an environment may remove the keys that it has read.
        env = make_env(context.vector_index) if make_vector is None else make_vector(context, num_envs)
        copies = (make_env, num_envs) if make_vector is None else (None, 1)
        with cleanup_on_error(getattr(env, "close", lambda: None)):
            return from_instance(env, *copies, settings)
    except RollaxError:
        raise
    except (Exception, SystemExit) as error:  # a module that exits during its import would end the run without an error
        raise _not_made(creator, context, error) from error


def _not_made(creator: Callable[[EnvContext], Any], context: EnvContext, error: BaseException) -> RollaxError:
    missing = checks.missing_of(error)
    if isinstance(error, DependencyNotInstalled) and missing in INSTALLS:
        cause, name = cast(Exception, error.__cause__), _name_of(creator)
        return not_installed("The environment", cause, where=f"env {name}", package=missing, fix=INSTALLS[missing])
    if not (context and isinstance(error, TypeError)):
        return checks.failed(error, "its creator", _name_of(creator))
    got, expected = f"{repr_of(dict(context))}: {type(error).__name__}: {text_of(error)}", _parameters_of(creator)
    return ConfigError(
        "The environment does not accept this env_config.", f"env_config, env {_name_of(creator)}", got
    ).expected(expected, "correct the keys of env_config")


def _name_of(creator: Any) -> str:
    return getattr(creator, "env_id", None) or getattr(creator, "__qualname__", None) or repr(creator)


def _parameters_of(creator: Any) -> str:
    made_by = getattr(creator, "entry_point", creator)
    of_gymnasium = ", or those of gymnasium.make, such as max_episode_steps" if hasattr(creator, "env_id") else ""
    try:
        return f"{getattr(made_by, '__qualname__', made_by)}{signature_of(made_by)}{of_gymnasium}"
    except (TypeError, ValueError):
        return "the keywords of its constructor"


def call_convention(
    creator: Callable[..., Any], env_config: Mapping[str, Any] = MappingProxyType({})
) -> CallConvention:
    """How a creator accepts `env_config`.

    The first parameter gets the `EnvContext`

    - if it alone has no default, or if it has a default and a name such as `config`;
    - if its default is None or {}, and it is annotated as a dict;
    - if its default is None or {}, and it is the only parameter and not annotated. If the default is None, the name of
      the parameter must also end with a word such as `config`, or the creator must not accept the keys of `env_config`.

    Otherwise the keys of `env_config` are passed as keywords, as for most Gymnasium environments. This has precedence
    over the list if the first parameter, without such a name or annotation, is a key of `env_config`, and the creator
    accepts all keys. A creator gets nothing if it has no parameters, or if several have no default.
    """
    try:
        signature = signature_of(creator)
    except ValueError:  # a builtin without a signature
        return "context"
    except TypeError:
        return "nothing"
    parameters = list(signature.parameters.values())
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not placed:
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return "context"
        return "keywords" if any(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in parameters) else "nothing"
    first, *others = placed
    in_context = first.name.strip("_") in _NAMES_OF_CONTEXT
    takes_dict = _DICT.search(str(first.annotation))
    if first.name in env_config and not (in_context or takes_dict) and _accepts(signature, env_config):
        return "keywords"
    if first.default is first.empty:
        return "context" if all(p.default is not p.empty for p in others) else "nothing"
    if in_context:
        return "context"
    fits = takes_dict or (not others and first.annotation in _ANY)
    if not fits or first.name in _NAMES_OF_SETTINGS:
        return "keywords"
    if first.default is None:
        is_dict = takes_dict or first.name.endswith(_ENDS_OF_CONTEXT)
        return "context" if is_dict or not _accepts(signature, env_config) else "keywords"
    return "context" if isinstance(first.default, Mapping) and not first.default else "keywords"


def signature_of(creator: Callable[..., Any]) -> inspect.Signature:
    """The signature of a creator; of a base class if the creator is a class that only takes `*args` and `**kwargs`.

    The base class's signature is used only if all of its arguments have defaults, as settings do.

    Raises:
        ValueError, TypeError: as `inspect.signature`, if there is no signature.
    """
    signature = inspect.signature(creator)
    for cls in creator.__mro__ if _is_open(signature) and isinstance(creator, type) else ():
        if "__init__" in vars(cls) and not _is_open(of_base := inspect.signature(vars(cls)["__init__"])):
            settings = [*of_base.parameters.values()][1:]
            if settings and all(p.default is not p.empty or p.kind is p.VAR_KEYWORD for p in settings):
                return of_base.replace(parameters=settings)
            break
    return signature


def _is_open(signature: inspect.Signature) -> bool:
    """Whether a signature is only `*args, **kwargs`, with or without `self`."""
    kinds = [p.kind for name, p in signature.parameters.items() if name != "self"]
    return kinds == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]


def _accepts(signature: inspect.Signature, keywords: Mapping[str, Any]) -> bool:
    try:
        signature.bind(**keywords)
    except TypeError:
        return False
    return True


def _make(creator: Callable[..., Any], context: EnvContext) -> Any:
    way = call_convention(creator, context)
    if way == "context":
        return creator(context)
    if way == "keywords":
        return creator(**context)
    if context:
        raise ConfigError("The environment does not accept an env_config.", "env_config", dict(context)).expected(
            f"{creator!r} to take one argument, the EnvContext, or keywords",
            "omit env_config, or add the argument to the class",
        )
    return creator()


def from_instance(env: Any, make_env: Callable[[int], Any] | None, num_envs: int, settings: EnvSettings) -> BaseEnv:
    """The `BaseEnv` of an environment that exists, and of further ones that `make_env` makes; see `to_base_env`."""
    declared = Spaces(settings.observation_space, settings.action_space)
    copied = num_envs, declared, settings.restart_failed_sub_environments
    if settings.remote_envs:
        # Imported here: Ray is loaded only for remote sub-environments.
        from rollax.env.remote.remote_base_env import RemoteBaseEnv

        copies = EnvCopies(() if env is None else (env,), make_env, *copied)
        wait_ms, timeout_s = settings.remote_env_batch_wait_ms, settings.remote_env_timeout_s
        remote = RemoteBaseEnv(copies, batch_wait_ms=wait_ms, timeout_s=timeout_s, ray_address=settings.ray_address)
        return _wrapped(remote, settings)
    first = adapted(env)
    adapter, as_copy = adapter_of(first), adapted
    if adapter.kind == JAX_ENV_CLASS:
        if settings.action_repeat > 1 or settings.frame_stack > 1:
            from rollax.env.jax.wrappers import wrapped_in_jax  # loaded only where it is used

            first = wrapped_in_jax(first, settings.action_repeat, settings.frame_stack)
        settings = DEFAULT_SETTINGS
    elif adapter.kind == SINGLE_ENV_CLASS and isinstance(first, gym.Env) and settings.action_repeat > 1:
        from rollax.env.action_repeat import RepeatedSteps  # loaded only where it is used

        times, settings = settings.action_repeat, replace(settings, action_repeat=1)
        first, as_copy = RepeatedSteps(first, times), lambda env, where: RepeatedSteps(adapted(env, where), times)
    make_copy = None if make_env is None else lambda index: as_copy(make_env(index), f"sub-environment {index}")
    base = adapter(EnvCopies((first,), make_copy, *copied))
    with cleanup_on_error(base.stop):
        if adapter.kind in EXTERNAL_CLASSES:
            _refuse_wrappers(base, settings)
        return _wrapped(base, settings)


def _refuse_wrappers(env: BaseEnv, settings: EnvSettings) -> None:
    """Raises ConfigError for wrappers around an external environment, whose clients may bypass the wrappers."""
    for key in ("action_repeat", "frame_stack"):
        if getattr(settings, key) > 1:
            raise ConfigError.no_effect(
                key,
                "an external environment decides when it asks for actions, and what it sends",
                f"config key {key!r}, env {env!r}",
                getattr(settings, key),
            ).fix("leave it out, and repeat actions or stack observations in the simulator")


def _wrapped(env: BaseEnv, settings: EnvSettings) -> BaseEnv:
    """The environment in an `ActionRepeat` inside a `FrameStack`, each only if the settings require it."""
    if settings.action_repeat > 1:
        from rollax.env.action_repeat import ActionRepeat  # loaded only where it is used

        env = ActionRepeat(env, settings.action_repeat)
    if settings.frame_stack > 1:
        from rollax.env.frame_stack import FrameStack  # loaded only where it is used

        env = FrameStack(env, settings.frame_stack)
    return env
