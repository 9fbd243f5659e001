"""Registers the algorithm FAKE; imported with `--import` by command lines in other processes."""

from rollax.algorithms.registry import ALGORITHMS

ALGORITHMS["FAKE"] = "tests.cli.fake_algorithm:FakeTrainer"
