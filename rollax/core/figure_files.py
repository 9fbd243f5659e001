"""Figures of Matplotlib as files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rollax.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_lock = threading.Lock()
"""Matplotlib draws in one thread at a time."""


@contextmanager
def written_to(out: Path, width: float, height: float, dpi: int) -> Iterator[Figure]:
    """Yields an empty figure, and writes it after the block in the format of the file's suffix; PNG without a suffix.

    Args:
        out: the file; its folder is created.
        width: inches.
        height: inches.
        dpi: pixels per inch.
    Raises:
        ConfigError: the suffix belongs to no image format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    # Without pyplot, which has global state and selects a window system.
    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    known = FigureCanvasAgg(figure).get_supported_filetypes().keys() - {"pgf"}  # this format requires LaTeX
    suffix = out.suffix[1:].lower()
    if suffix and suffix not in known:
        raise ConfigError("Unknown picture format.", str(out), out.suffix).expected(
            f"one of .{', .'.join(sorted(known))}", "name the file with one of these suffixes, such as .png or .svg"
        )
    with _lock:
        yield figure
        for text in figure.findobj(Text):
            text.set_parse_math(False)  # a "$" in the name of a run or of a part of a space does not begin a formula
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, format=suffix or "png")
