"""Progress displays: a live table on a terminal or in a notebook, lines elsewhere, or nothing."""

from __future__ import annotations

import io
import math
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from rollax.core.atomic_files import absolute
from rollax.core.importing import current_folder, path_of
from rollax.errors import ConfigError, RollaxError
from rollax.runs.results import number_in

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

ProgressMode = Literal["auto", "lines", "none"]


def cells(result: Mapping[str, Any], left: float | None, thousands: str = "") -> dict[str, str]:
    """Returns the texts of a result by column; an unknown number is a dash. `left`: seconds to the end."""
    numbers = {
        "iteration": (number_in(result, "training_iteration"), 0),
        "steps": (number_in(result, "timesteps_total"), 0),
        "steps/s": (number_in(result, "env_steps_per_s"), 0),
        "reward": (number_in(result, "episode_reward_mean"), 2),
        "length": (number_in(result, "episode_len_mean"), 1),
        "evaluation": (number_in(result, "evaluation", "episode_reward_mean"), 2),
    }
    return {
        **{
            name: "-" if number is None else f"{number:,.{digits}f}".replace(",", thousands)
            for name, (number, digits) in numbers.items()
        },
        "elapsed": duration(number_in(result, "time_total_s") or 0.0),
        "left": "-" if left is None else duration(left),
    }


