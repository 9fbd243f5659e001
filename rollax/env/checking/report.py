"""What `check_env` reports."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gymnasium import Space

from rollax.env.adapters import adapter_of
from rollax.env.base_env import BaseEnv
from rollax.env.copies import env_name
from rollax.env.vector.vector_env import SteppedInTurn

Severity = Literal["warning", "note"]

_SAID: dict[str, tuple[Severity, str]] = {
    "bounds": ("warning", "out of bounds"),
    "first reward": ("warning", "first reward"),
    "dtype": ("note", "cast"),
    "legacy": ("note", "old interface"),
    "autoreset": ("note", "autoreset"),
    "seed": ("note", "seed"),
}


@dataclass(frozen=True)
class Finding:
    """Something that training would accept.

    Args:
        severity: "warning" where it will probably not do what is meant, "note" where it is only good to know.
        name: in short.
        message: what is so, and where.
    """

    severity: Severity
    name: str
    message: str


@dataclass(frozen=True)
class EnvReport:
    """What `check_env` saw. Its text is the verdict in a few lines.

    Args:
        name: of the environment.
        kind: the interface that it has.
        observation_space: of every agent; None where they differ or the policies name their own.
        action_space: likewise.
        agents: the ids of those that appeared.
        num_envs: how many sub-environments were played.
        episodes: how many ended.
        steps: of all sub-environments.
        findings: what is suspicious.
    """

    name: str
    kind: str
    observation_space: Space | None
    action_space: Space | None
    agents: tuple[Hashable, ...]
    num_envs: int
    episodes: int
    steps: int
    findings: tuple[Finding, ...]

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that are more than a note."""
        return tuple(finding for finding in self.findings if finding.severity == "warning")

    def __str__(self) -> str:
        verdict = f", with {_count(len(self.warnings), 'warning')}" if self.warnings else ""
        shown = ", ".join(map(str, self.agents[:8])) + (f", … ({len(self.agents)})" if len(self.agents) > 8 else "")
        by_agent = "of each agent its own"
        lines = [
            f"{self.name}: fit for training{verdict}",
            f"  kind:         {self.kind}",
            f"  observations: {self.observation_space or by_agent}",
            f"  actions:      {self.action_space or by_agent}",
            f"  agents:       {shown}",
            f"  played:       {_count(self.episodes, 'episode')}, {_count(self.steps, 'step')}, in "
            f"{_count(self.num_envs, 'sub-environment')}",
        ]
        return "\n".join([*lines, *(f"  {f.severity}: {f.name}: {f.message}" for f in self.findings)])


def findings_of(said: Mapping[tuple[str, str], str]) -> list[Finding]:
    """What training would say once in its log."""
    return [
        Finding(*_SAID.get(topic, ("note", topic)), message.removesuffix(" Said once."))
        for (topic, _), message in said.items()
    ]


def kind_of(base: BaseEnv) -> str:
    """The interface of what was given, such as "gymnasium.Env"."""
    package, dot, name = adapter_of(_given(base)).kind.rpartition(".")
    return f"{package.partition('.')[0]}{dot}{name}"


def name_of(base: BaseEnv) -> str:
    """What error messages call it."""
    given = _given(base)
    return (getattr(given, "metadata", None) or {}).get("name") or env_name(given)


def _given(base: BaseEnv) -> Any:
    """The environment as it was given, or its first copy."""
    if not type(base).__module__.startswith("rollax."):
        return base
    inner = getattr(base, "env", None)
    if isinstance(inner, BaseEnv):
        return _given(inner)
    if inner is None or isinstance(inner, SteppedInTurn):
        return next(iter(base.get_sub_environments()), inner)
    return getattr(inner, "as_written", inner)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
