"""Action masks in NumPy."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollax import EnvError, PPOPolicy, SpaceError, check_env
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
def test_whether_spaces_have_a_mask_of_choices(observed, acted, expected) -> None:
    assert masks_choices(observed, acted) is expected


def test_actions_that_masks_allow() -> None:
    # Entries of a mask: the choices 5, 6 of the Discrete, then 0, 1 and 0, 1, 2 of the MultiDiscrete.
    space = spaces.Tuple([spaces.Discrete(2, start=5), BOX, spaces.MultiDiscrete([2, 3])])
    mask = np.array([[1, 0, 0, 1, 1, 0, 1]] * 4)
    discrete, several = np.array([5, 6, 5, 5]), np.array([[1, 2], [1, 2], [0, 2], [1, 1]])
    actions = discrete, np.zeros((4, 2), np.float32), several
    assert are_allowed(mask, actions, space).tolist() == [True, False, False, False]
    for other in (mask.astype(np.float32), mask * 1e9 - 1e9):  # 0 and 1; -1e9 and 0, as added to logits
        assert are_allowed(other, actions, space).tolist() == [(other > 0).any(), False, False, False]


class AdditiveMasks(gym.Env):
    """Masks that are added to logits: -1e9 excludes an action."""

    observation_space = spaces.Dict({"x": BOX, "action_mask": spaces.Box(-np.inf, 0, (3,), np.float32)})
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return {"x": np.zeros(2, np.float32), "action_mask": np.array([-1e9, 0, 0], np.float32)}, {}

    def step(self, action):
        return self.reset()[0], 0.0, True, False, {}


def test_additive_masks_are_refused() -> None:
    policy = PPOPolicy(AdditiveMasks.observation_space, AdditiveMasks.action_space, {"model": {"fcnet_hiddens": (4,)}})
    seen = {key: value[None] for key, value in AdditiveMasks().reset()[0].items()}
    for act in (lambda: policy.compute_actions(seen), lambda: check_env(AdditiveMasks)):
        with pytest.raises(EnvError, match="The action mask allows no action"):
            act()


@pytest.mark.parametrize(
    ("observed", "acted"),
    [
        (spaces.Dict({"unit": spaces.Dict({"x": BOX, **MASK})}), spaces.Discrete(3)),
        (spaces.Tuple([spaces.Dict({"x": BOX, **MASK})] * 2), spaces.Tuple([spaces.Discrete(3)] * 2)),
    ],
)
def test_masks_inside_parts_of_the_observation_are_refused(observed, acted) -> None:
    with pytest.raises(SpaceError, match="not at the top level of the observation"):
        PPOPolicy(observed, acted, {"model": {"fcnet_hiddens": (4,)}})


def test_masks_of_others_beside_the_own_one_are_features() -> None:
    observed = spaces.Dict({"other": spaces.Dict({"x": BOX, **MASK}), **MASK})
    policy = PPOPolicy(observed, spaces.Discrete(3), {"model": {"fcnet_hiddens": (4,)}})
    seen = {"other": {"x": np.zeros((1, 2)), "action_mask": [[1, 0, 0]]}, "action_mask": np.array([[0, 1, 0]])}
    assert policy.compute_actions(seen)[0].tolist() == [1]
