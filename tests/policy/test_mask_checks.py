"""Action masks: checks in NumPy, and their effect on a policy."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollax import DQN, PPO, SAC, EnvError, SpaceError, check_env
from rollax.policy.mask_checks import are_allowed, masks_choices
from tests.env.refused import refused
from tests.models.test_low_logits import Low
from tests.policy.small_ppo import CHOICES, SEEN, make, seen

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


@pytest.mark.parametrize("policy_class", [PPO, DQN, SAC])
def test_policies_with_low_outputs_for_valid_actions_never_take_an_invalid_one(policy_class) -> None:
    policy = policy_class.make_policy(MASK, spaces.Discrete(3), {"model": {"custom_model": Low}, "seed": 0})
    obs = {"action_mask": np.array([[0, 1, 1], [1, 0, 1]] * 32, np.int8)}
    for explore in (True, False):
        actions, _, fetches = policy.compute_actions(obs, explore=explore)
        assert are_allowed(obs["action_mask"], actions, spaces.Discrete(3)).all()
        assert all(np.isfinite(column).all() for column in fetches.values())


class AdditiveMasks(gym.Env):
    """Masks that are added to logits: -1e9 excludes an action."""

    observation_space = spaces.Dict({"x": BOX, "action_mask": spaces.Box(-np.inf, 0, (3,), np.float32)})
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return {"x": np.zeros(2, np.float32), "action_mask": np.array([-1e9, 0, 0], np.float32)}, {}

    def step(self, action):
        return self.reset()[0], 0.0, True, False, {}


def test_additive_masks_are_refused() -> None:
    env = AdditiveMasks
    policy = PPO.make_policy(env.observation_space, env.action_space, {"model": {"fcnet_hiddens": (4,)}})
    seen = {key: value[None] for key, value in AdditiveMasks().reset()[0].items()}
    for act in (lambda: policy.compute_actions(seen), lambda: check_env(AdditiveMasks)):
        refused(EnvError, act, says="The action mask allows no action")


@pytest.mark.parametrize(
    ("observed", "acted"),
    [
        (spaces.Dict({"unit": spaces.Dict({"x": BOX, **MASK})}), spaces.Discrete(3)),
        (spaces.Tuple([spaces.Dict({"x": BOX, **MASK})] * 2), spaces.Tuple([spaces.Discrete(3)] * 2)),
    ],
)
def test_masks_inside_parts_of_the_observation_are_refused(observed, acted) -> None:
    with pytest.raises(SpaceError, match="not at the top level of the observation"):
        PPO.make_policy(observed, acted, {"model": {"fcnet_hiddens": (4,)}})


def test_masks_of_others_beside_the_own_one_are_features() -> None:
    observed = spaces.Dict({"other": spaces.Dict({"x": BOX, **MASK}), **MASK})
    policy = PPO.make_policy(observed, spaces.Discrete(3), {"model": {"fcnet_hiddens": (4,)}})
    first, second = np.array([[1, 0, 0]]), np.array([[0, 1, 0]])
    seen = {"other": {"x": np.zeros((1, 2)), "action_mask": first}, "action_mask": second}
    assert policy.compute_actions(seen)[0].tolist() == [1]


class TestMask:
    def space(self, entries):
        return spaces.Dict({"x": SEEN, "action_mask": spaces.MultiBinary(entries)})

    @pytest.mark.parametrize(
        ("action_space", "bad_row", "where"),
        [
            (CHOICES, [0, 0, 0, 0], r"'default_policy', row 2 of 3\n"),
            (spaces.MultiDiscrete([2, 2]), [1, 1, 0, 0], r"row 2 of 3, discrete action 1 of 2\n"),
            (
                spaces.Tuple([spaces.Discrete(1), SEEN, spaces.Discrete(3)]),
                [0, 1, 1, 1],
                r"row 2 of 3, discrete action 0 of 2",
            ),
        ],
    )
    def test_all_zeros_is_an_error(self, action_space, bad_row, where):
        mask = np.array([[1, 1, 1, 1], [1, 0, 1, 0], bad_row], np.int8)
        with pytest.raises(EnvError, match=r"allows no action(.|\n)*" + where + r"(.|\n)*fix"):
            make(self.space(4), action_space).compute_actions({"x": seen(3), "action_mask": mask})

    def test_masks_that_do_not_fit(self):
        refused(SpaceError, make, self.space(3), says="wrong width...MultiBinary(3)...MultiBinary(4)")
        with pytest.raises(SpaceError, match=r"wrong width(.|\n)*Dict"):
            make(spaces.Dict({"x": SEEN, "action_mask": spaces.Dict({"a": spaces.MultiBinary(4)})}))
        refused(SpaceError, make, self.space(3), SEEN, says="no discrete choices")
        with pytest.raises(EnvError, match=r"key 'action_mask'(.|\n)*\[1, 3\](.|\n)*\[(N|1), 4\]"):
            make(self.space(4)).compute_actions({"x": seen(1), "action_mask": np.ones((1, 3), np.int8)})
        # One entry would otherwise be valid for all actions of a policy with Q-values.
        policy = DQN.make_policy(self.space(4), CHOICES)
        with pytest.raises(EnvError, match=r"key 'action_mask'(.|\n)*\[1, 1\](.|\n)*\[(N|1), 4\]"):
            policy.compute_actions({"x": seen(1), "action_mask": np.ones((1, 1), np.int8)})
