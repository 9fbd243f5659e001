"""The report of `check_env`."""

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
    """A finding that training would not detect.

    Args:
        severity: "warning" for a probable mistake, "note" for information.
        name: short name.
        message: description with location.
    """

    severity: Severity
    name: str
    message: str


@dataclass(frozen=True)
class EnvReport:
    """The report of `check_env`; `str` gives a summary.

    Args:
        name: name of the environment.
        kind: its interface.
        observation_space: space of every agent; None if they differ or the policies define them.
        action_space: likewise.
        agents: ids of the agents that appeared.
        num_envs: number of sub-environments.
        episodes: number of ended episodes.
        steps: environment steps of all sub-environments.
        findings: the findings.
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
        """The findings with severity "warning"."""
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
    """Returns the findings that training would log once."""
    return [
        Finding(*_SAID.get(topic, ("note", topic)), message.removesuffix(" Said once."))
        for (topic, _), message in said.items()
    ]


def kind_of(base: BaseEnv) -> str:
    """Returns the interface of an environment, such as "gymnasium.Env"."""
    package, dot, name = adapter_of(_given(base)).kind.rpartition(".")
    return f"{package.partition('.')[0]}{dot}{name}"


def name_of(base: BaseEnv) -> str:
    """Returns the name of an environment in error messages."""
    given = _given(base)
    return (getattr(given, "metadata", None) or {}).get("name") or env_name(given)


def _given(base: BaseEnv) -> Any:
    """Returns the environment as it was given, or its first copy."""
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
