"""Action masks in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from rollax.policy.action_masks import are_allowed, masks_choices

MASK = spaces.Dict({"action_mask": spaces.MultiBinary(3)})
BOX = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("observed", "acted", "expected"),
    [
        (MASK, spaces.Discrete(3), True),
        (MASK, spaces.Tuple([BOX, spaces.MultiDiscrete([1, 2])]), True),
        (MASK, BOX, False),
        (BOX, spaces.Discrete(3), False),
        (None, spaces.Discrete(3), False),
        (MASK, None, False),
    ],
)
def test_whether_there_is_a_mask_of_choices(observed, acted, expected) -> None:
    assert masks_choices(observed, acted) is expected


def test_which_actions_masks_allow() -> None:
    # Entries of a mask: the choices 5, 6 of the Discrete, then 0, 1 and 0, 1, 2 of the MultiDiscrete.
    space = spaces.Tuple([spaces.Discrete(2, start=5), BOX, spaces.MultiDiscrete([2, 3])])
    mask = np.array([[1, 0, 0, 1, 1, 0, 1]] * 4)
    discrete, several = np.array([5, 6, 5, 5]), np.array([[1, 2], [1, 2], [0, 2], [1, 1]])
    actions = discrete, np.zeros((4, 2), np.float32), several
    assert are_allowed(mask, actions, space).tolist() == [True, False, False, False]
    assert are_allowed(mask.astype(np.float32), actions, space).tolist() == [True, False, False, False]
