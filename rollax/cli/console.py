"""Functions and options that the commands share: errors as short messages, imports, and the name of the program.

Modules of commands import their implementation inside of functions. Completions and `--help` read the options only, and
importing NumPy, Gymnasium and Pydantic would make both twice as slow.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import shlex
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

import rollax
from rollax.cli.completion import complete_env, complete_run
from rollax.core.importing import current_folder, named_by_caller
from rollax.errors import ConfigError, EnvError, PolicyError, RollaxError, corrected
from rollax.runs.interrupts import Interrupted

_PACKAGE = Path(rollax.__file__).parent

USER_ERROR = 2
MISSED_GOAL = 3
"""The exit code for a reward goal that was not reached, with `--must-reach`."""
SIGNALLED = 128
"""Added to a signal's number for the exit code, as in shells."""

_OTHER_OPTIONS = {
    **dict.fromkeys(("algo", "algorithm", "trainer"), "--run"),
    **dict.fromkeys(("env_id", "gym_id"), "--env"),
    **dict.fromkeys(("total_timesteps", "n_timesteps", "timesteps", "steps", "stop"), "--stop-timesteps"),
    **dict.fromkeys(("iterations", "num_iterations"), "--stop-iterations"),
    **dict.fromkeys(("restore", "load", "checkpoint"), "--resume"),
    **dict.fromkeys(("output", "out_dir", "log_dir", "local_dir", "storage_path"), "--out"),
    **dict.fromkeys(("save_freq", "checkpoint_freq"), "--checkpoint-frequency"),
    **dict.fromkeys(("num_seeds", "n_seeds", "num_experiments"), "--seeds"),
    **dict.fromkeys(("n_trials", "num_samples", "max_trials", "num_trials"), "--trials"),
    **dict.fromkeys(("timeout", "max_total_time"), "--time"),
    **dict.fromkeys(("study_name", "storage"), "--study"),
    "n_jobs": "--parallel",
}
"""Options of RLlib, Stable-Baselines3's zoo and CleanRL -> the same option of rollax."""

TracebackOption = Annotated[bool, typer.Option("--traceback", help="Show the whole traceback of an error.")]
ImportOption = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="Import this module first; it may register environments."),
]
TrustOption = Annotated[
    bool, typer.Option("--trust-code", help="Import the classes and functions that the checkpoint or file names.")
]
CheckpointArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="A checkpoint, or a run folder for its newest one.", autocompletion=complete_run
    ),
]
EnvOption = Annotated[
    str | None,
    typer.Option(metavar="ENV", help="Another environment with the same spaces.", autocompletion=complete_env),
]
RunOption = Annotated[
    str | None,
    typer.Option(
        "--run",
        parser=named_by_caller,
        metavar="MODULE:CLASS",
        help="module:Class of the trainer, if it is one of your own.",
    ),
]

EpisodesOption = Annotated[int, typer.Option(min=1, metavar="N", help="Number of episodes.")]
VideoOption = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Write a video of each episode into this folder.")
]
EnvSeedOption = Annotated[int | None, typer.Option(min=0, metavar="N", help="Seed of the environments.")]
PictureOption = Annotated[Path, typer.Option(metavar="FILE", help="The picture to write, in the format of its suffix.")]


def passed(**options: Any) -> dict[str, Any]:
    """Returns the options that were passed: those that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def whole_number(text: str) -> int:
    """Returns the whole number in the text of an option, such as 100000, 100_000 or 1e5."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number.is_integer():
        raise typer.BadParameter(f"{text!r} is not a whole number, such as 100000 or 1e5")
    return int(number) if "e" in text.lower() else int(text.partition(".")[0])


@contextmanager
def readable_errors(show_traceback: bool, imports: Iterable[str] | None = None) -> Iterator[None]:
    """Converts a RollaxError to a message on stderr and exit code 2, and a KeyboardInterrupt to its signal's exit code.

    The modules `imports` are imported first.
    """
    try:
        for name in imports or ():
            _import(name)
        yield
    except RollaxError as error:
        show_error(error, show_traceback)
        raise typer.Exit(USER_ERROR) from error
    except KeyboardInterrupt as error:
        number = error.number if isinstance(error, Interrupted) else signal.SIGINT
        raise typer.Exit(SIGNALLED + number) from error


