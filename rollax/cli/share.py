"""`rollax share`, `rollax fetch` and `rollax play`: share a run, and use a run that others shared."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollax.cli.checkpoints import open_trainer
from rollax.cli.commands import play_greedily
from rollax.cli.completion import complete_run
from rollax.cli.console import (
    CheckpointArgument,
    EnvOption,
    EnvSeedOption,
    ImportOption,
    RunOption,
    TracebackOption,
    TrustOption,
    VideoOption,
    passed,
    readable_errors,
)
from rollax.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from rollax.sharing.score import Score

DIFFERENT = 1
"""The exit code of `play --verify` if the mean differs from the shared mean by more than three standard errors."""

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="A shared run: a folder, a zip file, or hub:ORG/NAME.", autocompletion=complete_run
    ),
]


def share(
    run: CheckpointArgument,
    to: Annotated[
        str, typer.Option(metavar="PLACE", help="A new folder, a new file ending with .zip, or hub:ORG/NAME.")
    ],
    episodes: Annotated[int, typer.Option(min=1, metavar="N", help="Number of greedy episodes of the score.")] = 20,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of these episodes.")] = 0,
    video: Annotated[
        bool | None,
        typer.Option("--video/--no-video", help="Add a video of an episode; by default if that is possible."),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository of the hub private.")] = False,
    env: EnvOption = None,
    trainer: RunOption = None,
    trust_code: TrustOption = False,
    imports: ImportOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Measure a trained policy and share it: a folder, a zip file or a repository, without code in it."""
    from rollax.algorithms.named_trainers import trainer_class_named
    from rollax.runs.display import shown_path
    from rollax.sharing.share import share_run

    with readable_errors(traceback, imports):
        options = passed(env=env, trainer_class=None if trainer is None else trainer_class_named(trainer))
        place, score = share_run(
            run, to, episodes=episodes, seed=seed, video=video, private=private, trust_code=trust_code, **options
        )
        print(f"mean reward {score} over {len(score.rewards)}")
        print(place if "://" in place else shown_path(Path(place)))


def fetch(
    source: SourceArgument,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The new folder.")],
    traceback: TracebackOption = False,
) -> None:
    """Write a shared run into a new folder, from which `rollax train --resume` goes on."""
    from rollax.runs.display import shown_path
    from rollax.sharing.share import fetch_run

    with readable_errors(traceback):
        print(shown_path(fetch_run(source, out)))


def play(
    source: SourceArgument,
    episodes: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of episodes; by default 5.")] = None,
    video: VideoOption = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Play the episodes of the shared score, and exit with 1 if the score differs."),
    ] = False,
    seed: EnvSeedOption = None,
    env: EnvOption = None,
    run: RunOption = None,
    imports: ImportOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Play a shared policy greedily, without trust in its author."""
    from rollax.sharing.contents import newest_in
    from rollax.sharing.needs import ENV, TRAINER
    from rollax.sharing.score import read_score
    from rollax.sharing.share import fetched

    with readable_errors(traceback, imports), fetched(source) as folder:
        stated, checkpoint = read_score(folder), newest_in(folder)
        changes = passed(env=env, seed=seed)
        named = [ENV] * (env is not None) + [TRAINER] * (":" in (run or ""))
        _refuse_missing_code(source, checkpoint, named)
        if verify:
            for name, value in {"seed": seed, "episodes": episodes, "video": video}.items():
                if value is not None:
                    why = "--verify plays the episodes of the stated score"
                    raise ConfigError.no_effect(f"--{name}", why, "rollax play", str(value), "no such option")
            _verify(source, stated, checkpoint, run, changes)
            return
        play_greedily(checkpoint, episodes or 5, video, run=run, trust_code=False, **changes)
        if stated is not None:
            print(f"stated: mean reward {stated} over {len(stated.rewards)}")


def _refuse_missing_code(source: str, checkpoint: Path, named: Iterable[str]) -> None:
    """Raises CheckpointError if the run needs code of its author besides what the caller has `named`."""
    from rollax.sharing.needs import code_in

    if not (missing := code_in(checkpoint).without(*named)):
        return
    fix = f"pass it by {shlex.join(missing.options)}, if you have this code and trust it"
    if not missing.is_named_by_options:
        fix = (
            f"if you have this code and trust the files: `rollax fetch {shlex.quote(source)} --out=run`, and then "
            "`rollax evaluate run --trust-code`"
        )
    names = ", ".join(f"{key}: {path or 'code without an import path'}" for key, path in missing.paths.items())
    raise CheckpointError(
        "The shared run needs code of its author, which is not in it and is not imported.", source, names
    ).expected("code that you name", fix)


def _verify(source: str, stated: Score | None, checkpoint: Path, run: str | None, changes: Mapping[str, Any]) -> None:
    """Measures the score again; raises typer.Exit if the means differ by more than three standard errors."""
    from rollax.sharing.score import measure

    if stated is None:
        raise CheckpointError("The shared run states no score.", source).expected(
            "a run with the file score.json, as `rollax share` writes it", "play it without --verify"
        )
    with open_trainer(checkpoint, run=run, trust_code=False, learn=False, seed=stated.seed, **changes) as trainer:
        found = measure(trainer, stated.env, len(stated.rewards))
    agreement = stated.agreement(found)
    print(f"stated  mean reward {stated} over {len(stated.rewards)}  ({_versions(stated.versions)})")
    print(f"here    mean reward {found} over {len(found.rewards)}  ({_versions(found.versions)})")
    print(
        {
            "equal": "Equal in every episode.",
            "close": "The episodes differ, the means by less than three standard errors.",
            "different": "The means differ by more than three standard errors.",
        }[agreement]
    )
    if agreement == "different":
        raise typer.Exit(DIFFERENT)


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
