"""The command estimate."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rollax.cli.console import CheckpointArgument, ImportOption, TracebackOption, TrustOption, readable_errors
from rollax.cli.parsing import parse_config
from rollax.errors import ConfigError

if TYPE_CHECKING:
    from rollax.offline.estimators.estimate import Estimates


def estimate(
    checkpoint: CheckpointArgument,
    input: Annotated[list[str], typer.Option("--input", metavar="DATA", help="A data set: file, folder or pattern.")],  # noqa: A002
    methods: Annotated[
        str, typer.Option(metavar="NAMES", help="Estimators: is, pdis, wis, wpdis, dm, dr.")
    ] = "wis,dm,dr",
    policy_id: Annotated[
        str | None, typer.Option(metavar="POLICY", help="The policy of a multi-agent checkpoint.")
    ] = None,
    data_policy_id: Annotated[
        str | None,
        typer.Option(metavar="POLICY", help="Policy id in the data; by default the only one, or the same as in RUN."),
    ] = None,
    greedy: Annotated[bool, typer.Option(help="Estimate the greedy policy, not the one that explores.")] = False,
    gamma: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="Discount γ; by default that of the checkpoint.")
    ] = None,
    behaviour: Annotated[
        str,
        typer.Option(metavar="NAME", help="Behaviour policy: logged, or fitted if the data has no log-probabilities."),
    ] = "logged",
    drop_cut: Annotated[
        bool,
        typer.Option(help="Accept more than 10 % of cut episodes, which are always left out."),
    ] = False,
    level: Annotated[float, typer.Option(metavar="NUMBER", help="Level of the confidence intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the bootstrap and of fitted values.")] = 0,
    settings: Annotated[
        str, typer.Option(metavar="JSON", help="Settings of the data set's format, as a JSON object.")
    ] = "{}",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    trust_code: TrustOption = False,
    imports: ImportOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Estimate the value of a policy from the episodes of another one, without running it."""
    with readable_errors(traceback, imports):
        if behaviour not in ("logged", "fitted"):
            raise ConfigError.unknown("behaviour policy", behaviour, ("logged", "fitted"), "--behaviour")
        from rollax.algorithms.load_policy import load_policy
        from rollax.batch import DEFAULT_POLICY
        from rollax.offline.estimators.estimate import estimate_policy
        from rollax.offline.reader import open_dataset
        from rollax.runs.results import to_json

        runner = load_policy(checkpoint, policy_id or DEFAULT_POLICY, trust_code=trust_code)
        reader = open_dataset(input, **parse_config(settings, "--settings"))
        with progress_on_stderr():
            found = estimate_policy(
                runner,
                reader,
                [name.strip() for name in methods.split(",")],
                explore=not greedy,
                policy_id=data_policy_id,
                drop_cut=drop_cut,
                gamma=gamma,
                behaviour=behaviour,
                level=level,
                seed=seed,
            )
        print(to_json(asdict(found)) if as_json else "\n".join(_lines(found)))


@contextmanager
def progress_on_stderr() -> Iterator[None]:
    """Shows the progress of fits, without the warnings, which are part of the command's own output."""
    log, handler = logging.getLogger("rollax.offline.estimators"), logging.StreamHandler()
    handler.addFilter(lambda record: record.levelno < logging.WARNING)
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]


def _lines(found: Estimates) -> list[str]:
    """A table of the data's own value, and of each estimate with its interval."""
    interval = f"{found.level:.0%} interval"
    lines = [
        f"{found.episodes:,} episodes, {found.steps:,} steps, γ = {found.gamma:g}",
        f"{'':<10}{'value':>12}  {interval}",
        f"{'data':<10}{found.v_behavior:>12.4g}  {found.behavior_low:.4g} to {found.behavior_high:.4g}",
    ]
    for name, one in found.methods.items():
        lines.append(f"{name:<10}{one.v_target:>12.4g}  {one.low:.4g} to {one.high:.4g}")
    if found.effective_sample_size is not None:
        lines.append(f"effective sample size {found.effective_sample_size:.1f} of {found.episodes:,} episodes")
    return [*lines, *(f"warning: {warning}" for warning in found.warnings)]
