"""The expected content of a replay buffer in plain Python: nodes of each trajectory, and the number of used slots."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollax import SampleBatch
from rollax.replay.uniform import UniformReplay


class DrawsAll(UniformReplay):
    """Draws every transition once, in the order of slots."""

    def _draw(self, count, rng):
        return np.flatnonzero(self._drawable)


def everything(buffer: UniformReplay) -> SampleBatch:
    """All transitions of a `DrawsAll`."""
    return buffer.sample(0, np.random.default_rng(0))


@dataclass
class Node:
    """An observation; `row` is the step from it, if there is one."""

    obs: Any
    images: list[int]  # slot numbers of its images, oldest first; without stacks only its own
    row: dict[str, Any] | None = None
    next: Node | None = field(default=None, repr=False)


class Reference:
    """Adds rows one by one, by the rules in the docstring of `UniformReplay`."""

    def __init__(self, capacity: int, n_step: int, gamma: float, stack: int = 1) -> None:
        self.capacity, self.n_step, self.gamma, self.stack = capacity, n_step, gamma, stack
        self.taken = 0
        self.nodes: list[Node] = []
        self.open: dict[int, Node] = {}

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Adds the rows of a fragment. If a trajectory has two segments, the second one is added later."""
        part: list[dict[str, Any]] = []
        first, seen = True, set()
        for row in rows:
            if first and row["trajectory_id"] in seen:
                self._add_part(part)
                part, seen = [], set()
            seen.add(row["trajectory_id"])
            part.append(row)
            first = row["bootstrap"] or row["terminateds"]
        self._add_part(part)

    def _add_part(self, rows: list[dict[str, Any]]) -> None:
        before: dict[int, dict] = {}
        at_most = 0
        for row in rows:
            last = before.get(row["trajectory_id"])
            row["previous"] = last if last is not None and not last["bootstrap"] else None
            before[row["trajectory_id"]] = row
            at_most += 1 + self._extra(row)
        oldest = self.taken + at_most - self.capacity
        for row in rows:
            self._add_row(row, oldest)

    def _extra(self, row: dict) -> int:
        """The number of images to store besides the newest."""
        if self._continues(row):
            return 0
        stack = row["obs"][: self.stack] if self.stack > 1 else [0]
        equal = 0
        while equal < self.stack - 1 and np.array_equal(stack[equal + 1], stack[0]):
            equal += 1
        return self.stack - 1 - equal

    def _continues(self, row: dict) -> bool:
        last = row["previous"]
        return last is not None and (self.stack == 1 or np.array_equal(row["obs"][:-1], last["obs"][1:]))

    def _add_row(self, row: dict, oldest: int) -> None:
        trajectory, last = row["trajectory_id"], row["previous"]
        end = self.open.pop(trajectory, None) if last is None else None
        if end is not None and min(end.images) >= oldest and np.array_equal(end.obs, row["obs"]):
            node = end
        else:
            node = Node(row["obs"], self._take(row))
            self.nodes.append(node)
        if last is not None:
            last["node"].next = node
        row["node"] = node
        node.row = None if row["bootstrap"] else row
        if row["bootstrap"] and not row["final"]:
            self.open[trajectory] = node

    def _take(self, row: dict) -> list[int]:
        extra = self._extra(row)
        own = list(range(self.taken, self.taken + extra + 1))
        self.taken += extra + 1
        if self._continues(row):
            return [*row["previous"]["node"].images[1:], *own] if self.stack > 1 else own
        return [own[0]] * (self.stack - len(own)) + own

    def transitions(self) -> dict[int, tuple]:
        """Action (unique) -> obs, n-step reward, discount, next obs (None after a termination)."""
        found = {}
        for node in self.nodes:
            if node.row is not None and min(node.images) >= self.taken - self.capacity:
                window = self._window(node)
                if window is not None:
                    found[node.row["actions"]] = (node.obs, *window)
        return found

    def _window(self, node: Node) -> tuple | None:
        total, discount = 0.0, 1.0
        for _ in range(self.n_step):
            row = node.row
            if row is None:
                return None
            total += discount * row["rewards"]
            discount *= self.gamma
            if row["terminateds"]:
                return total, 0.0, None
            assert node.next is not None
            node = node.next
            if row["truncateds"]:
                break
        return total, discount, node.obs
