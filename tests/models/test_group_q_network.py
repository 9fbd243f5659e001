"""Mixers: numbers by hand, and a joint value that is monotonic in the members' values."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from rollax.models.group_q_network import GroupQNetwork, QMixer
from rollax.models.group_view import GroupView


def qmixer(state_features=3, members=2, embed=4, hypernet_hiddens=(), seed=0):
    return QMixer(state_features, members, embed=embed, hypernet_hiddens=hypernet_hiddens, rngs=nnx.Rngs(seed))


def filled(mixer, **layers):
    """The mixer with given kernels and biases of its linear hypernetworks, and zeros in the others."""
    graph, params = nnx.split(mixer)
    mixer = nnx.merge(graph, jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype)), params))
    for name, (kernel, bias) in layers.items():
        layer = getattr(mixer, name).output
        layer.kernel[...], layer.bias[...] = jax.device_put(np.float32(kernel)), jax.device_put(np.float32(bias))
    return mixer


def test_by_hand():
    # One state feature s = 2, members' values q = (1, 3), two hidden units.
    #   W_1 = |s · (1, -2, 0.5, 0) + (0, 0, 0, -1)| = (2, 4 | 1, 1): member 0 has 2 and 4, member 1 has 1 and 1
    #   b_1 = s · (0, -5) + (1, 0) = (1, -10)
    #   hidden before ELU: (2 + 3 + 1, 4 + 3 - 10) = (6, -3); after: (6, e^-3 - 1)
    #   W_2 = |s · (-1, 0) + (0, 0.5)| = (2, 0.5)
    #   V = ReLU of a hidden layer of zeros, then the bias 7
    #   Q = 12 + (e^-3 - 1) / 2 + 7
    mixer = filled(
        qmixer(state_features=1, embed=2),
        hidden_weights=([[1, -2, 0.5, 0]], [0, 0, 0, -1]),
        hidden_bias=([[0, -5]], [1, 0]),
        output_weights=([[-1, 0]], [0, 0.5]),
        output_bias=([[0], [0]], [7]),
    )
    values, state = np.array([[1.0, 3.0]], np.float32), np.array([[2.0]], np.float32)
    joint, slopes = jax.jit(lambda q, s: (mixer(q, s), jax.grad(lambda q: mixer(q, s).sum())(q)))(values, state)
    np.testing.assert_allclose(joint, [19 + (np.exp(-3) - 1) / 2], rtol=1e-6)
    # dQ/dq_0 = 2 · 2 + 4 · e^-3 · 0.5,  dQ/dq_1 = 1 · 2 + 1 · e^-3 · 0.5: a steep ELU and a flat one
    np.testing.assert_allclose(slopes, [[4 + 2 * np.exp(-3), 2 + 0.5 * np.exp(-3)]], rtol=1e-5)


def test_last_bias_has_a_hidden_layer():
    # state 3: hidden (ReLU) of (3, -3) is (3, 0); V = 3 · 2 + 0 · 5 + 1
    mixer = filled(qmixer(state_features=1, embed=2), output_bias=([[2], [5]], [1]))
    mixer.output_bias.hidden.layers[0].kernel[...] = jnp.array([[1.0, -1.0]])
    np.testing.assert_allclose(jax.jit(mixer)(np.zeros((1, 2), np.float32), np.float32([[3.0]])), [7.0])


@cache
def slopes_of(members, hypernet_hiddens):
    """A function (values, parameters, state) -> gradient of the joint value in the members' values."""
    graph = nnx.graphdef(qmixer(members=members, hypernet_hiddens=hypernet_hiddens))
    return jax.jit(jax.grad(lambda values, params, state: nnx.merge(graph, params)(values, state).sum()))


@pytest.mark.long
@given(
    seed=st.integers(0, 2**31 - 1),
    members=st.integers(1, 4),
    hypernet_hiddens=st.sampled_from([(), (5,)]),
    scale=st.floats(0.01, 100),
)
def test_joint_value_is_monotonic(seed, members, hypernet_hiddens, scale):
    mixer = qmixer(members=members, hypernet_hiddens=hypernet_hiddens, seed=seed)
    rng = np.random.default_rng(seed)
    values = (scale * rng.normal(size=(6, members))).astype(np.float32)
    state = (scale * rng.normal(size=(6, 3))).astype(np.float32)
    slopes = slopes_of(members, hypernet_hiddens)(values, nnx.state(mixer), state)
    assert (np.asarray(slopes) >= 0).all()  # 0 where the units of a hypernetwork's hidden layer are all inactive


@pytest.mark.parametrize("hypernet_hiddens", [(), (5,)])
def test_rows_are_independent(hypernet_hiddens):
    mixer = qmixer(hypernet_hiddens=hypernet_hiddens)
    rng = np.random.default_rng(0)
    values, states = (rng.normal(size=(4, features)).astype(np.float32) for features in (2, 3))

    @jax.jit
    def both(values, states):
        rows = [slice(row, row + 1) for row in range(4)]
        return mixer(values, states), jnp.concatenate([mixer(values[row], states[row]) for row in rows])

    # A value near 0 is a difference of numbers near 1, which some processors round at the seventh decimal.
    np.testing.assert_allclose(*both(values, states), rtol=1e-5, atol=1e-6)


def test_sum():
    view = GroupView(members=3, num_actions=2, masked=False, hidden=(), state_key=None, agent_ids=False)
    model = GroupQNetwork(view, nnx.Linear(1, 2, rngs=nnx.Rngs(0)), is_sum=True)
    values = np.array([[1.0, 2.0, 4.0], [0.0, -1.0, 0.5]], np.float32)
    joint = jax.jit(model.joint)(values, (np.zeros((2, 1), np.float32),) * 3)
    np.testing.assert_allclose(joint, [[7.0], [-0.5]])
