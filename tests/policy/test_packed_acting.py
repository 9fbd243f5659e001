"""`PackedActing` with models in half precision: the numbers of `compute_actions`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax.models.outputs import Outputs
from tests.policy.small_ppo import CHOICES, SEEN, make, seen

MASKED = spaces.Dict({"obs": SEEN, "action_mask": spaces.MultiBinary(4)})
BOX = spaces.Box(-1, 1, (2,), np.float32)


class Half(nnx.Module):
    """Computes in float16 with parameters in bfloat16."""

    def __init__(self, observation_space, num_outputs, *, rngs):
        kinds = {"dtype": jnp.float16, "param_dtype": jnp.bfloat16, "rngs": rngs}
        self.policy, self.value = nnx.Linear(3, num_outputs, **kinds), nnx.Linear(3, 1, **kinds)

    def __call__(self, obs):
        obs = obs["obs"] if isinstance(obs, dict) else obs
        return Outputs(self.policy(obs), self.value(obs)[:, 0])


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize(
    ("observation_space", "action_space"), [(SEEN, CHOICES), (SEEN, BOX), (MASKED, CHOICES)], ids=["int", "box", "mask"]
)
def test_actions_and_columns_equal_those_of_compute_actions(observation_space, action_space, explore):
    plain, packed = (make(observation_space, action_space, model={"custom_model": Half}) for _ in range(2))
    acting = packed.packed_acting()
    for rows in (5, 1, 8):
        obs = seen(rows, seed=rows)
        if observation_space is MASKED:
            obs = {"obs": obs, "action_mask": np.array([[1, 0, 1, 1]] * rows, np.int8)}
        actions, _, fetches = plain.compute_actions(obs, explore=explore)
        sent, columns = acting.actions(obs, explore)
        found = acting.columns_of(columns)
        np.testing.assert_array_equal(sent, actions)
        np.testing.assert_array_equal(found.pop("actions"), actions)
        assert found.keys() == fetches.keys()
        for name, column in fetches.items():
            assert found[name].dtype == column.dtype == np.float32
            # Compiled without optimization, as in tests, densities of packed actions are rounded differently.
            is_density = name == "action_logp" and action_space is BOX
            np.testing.assert_allclose(found[name], column, rtol=1e-6 if is_density else 0, err_msg=name)
    assert {value.dtype for value in packed.params.values()} == {jnp.dtype(jnp.bfloat16)}
