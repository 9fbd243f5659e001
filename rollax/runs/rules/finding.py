"""`Finding`: what a rule has found in a run, and `Rule`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from rollax.batch import DEFAULT_POLICY

if TYPE_CHECKING:
    from rollax.runs.rules.statistics import RunStatistics

Severity = Literal["problem", "warning", "note"]
"""problem: training cannot succeed like this; warning: training probably suffers; note: worth knowing."""
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """What is wrong, by which number, where, and what to change.

    Args:
        severity: how serious the finding is.
        what: a sentence about what is wrong.
        quantity: the statistic that shows it.
        number: the value of the statistic.
        limit: the value beyond which the rule reports a finding.
        where: the iterations or episodes.
        key: the config key to change; None if the remedy is outside of the config.
        change: "up", "down", or the new value of the key.
        remedy: a sentence about what to do.
        policy: the policy; None if the finding is about the whole run.
        rule: the name of the rule.
    """

    severity: Severity
    what: str
    quantity: str
    number: float
    limit: float
    where: str
    key: str | None
    change: str | None
    remedy: str
    policy: str | None = None
    rule: str = ""

    def __str__(self) -> str:
        of = "" if self.policy in (None, DEFAULT_POLICY) else f"policy {self.policy!r}, "
        change = "" if self.key is None else f"\n  key:     {self.key}: {self.change}"
        return (
            f"{self.severity}: {self.what}\n"
            f"  number:  {self.quantity} = {self.number:.4g}, limit {self.limit:.4g}\n"
            f"  where:   {of}{self.where}\n"
            f"  remedy:  {self.remedy}{change}\n"
            f"  rule:    {self.rule}"
        )

    def to_json(self) -> dict[str, Any]:
        """The finding as plain values, by name."""
        return dataclasses.asdict(self)


Rule = Callable[["RunStatistics"], Iterator[Finding]]
"""A function that yields its findings in a run. Its docstring states the rule and the source of its limit."""


def name_of(rule: Callable[..., Iterator[Finding]]) -> str:
    """Returns the name of a rule as findings show it, such as explained-variance."""
    return rule.__name__.replace("_", "-")


def findings_of(rules: Iterable[Rule], run: RunStatistics) -> list[Finding]:
    """Returns what the rules find in a run, the worst first."""
    found = [dataclasses.replace(finding, rule=name_of(rule)) for rule in rules for finding in rule(run)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))
