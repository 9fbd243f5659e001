"""Settings that were measured: for each pair of environment and algorithm an experiment, with the scores it reached.

    from rollax import zoo

    entry = zoo.load("CartPole-v1", "PPO")
    with entry.make_trainer(seed=3) as trainer:
        trainer.fit(entry.experiment.stop)

Nothing else of rollax imports this package; `rollax zoo` is its command line.
"""

from __future__ import annotations

from rollax.zoo.entry import Entry, read_entry
from rollax.zoo.shelf import entries, load
from rollax.zoo.verifying import verify, verify_first

__all__ = ["Entry", "entries", "load", "read_entry", "verify", "verify_first"]
