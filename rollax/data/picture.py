"""A picture of a data set: returns and lengths of its episodes, and what its observations and actions cover."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rollax import trees
from rollax.batch import SampleBatch
from rollax.data.dataset import DatasetReader
from rollax.data.describe import PolicySummary, describe, named_leaves

_BINS = 40
_ELEMENTS = 24
"""The most elements of an observation that are shown; of images, the first ones say little."""


def draw_dataset(reader: DatasetReader, out: Path, title: str = "") -> None:
    """Writes a PNG with a row of four panels for each policy; reads the data twice.

    Args:
        reader: the data set.
        out: the file to write.
        title: above all panels.
    Raises:
        DatasetError: the data cannot be read.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    policies = describe(reader).policies
    coverage = _coverage(reader, policies)
    # Without pyplot, which has global state and selects a window system.
    figure = Figure(figsize=(16, 3.6 * len(policies) + 0.4), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.subplots(len(policies), 4, squeeze=False)
    for axes, (policy_id, summary) in zip(rows, policies.items(), strict=True):
        _histogram(axes[0], summary.returns, f"{policy_id}: returns of {len(summary.returns)} trajectories")
        _histogram(axes[1], summary.lengths, f"lengths; {summary.cut} of {len(summary.lengths)} were cut")
        _draw_observations(axes[2], coverage[policy_id])
        _draw_actions(axes[3], summary)
    figure.suptitle(title)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, format="png")


class Coverage:
    """How the first elements of a policy's observations are distributed, each over its own range.

    Args:
        summary: has the lowest and highest values.
    Attributes:
        names: of the elements, with their ranges.
        counts: [elements, bins].
        left_out: elements that are not counted.
    """

    def __init__(self, summary: PolicySummary) -> None:
        self.names: list[str] = []
        self._parts: list[tuple[str, np.ndarray, np.ndarray]] = []
        elements = sum(np.size(low) for low in summary.low.values())
        for path, lows in summary.low.items():
            low, high = (np.ravel(ends)[: _ELEMENTS - len(self.names)] for ends in (lows, summary.high[path]))
            self._parts.append((path, low.astype(np.float64), high.astype(np.float64)))
            for number, (least, most) in enumerate(zip(low, high, strict=True)):
                self.names.append(f"{path}[{number}]  {least:.3g} … {most:.3g}" if np.ndim(lows) else path)
        self.left_out = elements - len(self.names)
        self.counts = np.zeros((len(self.names), _BINS), np.int64)

    def add(self, obs: trees.Tree) -> None:
        """Counts the observations of a trajectory."""
        columns, first = dict(named_leaves(obs)), 0
        for path, low, high in self._parts:
            values = columns[path].reshape(len(columns[path]), -1)[:, : len(low)].astype(np.float64)
            shares = (values - low) / np.where(high > low, high - low, 1.0)
            bins = np.minimum((shares * _BINS).astype(np.int64), _BINS - 1)
            rows = np.broadcast_to(first + np.arange(len(low)), bins.shape)
            np.add.at(self.counts, (rows, bins), 1)
            first += len(low)


def _coverage(reader: DatasetReader, policies: dict[str, PolicySummary]) -> dict[str, Coverage]:
    found = {policy_id: Coverage(summary) for policy_id, summary in policies.items()}
    for trajectory in reader.trajectories():
        found[trajectory.policy_id].add(trajectory.columns[SampleBatch.OBS])
    return found


def _histogram(axes: Any, values: list[Any], title: str) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_ylabel("trajectories")
    if values:
        axes.hist(values, bins=min(30, max(len(set(values)), 1)))


def _draw_observations(axes: Any, coverage: Coverage) -> None:
    more = f"; {coverage.left_out} more elements" if coverage.left_out else ""
    axes.set_title(f"observations, each over its range{more}", fontsize="medium")
    if not coverage.names:
        return
    most = coverage.counts.max(axis=1, keepdims=True)
    axes.imshow(coverage.counts / np.maximum(most, 1), aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    axes.set_yticks(range(len(coverage.names)), coverage.names, fontsize="x-small")
    axes.set_xticks([0, _BINS - 1], ["lowest", "highest"])


def _draw_actions(axes: Any, summary: PolicySummary) -> None:
    axes.set_title("actions", fontsize="medium")
    if not summary.actions:
        axes.text(0.5, 0.5, "without a space, or without bounds", ha="center", va="center", transform=axes.transAxes)
        return
    width = 0.8 / len(summary.actions)
    for number, (name, counts) in enumerate(summary.actions.items()):
        places = np.arange(len(counts)) + (number - (len(summary.actions) - 1) / 2) * width
        axes.bar(places, 100 * counts / max(int(counts.sum()), 1), width, label=name)
    axes.set_ylabel("% of the steps")
    axes.set_xlabel("action, or tenth of its range")
    if len(summary.actions) > 1:
        axes.legend(fontsize="small")
