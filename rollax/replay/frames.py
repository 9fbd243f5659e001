"""Observations that are the last k images: every image is kept once, and the stacks are put together when drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollax import trees
from rollax.errors import ConfigError
from rollax.replay.following import Rows
from rollax.replay.links import Links


@dataclass(frozen=True)
class StackedFrames:
    """Says that an observation is made of the last images, so that a replay buffer need not keep each of them k times.

    Nothing is taken on trust: where a stack is not that of the row before, moved on by one image, its images are kept
    beside it, and what is drawn equals what was added, bit for bit.

    Args:
        count: k, how many images make a stack, at least 2.
        axis: of the observation (without the axis of rows), the one along which they are stacked, the newest last.
        path: where the stack is in a Dict or Tuple observation: the keys that lead to it. () is the observation itself.
    Raises:
        ConfigError: fewer than two images.
    """

    count: int = 4
    axis: int = 0
    path: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ConfigError(
                "Frames of which one is no stack.",
                where="StackedFrames(count=...)",
                got=self.count,
                expected="at least 2",
                fix="leave frames=None for observations that are not stacked",
            )

    def array(self, obs: trees.Tree) -> NDArray:
        """The array of an observation column that holds the stacks.

        Raises:
            ConfigError: there is no such array.
        """
        found = obs
        try:
            for key in self.path:
                found = found[key]
        except (KeyError, IndexError, TypeError) as error:
            raise self._mismatch(found) from error
        if not isinstance(found, np.ndarray) or not -found.ndim < self._axis < found.ndim:
            raise self._mismatch(found)
        if found.shape[self._axis] != self.count:
            raise self._mismatch(found)
        return found

    def stacks(self, array: NDArray) -> NDArray:
        """[rows, k, ...] a view of that array."""
        return np.moveaxis(array, self._axis, 1)

    def images_before(self, obs: trees.Tree, rows: Rows) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Which rows' stacks go on from the row before, and how many images more the others need.

        Returns:
            [M] true where the stack is that of the row before, moved on by one image; [M] where it is not, how many
            images to keep before its newest: as many as differ from the oldest, which stands for all before it.
        """
        stacks = self.stacks(self.array(obs))
        goes_on = rows.previous >= 0
        later = np.flatnonzero(goes_on)
        newer = stacks[rows.index[later]][:, :-1]
        older = stacks[rows.index[rows.previous[later]]][:, 1:]
        goes_on[later] = _equal(newer, older, 1)
        images = np.zeros(len(rows), np.int64)
        anew = np.flatnonzero(~goes_on)
        first = stacks[rows.index[anew]]
        alike = _equal(first[:, 1:], first[:, :1], 2)
        images[anew] = self.count - 1 - np.cumprod(alike, axis=1).sum(axis=1)
        return goes_on, images

    def put(
        self, frames: NDArray, links: Links, stacks: NDArray, places: NDArray[np.int64], images: NDArray[np.int64]
    ) -> None:
        """Writes the newest image of each stack to its place, and `images` more to the places before.

        Args:
            frames: [places, ...] what holds the images.
            links: gets the links back from each image to the one before, as if no stack went on from another.
            stacks: [K, k, ...] the stacks.
            places: [K] where to.
            images: [K] how many images more are kept of each.
        """
        frames[places] = stacks[:, -1]
        links.back[places] = places
        # Image by image, k - 1 at most: which of them a stack needs differs from stack to stack.
        for age in range(1, self.count):
            kept = np.flatnonzero(images >= age)
            newer, older = ((places[kept] - steps) % links.size for steps in (age - 1, age))
            frames[older] = stacks[kept, -1 - age]
            links.back[newer], links.back[older] = older, older
            links.following[older] = newer
            links.observed[older] = True

    def read(self, frames: NDArray, links: Links, places: NDArray[np.integer]) -> NDArray:
        """[K, ...] the stacks at these places, as they were added."""
        image_places = links.image_places(places)
        shape = list(frames.shape)
        shape[0] = len(places)
        shape.insert(self._axis if self._axis > 0 else len(shape) + 1 + self._axis, self.count)
        whole = np.empty(shape, frames.dtype)
        by_image = self.stacks(whole)
        # Image by image: five times faster than moving the axis of the images afterwards.
        for image in range(self.count):
            by_image[:, image] = np.take(frames, image_places[:, image], axis=0)
        return whole

    @property
    def _axis(self) -> int:
        """The axis, that of the rows counted."""
        return self.axis + 1 if self.axis >= 0 else self.axis

    def _mismatch(self, found: trees.Tree) -> ConfigError:
        return ConfigError(
            "The observations are not stacked as the replay buffer was told.",
            where=f"StackedFrames, path {self.path}",
            got=trees.tree_map(lambda leaf: leaf.shape[1:], found),
            expected=f"{self.count} images along axis {self.axis} of an observation",
            fix="correct count, axis and path (config key 'frame_stack_axis'), or leave frames=None",
        )


def _equal(first: NDArray, second: NDArray, axes: int) -> NDArray[np.bool_]:
    """Whether all is equal beyond the first `axes` axes."""
    equal = first == second
    return equal.all(axis=tuple(range(axes, equal.ndim)))
