"""The ring of places that rows are kept in, and how the rows of one trajectory are linked there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollax.replay.following import Rows
from rollax.state import array, count, entry, wrong

_NONE = -1
_COLUMNS = ("following", "preceding", "back", "terminated", "truncated", "observed")
Places = NDArray[np.integer]


class Windows(NamedTuple):
    """What n steps from some rows on give; see `Links.windows`."""

    complete: NDArray[np.bool_]
    returns: NDArray[np.float64]
    discounts: NDArray[np.float64]
    targets: NDArray[np.int64]


class Links:
    """Places are taken in a circle, the oldest given up first; each knows the place of what followed it in its
    trajectory.

    Along a trajectory places are taken later and later, so whatever a living place leads forward to is alive too. Only
    what leads backward can lead to a place that has been given up: to the row before, and to the images before. These
    links are cut when that happens.

    What was observed at the end of a segment has a place of its own until the trajectory goes on; then the next row,
    which observes the same, takes that place. There is no room for any before `allocate`.

    Args:
        size: the number of places.
        images: how many images make one observation, where the places hold single images; else 1.
    """

    def __init__(self, size: int, images: int = 1) -> None:
        self.size = size
        self.taken = 0
        """Places taken since the beginning, those given up included."""
        self._images = images
        self._open_trajectories, self._open_places = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._make_arrays(0)

    def allocate(self) -> None:
        """Makes room for `size` places."""
        self._make_arrays(self.size)

    @staticmethod
    def bytes_per_place(size: int, images: int = 1) -> int:
        """Memory that each of `size` places needs."""
        return (3 if images > 1 else 2) * np.min_scalar_type(-size - 1).itemsize + 3

    @property
    def filled(self) -> int:
        """Places that hold something."""
        return min(self.taken, self.size)

    def open_places(self, trajectories: NDArray[np.int64]) -> NDArray[np.int64]:
        """[K] where each trajectory was cut off, seen last and not acted on yet; -1 where there is no such place."""
        if not len(self._open_trajectories):
            return np.full(len(trajectories), _NONE)
        found = np.searchsorted(self._open_trajectories, trajectories).clip(max=len(self._open_trajectories) - 1)
        return np.where(self._open_trajectories[found] == trajectories, self._open_places[found], _NONE)

    def is_open(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[K] whether a trajectory may go on from these places."""
        return np.isin(places, self._open_places)

    def lasts(self, places: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
        """[K] whether the observations at [K] places outlive the next `count` places to be taken."""
        images = self.image_places(places) if self._images > 1 else places[:, None]
        return ((images - self.taken) % self.size).min(axis=1) >= count

    def next_places(self, count: int) -> NDArray[np.int64]:
        """The places that are taken next."""
        return (self.taken + np.arange(count)) % self.size

    def dying(self, count: int) -> NDArray[np.int64]:
        """The places that hold no observation any more, or not all images of it, once the next `count` are taken."""
        places = self.next_places(count)
        places = places[places < self.filled]
        return self._with_dependents(places) if self._images > 1 else places

    def give_up(self, count: int, dying: NDArray[np.int64]) -> None:
        """Takes the next `count` places away from what they hold; `dying` is what `dying(count)` said."""
        places = self.next_places(count)
        places = places[places < self.filled]
        followers, leaders = self._followers(dying)
        self.preceding[followers[self.preceding[followers] == leaders]] = _NONE
        self._keep_open(~np.isin(self._open_places, dying))
        self.following[places] = self.preceding[places] = _NONE
        self.taken += count

    def cut_out(self, places: NDArray[np.int64], ends: NDArray[np.int64], taken: int) -> None:
        """Leaves nothing of rows that were put only in part, nor of what they were to take the place of.

        Args:
            places: what has been given up, or was taken for them: nothing is there any more.
            ends: where trajectories had been cut off that they were to go on from: those end there again.
            taken: places that have been taken since the beginning, those for them included.
        """
        self.taken = taken
        gone = np.zeros(self.size, np.bool_)
        gone[places] = True
        for links in (self.following, self.preceding):
            links[(links != _NONE) & gone[links]] = _NONE
            links[places] = _NONE
        if self._images > 1:
            self.back[places] = places
        self.following[ends] = _NONE
        self.terminated[places] = self.truncated[places] = False
        self.terminated[ends] = self.truncated[ends] = False
        self.observed[places] = self.observed[ends] = True
        self._open_trajectories, self._open_places = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def put(self, rows: Rows, places: NDArray[np.int64], same_stack: NDArray[np.bool_]) -> None:
        """Links the rows of a batch.

        Args:
            rows: M rows.
            places: [M] where they lie: `give_up` has freed these places, or they are open ones of the same
                trajectories.
            same_stack: [M] true where the images of the row before are a part of the observation.
        """
        self.terminated[places], self.truncated[places] = rows.terminated, rows.truncated
        self.observed[places] = rows.observed
        later = np.flatnonzero(rows.previous >= 0)
        before = places[rows.previous[later]]
        self.following[before], self.preceding[places[later]] = places[later], before
        if self._images > 1:
            self.back[places[same_stack]] = places[rows.previous[same_stack]]
        self._keep_open(~np.isin(self._open_trajectories, rows.trajectory))
        trajectories = np.concatenate([self._open_trajectories, rows.trajectory[rows.may_go_on]])
        order = np.argsort(trajectories)
        self._open_trajectories = trajectories[order]
        self._open_places = np.concatenate([self._open_places, places[rows.may_go_on]])[order]

    def windows(self, rows: Places, rewards: NDArray, n_step: int, gamma: float) -> Windows:
        """What `n_step` steps from each row on gave, and where they led.

        Source: Sutton (1988), "Learning to predict by the methods of temporal differences", in the form of Hessel et
            al. (2018), section "Multi-step learning", arXiv:1710.02298: R_t = Σ_{k<n} γ^k r_{t+k}, to which the learner
            adds γ^n times the value of s_{t+n}. Deviations: after m < n steps the trajectory may end. Then the sum has
            m terms; the value's factor is γ^m where a limit of time cut the trajectory off, and 0 where it terminated.

        Args:
            rows: [K] places of rows.
            rewards: [places] the rewards.
            n_step: n, at least 1.
            gamma: γ.
        Returns:
            [K] whether n steps, or all to the trajectory's end, are there yet; the sums; the factors of the value; the
            places of the observations to be valued (where a trajectory terminated: of the last one).
        """
        at = rows.astype(np.int64)
        returns, discounts = np.zeros(len(at)), np.ones(len(at))
        complete = np.ones(len(at), np.bool_)
        walking = np.arange(len(at))
        for _ in range(n_step):
            places = at[walking]
            waiting = self.observed[places]
            if waiting.any():
                complete[walking[waiting]] = False
                walking, places = walking[~waiting], places[~waiting]
            returns[walking] += discounts[walking] * rewards[places]
            terminated = self.terminated[places]
            discounts[walking] *= np.where(terminated, 0.0, gamma)
            at[walking] = np.where(terminated, places, self.following[places])
            walking = walking[~(terminated | self.truncated[places])]
        return Windows(complete, returns, discounts, at)

    def image_places(self, places: Places) -> NDArray[np.int64]:
        """[K, images] the places of the images that make the observations at [K] places, the oldest first."""
        images = np.empty((len(places), self._images), np.int64)
        images[:, -1] = places
        for image in range(self._images - 2, -1, -1):
            images[:, image] = self.back[images[:, image + 1]]
        return images

    def indices(self, places: Places) -> NDArray[np.int64]:
        """[K] numbers that name what is at these places now, and nothing else ever."""
        newest = self.taken - 1
        return np.asarray(newest - (newest - places) % self.size, np.int64)

    def places_of(self, indices: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """[K] the places that `indices` named, and whether what it named is still there."""
        named = indices.astype(np.int64)
        return named % self.size, (named >= self.taken - self.filled) & (named < self.taken)

    def get_state(self) -> dict[str, Any]:
        """Everything, as arrays and numbers."""
        columns = {name: getattr(self, name)[: self.filled].copy() for name in _COLUMNS}
        opened = {"open_trajectories": self._open_trajectories, "open_places": self._open_places}
        return {"size": self.size, "images": self._images, "taken": self.taken, **columns, **opened}

    def check_state(self, state: Mapping[str, Any], where: str) -> int:
        """How many places the state of a ring of this size fills.

        Raises:
            CheckpointError: an array is missing or of another shape or type, or a link leads where none can.
        """
        taken = count(state, "taken", where)
        filled = min(taken, self.size)
        places = self.following.dtype
        for name in ("terminated", "truncated", "observed"):
            array(state, name, where, shape=(filled,), dtype=np.bool_)
        back = array(state, "back", where, shape=(filled if self._images > 1 else 0,), dtype=places)
        trajectories = array(
            state, "open_trajectories", where, shape=np.shape(entry(state, "open_trajectories", where)), dtype=np.int64
        )
        opened = array(state, "open_places", where, shape=trajectories.shape, dtype=np.int64)
        for name, found in (("back", back), ("open_places", opened)):
            if found.size and not (found.min() >= 0 and found.max() < filled):
                raise wrong(f"{where}: {name}", "places that hold nothing", f"places from 0 to {filled - 1}")
        if trajectories.ndim != 1 or (np.diff(trajectories) <= 0).any():
            raise wrong(f"{where}: open_trajectories", "trajectories out of order", "an array [K] of ascending numbers")
        here = np.arange(filled)
        for name, direction in (("following", 1), ("preceding", -1)):
            there = array(state, name, where, shape=(filled,), dtype=places).astype(np.int64)
            linked = there != _NONE
            ages = ((there - taken) % self.size - (here - taken) % self.size)[linked] * direction
            if ((there < _NONE) | (there >= filled)).any() or (ages <= 0).any():
                raise wrong(
                    f"{where}: {name}", "a link to a place that holds nothing, or back in time", "a trajectory's order"
                )
        return filled

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes over what `get_state` of a ring of this size returned; see `check_state`."""
        self.taken = int(state["taken"])
        for name in _COLUMNS:
            values = state[name]
            getattr(self, name)[: len(values)] = values
        self._open_trajectories, self._open_places = (
            np.array(state["open_trajectories"]),
            np.array(state["open_places"]),
        )

    def _make_arrays(self, size: int) -> None:
        places = np.min_scalar_type(-self.size - 1)
        self.following, self.preceding = (np.full(size, _NONE, places) for _ in range(2))
        self.back = np.zeros(size if self._images > 1 else 0, places)
        """The place of the image before; the first of a trajectory stands for all before it, so it has its own."""
        self.terminated, self.truncated, self.observed = (np.zeros(size, np.bool_) for _ in range(3))

    def _with_dependents(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """These places, and those whose observations are made of images in them too."""
        reached = [places]
        for _ in range(self._images - 1):
            followers, leaders = self._followers(reached[-1])
            reached.append(followers[self.back[followers] == leaders])
        return np.unique(np.concatenate(reached))

    def _followers(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The places that follow some of these, and which ones they follow."""
        followers = self.following[places].astype(np.int64)
        there = followers != _NONE
        return followers[there], places[there]

    def _keep_open(self, kept: NDArray[np.bool_]) -> None:
        self._open_trajectories, self._open_places = self._open_trajectories[kept], self._open_places[kept]
