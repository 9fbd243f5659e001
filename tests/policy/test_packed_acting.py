"""`PackedActing` with models in half precision: the numbers of `compute_actions`."""

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rollax import SampleBatch
from tests.policy.small_ppo import CHOICES, SEEN, Half, make, seen

MASKED = spaces.Dict({"obs": SEEN, "action_mask": spaces.MultiBinary(4)})
BOX = spaces.Box(-1, 1, (2,), np.float32)


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


@pytest.mark.long
def test_values_and_losses_in_half_precision_become_float32():
    policy = make(MASKED, model={"custom_model": Half})
    obs = {"obs": seen(8), "action_mask": np.array([[1, 0, 1, 1]] * 8, np.int8)}
    assert policy.compute_values(obs).dtype == np.float32
    actions, _, fetches = policy.compute_actions(obs)
    columns = dict.fromkeys(("advantages", "value_targets"), np.ones(8, np.float32))
    stats = policy.learn_on_batch(SampleBatch({"obs": obs, "actions": actions, **columns, **fetches}))
    assert np.isfinite([stats["entropy"], stats["kl"], stats["total_loss"]]).all()
