"""Dropout of critics, `critic_model.dropout`: its place among the layers, and where it is on."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax import SAC
from rollax.models.layers import MLP
from tests.algorithms.tables import f32, two_rows
from tests.algorithms.test_sac import Middle

STATES = spaces.Discrete(3)
BOX = spaces.Box(-1, 1, (1,), np.float32)


def test_dropout_precedes_normalization_and_activation():
    # x = (1, 3) is dropped to one of (0, 0), (2, 0), (0, 6), (2, 6), with the normalized outputs (0, 0), (1, -1),
    # (-1, 1), (-1, 1), of which relu leaves (0, 0), (1, 0), (0, 1). In evaluation mode (1, 3) becomes (-1, 1).
    mlp = MLP(2, (2,), "relu", "layer", dropout=0.5, rngs=nnx.Rngs(0))
    mlp.layers[0].kernel[...] = jnp.eye(2)
    rows = np.round(np.asarray(mlp(jnp.tile(f32(1, 3), (100, 1)))), 3).tolist()
    assert {tuple(row) for row in rows} == {(0, 0), (1, 0), (0, 1)}
    assert rows != np.round(np.asarray(mlp(jnp.tile(f32(1, 3), (100, 1)))), 3).tolist()
    mlp.eval()
    np.testing.assert_allclose(mlp(jnp.array([[1.0, 3.0]])), [[0, 1]], atol=1e-4)


@pytest.mark.short("actions0")
@pytest.mark.parametrize("actions", [BOX, spaces.Discrete(2)])
def test_critics_drop_in_updates_and_in_targets(actions):
    # One hidden unit, which is 1, is dropped or doubled: the values of each critic are 0 or 2.
    options = {"critic_model": {"fcnet_hiddens": (1,), "dropout": 0.5}, "model": {"fcnet_hiddens": ()}}
    policy = SAC.make_policy(STATES, actions, {**options, "lr": 0.0, "num_critics": 1, "train_batch_size": 2})
    weights = {name: np.asarray(value) for name, value in policy.get_weights().items()}
    ones = ("critics.members.head.kernel", "advantages.layers.0.kernel", "mlp.layers.0.bias")
    for name, value in weights.items():
        if name.startswith(("actor.", "critics.")) and value.dtype == np.float32:
            weights[name] = np.full_like(value, name.endswith(ones))
    policy.set_weights(weights)
    policy.learner.set_targets(dict(policy.params))
    policy.learning_rng = Middle()
    taken = f32(0.2, -0.4)[:, None] if actions is BOX else np.array([0, 1])
    found = [policy.learn_on_batch(two_rows(actions=taken)) for _ in range(30)]
    # Each of two rows has 0 or 2; the second row is terminated, so that only the first has a value in its target.
    assert {round(stats["mean_q"], 4) for stats in found} == {0, 1, 2}
    assert len({round(stats["mean_target"], 4) for stats in found}) == 2
    # Targets and values are dropped independently.
    assert len({(round(stats["mean_q"], 4), round(stats["mean_target"], 4)) for stats in found}) > 3
