"""`rollax check`: checks an environment for training."""

from __future__ import annotations

from typing import Annotated

import typer

from rollax.cli.console import ImportOption, TracebackOption, import_first, readable_errors, show_error
from rollax.cli.experiment import parse_config
from rollax.errors import EnvError, SpaceError

NOT_FIT = 1


def check(
    env: Annotated[str, typer.Argument(help="A Gymnasium id, a registered name, or module:Class.")],
    env_config: Annotated[str, typer.Option(metavar="JSON", help="Its settings, as a JSON object.")] = "{}",
    episodes: Annotated[int, typer.Option(min=1, help="How many episodes of each sub-environment to play.")] = 2,
    max_steps: Annotated[int, typer.Option(min=1, help="Play no more steps than that.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the environment and of the random actions.")] = 0,
    imports: ImportOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Play an environment with random actions and report whether it is fit for training."""
    from rollax.env.checking.check_env import check_env

    with readable_errors(traceback):
        import_first(imports)
        settings = parse_config(env_config, "--env-config")
        try:
            report = check_env(env, settings, episodes=episodes, max_steps=max_steps, seed=seed)
        except (EnvError, SpaceError) as error:
            print(f"{env}: not fit for training", flush=True)
            show_error(error, traceback)
            raise typer.Exit(NOT_FIT) from error
        print(report)
