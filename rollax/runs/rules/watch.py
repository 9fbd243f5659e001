"""`Watch`: applies the rules while a run goes on, and logs each finding once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollax.runs.display import name_of_env
from rollax.runs.rules.finding import Rule, findings_of
from rollax.runs.rules.statistics import LEAST, RunStatistics

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer

log = logging.getLogger("rollax.doctor")

_MOST_KEPT = 1000
_PAUSE = 1.2


class Watch:
    """Logs a warning for each new problem or warning of a run; notes are left to `rollax doctor`.

    The rules are applied after 10 iterations, and then whenever the number of iterations has grown by a fifth, so that
    they are applied about 13 · log10(n / 10) times in a run of n iterations. `Watch` keeps about 1000 results: it drops
    every second one when there are more.

    Args:
        trainer: trains the run.
        run: the name of the algorithm.
        stop: the stop conditions.
        rules: what to look for; without rules, `update` does nothing.
        has_best: whether the best model is kept.
    """

    def __init__(
        self, trainer: Trainer, run: str, stop: Mapping[str, float], rules: Sequence[Rule], *, has_best: bool | None
    ) -> None:
        self._trainer, self._run = trainer, run
        self._stop, self._rules, self._has_best = stop, rules, has_best
        self._results: list[Mapping[str, Any]] = []
        self._seen, self._next = 0, LEAST
        self._logged: set[tuple[str, str | None]] = set()

    def update(self, result: Mapping[str, Any]) -> None:
        """Adds the result of an iteration, and applies the rules if they are due."""
        if not self._rules:
            return
        self._results.append(result)
        self._seen += 1
        if len(self._results) > _MOST_KEPT:
            del self._results[1::2]
        if self._seen < self._next:
            return
        self._next = int(self._seen * _PAUSE) + 1
        try:
            self._look()
        except Exception:  # a statistic of user code in an unexpected form must not end the run
            log.exception("The rules of the doctor failed, and are not applied any more in this run.")
            self._rules = ()

    def _look(self) -> None:
        config = self._trainer.config.to_json()
        del config["env"]
        run = RunStatistics(
            self._run,
            name_of_env(self._trainer.config.env),
            config,
            self._results,
            stop=self._stop,
            ended=False,
            has_best=self._has_best,
            action_spaces={name: policy.action_space for name, policy in self._trainer.worker.policies.items()},
        )
        for finding in findings_of(self._rules, run):
            if finding.severity != "note" and (finding.rule, finding.policy) not in self._logged:
                self._logged.add((finding.rule, finding.policy))
                log.warning("%s", finding)
