"""The table of environment kinds: how each is recognized, and which function adapts it.

The module of an adapter is imported for the first environment of its kind. A kind is recognized by the import path of a
base class, or by its methods, so that no other library is imported here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym

from rollax.core.importing import ImportPath, import_object
from rollax.errors import ConfigError, EnvError


@dataclass(frozen=True, slots=True)
class EnvAdapter:
    """One kind of environment.

    Args:
        kind: the import path of its base class, or a name.
        adapter: a function that takes an environment and returns an environment of another kind; with
            `makes_base_env`, a function that takes `EnvCopies` and returns a `BaseEnv`. Or the path "module:function"
            of such a function.
        recognizes: returns whether an environment is of this kind; None compares the base classes with `kind`.
        makes_base_env: whether `adapter` makes the `BaseEnv`, the last step of every conversion.
    """

    kind: str
    adapter: Callable[[Any], Any] | str
    recognizes: Callable[[Any], bool] | None = None
    makes_base_env: bool = False

    def matches(self, env: Any) -> bool:
        return has_base(env, self.kind) if self.recognizes is None else self.recognizes(env)

    def __call__(self, env: Any) -> Any:
        if isinstance(self.adapter, str):
            return import_object(ImportPath(self.adapter), f"the adapter of {self.kind}")(env)
        return self.adapter(env)


def has_base(env: Any, path: str) -> bool:
    """Whether the environment's class, or a base of it, has the path's name, and is in the path's module or package."""
    package, _, name = path.rpartition(".")
    return any(cls.__name__ == name and f"{cls.__module__}.".startswith(f"{package}.") for cls in type(env).__mro__)


def asks_spaces_by_agent(env: Any) -> bool:
    """Whether `observation_space` is a method that takes an agent id; only PettingZoo's environments have one."""
    space = getattr(env, "observation_space", None)
    if not is_stepped(env) or isinstance(env, type) or isinstance(space, gym.Space) or not callable(space):
        return False
    if not parameters_of(space):  # a method in the place of an attribute
        return False
    return not requires_arguments(env.reset)  # gymnax's `observation_space` has an argument too, and `reset` a key


def takes_turns(env: Any) -> bool:
    """Whether an environment has PettingZoo's AEC API."""
    return asks_spaces_by_agent(env) and hasattr(env, "last") and hasattr(env, "observe")


def is_legacy(env: Any) -> bool:
    """Whether `reset` takes no seed or may omit its info, as in the old Gym interface."""
    reset = getattr(env, "vector_reset", None) or getattr(env, "reset", None)
    if reset is None or isinstance(env, gym.vector.VectorEnv):
        return False
    parameters = parameters_of(reset)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return "return_info" in parameters or not (takes_any or "seed" in parameters or "seeds" in parameters)


def parameters_of(function: Callable) -> Any:
    """The parameters of a function, by name; only `seed` for a function without a signature."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # compiled functions may have no signature
        return {"seed": inspect.Parameter("seed", inspect.Parameter.KEYWORD_ONLY, default=None)}


def requires_arguments(function: Callable) -> bool:
    """Whether a function has required arguments other than `seed` and `options`, such as `reset(key)`."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = {name for name, p in parameters_of(function).items() if p.default is p.empty and p.kind not in variable}
    return bool(required - {"seed", "options"})


def is_stepped(env: Any) -> bool:
    return hasattr(env, "reset") and hasattr(env, "step")