class EachOptionOnce(typer.core.TyperCommand):
    """A command that refuses repeated options, because only the last one would have an effect.

    In `--out=~/runs` it expands the home folder, which shells do only at the beginning of a word. A config key that is
    passed as an option, such as `--gamma=0.9`, raises an error that names `--set`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        args = [_with_home(arg) for arg in args]
        given: list[Any]
        try:
            _, rest, given = self.make_parser(ctx).parse_args(args=list(args))
        except Exception as error:  # the class of the error for an unknown option is not public
            self._refuse_setting(str(getattr(error, "option_name", "")))
            raise
        if rest and not any(parameter.param_type_name == "argument" for parameter in self.params):
            self._refuse_setting(rest[0]) if "=" in rest[0] else self._refuse_arguments(rest)
        for parameter, count in Counter(given).items():
            once = parameter.param_type_name == "option" and not (parameter.multiple or parameter.is_flag)
            if once and count > 1:
                option = max(parameter.opts, key=len)
                with readable_errors(show_traceback=False):
                    raise ConfigError("The option is given more than once.", option, f"{count} times").fix(
                        f"give {option} once"
                    )
        return super().parse_args(ctx, args)

    def _refuse_setting(self, option: str) -> None:
        """Raises an error for an unknown option that may be a config key, if this command has `--set`."""
        names = (name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts))
        known = {name for name in names if name.startswith("--")}
        name, _, value = option.partition("=")
        key = name.removeprefix("--").replace("-", "_")
        # If the option exists, its value is missing or not accepted, and the parser's own error says so.
        if "--set" not in known or name in known or not key or key.startswith("_"):
            return
        other = corrected(key, _OTHER_OPTIONS)
        ours = [_OTHER_OPTIONS[other]] if other is not None else []
        near = [name for name in (*ours, corrected(f"--{key.replace('_', '-')}", known)) if name in known]
        fix = f"give a setting of the algorithm as --set {key}={value or 'VALUE'}; --help lists the options"
        if near:
            fix = f"did you mean {near[0]}?"
        with readable_errors(show_traceback=False):
            raise ConfigError("There is no such option.", where=f"rollax {self.name}", got=option, fix=fix)

    def _refuse_arguments(self, given: list[str]) -> None:
        """Raises an error for arguments without the name of an option, if this command has `--run` and `--env`."""
        if {"--run", "--env"} <= {name for parameter in self.params for name in parameter.opts}:
            with readable_errors(show_traceback=False):
                raise ConfigError("The command takes options only.", f"rollax {self.name}", " ".join(given)).fix(
                    "name each value, as in --run=PPO --env=CartPole-v1; -f FILE reads them from a file"
                )


def _with_home(arg: str) -> str:
    option, equals, value = arg.partition("=")
    is_path = option.startswith("--") and equals and (value == "~" or value.startswith("~/"))
    return f"{option}={os.path.expanduser(value)}" if is_path else arg


def show_error(error: RollaxError, show_traceback: bool) -> None:
    """Writes an error to stderr, with its full traceback, or else with only the traceback of user code behind it."""
    if show_traceback:
        traceback.print_exception(error)
    else:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        print(f"{_users_traceback(error)}error: {error}{notes}", file=sys.stderr)


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise ConfigError("The module cannot be imported.", "--import", f"{name} ({error})").expected(
            "a module name, as in my_envs",
            "check the spelling; modules are searched in the current folder and the installed packages",
        ) from error


def search_current_folder() -> None:
    """Makes modules of the current folder importable, as `python -m` does."""
    here = current_folder()
    if here is not None and here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def command_name() -> str:
    """Returns the command of this program: `rollax` if it is on the PATH, else the path that was called."""
    from rollax.runs.display import shown_path

    program = sys.argv[0]
    if os.path.basename(program) == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m rollax"
    on_path = shutil.which("rollax")
    if on_path and os.path.exists(program) and os.path.samefile(on_path, program):
        return "rollax"
    return shlex.quote(shown_path(Path(program)))


def evaluation_line(evaluation: Mapping[str, Any]) -> str:
    """Returns the mean, lowest and highest reward of the episodes of an evaluation as text."""
    from rollax.runs.results import number_in

    mean, low, high = (number_in(evaluation, f"episode_reward_{which}") for which in ("mean", "min", "max"))
    if mean is None:
        return "none ended"
    return f"mean reward {mean:.2f} over {evaluation.get('episodes')} (lowest {low:.2f}, highest {high:.2f})"


def estimate_lines(evaluation: Mapping[str, Any]) -> list[str]:
    """A line for each off-policy estimate of an evaluation, with its interval."""
    return [
        f"{policy_id}, {method}: {_number(found['v_target'])} ({_number(found['low'])} to {_number(found['high'])}), "
        f"the data {_number(found['v_behavior'])}"
        for policy_id, methods in evaluation.get("off_policy_estimates", {}).items()
        for method, found in methods.items()
    ]


def _number(value: float | None) -> str:
    return "not known" if value is None or math.isnan(value) else f"{value:.4g}"


def _users_traceback(error: RollaxError) -> str:
    """Returns the traceback of user code behind `error`, without frames of rollax; empty if there is none."""
    cause = error.__cause__
    if not isinstance(error, EnvError | PolicyError) or cause is None or isinstance(cause, RollaxError):
        return ""
    report = traceback.TracebackException.from_exception(cause)
    frames = [frame for frame in report.stack if not Path(frame.filename).is_relative_to(_PACKAGE)]
    report.stack = traceback.StackSummary.from_list(frames)
    return "".join(report.format()) if frames else ""


def new_folder(name: str) -> Path:
    """Creates and returns the next free folder `runs/<name>-<date>-<n>`; `folders_of` finds it by the name."""
    name = _in_paths(name)
    today = datetime.now().astimezone().date().isoformat()
    number = 1
    while True:
        path = Path("runs") / f"{name}-{today}-{number}"
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
        except OSError as error:
            fix = "choose a folder that you may write to, with --out"
            raise ConfigError("The run folder cannot be created.", where=str(path), got=str(error), fix=fix) from error


def folders_of(name: str) -> list[Path]:
    """Returns the folders that `new_folder` has made for a name."""
    named = re.compile(re.escape(_in_paths(name)) + r"-\d{4}-\d\d-\d\d-\d+", re.ASCII)
    return [path for path in Path("runs").glob("*") if named.fullmatch(path.name)]


def _in_paths(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")
