"""The commands check, evaluate, record, export, list and plot."""

from __future__ import annotations

import ast
import collections
import contextlib
import importlib.util
import io
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from rollax.cli.checkpoints import open_trainer
from rollax.cli.completion import complete_env, complete_run
from rollax.cli.console import (
    CheckpointArgument,
    EnvOption,
    EnvSeedOption,
    EpisodesOption,
    ImportOption,
    PictureOption,
    RunOption,
    TracebackOption,
    TrustOption,
    VideoOption,
    evaluation_line,
    passed,
    readable_errors,
    show_error,
)
from rollax.cli.parsing import parse_config, parse_json
from rollax.core.atomic_files import named_write_errors
from rollax.errors import ConfigError, EnvError, SpaceError, text_of

NOT_FIT = 1


def check(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV", help="A Gymnasium id, a registered name, or module:Class.", autocompletion=complete_env
        ),
    ],
    env_config: Annotated[
        str, typer.Option(metavar="JSON", help="Settings of the environment, as a JSON object.")
    ] = "{}",
    env_wrappers: Annotated[
        str,
        typer.Option(
            metavar="JSON", help="Wrappers of each sub-environment, as in a config: a JSON list of module:Class."
        ),
    ] = "[]",
    episodes: Annotated[int, typer.Option(min=1, metavar="N", help="Number of episodes of each sub-environment.")] = 2,
    max_steps: Annotated[
        int, typer.Option(min=1, metavar="STEPS", help="Largest number of steps of each sub-environment.")
    ] = 1000,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="Seed of the environment and of the random actions.")
    ] = 0,
    imports: ImportOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Play an environment with random actions and report whether it is fit for training."""
    from rollax.env.checking.check_env import check_env

    with readable_errors(traceback, imports):
        settings = parse_config(env_config, "--env-config")
        wrappers = parse_json(env_wrappers, "--env-wrappers", "a JSON list", '["module:Wrapper"]')
        try:
            report = check_env(env, settings, env_wrappers=wrappers, episodes=episodes, max_steps=max_steps, seed=seed)
        except (EnvError, SpaceError) as error:
            print(f"{env}: not fit for training", flush=True)
            show_error(error, traceback)
            raise typer.Exit(NOT_FIT) from error
        print(report)


def evaluate(
    checkpoint: CheckpointArgument,
    episodes: EpisodesOption = 10,
    video: VideoOption = None,
    env: EnvOption = None,
    seed: EnvSeedOption = None,
    run: RunOption = None,
    trust_code: TrustOption = False,
    imports: ImportOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show only the line with the mean reward.")] = False,
    traceback: TracebackOption = False,
) -> None:
    """Run a trained policy greedily and report its rewards."""
    with readable_errors(traceback, imports):
        changes = passed(env=env, seed=seed)
        play_greedily(checkpoint, episodes, video, quiet=quiet, run=run, trust_code=trust_code, **changes)


def play_greedily(checkpoint: Path, episodes: int, video: Path | None, *, quiet: bool = False, **opening: Any) -> None:
    """Prints the rewards of greedy episodes; `opening` are arguments of `open_trainer`."""
    from rollax.runs.display import shown_path, title_of

    with open_trainer(checkpoint, learn=False, **opening) as trainer:
        results = trainer.evaluate(episodes, record_dir=None if video is None else str(video))
        if not quiet:
            print(title_of(trainer.name, trainer.config.env))
            for number, reward in enumerate(results["episode_rewards"], start=1):
                print(f"episode {number}  reward {reward:.2f}")
        print(evaluation_line(results))
        if not quiet:
            print(*(f"video {shown_path(Path(path))}\n" for path in results.get("videos", ())), sep="", end="")


def record(
    checkpoint: CheckpointArgument,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder for the files.")],
    episodes: EpisodesOption = 100,
    greedy: Annotated[bool, typer.Option("--greedy", help="Act greedily, instead of exploring.")] = False,
    infos: Annotated[bool, typer.Option("--infos", help="Write the info dicts too.")] = False,
    env: EnvOption = None,
    seed: Annotated[int | None, typer.Option(min=0, metavar="N", help="Seed of the environments and actions.")] = None,
    run: RunOption = None,
    trust_code: TrustOption = False,
    imports: ImportOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Play a trained policy and write its experience as a data set."""
    from rollax.runs.display import shown_path

    with readable_errors(traceback, imports):
        changes = passed(env=env, seed=seed)
        with open_trainer(checkpoint, run=run, trust_code=trust_code, learn=False, **changes) as trainer:
            results = trainer.record(episodes, out, explore=not greedy, infos=infos)
            print(evaluation_line(results))
            print(*(f"data {shown_path(Path(path))}\n" for path in results["files"]), sep="", end="")


