"""Observation filters, called once per poll with whole columns."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rollax.core.running_statistics import RunningMoments, RunningStatistics
from rollax.core.spaces import NOT_FEATURES, Path, leaves, walk
from rollax.core.trees import Tree
from rollax.errors import ConfigError, EnvError
from rollax.models.features import ImageLayout, is_of_floats


class ObservationFilter(RunningStatistics):
    """Standardizes leaves of observations with the mean and standard deviation of all observations so far.

    Each element of a leaf has its own statistics: a leaf has `RunningMoments`. Each poll is one update with all of its
    rows, before they are standardized. Until two rows have been counted, only the mean is subtracted. Rows that are not
    finite are refused.

    Args:
        observation_space: the space of one observation.
    Attributes:
        leaves: path of each filtered leaf -> its moments.
    """

    clip = 10.0
    """Results are clipped to [-clip, clip]; for elements that rarely change they would otherwise be unbounded."""

    def __init__(self, observation_space: spaces.Space) -> None:
        self._space = observation_space
        filtered = (path_and_leaf for path_and_leaf in leaves(observation_space) if self.filters(*path_and_leaf))
        self.leaves = {path: _LeafMoments(path, leaf.shape or ()) for path, leaf in filtered}
        super().__init__({prefix_of(path): moments for path, moments in self.leaves.items()})

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @staticmethod
    def filters(path: Path, leaf: spaces.Space) -> bool:
        """Whether this leaf of the observation space is standardized; by default no leaf is."""
        return False

    def __call__(self, columns: Tree, update: bool = True) -> Tree:
        """The filtered columns; filtered leaves are new arrays. `update` first adds `columns` to the statistics.

        With `update`, raises EnvError for a leaf that is not finite. After an error the statistics are unchanged.
        """
        if not self.leaves:
            return columns

        def filtered(_: spaces.Space, path: Path, leaf: NDArray) -> NDArray:
            moments = self.leaves.get(path)
            return leaf if moments is None else moments.standardize(leaf, self.clip, update)

        before = [(moments, moments._parts) for moments in self.leaves.values()]
        try:
            return walk(filtered, self._space, columns)
        except BaseException:  # of a later leaf, or a signal between two leaves
            for moments, parts in before:
                moments._parts = parts
            raise

    @property
    def is_new(self) -> bool:
        """Whether there are no statistics yet, so that observations are only clipped; False if no leaf is filtered."""
        return bool(self.leaves) and not any(moments.count for moments in self.leaves.values())


class NoFilter(ObservationFilter):
    """Leaves all observations unchanged."""


class MeanStdFilter(ObservationFilter):
    """Standardizes the floating-point Box leaves of observations with their running mean and standard deviation.

    Other leaves (images, integers, Discrete, ...) and the keys `action_mask` and `avail_actions` are not
    changed.
    """

    @staticmethod
    def filters(path: Path, leaf: spaces.Space) -> bool:
        # Images are scaled by their bounds. Masks are not quantities, and the slots of padded embeddings must stay
        # comparable with each other.
        return is_of_floats(leaf) and ImageLayout.of(leaf) is None and NOT_FEATURES.isdisjoint(path)


class _LeafMoments(RunningMoments):
    """The moments of one leaf of the observations."""

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self._path = path

    def standardize(self, leaf: NDArray, clip: float, update: bool) -> NDArray[np.float32]:
        rows = self._flat(leaf)
        if update:
            self._add_rows(rows)
        count, mean, squares = self._parts
        rows -= mean[0]
        if count[0, 0] > 1:
            rows /= np.sqrt(squares[0] / count[0]) + 1e-8
        np.maximum(rows, -clip, out=rows)
        np.minimum(rows, clip, out=rows)
        return rows.astype(np.float32).reshape(leaf.shape)

    def _not_finite(self, mean: NDArray[np.float64]) -> EnvError:
        return not_finite(self._path, mean)


def not_finite(path: Path, mean: NDArray) -> EnvError:
    """The error of a leaf of the observations whose statistics are not finite."""
    return EnvError(
        "The observations cannot be standardized: they or their squares are NaN or infinite.",
        "observation filter" + (f", {'/'.join(map(str, path))}" if path else ""),
        f"mean {np.array2string(np.ravel(mean), threshold=10)}",
    ).expected("finite observations", "clip them in the environment")


FILTERS = {"NoFilter": NoFilter, "MeanStdFilter": MeanStdFilter}


def make_filter(name: str, observation_space: spaces.Space) -> ObservationFilter:
    """The observation filter of that name.

    Raises:
        ConfigError: no filter has the name.
    """
    if name in FILTERS:
        return FILTERS[name](observation_space)
    raise ConfigError.unknown("observation filter", name, FILTERS, "observation_filter")


def prefix_of(path: Path) -> str:
    """The prefix of a leaf's arrays. Slashes in keys are escaped as in a JSON pointer: no two leaves share a prefix."""
    return "".join(f"{str(key).replace('~', '~0').replace('/', '~1')}/" for key in path)
