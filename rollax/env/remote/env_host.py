"""`EnvHost`: holds one sub-environment, usually in another process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

import gymnasium as gym

from rollax.core import trees
from rollax.env import checks
from rollax.env.adapters import JAX_ENV_CLASS, adapted, has_base, is_stepped
from rollax.env.base_env import BaseEnv
from rollax.env.checks import env_name
from rollax.env.copies import NO_SPACES, Spaces, check_spaces, space_of
from rollax.env.multi_agent.multi_agent_env import MultiAgentEnv, spaces_of_agents
from rollax.env.registrations import Registrations, register_all
from rollax.env.vector import VectorEnv, frame_of
from rollax.errors import EnvError, text_of

AttributeKind = Literal["method", "env", "value"]


@dataclass(frozen=True, slots=True)
class EnvFacts:
    """The name, spaces and agents of an environment in another process."""

    name: str
    several_agents: bool
    observation_space: gym.Space | None
    action_space: gym.Space | None
    observation_spaces: Mapping[Hashable, gym.Space] | None = None
    action_spaces: Mapping[Hashable, gym.Space] | None = None
    possible_agents: Sequence[Hashable] | None = None


class NoAttributeError(EnvError, AttributeError):
    """An environment in another process does not have an attribute; `hasattr` of its proxy is then false."""


class EnvHost:
    """Holds one sub-environment. An exception of the environment becomes the cause of an `EnvError`.

    `existing` is used once instead of `make_env`; `registered` are the registrations of the driver's process.
    """

    def __init__(
        self,
        index: int,
        make_env: Callable[[int], Any],
        existing: Any = None,
        declared: Spaces = NO_SPACES,
        registered: Registrations | None = None,
    ) -> None:
        self.index = index
        self._make_env = make_env
        self._existing = existing
        self._declared = declared
        self._env: Any = None
        self._where = f"sub-environment {index}"
        if registered is not None:
            register_all(registered)

    def make(self, expected: EnvFacts | None = None) -> EnvFacts:
        """Closes the environment and makes a new one; `expected` holds the spaces that the new one must have."""
        with contextlib.suppress(Exception):  # the old environment has failed, and the failure is already reported
            self._close()
        return self._attempt("its creator", lambda: self._made(expected))

    def _made(self, expected: EnvFacts | None) -> EnvFacts:
        self._env = env = adapted(self._make_env(self.index) if self._existing is None else self._existing)
        self._existing = None
        facts = facts_of(env, self._declared)
        self._where = f"{facts.name}, sub-environment {self.index}"
        check_spaces(facts, expected or facts, self._where, may_lack_spaces=facts.several_agents)
        return facts

    def reset(self, seed: int | None) -> Any:
        return self._attempt("reset()", lambda: self._env.reset(seed=seed))

    def step(self, action: Any) -> Any:
        action = trees.copied(action)  # Ray's arrays are read-only
        return self._attempt("step()", lambda: self._env.step(action), action)

    def render(self) -> Any:
        return self._attempt("render()", lambda: frame_of(self._env))

    # Names are attributes of the user's environment, or of environments in it, as in "unwrapped.level".

    def look_up(self, name: str) -> tuple[AttributeKind, Any]:
        """`(kind, value)` of an attribute; the value is None for a method or an environment."""

        def found() -> tuple[AttributeKind, Any]:
            try:
                value = self._at(name)
            except AttributeError as error:
                raise NoAttributeError(
                    "The environment does not have this attribute.", self._where, text_of(error)
                ).expected("an attribute or a method of the user's environment", "correct the name") from error
            if is_stepped(value) and not isinstance(value, type):
                return "env", None  # a copy would be another environment
            return ("method", None) if callable(value) else ("value", value)

        return self._attempt(name, found)

    def assign(self, name: str, value: Any) -> None:
        """Sets an attribute."""
        owner, _, last = name.rpartition(".")
        self._attempt(f"setting {name}", lambda: setattr(self._at(owner), last, value))

    def call(self, name: str, arguments: tuple, keywords: dict) -> Any:
        """Calls a method, and returns its result."""
        return self._attempt(f"{name}()", lambda: self._at(name)(*arguments, **keywords))

    def close(self) -> None:
        self._attempt("close()", self._close)

    @property
    def _as_written(self) -> Any:
        return getattr(self._env, "as_written", self._env)

    def _at(self, name: str) -> Any:
        return attrgetter(name)(self._as_written) if name else self._as_written

    def _close(self) -> None:
        env, self._env = self._env, None
        getattr(env, "close", lambda: None)()

    def _attempt(self, doing: str, call: Callable[[], Any], action: Any = None) -> Any:
        with checks.failures_named(doing, self._where, action):
            return call()


def facts_of(env: Any, declared: Spaces) -> EnvFacts:
    """The facts of a single-agent or multi-agent environment; `EnvError` for other kinds."""
    if isinstance(env, MultiAgentEnv):
        observation_space, observation_spaces = spaces_of_agents(env, "observation_space")
        action_space, action_spaces = spaces_of_agents(env, "action_space")
        spaces = (observation_space, action_space, observation_spaces, action_spaces)
        return EnvFacts(env_name(env), True, *spaces, getattr(env, "possible_agents", None) or None)
    is_several = isinstance(env, VectorEnv | gym.vector.VectorEnv | BaseEnv) or has_base(env, JAX_ENV_CLASS)
    if is_several or not (hasattr(env, "reset") and hasattr(env, "step")):
        raise EnvError("The environment cannot be a remote sub-environment.", "remote_envs", env).expected(
            "a Gymnasium, PettingZoo or MultiAgentEnv",
            "leave remote_worker_envs out if the env has its own sub-environments or thread, or is in JAX",
        )
    spaces = (space_of(env, "observation_space", declared), space_of(env, "action_space", declared))
    return EnvFacts(env_name(env), False, *spaces)
