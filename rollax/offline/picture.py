"""A picture of a data set: returns and lengths of its episodes, and coverage of observations and actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rollax.batch import SampleBatch
from rollax.core import trees
from rollax.core.figure_files import written_to
from rollax.errors import DatasetError
from rollax.offline.dataset import DatasetReader
from rollax.offline.describe import PolicySummary, describe, named_leaves, other_shapes

_BINS = 40
_MOST_BARS = 100
_LARGEST = 1e300
"""The largest number that is drawn, because the width of a range must also be finite."""
_ELEMENTS = 24
"""The maximum number of shown elements of an observation; images have too many."""


def draw_dataset(reader: DatasetReader, out: Path, title: str = "") -> None:
    """Writes a picture with a row of four panels for each policy; reads the data twice.

    Raises:
        DatasetError: the data cannot be read, or has no trajectory.
        ConfigError: the suffix belongs to no image format.
    """
    with written_to(out, 16, 4, dpi=100) as figure:
        policies = describe(reader).policies
        if not policies:
            where = title or "the data to draw"
            raise DatasetError("The data set has no trajectory.", where, fix="check the data: `rollax data check`")
        coverage = _coverage(reader, policies)
        figure.set_size_inches(16, 3.6 * len(policies) + 0.4)
        rows = figure.subplots(len(policies), 4, squeeze=False)
        for axes, (policy_id, summary) in zip(rows, policies.items(), strict=True):
            _histogram(axes[0], summary.returns, f"{policy_id}: returns of {len(summary.returns)} trajectories")
            _histogram(axes[1], summary.lengths, f"lengths; {summary.cut} of {len(summary.lengths)} were cut")
            _draw_observations(axes[2], coverage[policy_id])
            _draw_actions(axes[3], summary)
        figure.suptitle(title)


class Coverage:
    """The distributions of the first elements of a policy's observations, each over its own range.

    Attributes:
        names: names of the elements, with their ranges.
        counts: [elements, bins]; zeros for an element with a NaN or infinity, which has no range.
        left_out: number of further elements, which are not drawn.
    """

    def __init__(self, summary: PolicySummary) -> None:
        self.names: list[str] = []
        self._parts: list[tuple[str, np.ndarray, np.ndarray, np.ndarray]] = []
        elements = sum(np.size(low) for low in summary.low.values())
        for path, lows in summary.low.items():
            size = _ELEMENTS - len(self.names)
            low, high = (np.ravel(ends)[:size].astype(np.float64) for ends in (lows, summary.high[path]))
            counted = (np.abs(low) <= _LARGEST) & (np.abs(high) <= _LARGEST)
            self._parts.append((path, low, high, counted))
            for number, (least, most) in enumerate(zip(low, high, strict=True)):
                span = f"{least:.3g} … {most:.3g}" if counted[number] else "not finite"
                self.names.append(f"{path}[{number}]  {span}" if np.ndim(lows) else path)
        self.left_out = elements - len(self.names)
        self.counts = np.zeros((len(self.names), _BINS), np.int64)

    def add(self, obs: trees.Tree) -> None:
        """Counts the observations of a trajectory."""
        columns, first = dict(named_leaves(obs)), 0
        for path, low, high, counted in self._parts:
            elements = np.flatnonzero(counted)
            low, high = low[elements], high[elements]
            values = columns[path].reshape(len(columns[path]), -1)[:, elements].astype(np.float64)
            shares = (values - low) / np.where(high > low, high - low, 1.0)
            bins = np.minimum((shares * _BINS).astype(np.int64), _BINS - 1)
            rows = np.broadcast_to(first + elements, bins.shape)
            np.add.at(self.counts, (rows, bins), 1)
            first += len(counted)


def _coverage(reader: DatasetReader, policies: dict[str, PolicySummary]) -> dict[str, Coverage]:
    found = {policy_id: Coverage(summary) for policy_id, summary in policies.items()}
    for trajectory in reader.trajectories():
        if not other_shapes(policies[trajectory.policy_id], trajectory):
            found[trajectory.policy_id].add(trajectory.columns[SampleBatch.OBS])
    return found


def _histogram(axes: Any, values: list[Any], title: str) -> None:
    drawn = [value for value in values if abs(value) <= _LARGEST]  # False for NaN
    more = f"; {len(values) - len(drawn)} not finite" if len(drawn) < len(values) else ""
    axes.set_title(title + more, fontsize="medium")
    axes.set_ylabel("trajectories")
    if drawn:
        axes.hist(drawn, bins=_edges(drawn))


def _edges(values: list[Any]) -> np.ndarray:
    """The edges of up to 30 bins; of one bin if values differ only in their last digits."""
    low, high = float(min(values)), float(max(values))
    largest = max(abs(low), abs(high))
    if high - low <= 1e-12 * largest:
        margin = max(0.5, 1e-6 * largest)
        return np.array([low - margin, high + margin])
    return np.linspace(low, high, min(30, len(set(values))) + 1)


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
        each = -(-len(counts) // _MOST_BARS)
        sums = np.add.reduceat(counts, np.arange(0, len(counts), each))
        places = np.arange(len(sums)) + (number - (len(summary.actions) - 1) / 2) * width
        axes.bar(places, 100 * sums / max(int(sums.sum()), 1), width, label=name)
    axes.set_ylabel("% of the steps")
    axes.set_xlabel("action, or equal part of its range")
    if len(summary.actions) > 1:
        # By default, Matplotlib leaves out names that begin with "_".
        axes.legend(axes.containers, [bars.get_label() for bars in axes.containers], fontsize="small")
