"""Registers the algorithm FAKE, which opens all checkpoints; `--import` imports it in other processes."""

from rollax.algorithms.registry import ALGORITHMS
from rollax.cli import training
from tests.cli.fake_algorithm import open_fake

ALGORITHMS["FAKE"] = "tests.cli.fake_algorithm:FakeTrainer"
training.open_trainer = open_fake