class Display:
    """Shows nothing, as with `--quiet`; base class of the displays. A context manager around training."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, result: Mapping[str, Any], left: float | None) -> None:
        """Shows the result of an iteration, and the estimated seconds to the end."""

    def stopping(self) -> None:
        """Shows that training ends after this iteration. Called from a signal handler."""

    def evaluating(self, episodes: int) -> None:
        """Shows that the final evaluation, of this many episodes, begins. Called after the context has ended."""


class PlainDisplay(Display):
    """One line per iteration, for logs and pipes."""

    def update(self, result: Mapping[str, Any], left: float | None) -> None:
        print("  ".join(f"{name} {text}" for name, text in cells(result, left).items()), flush=True)

    def stopping(self) -> None:
        # Unbuffered, because a signal handler may interrupt a print.
        os.write(2, b"Stopping after this iteration; once more to stop at once.\n")

    def evaluating(self, episodes: int) -> None:
        greedy = f"{episodes} greedy episode{'s' * (episodes != 1)}"
        print(f"The final evaluation plays {greedy}; Ctrl-C leaves it out.", flush=True)


class TableDisplay(PlainDisplay):
    """A table of the last `rows` iterations, and a line with the elapsed time; a subclass draws it."""

    def __init__(self, title: str, rows: int = 8) -> None:
        self._title = title
        self._recent: deque[dict[str, str]] = deque(maxlen=rows)
        self._started = self._updated = time.monotonic()
        self._last: Mapping[str, Any] = {}
        self._left: float | None = None
        self._evaluated: dict[str, str] | None = None
        self._ending = False

    def update(self, result: Mapping[str, Any], left: float | None) -> None:
        self._last, self._left, self._updated = result, left, time.monotonic()
        self._recent.append(cells(result, left, thousands=","))
        if self._recent[-1]["evaluation"] != "-":
            self._evaluated = self._recent[-1]
        self.draw(at_once=len(self._recent) == 1)

    def draw(self, *, at_once: bool) -> None:
        """Draws the table, at most twice a second unless `at_once`."""
        raise NotImplementedError

    def stopping(self) -> None:
        self._ending = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        yield Text(self._title, style="bold")
        table = Table(box=box.SIMPLE_HEAD)
        names = list(cells({}, None))[:-2]
        for name in names:
            table.add_column(name, justify="right", no_wrap=True, min_width=len("1,000,000"))
        for row in self._recent:
            table.add_row(*(row[name] for name in names))
        yield table
        if text := where_time_went(self._last):
            yield Text(text)
        yield Text(self._clock())
        if self._evaluated is not None:
            yield Text("last greedy evaluation: {evaluation} at {steps} steps".format(**self._evaluated))

    def _clock(self) -> str:
        now = time.monotonic()
        if not self._recent:
            return f"{duration(now - self._started)}  sampling and compiling the first iteration"
        since = now - self._updated
        elapsed = (number_in(self._last, "time_total_s") or 0.0) + since
        left = "" if self._left is None else f", up to {duration(max(0.0, self._left - since))} left"
        what = "stopping after this iteration; Ctrl-C again ends at once" if self._ending else "Ctrl-C saves and stops"
        return f"{duration(elapsed)} elapsed{left}  ({what})"


class LiveDisplay(TableDisplay):
    """A progress table on a terminal, redrawn in place."""

    def __init__(self, title: str, console: Console, rows: int = 8) -> None:
        from rich.live import Live

        super().__init__(title, rows)
        # Twice a second is enough, and has no measurable cost for the training thread.
        self._live = Live(self, console=console, refresh_per_second=2, vertical_overflow="crop")

    def __enter__(self) -> LiveDisplay:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def draw(self, *, at_once: bool) -> None:
        if at_once:
            self._live.refresh()


class NotebookDisplay(TableDisplay):
    """A progress table in one output cell of a notebook, which is replaced."""

    _drawn = -math.inf
    _handle: Any = None

    def __enter__(self) -> NotebookDisplay:
        self.draw(at_once=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.draw(at_once=True)

    def draw(self, *, at_once: bool) -> None:
        if not at_once and time.monotonic() - self._drawn < 0.5:
            return
        from IPython.display import HTML, display  # pyright: ignore[reportMissingImports]
        from rich.console import Console

        console = Console(file=io.StringIO(), width=100, record=True, force_jupyter=False, force_terminal=True)
        console.print(self)
        cell = HTML(console.export_html(inline_styles=True, code_format="<pre>{code}</pre>"))
        if self._handle is None:
            self._handle = display(cell, display_id=True)
        else:
            self._handle.update(cell)
        self._drawn = time.monotonic()


def where_time_went(result: Mapping[str, Any]) -> str:
    """Returns a line about the last iteration: seconds by activity, and the load of workers and learner."""
    names = ("sample", "wait", "learn", "learner_wait", "broadcast")
    spent = [(name, number_in(result, "timers", f"{name}_s")) for name in names]
    parts = [f"{name.replace('_', ' ')} {seconds:.2f} s" for name, seconds in spent if seconds]
    lag, depth = (number_in(result, "info", "queue", name) for name in ("policy_lag_mean", "queue_depth_mean"))
    parts += [f"policy lag {lag:.1f}"] if lag else []
    parts += [f"queue {depth:.1f}"] if depth else []
    epochs = number_in(result, "info", "data", "epochs")
    parts += [f"epochs of the data {epochs:.1f}"] if epochs else []
    restarts = number_in(result, "info", "workers", "restarts")
    return "  ".join([*parts, *([f"worker restarts {restarts:.0f}"] if restarts else [])])


def make_display(title: str, progress: ProgressMode) -> Display:
    """Returns the display of this mode; "auto" depends on the standard output."""
    if progress not in get_args(ProgressMode):
        raise ConfigError.unknown("progress display", progress, get_args(ProgressMode), "fit(progress=...)")
    if progress == "none":
        return Display()
    if progress == "auto":
        from rich.console import Console

        console = Console()
        if console.is_jupyter:
            return NotebookDisplay(title)
        if sys.stdout.isatty():
            return LiveDisplay(title, console)
    return PlainDisplay()


def name_of_env(env: Any) -> str | None:
    """Returns the name of an environment: the import path of a class or function; None for None."""
    env = getattr(env, "unrecorded", env)  # of `record_env`
    return env if env is None or isinstance(env, str) else path_of(env if hasattr(env, "__qualname__") else type(env))


def title_of(run: str, env: Any, path: Path | None = None) -> str:
    """Returns the title of a run: algorithm, environment, and the run folder if there is one."""
    where = "" if path is None else f"  →  {shown_path(path)}"
    return f"{run} on {name_of_env(env) or 'recorded data'}{where}"


def shown_path(path: Path) -> str:
    """Returns `path` relative to the current folder if it is inside, else absolute."""
    path, here = absolute(path, RollaxError), current_folder()
    return str(path.relative_to(here)) if here is not None and path.is_relative_to(here) else str(path)


def duration(seconds: float) -> str:
    """Returns a duration as h:mm:ss, or as m:ss below an hour."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
