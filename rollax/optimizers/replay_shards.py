"""`ReplayShards`: adds and draws under way in the shards of a replay memory, and the restart of those that die."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from rollax.batch import SampleBatch
from rollax.errors import CheckpointError, WorkerError
from rollax.evaluation.workers.failures import FailureRules, Failures
from rollax.evaluation.workers.processes import Processes
from rollax.optimizers.shard_failures import hung, not_there
from rollax.replay.memory import check_fit_together
from rollax.replay.shard import Contents, Errors
from rollax.state import described, wrong

log = logging.getLogger("rollax.replay")
Kind = Literal["add", "draw", "ask", "tell"]
_EMPTY = Contents({}, {}, {})


class Drawn(NamedTuple):
    """What some updates are to learn from, by policy, and the shard that it was drawn from."""

    shard: int
    generation: int
    batches: dict[str, SampleBatch]


@dataclass(slots=True)
class _Shard:
    handle: Any
    generation: int
    since: float  # time.monotonic() of its last answer, or of the call before which it had nothing to do
    contents: Contents = _EMPTY
    errors: list[Errors] = field(default_factory=list)  # to be sent with its next draw
    under_way: dict[Any, Kind] = field(default_factory=dict)


class ReplayShards:
    """The shards, by index from 1. Only `wait`, `get_state` and `set_state` wait.

    The fragments of a worker all go to one shard, so that the steps of a trajectory stay together. Shards are drawn
    from in proportion to the priorities in them: rows are as likely to be drawn as if one buffer held them all.

    A shard whose process dies is started anew by the rules for workers, and is empty then; or the run goes on without
    it, or the error is raised. What a shard raises is no accident, and always raised here.

    Args:
        processes: runs the shards; `start` is told the index.
        count: how many.
        rules: for those that fail.
        seed: of the choice of shards.
    Attributes:
        choices: what they are drawn by.
    """

    def __init__(self, processes: Processes, count: int, rules: FailureRules, seed: int | None = None) -> None:
        self._processes, self.count = processes, count
        self.failures = Failures(rules, "Replay shard")
        self.choices = np.random.default_rng(seed)
        self._owner: dict[Any, int] = {}  # reference of a call under way -> shard
        self._arrived: list[Drawn] = []
        self._answers: dict[Any, Any] = {}
        self._restarts: dict[int, float] = {}  # shard -> when
        self._generations = dict.fromkeys(range(1, count + 1), -1)
        self._lost_draws = 0
        self._shards = {index: self._start(index) for index in self._generations}

    @property
    def references(self) -> list[Any]:
        """Of the calls under way."""
        return list(self._owner)

    @property
    def adds_under_way(self) -> int:
        """Fragments that no shard has taken in yet."""
        return self._under_way("add")

    @property
    def draws_under_way(self) -> int:
        """Draws that are still to be collected."""
        return self._under_way("draw") + len(self._arrived)

    @property
    def rows(self) -> dict[str, int]:
        """Policy id -> transitions in all shards, as far as they have told."""
        rows: dict[str, int] = {}
        for shard in self._shards.values():
            for policy_id, count in shard.contents.rows.items():
                rows[policy_id] = rows.get(policy_id, 0) + count
        return rows

    def health(self) -> dict[str, Any]:
        """How many shards there are, how many restarts there were, and the last error of each that ever failed."""
        errors = {str(index): f"{type(error).__name__}: {error}" for index, error in sorted(self.failures.last.items())}
        return {"healthy": len(self._shards), "restarts": self.failures.restarts, "last_errors": errors}

    def add(self, worker_index: int, rows: Any) -> None:
        """Hands a fragment's rows, or a reference to them, to the shard of its worker."""
        there = sorted(self._shards)
        if there:  # where all of them wait for their restart there is nobody to keep it
            self._send(there[(max(worker_index, 1) - 1) % len(there)], "add", "add", rows)

    def request_draw(self, updates: int) -> bool:
        """Asks a shard for what so many updates are to learn from; False where nothing is kept yet."""
        chances = self._chances()
        if not chances:
            return False
        index = int(self.choices.choice([*chances], p=[*chances.values()]))
        errors, self._shards[index].errors = self._shards[index].errors, []
        self._send(index, "draw", "draw", updates, errors)
        return True

    def give_errors(self, drawn: Drawn, errors: Errors) -> None:
        """What the rows of a draw were learned from with goes to where they are, if that is still there."""
        shard = self._shards.get(drawn.shard)
        if shard is not None and shard.generation == drawn.generation and errors:
            shard.errors.append(errors)

    def collect(self) -> list[Drawn]:
        """The draws that have come; sees to shards that have died or hang.

        Raises:
            WorkerError: no shard is left.
            Exception: what a shard raised; or why its process is gone, where the rules let nothing else be done.
        """
        self._restart_those_due()
        if self._owner:
            references = list(self._owner)
            ready = self._processes.wait(references, len(references), 0.0)
            self._book(ready)
        self._look_for_hung()
        arrived, self._arrived = self._arrived, []
        return arrived

    def take_lost_draws(self) -> int:
        """How many draws have been lost with their shards since this was last asked."""
        lost, self._lost_draws = self._lost_draws, 0
        return lost

    def wait(self, others: Sequence[Any], timeout_s: float) -> None:
        """Waits until one call is over, of the shards or of `others`, or the time has passed."""
        references = [*self._owner, *others]
        if references:
            self._processes.wait(references, 1, timeout_s)
        else:
            due = min(self._restarts.values(), default=float("inf"))
            time.sleep(max(min(timeout_s, due - time.monotonic()), 0.0))

    def get_state(self) -> list[dict[str, Any]]:
        """What each shard holds, in the order of the shards.

        Raises:
            WorkerError: one of them cannot be asked.
        """
        for index, shard in self._shards.items():
            self._send(index, "tell", "update_priorities", shard.errors)
            shard.errors = []
        return self._ask_all("get_state", dict.fromkeys(self._generations, ()))

    def set_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Gives each shard what `get_state` returned.

        Raises:
            CheckpointError: of another number of shards, or one does not fit; nothing has changed then.
            ConfigError: a buffer is larger than the memory; the same.
            WorkerError: one of them cannot be asked.
        """
        if not isinstance(states, list):
            raise wrong("replay shards", described(states), "a list of shards' states")
        if len(states) != self.count:
            raise CheckpointError(
                "A replay memory of another number of shards.",
                where="replay shards",
                got=len(states),
                expected=self.count,
                fix="restore with the num_replay_shards and num_workers of the run that saved it; to go on with "
                "others, hand over the weights of a trainer that was restored so: set_weights(get_weights())",
            )
        arguments = {index: (self._processes.put(state),) for index, state in enumerate(states, start=1)}
        self._ask_all("check_state", arguments)
        contents = self._ask_all("set_state", arguments)
        for index, told in enumerate(contents, start=1):
            self._told(self._shards[index], told)

    def empty(self) -> None:
        """Nothing is kept in any shard from here on. One that dies meanwhile begins empty anyway."""
        self._finish([self._send(index, "add", "empty") for index in self._shards])

    def forget_draws(self) -> None:
        """Nobody wants the draws any more that are under way, nor are there errors of those before."""
        self._arrived.clear()
        self._lost_draws = 0
        for shard in self._shards.values():
            shard.errors.clear()
            for reference, kind in shard.under_way.items():
                if kind == "draw":
                    shard.under_way[reference] = "tell"

    def stop(self) -> None:
        """Ends the processes of all shards."""
        shards, self._shards = self._shards, {}
        self._owner.clear()
        self._restarts.clear()
        for shard in shards.values():
            self._processes.kill(shard.handle)

    def _chances(self) -> dict[int, float]:
        """Shard -> how likely it is to be drawn from; of several policies the mean of what is right for each."""
        policies = sorted({policy_id for shard in self._shards.values() for policy_id in shard.contents.rows})
        chances = dict.fromkeys(sorted(self._shards), 0.0)
        for policy_id in policies:
            priorities = {i: self._shards[i].contents.priorities.get(policy_id, 0.0) for i in chances}
            total = sum(priorities.values())
            if total > 0:
                chances = {index: chance + priorities[index] / total for index, chance in chances.items()}
        total = sum(chances.values())
        return {index: chance / total for index, chance in chances.items() if chance > 0}

    def _start(self, index: int) -> _Shard:
        self._generations[index] += 1
        return _Shard(self._processes.start(index), self._generations[index], time.monotonic())

    def _send(self, index: int, kind: Kind, method: str, *arguments: Any) -> Any:
        shard = self._shards[index]
        if not shard.under_way:
            shard.since = time.monotonic()
        reference = self._processes.call(shard.handle, method, *arguments)
        # In this order, and the other one as it ends: an interrupt between leaves none that is waited for in vain.
        self._owner[reference] = index
        shard.under_way[reference] = kind
        return reference

    def _under_way(self, kind: str) -> int:
        return sum(kind == each for shard in self._shards.values() for each in shard.under_way.values())

    def _ask_all(self, method: str, arguments_of: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        missing = [index for index in arguments_of if index not in self._shards]
        if missing:
            raise not_there(missing, self.failures.last)
        called = {self._send(i, "ask", method, *arguments): i for i, arguments in arguments_of.items()}
        generations = {index: shard.generation for index, shard in self._shards.items()}
        self._finish(called)
        lost = [i for i in generations if i not in self._shards or self._shards[i].generation != generations[i]]
        if lost:
            raise not_there(lost, self.failures.last)
        return [self._answers.pop(reference) for reference in called]

    def _finish(self, called: Iterable[Any]) -> None:
        """Waits until these calls are over, or their shards have failed."""
        waited_for = set(called)
        while waited_for & self._owner.keys():
            self._book(self._processes.wait(list(self._owner), 1, float("inf")))

    def _book(self, ready: Sequence[Any]) -> None:
        refused: list[Exception] = []
        for reference, outcome in zip(ready, self._processes.outcomes(ready), strict=True):
            index = self._owner.get(reference)
            if index is None:
                continue  # of a shard that has failed in another of its calls
            if reference not in self._shards[index].under_way:
                del self._owner[reference]  # an interrupt has cut its booking short
                continue
            if isinstance(outcome, WorkerError):
                self._failed(index, outcome)
                continue
            if isinstance(outcome, Exception):
                outcome.add_note(f"(in replay shard {index})")
                refused.append(outcome)
                self._answered(index, reference)
                continue
            self._settled(index, reference, outcome)
        if refused:  # only now: what the others have answered is not asked for again
            raise refused[0]

    def _answered(self, index: int, reference: Any) -> Kind:
        """Notes that a call is over; says what it was made for."""
        shard = self._shards[index]
        kind = shard.under_way.pop(reference)
        del self._owner[reference]
        shard.since = time.monotonic()
        return kind

    def _settled(self, index: int, reference: Any, outcome: Any) -> None:
        shard, kind = self._shards[index], self._answered(index, reference)
        if kind == "ask":
            self._answers[reference] = outcome
        elif kind == "add":
            self._told(shard, outcome)
        elif kind == "draw":
            self.failures.succeeded(index)
            batches, contents = outcome
            self._told(shard, contents)
            self._arrived.append(Drawn(index, shard.generation, batches))

    def _told(self, shard: _Shard, contents: Contents) -> None:
        grown = shard.contents.nbytes != contents.nbytes
        shard.contents = contents
        if grown:
            every = self._shards.items()
            check_fit_together({f"{w}, shard {i}": n for i, s in every for w, n in s.contents.nbytes.items()})

    def _failed(self, index: int, error: Exception) -> None:
        error.add_note(f"(in replay shard {index})")
        shard = self._shards.pop(index)
        for reference in shard.under_way:
            self._owner.pop(reference, None)
        self._lost_draws += sum(kind == "draw" for kind in shard.under_way.values())
        self._processes.kill(shard.handle)
        log.warning("The %s transitions of replay shard %d are lost.", shard.contents.rows, index)
        delay = self.failures.delay_before_restart(index, error)
        if delay is not None:
            self._restarts[index] = time.monotonic() + delay
            self._restart_those_due()
        elif not (self._shards or self._restarts):
            raise not_there(list(self._generations), self.failures.last)

    def _restart_those_due(self) -> None:
        now = time.monotonic()
        for index in [index for index, due in self._restarts.items() if due <= now]:
            del self._restarts[index]
            self._shards[index] = self._start(index)

    def _look_for_hung(self) -> None:
        limit = self.failures.rules.timeout_s
        for index, shard in list(self._shards.items()):
            waited_s = time.monotonic() - shard.since
            if shard.under_way and waited_s > limit:
                self._failed(index, hung(waited_s))
