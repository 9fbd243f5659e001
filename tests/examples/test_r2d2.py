"""The equations of R2D2 against numbers derived by hand, and its learning run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from examples.r2d2 import CONFIG, R2D2, R2D2Trainer, StatelessCartPole, rescaled, unscaled
from rollax import DQN
from rollax.batch import Fragment
from rollax.models.outputs import Outputs
from rollax.policy.sequence_draw import SequenceDraw
from tests.algorithms.tables import f32
from tests.replay.reference import DrawsAll


def test_scale_of_values():
    # h(3) = √4 - 1 + 0.003; h(-8) = -(√9 - 1) - 0.008
    np.testing.assert_allclose(rescaled(f32(3, -8, 0)), [1.003, -2.008, 0], rtol=1e-6)
    values = f32(-300, -1, 0, 0.5, 20, 500)
    np.testing.assert_allclose(unscaled(rescaled(values)), values, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(jax.vmap(jax.grad(rescaled))(f32(3, -8)), [1 / 4 + 0.001, 1 / 6 + 0.001], rtol=1e-6)


class Constant(nnx.Module):
    """Action values 1.003 and 0, and a state that counts the rows."""

    def __init__(self, observation_space, num_outputs, *, rngs):
        self.values = nnx.Param(jnp.array([1.003, 0.0]))

    def initial_state(self):
        return (np.zeros(1, np.float32),)

    def __call__(self, obs, state):
        return Outputs(jnp.broadcast_to(self.values[...], (len(obs), 2)), state=(state[0] + 1,))


@pytest.mark.parametrize(("algorithm", "options"), [(R2D2, {}), (DQN, {"use_h_function": True})], ids=["R2D2", "DQN"])
def test_targets_are_scaled_after_the_sum(algorithm, options):
    # h⁻¹(1.003) = 3, γ = ½ and n = 2. Row 0: y = h(1 + 2 / 2 + 3 / 4) = h(2.75). Row 1: h(2 + 3 / 2 + 3 / 4) = h(4.25).
    # Row 2, which the time limit ends: h(3 + 3 / 2) = h(4.5).
    config = {**options, "train_batch_size": 100, "overlap": 2, "gamma": 0.5, "n_step": 2, "seed": 0}
    config["model"] = {"custom_model": Constant, "max_seq_len": 4}
    policy = algorithm.make_policy(spaces.Discrete(3), spaces.Discrete(2), config)
    assert policy.replayed == SequenceDraw(4, 0, 2, columns=("state_in",))
    columns = {"obs": np.arange(3), "actions": np.zeros(3, int), "rewards": f32(1, 2, 3)}
    columns |= {"trajectory_id": np.zeros(3, int), "state_in": (f32(0, 1, 2)[:, None],)}
    columns |= {"terminateds": np.zeros(3, bool), "truncateds": np.arange(3) == 2}
    buffer = DrawsAll(100, gamma=0.5, n_step=2, columns=["state_in"])
    buffer.add(Fragment(columns, [2], {"obs": np.array([0]), "state_in": (f32(3)[:, None],)}))
    batch = buffer.sample(0, np.random.default_rng(0), draw=policy.replayed)
    assert batch["seq_lens"].tolist() == [4, 4, 2]
    stats = policy.learn_on_batch(next(iter(batch.minibatches(5))))  # the sequence of row 0
    targets = np.array([np.sqrt(x + 1) - 1 + 0.001 * x for x in (2.75, 4.25, 4.5)])
    np.testing.assert_allclose(stats["mean_target"], targets.mean(), rtol=1e-4)
    errors = np.abs(targets - 1.003)
    np.testing.assert_allclose(stats["td_error"], [0.9 * errors.max() + 0.1 * errors.mean()], rtol=1e-3)


@pytest.mark.learning
def test_own_r2d2_stateless_cartpole(reaches):
    reaches(R2D2Trainer, StatelessCartPole, 150, 40_960, CONFIG)
