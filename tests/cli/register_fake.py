"""Imported by a command line of its own process (`--import`), this makes FAKE an algorithm there."""

from rollax.algorithms.registry import ALGORITHMS

ALGORITHMS["FAKE"] = "tests.cli.fake_algorithm:FakeTrainer"
