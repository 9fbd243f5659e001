"""`act_greedily`: the greedy actions of `compute_actions`, and its errors."""

import jax
import numpy as np
import pytest
from gymnasium import spaces

from rollax import NonFiniteError
from rollax.algorithms.ppo import PPO

OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
PARTS = {"move": spaces.Discrete(3), "force": spaces.Box(-1.0, 1.0, (2,))}


@pytest.fixture(
    params=[
        spaces.Discrete(4),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Box(-1.0, 1.0, (2,)),
        spaces.Dict(PARTS),
        spaces.Tuple(PARTS.values()),
    ],
    ids=lambda space: type(space).__name__,
)
def policy(request):
    return PPO.make_policy(OBS, request.param, {"seed": 0, "model": {"fcnet_hiddens": (4,)}})


@pytest.mark.short(every=3)
@pytest.mark.parametrize("rows", [1, 5, 8])
def test_they_are_those_of_compute_actions(policy, rows):
    obs = np.random.default_rng(0).uniform(-1, 1, (rows, 3)).astype(np.float32)
    expected, actions = policy.compute_actions(obs, explore=False)[0], policy.act_greedily(obs)
    assert jax.tree.structure(actions) == jax.tree.structure(expected)
    for leaf, other in zip(jax.tree.leaves(actions), jax.tree.leaves(expected), strict=True):
        assert leaf.dtype == other.dtype
        np.testing.assert_array_equal(leaf, other)


@pytest.mark.short(every=3)
def test_outputs_that_are_not_finite_raise_an_error(policy):
    policy.set_weights({name: np.full_like(weights, np.nan) for name, weights in policy.get_weights().items()})
    with pytest.raises(NonFiniteError):
        policy.act_greedily(np.zeros((3, 3), np.float32))
