"""What a person sees while training runs: a live table on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollax.cli.results import number_in

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


@dataclasses.dataclass(frozen=True)
class Progress:
    """The state of training after one iteration; a number that is not known is None."""

    iteration: int
    steps: int
    steps_per_s: float | None
    reward: float | None
    length: float | None
    evaluation: float | None
    elapsed: float
    left: float | None
    where_time_went: str = ""

    @classmethod
    def of(cls, result: Mapping[str, Any], left: float | None) -> Progress:
        """What a result dict says."""
        return cls(
            iteration=int(number_in(result, "training_iteration") or 0),
            steps=int(number_in(result, "timesteps_total") or 0),
            steps_per_s=number_in(result, "env_steps_per_s"),
            reward=number_in(result, "episode_reward_mean"),
            length=number_in(result, "episode_len_mean"),
            evaluation=number_in(result, "evaluation", "episode_reward_mean"),
            elapsed=number_in(result, "time_total_s") or 0.0,
            left=left,
            where_time_went=where_time_went(result),
        )

    def cells(self, thousands: str = "") -> dict[str, str]:
        """The texts to show, by column."""
        return {
            "iteration": str(self.iteration),
            "steps": f"{self.steps:,}".replace(",", thousands),
            "steps/s": _number(self.steps_per_s, 0, thousands),
            "reward": _number(self.reward, 2, thousands),
            "length": _number(self.length, 1, thousands),
            "evaluation": _number(self.evaluation, 2, thousands),
            "elapsed": duration(self.elapsed),
            "left": "-" if self.left is None else duration(self.left),
        }


class Display:
    """Shows nothing: what `--quiet` asks for, and the base of the others. A context manager around training."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, progress: Progress) -> None:
        """Shows the state after an iteration."""

    def stopping(self) -> None:
        """Says that training ends after this iteration. Called from a signal handler."""


class PlainDisplay(Display):
    """One line per iteration, for logs and pipes."""

    def update(self, progress: Progress) -> None:
        print("  ".join(f"{name} {text}" for name, text in progress.cells().items()), flush=True)

    def stopping(self) -> None:
        # A signal handler may interrupt a print: only the unbuffered write is safe to make from there.
        os.write(2, b"Stopping after this iteration; once more to stop at once.\n")


class LiveDisplay(Display):
    """A table of the last iterations and a line that keeps the time, redrawn in place.

    Args:
        title: what runs, and where it writes.
        console: the terminal.
        rows: how many iterations to show.
    """

    def __init__(self, title: str, console: Console, rows: int = 8) -> None:
        from rich.live import Live

        self._title = title
        self._recent: deque[Progress] = deque(maxlen=rows)
        self._started = self._updated = time.monotonic()
        self._evaluated: Progress | None = None
        self._stopping = False
        # Twice a second is enough to see time pass and costs the training thread nothing that could be measured.
        self._live = Live(self, console=console, refresh_per_second=2, vertical_overflow="crop")

    def __enter__(self) -> LiveDisplay:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, progress: Progress) -> None:
        self._recent.append(progress)
        self._updated = time.monotonic()
        if progress.evaluation is not None:
            self._evaluated = progress
        if len(self._recent) == 1:
            self._live.refresh()

    def stopping(self) -> None:
        self._stopping = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        yield Text(self._title, style="bold")
        table = Table(box=box.SIMPLE_HEAD)
        names = list(Progress(0, 0, None, None, None, None, 0.0, None).cells())
        for name in names[:-2]:
            table.add_column(name, justify="right", no_wrap=True, min_width=len("1,000,000"))
        for progress in self._recent:
            cells = progress.cells(thousands=",")
            table.add_row(*(cells[name] for name in names[:-2]))
        yield table
        if self._recent and self._recent[-1].where_time_went:
            yield Text(self._recent[-1].where_time_went)
        yield Text(self._clock())
        if self._evaluated is not None:
            steps, reward = (self._evaluated.cells(thousands=",")[name] for name in ("steps", "evaluation"))
            yield Text(f"last greedy evaluation: {reward} at {steps} steps")

    def _clock(self) -> str:
        now = time.monotonic()
        if not self._recent:
            return f"{duration(now - self._started)}  sampling and compiling the first iteration"
        since = now - self._updated
        last = self._recent[-1]
        left = "" if last.left is None else f", up to {duration(max(0.0, last.left - since))} left"
        what = (
            "stopping after this iteration; Ctrl-C again ends at once" if self._stopping else "Ctrl-C saves and stops"
        )
        return f"{duration(last.elapsed + since)} elapsed{left}  ({what})"


def where_time_went(result: Mapping[str, Any]) -> str:
    """One line on the last iteration: seconds by what they were spent on, and how workers and learner keep up."""
    names = ("sample", "wait", "learn", "learner_wait", "broadcast")
    spent = [(name, number_in(result, "timers", f"{name}_s")) for name in names]
    parts = [f"{name.replace('_', ' ')} {seconds:.2f} s" for name, seconds in spent if seconds]
    lag, depth = (number_in(result, "info", "queue", name) for name in ("policy_lag_mean", "queue_depth_mean"))
    parts += [f"policy lag {lag:.1f}"] if lag else []
    parts += [f"queue {depth:.1f}"] if depth else []
    restarts = number_in(result, "info", "workers", "restarts")
    return "  ".join([*parts, *([f"worker restarts {restarts:.0f}"] if restarts else [])])


def make_display(title: str, quiet: bool) -> Display:
    """The display for this process's standard output."""
    if quiet:
        return Display()
    if not sys.stdout.isatty():
        return PlainDisplay()
    from rich.console import Console

    return LiveDisplay(title, Console())


def duration(seconds: float) -> str:
    """`seconds` as m:ss or h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _number(value: float | None, digits: int, thousands: str) -> str:
    return "-" if value is None else f"{value:,.{digits}f}".replace(",", thousands)