def export(
    checkpoint: CheckpointArgument,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="The format: onnx or stablehlo.")] = "onnx",
    policy_id: Annotated[str | None, typer.Option(metavar="POLICY", help="The policy, in a run with several.")] = None,
    run: RunOption = None,
    trust_code: TrustOption = False,
    imports: ImportOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Write a trained policy to a file that other runtimes and languages run."""
    from rollax.algorithms.named_trainers import trainer_class_named
    from rollax.runs.display import shown_path
    from rollax.serving.export.export_policy import export_policy

    with readable_errors(traceback, imports):
        options = passed(policy_id=policy_id, trainer_class=None if run is None else trainer_class_named(run))
        print(shown_path(export_policy(checkpoint, to, out=out, trust_code=trust_code, **options)))  # type: ignore[arg-type]  checked there


def list_known(
    envs: Annotated[
        str | None,
        typer.Option(
            "--envs",
            metavar="TEXT",
            help="All environment ids that contain TEXT ('' for all). Libraries in JAX take seconds to import; their "
            "ids are listed only if TEXT is the beginning of jax:LIBRARY/ or contains the library's name.",
        ),
    ] = None,
    imports: ImportOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Show the algorithms and the registered environments."""
    from rollax.env.jax.names import LIBRARIES

    with readable_errors(traceback, imports):
        families = _env_ids()
        if envs is not None:
            of_libraries, missing = _ids_of_jax_libraries(envs)
            found = [name for ids in (*families.values(), of_libraries) for name in ids]
            found = [name for name in found if envs.casefold() in name.casefold()]
            if not (found or missing):
                print(
                    f"No environment id contains {envs!r}. Pass --import=MODULE to register the ids of a package, "
                    "or --envs=jax to list the ids of libraries in JAX.",
                    file=sys.stderr,
                )
            print(*(f"{name}\n" for name in found), sep="", end="", flush=True)
            print(*(f"{line}\n" for line in missing), sep="", end="", file=sys.stderr)
            return
        total = sum(map(len, families.values()))
        print("Algorithms (--run), or module:Class", *(f"  {line}" for line in _algorithm_lines()), sep="\n")
        print(f"\nEnvironments (--env): {total} registered, or module:Class", sep="\n")
        print(*(f"  {line}" for line in _count_lines(families)), sep="\n")
        print("\nLibraries of environments in JAX, whose ids --envs=jax lists:", ", ".join(LIBRARIES))


def plot(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders, or result.jsonl files.", autocompletion=complete_run),
    ],
    out: PictureOption = Path("curves.png"),
    traceback: TracebackOption = False,
) -> None:
    """Plot the reward of one or more runs over environment steps."""
    from rollax.runs.display import shown_path
    from rollax.runs.results import draw_curves, labelled

    with readable_errors(traceback):
        results = labelled(runs)
        for label, (_, unread) in results.items():
            if unread:
                print(f"{label}: {unread} lines could not be read and were left out", file=sys.stderr)
        with named_write_errors("The picture", out):
            draw_curves({label: lines for label, (lines, _) in results.items()}, out)
        print(shown_path(out))


def _algorithm_lines() -> list[str]:
    """Returns a line for each algorithm: its name and the first line of its trainer's docstring."""
    from rollax.algorithms.registry import ALGORITHMS

    width = max(map(len, ALGORITHMS))
    return [f"{name:<{width}}  {_first_line(path)}" for name, path in sorted(ALGORITHMS.items())]


def _env_ids() -> dict[str, list[str]]:
    """Returns family -> environment ids: the user's, Gymnasium's by family, rollax's in JAX, and PettingZoo's."""
    import gymnasium

    from rollax.env.jax.names import jax_ids
    from rollax.env.multi_agent.pettingzoo_env import pettingzoo_ids
    from rollax.env.registry import import_atari_if_named, registered_envs

    with contextlib.suppress(ConfigError):
        import_atari_if_named("ALE/")
    families: dict[str, list[str]] = collections.defaultdict(list)
    if registered := registered_envs():
        families["registered"] = list(registered)
    for spec in gymnasium.registry.values():
        families[spec.namespace or _family(spec.entry_point)].append(spec.id)
    families["jax"] = jax_ids()
    with contextlib.suppress(ConfigError):
        families["pettingzoo"] = pettingzoo_ids()
    return {family: sorted(ids) for family, ids in families.items()}


def _ids_of_jax_libraries(text: str) -> tuple[list[str], list[str]]:
    """The ids of the libraries in JAX that `text` may name, and a line for each of them that cannot be imported."""
    from rollax.env.jax.names import LIBRARIES, library_ids, library_prefix

    text, found, missing = text.casefold(), [], []
    for library in LIBRARIES:
        prefix = library_prefix(library)
        if not (prefix.startswith(text) or library in text):
            continue
        try:
            # Libraries warn and print about what else is not installed.
            with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
                found += library_ids(library)
        except ConfigError as error:
            missing.append(f"{prefix}…  is not installed: {error.parts['fix']}")
        except Exception as error:  # of a library that is broken, or does not fit the installed JAX
            missing.append(f"{prefix}…  cannot be imported: {type(error).__name__}: {text_of(error)}")
    return found, missing


def _count_lines(families: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns a line for each family: the number of environments and the first few."""
    width = max(map(len, families))
    few = {family: ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "") for family, ids in families.items()}
    return [f"{family:<{width}}  {len(ids):>4}  {few[family]}" for family, ids in families.items()]


def _family(entry_point: object) -> str:
    # "gymnasium.envs.classic_control.cartpole:CartPoleEnv" -> "classic_control"; others -> their package.
    parts = entry_point.partition(":")[0].split(".") if isinstance(entry_point, str) else ["other"]
    return parts[2] if parts[:2] == ["gymnasium", "envs"] and len(parts) > 2 else parts[0]


def _first_line(path: str) -> str:
    # Read, not imported, because importing an algorithm imports JAX, which takes seconds.
    module, _, name = path.partition(":")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    found = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == name)
    return (ast.get_docstring(found) or "").partition("\n")[0]
