"""`diagnose`: what is wrong in a run, and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gymnasium import Space

from rollax.algorithms.trainer import Trainer
from rollax.core.atomic_files import read_regular
from rollax.core.numbers import is_whole
from rollax.core.space_json import space_from_json
from rollax.core.storage import from_json_bytes
from rollax.doctor.played import Played, play_episodes
from rollax.doctor.played_rules import PLAYED_RULES
from rollax.errors import CheckpointError, ConfigError, RollaxError
from rollax.runs.comparison import experiment_of
from rollax.runs.display import shown_path, title_of
from rollax.runs.results import read_results
from rollax.runs.rules.finding import SEVERITIES, Finding, Severity, findings_of, name_of
from rollax.runs.rules.statistics import RunStatistics
from rollax.runs.rules.table import RULES
from rollax.runs.run_folder import BEST, newest_saved
from rollax.runs.run_lock import refuse_used

PLAYED_EPISODES = 5
"""Episodes that a diagnosis plays by default."""
_MOST_BYTES = 1 << 26


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The findings of the rules in a run; `print` shows the details, and `len` is the number of findings.

    Args:
        run: the run folder.
        title: algorithm, environment and size of the run.
        findings: the worst first.
        played: a sentence that says how many trajectories the newest checkpoint has played, or why it has played none.
        plays: whether episodes were played, so that the rules about them were applied.
    """

    run: Path
    title: str
    findings: tuple[Finding, ...]
    played: str
    plays: bool

    @property
    def worst(self) -> Severity | None:
        """The worst severity; None without findings."""
        return self.findings[0].severity if self.findings else None

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __repr__(self) -> str:
        return f"Diagnosis({self.title}: {self._counts()}; print it for details)"

    def __str__(self) -> str:
        return "\n\n".join([f"{self.title}\n{self.played}\n{self._counts()}", *map(str, self.findings)])

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as plain values, by name."""
        findings = [finding.to_json() for finding in self.findings]
        said = {"title": self.title, "played": self.played, "plays": self.plays}
        return {"run": str(self.run), **said, "findings": findings}

    def _counts(self) -> str:
        counts = {name: sum(finding.severity == name for finding in self) for name in SEVERITIES}
        text = ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items())
        return (
            text if self.plays else f"{text} in the logged statistics alone: the rules about episodes were not applied"
        )


def diagnose(
    run: str | Path,
    *,
    play: int = PLAYED_EPISODES,
    env: Any = None,
    trainer_class: type[Trainer] | None = None,
    trust_code: bool = False,
) -> Diagnosis:
    """Returns what is wrong in a run, by which numbers, and which config keys to change.

    The diagnosis is made from the results in the run folder. If there is a checkpoint, its policies also play some
    episodes, which show the scale of observations, dead units, and the difference between values and returns.

    Args:
        run: the folder of a run, which may still go on.
        play: number of episodes to play, or more until they have 200 steps together; 0 plays none.
        env: the environment to play in, if the checkpoint names your own code; None for the checkpoint's environment.
        trainer_class: your own trainer class, if the run has one.
        trust_code: import the classes and functions that the checkpoint names; only if you trust its origin.
    Raises:
        RollaxError: `run` is not a run folder, or has no results yet.
        ConfigError: `play` is not a whole number of at least 0.
    """
    if not (is_whole(play) and play >= 0):
        raise ConfigError.out_of_range("play", "diagnose(play=...)", play, "a whole number of at least 0")
    folder = Path(run)
    results, _ = read_results(folder)
    experiment = experiment_of(folder)
    statistics = RunStatistics(
        experiment["run"],
        experiment["env"],
        experiment["config"],
        results,
        stop=experiment.get("stop") or {},
        ended=_has_ended(folder),
        has_best=(folder / BEST).exists(),
        action_spaces=_action_spaces(folder),
    )
    rows, how = {}, "No episodes were played."
    if play:
        try:
            rows = _played(folder, play, {} if env is None else {"env": env}, trainer_class, trust_code)
        except RollaxError as error:
            fix = f"\n  fix: {error.parts['fix']}" if error.parts.get("fix") else ""
            how = f"No episodes were played: {error.parts['what']}{fix}"
    if rows:
        how = f"{sum(len(of.lengths) for of in rows.values())} trajectories were played with the newest checkpoint."
    findings = findings_of(RULES, statistics) + [
        replace(finding, policy=policy, rule=name_of(rule))
        for policy, of_policy in rows.items()
        for rule in PLAYED_RULES
        for finding in rule(statistics, policy, of_policy)
    ]
    size = f"{len(results)} iterations, {statistics.steps:,.0f} steps"
    title = f"{title_of(experiment['run'], experiment['env'])}, {size}  ({shown_path(folder)})"
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Diagnosis(folder, title, tuple(findings), how, plays=bool(rows))


def _has_ended(run: Path) -> bool:
    """Whether no process writes into the run folder any more."""
    try:
        refuse_used(run, "diagnose(run)")
    except ConfigError:
        return False
    return True


def _action_spaces(run: Path) -> dict[str, Space]:
    """Returns policy id -> action space, from the newest checkpoint; empty if it cannot be read.

    The rules that are applied during a run get the spaces from the policies, and give the same findings.
    """
    checkpoint = newest_saved(run)
    if checkpoint is None:
        return {}
    file = checkpoint / "about.json"
    try:
        policies = from_json_bytes(read_regular(file, _MOST_BYTES), str(file))["policies"]
        return {
            name: space_from_json(policy["action_space"], f"{file}: action_space") for name, policy in policies.items()
        }
    except (RollaxError, OSError, KeyError, TypeError, AttributeError):
        return {}


def _played(
    run: Path,
    episodes: int,
    changes: Mapping[str, Any],
    trainer_class: type[Trainer] | None,
    trust_code: bool,
) -> dict[str, Played]:
    """Plays with the newest checkpoint and `changes` of its config; returns policy id -> the rows that it played."""
    checkpoint = newest_saved(run)
    if checkpoint is None:
        raise CheckpointError("The run has no checkpoint.", str(run))
    opener = Trainer if trainer_class is None else trainer_class
    with opener.from_checkpoint(checkpoint, trust_code=trust_code, learn=False, **changes) as trainer:
        return play_episodes(trainer, episodes)
