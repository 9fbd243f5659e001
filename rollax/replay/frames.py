"""Observations of the last k images: each image is stored once, and stacks are assembled when drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollax.core import trees
from rollax.core.spaces import at
from rollax.errors import ConfigError
from rollax.replay.links import Addition, Links


@dataclass(frozen=True)
class StackedFrames:
    """The place of stacks of images in observations; a replay buffer stores each image once.

    Only the newest image of a stack is stored if the others are the last images of the previous stack; else all images
    are stored. So drawn observations equal added observations.

    Args:
        count: k, images per stack, at least 2.
        axis: the axis of one observation, without the axis of rows, along which images are stacked, the newest last.
        width: the length of each image along this axis, such as 3 for colours; with 1, images do not have the axis.
        path: the keys that lead to the stack in a Dict or Tuple observation; () for the observation itself.
    Raises:
        ConfigError: fewer than two images.
    """

    count: int = 4
    axis: int = 0
    width: int = 1
    path: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ConfigError("A stack has fewer than two images.", "StackedFrames(count=...)", self.count).expected(
                "at least 2", "use frames=None for observations that are not stacked"
            )

    def array(self, obs: trees.Tree) -> NDArray:
        """The array of an observation column that holds the stacks; raises ConfigError if there is none."""
        try:
            found = at(obs, self.path)
        except (KeyError, IndexError, TypeError) as error:
            raise self._mismatch(obs) from error
        if not isinstance(found, np.ndarray) or not -found.ndim < self._axis < found.ndim:
            raise self._mismatch(found)
        if found.shape[self._axis] != self.count * self.width:
            raise self._mismatch(found)
        return found

    def stacks(self, array: NDArray) -> NDArray:
        """[rows, k, ...] a view of the array."""
        axis = self._axis % array.ndim
        if self.width > 1:
            array = array.reshape(*array.shape[:axis], self.count, self.width, *array.shape[axis + 1 :])
        return np.moveaxis(array, axis, 1)

    def newest(self, obs: trees.Tree) -> trees.Tree:
        """The observations with the newest image in the place of each stack."""
        stacked = self.array(obs)
        return trees.tree_map(lambda leaf: self.stacks(leaf)[:, -1] if leaf is stacked else leaf, obs)

    def images_before(self, obs: trees.Tree, inside: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Compares M stacks with the previous observations' stacks; `inside` is false for the first row of a segment.

        Returns:
            [M] true where the stack is the previous stack, shifted by one image; and [M] the number of images to store
            before the newest image. This is 0 for a shifted stack. For another stack, all images before the newest are
            stored, but copies of the oldest image at its beginning are stored once.
        """
        stacks = self.stacks(self.array(obs))
        goes_on = inside.copy()
        goes_on[1:] &= _equal(stacks[1:, :-1], stacks[:-1, 1:], 1)
        images = np.zeros(len(stacks), np.int64)
        breaks = np.flatnonzero(~goes_on)
        first = stacks[breaks]
        alike = _equal(first[:, 1:], first[:, :1], 2)
        images[breaks] = self.count - 1 - np.cumprod(alike, axis=1).sum(axis=1)
        return goes_on, images

    def put(self, stored: trees.Tree, links: Links, added: Addition) -> None:
        """Writes the observations of a fragment: the newest image of each stack to its slot, others to slots before."""
        frames = at(stored, self.path)

        def put_leaf(array: NDArray, leaf: NDArray) -> None:
            if array is frames:
                self._put_stacks(frames, links, self.stacks(leaf)[added.fresh], added)
            else:
                array[added.slots] = leaf

        trees.tree_map(put_leaf, stored, added.obs)

    def _put_stacks(self, frames: NDArray, links: Links, stacks: NDArray, added: Addition) -> None:
        slots, images = added.slots[added.fresh], added.images[added.fresh]
        frames[slots] = stacks[:, -1]
        links.back[slots] = slots
        # Image by image, at most k - 1, because stacks need different numbers of images.
        for age in range(1, self.count):
            kept = np.flatnonzero(images >= age)
            newer, older = ((slots[kept] - steps) % links.size for steps in (age - 1, age))
            frames[older] = stacks[kept, -1 - age]
            links.back[newer], links.back[older] = older, older
            links.following[older] = newer
            links.observed[older] = True

    def read(self, stored: trees.Tree, links: Links, slots: NDArray[np.integer]) -> trees.Tree:
        """The added observations at [K] slots."""
        frames = at(stored, self.path)
        return trees.tree_map(
            lambda array: self._read_stacks(array, links, slots) if array is frames else np.take(array, slots, axis=0),
            stored,
        )

    def _read_stacks(self, frames: NDArray, links: Links, slots: NDArray[np.integer]) -> NDArray:
        image_slots = links.image_slots(slots)
        shape = [len(slots), *frames.shape[1:]]
        if self.width > 1:
            shape[self._axis] *= self.count
        else:
            shape.insert(self._axis % (len(shape) + 1), self.count)
        whole = np.empty(shape, frames.dtype)
        by_image = self.stacks(whole)
        # Image by image: five times faster than moving the axis of the images afterwards.
        for image in range(self.count):
            by_image[:, image] = np.take(frames, image_slots[:, image], axis=0)
        return whole

    @property
    def _axis(self) -> int:
        """The axis, counting the axis of rows."""
        return self.axis + 1 if self.axis >= 0 else self.axis

    def _mismatch(self, found: trees.Tree) -> ConfigError:
        what = "The observations are not stacked as the replay buffer expects."
        expected = f"{self.count} images of length {self.width} along axis {self.axis}"
        return ConfigError(
            what, f"StackedFrames, path {self.path}", trees.tree_map(lambda leaf: leaf.shape[1:], found)
        ).expected(expected, "correct count, axis and path (config key 'frame_stack_axis'), or use frames=None")


def _equal(first: NDArray, second: NDArray, axes: int) -> NDArray[np.bool_]:
    """Equality over all axes but the first `axes`."""
    equal = first == second
    return equal.all(axis=tuple(range(axes, equal.ndim)))