JAX_ENV_CLASS = "rollax.env.jax.jax_env.JaxEnv"
SINGLE_ENV_CLASS = "gymnasium.Env"
EXTERNAL_CLASSES = tuple(f"rollax.env.external.external_env.External{kind}" for kind in ("Env", "MultiAgentEnv"))
_base_env = partial(EnvAdapter, makes_base_env=True)
_EXTERNAL = "rollax.env.external.external_base_env:ExternalBaseEnv"
_MULTI_AGENT = "rollax.env.multi_agent"
_LIBRARIES = "rollax.env.jax.libraries"
_BUILT_IN = (
    _base_env("rollax.env.base_env.BaseEnv", "rollax.env.row_checks:with_checked_rows"),
    _base_env(JAX_ENV_CLASS, "rollax.env.jax.jax_base_env:JaxBaseEnv"),
    _base_env("rollax.env.jax.torch_vector_env.TorchVectorEnv", "rollax.env.jax.torch_vector_env:TorchBaseEnv"),
    EnvAdapter("brax.envs.base.Env", f"{_LIBRARIES}.brax_env:from_brax"),
    EnvAdapter("gymnax.environments.environment.Environment", f"{_LIBRARIES}.gymnax_env:GymnaxEnv"),
    EnvAdapter("jaxmarl.environments.multi_agent_env.MultiAgentEnv", f"{_LIBRARIES}.jaxmarl_env:from_jaxmarl"),
    EnvAdapter("jumanji.env.Environment", f"{_LIBRARIES}.jumanji_env:from_jumanji"),
    EnvAdapter("mujoco_playground.MjxEnv", f"{_LIBRARIES}.playground_env:from_playground"),
    EnvAdapter("navix.environments.environment.Environment", f"{_LIBRARIES}.navix_env:NavixEnv"),
    EnvAdapter("pgx.core.Env", f"{_LIBRARIES}.pgx_env:from_pgx"),
    EnvAdapter("ray.rllib.env.multi_agent_env.MultiAgentEnv", "rollax.env.rllib_env:RLlibEnv"),
    EnvAdapter("stable_baselines3.common.vec_env.VecEnv", "rollax.env.vector.sb3_vec_env:SB3VectorEnv"),
    EnvAdapter("dm_env.Environment", "rollax.env.dm_environment:DMEnvironment"),
    EnvAdapter("pettingzoo.AECEnv", f"{_MULTI_AGENT}.pettingzoo_env:AECPettingZooEnv", takes_turns),
    EnvAdapter("pettingzoo.ParallelEnv", f"{_MULTI_AGENT}.pettingzoo_env:ParallelPettingZooEnv", asks_spaces_by_agent),
    EnvAdapter("the old Gym interface", "rollax.env.legacy:adapt", is_legacy),
    _base_env("gymnasium.vector.VectorEnv", "rollax.env.vector.native_vector_env:NativeVectorEnv"),
    _base_env("rollax.env.vector.VectorEnv", "rollax.env.vector.vector_base_env:VectorBaseEnv"),
    *(_base_env(external, _EXTERNAL) for external in EXTERNAL_CLASSES),
    _base_env(
        f"{_MULTI_AGENT}.multi_agent_env.MultiAgentEnv", f"{_MULTI_AGENT}.multi_agent_base_env:MultiAgentBaseEnv"
    ),
    _base_env(SINGLE_ENV_CLASS, "rollax.env.vector.vector_base_env:VectorBaseEnv", is_stepped),
)
_registered: dict[str, EnvAdapter] = {}


def register_env_adapter(
    kind: str, adapter: Callable[[Any], Any] | str, recognizes: Callable[[Any], bool] | None = None
) -> None:
    """Adds a kind of environment, which is then accepted wherever rollax takes an environment.

    Registered kinds are tried before the built-in ones, the latest first. A later registration of the same kind
    replaces the earlier one. Registrations are passed to worker processes.

    Args:
        kind: the import path of the base class of these environments, such as "mylib.Env", which is not imported.
        adapter: a function of one environment, or its path "module:function", which is imported when it is first
            needed. It returns an environment of any other kind.
        recognizes: returns whether an environment is of this kind, if a base class does not identify it; `kind` is then
            a name.
    Raises:
        ConfigError: an adapter that is neither a function nor a path.
    """
    if not (callable(adapter) or (isinstance(adapter, str) and ":" in adapter)):
        raise ConfigError.not_callable(
            "The adapter", f"register_env_adapter({kind!r})", adapter, 'a function, or its path "module:function"'
        )
    _registered.pop(kind, None)
    _registered[kind] = EnvAdapter(kind, adapter, recognizes)


def registered_adapters() -> dict[str, EnvAdapter]:
    """The kinds registered in this process, by their names."""
    return dict(_registered)


def adapter_of(env: Any, where: str = "to_base_env") -> EnvAdapter:
    """The first entry of the table that recognizes an environment; `EnvError` if none does."""
    if (adapter := _matching(env)) is not None:
        return adapter
    raise EnvError("This is not an environment.", where, env).expected(
        "a BaseEnv, VectorEnv, gymnasium.vector.VectorEnv, MultiAgentEnv, ExternalEnv, or one with reset and step",
        "return an instance from the creator, not a class or None; call register_env_adapter for your own kind",
    )


def is_recognized(env: Any) -> bool:
    return _matching(env) is not None


def _matching(env: Any) -> EnvAdapter | None:
    if isinstance(env, type):  # a class has the methods of its instances
        return None
    return next((adapter for adapter in (*reversed(_registered.values()), *_BUILT_IN) if adapter.matches(env)), None)


def adapted(env: Any, where: str = "to_base_env") -> Any:
    """Converts an environment to a kind from which a `BaseEnv` can be made; returns such an environment unchanged.

    Raises:
        EnvError: an object that is not an environment, or adapters that return a kind that was already adapted.
        ConfigError: the path of an adapter does not import.
    """
    kinds: list[str] = []
    while not (adapter := adapter_of(env, where)).makes_base_env:
        if adapter.kind in kinds:
            what, expected = "The adapters form a cycle.", "an environment of another kind"
            raise EnvError(
                what, f"register_env_adapter({adapter.kind!r})", " -> ".join([*kinds, adapter.kind])
            ).expected(expected, "return a built-in kind, such as gymnasium.Env or rollax.MultiAgentEnv")
        kinds.append(adapter.kind)
        env = adapter(env)
    return env
