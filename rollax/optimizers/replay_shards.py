"""`ReplayShards`: requests to the shards of a replay buffer."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rollax.batch import SampleBatch
from rollax.core.stored_values import as_text, wrong_value
from rollax.errors import CheckpointError
from rollax.processes.actor_pool import Actor, ActorPool
from rollax.processes.actors import Actors, LocalActors
from rollax.processes.failure_rules import FailureRules, Failures
from rollax.replay.buffer_sizes import check_buffers_fit
from rollax.replay.shard import Contents, Errors, ReplayShard, ShardSettings

log = logging.getLogger("rollax.replay")


@dataclass(slots=True)
class _Shard:
    """A shard's last reported contents."""

    contents: Contents = field(default_factory=lambda: Contents({}, {}, {}))


class Drawn(NamedTuple):
    """The rows of some updates, by policy, and the shard that they were drawn from."""

    shard: _Shard
    batches: dict[str, SampleBatch]


class ReplayShards(ActorPool):
    """The shards of a replay buffer, by index from 1.

    All fragments of a worker are sent to one shard, so that the steps of a trajectory stay together. Shards are drawn
    in proportion to their priorities: each row has the same probability as in a single buffer with all rows. Several
    policies share each draw; their rows have this probability only if all policies are spread alike over the shards.

    A restarted shard is empty. Exceptions in a shard are raised here, and do not count as failures of the shard.
    `seed` is the seed of `choices`, the random generator that chooses shards.
    """

    def __init__(self, actors: Actors, count: int, rules: FailureRules, seed: int | None = None) -> None:
        self.choices = np.random.default_rng(seed)
        self._arrived: list[Drawn] = []
        self._lost_draws = 0
        advice = "lower buffer_size if a machine swaps memory to disk, or raise sample_timeout_s"
        failures = Failures(rules, "replay shard", advice)
        super().__init__(actors, range(1, count + 1), failures, state=_Shard)

    @property
    def adds_in_flight(self) -> int:
        """The number of fragments that no shard has stored yet."""
        return sum(call.method == "add" for call in self.pending)

    @property
    def draws_in_flight(self) -> int:
        """The number of draws that are not collected yet."""
        return sum(call.method == "draw" for call in self.pending) + len(self._arrived)

    @property
    def rows(self) -> dict[str, int]:
        """Policy id -> transitions in all shards, as last reported."""
        rows: Counter[str] = Counter()
        for actor in self._live.values():
            rows.update(actor.state.contents.rows)
        return dict(rows)

    def add(self, worker_index: int, rows: Any) -> None:
        """Sends a fragment's rows, or a reference to them, to the shard of the worker that sampled them.

        Raises a WorkerError if no shard is left.
        """
        there = sorted(self._live)
        if not len(self):
            raise self.failures.unavailable()
        if there:  # while all shards wait for their restart, rows are dropped
            self.send(there[(max(worker_index, 1) - 1) % len(there)], "add", rows, raises=True)

    def request_draw(self, updates: int) -> bool:
        """Requests the rows of `updates` updates from a shard; False if nothing is stored yet."""
        chances = self._chances()
        if not chances:
            return False
        index = int(self.choices.choice([*chances], p=[*chances.values()]))
        self.send(index, "draw", updates, raises=True)
        return True

    def give_errors(self, drawn: Drawn, errors: Errors) -> None:
        """Returns the errors of drawn rows to their shard; a shard that was restarted does not get them."""
        for index, actor in self._live.items() if errors else ():
            if actor.state is drawn.shard:
                self.send(index, "update_priorities", errors, raises=True)

    def collect(self) -> list[Drawn]:
        """The draws that have arrived; raises exceptions of shards, and the errors of `ActorPool.ready`."""
        raised: list[Exception] = []
        for call in self.ready(0.0):
            if call.lost:
                self._lost_draws += call.method == "draw"
            elif call.error is not None:
                raised.append(call.error)
            elif call.method == "draw":
                self.failures.succeeded(call.index)
                batches, contents = call.value
                self._arrived.append(Drawn(call.state, batches))
                self._report(call.state, contents)
            else:
                self._report(call.state, call.value)
        if raised:  # only after the outcomes of the other calls are recorded
            raise raised[0]
        arrived, self._arrived = self._arrived, []
        return arrived

    def take_lost_draws(self) -> int:
        """The number of draws lost with their shards since the last call."""
        lost, self._lost_draws = self._lost_draws, 0
        return lost

    def wait(self, others: Sequence[Any], timeout_s: float) -> None:
        """Waits for the end of one call, of the shards or of `others`, or until the time has passed."""
        self._wait([*self.references, *others], 1, timeout_s)

    def get_state(self) -> list[dict[str, Any]]:
        """The states of the shards, in their order; raises a WorkerError if one cannot be called."""
        return self._call_every("get_state", dict.fromkeys(self._starts, ()))

    def set_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restores what `get_state` returned; for the errors see `AsyncReplayOptimizer.set_state`."""
        if not isinstance(states, list):
            raise wrong_value("replay shards", as_text(states), "a list of shards' states")
        if len(states) != self.count:
            raise CheckpointError(
                "The checkpoint has a different number of replay shards.", "replay shards", len(states)
            ).expected(
                self.count,
                "restore with the num_replay_shards and num_workers of the saved run; to continue with others, pass "
                "its weights to a new trainer: new.set_weights(restored.get_weights())",
            )
        arguments = {index: (self._actors.put(state),) for index, state in enumerate(states, start=1)}
        self._call_every("check_state", arguments)
        for index, contents in enumerate(self._call_every("set_state", arguments), start=1):
            self._report(self._live[index].state, contents)

    def empty(self) -> None:
        """Empties all shards. A shard that fails in the call is empty after its restart."""
        for index, contents in self.call_all("empty", raises=True).items():
            if index in self._live:
                self._live[index].state.contents = contents

    def forget_all(self) -> None:
        """Drops all running and lost requests."""
        self._arrived.clear()
        self._lost_draws = 0
        self.forget()

    def _chances(self) -> dict[int, float]:
        """Shard -> its probability: its share of a policy's priorities, averaged over the policies."""
        contents = {index: self._live[index].state.contents for index in sorted(self._live)}
        chances = dict.fromkeys(contents, 0.0)
        for policy_id in sorted({policy_id for each in contents.values() for policy_id in each.rows}):
            priorities = {index: each.priorities.get(policy_id, 0.0) for index, each in contents.items()}
            total = sum(priorities.values())
            if total > 0:
                chances = {index: chance + priorities[index] / total for index, chance in chances.items()}
        total = sum(chances.values())
        return {index: chance / total for index, chance in chances.items() if chance > 0}

    def _call_every(self, method: str, arguments_of: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        """The results of a method of each shard; raises a WorkerError if one has failed."""
        before = {index: actor.state for index, actor in self._live.items()}
        values = self.call_each(method, arguments_of, raises=True)
        same = {index for index, actor in self._live.items() if actor.state is before.get(index)}
        if missing := sorted(arguments_of.keys() - (values.keys() & same)):
            raise self.failures.unavailable(missing)
        return [values[index] for index in sorted(values)]

    def _report(self, shard: _Shard, contents: Contents) -> None:
        """Records the contents of a shard; raises ConfigError if all buffers together do not fit into the memory."""
        grown = shard.contents.nbytes != contents.nbytes
        shard.contents = contents
        if grown:
            shards = {index: actor.state.contents.nbytes for index, actor in self._live.items()}
            check_buffers_fit({f"{w}, shard {i}": n for i, nbytes in shards.items() for w, n in nbytes.items()})

    def _failed(self, actor: Actor, error: Exception, *, process_lost: bool) -> None:
        log.warning("The %s transitions of replay shard %d are lost.", actor.state.contents.rows, actor.index)
        super()._failed(actor, error, process_lost=process_lost)


def shard_capacities(buffer_size: int, num_shards: int, num_workers: int) -> list[int]:
    """The capacity of each shard, in proportion to its workers, so that all rows are kept equally long."""
    shards = min(num_shards, num_workers)
    workers = [len(range(shard, num_workers, shards)) for shard in range(shards)]
    return [max(buffer_size * count // num_workers, 1) for count in workers]


def shard_actors(settings: ShardSettings, *, remote: bool) -> Actors:
    """Shards in this process, or in Ray actors on the same node, because the learner reads most of their rows."""
    if not remote:
        return LocalActors(lambda index, restarts: ReplayShard(settings, index, restarts))
    from rollax.processes.cluster import started_ray
    from rollax.processes.ray_actors import RayActors, actor_class

    ray = started_ray("num_replay_shards")
    # No CPU is reserved: shards work while the learner waits for them, or while it learns.
    made, stored = actor_class(ray, ReplayShard, num_cpus=0, near=True), ray.put(settings)
    return RayActors(ray, lambda index, restarts: made.remote(stored, index, restarts))
