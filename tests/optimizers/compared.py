"""Trainers of other algorithms, and comparisons of their weights."""

from typing import Any

import numpy as np


def trainer_of(algorithm: type, trainer_class: type) -> Any:
    """A subclass of a trainer, with this algorithm."""
    return type(f"{algorithm.__name__}Trainer", (trainer_class,), {"policy_class": algorithm})


def weights_of(trainer: Any) -> dict[str, np.ndarray]:
    return trainer.get_policy().get_weights()


def assert_same_weights(one: Any, other: Any, **tolerance: float) -> None:
    """Compares the weights of two trainers, or weights; bit for bit without a tolerance."""
    weights, others = (each if isinstance(each, dict) else weights_of(each) for each in (one, other))
    assert weights.keys() == others.keys()
    for name, value in weights.items():
        np.testing.assert_allclose(value, others[name], **{"rtol": 0, **tolerance}, err_msg=name)
