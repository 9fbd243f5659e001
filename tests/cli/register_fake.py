"""Registers the algorithm FAKE, which opens all checkpoints; `--import` imports it in other processes."""

from rollax.algorithms.registry import ALGORITHMS
from rollax.cli import train
from tests.cli.fake_algorithm import open_fake

ALGORITHMS["FAKE"] = "tests.cli.fake_algorithm:FakeTrainer"
train.open_trainer = open_fake
