"""Actors and critics: shapes for every space, ensembles, and frozen weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax.core.spaces import zeros
from rollax.models.action_values import ActionValue, Actor, ActorWithCritics, Ensemble, NetworkValues, frozen
from rollax.models.config import ModelConfig
from rollax.models.encoder import Encoder
from rollax.models.outputs import Outputs
from rollax.models.q_network import QNetwork

CONFIG = ModelConfig(fcnet_hiddens=(7, 5), conv_filters=((4, 3, 2),), conv_dense=6, fcnet_activation="relu")
ACTIONS = spaces.Box(-1, 1, (2, 3), np.float32)
IMAGE = spaces.Box(0, 255, (9, 8, 1), np.uint8)
SEEN = {
    "Box": spaces.Box(-1, 1, (4,), np.float32),
    "image": IMAGE,
    "Dict": spaces.Dict({"image": IMAGE, "more": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])}),
}
each_space = pytest.mark.parametrize("name", SEEN)


@each_space
def test_shapes(name):
    rngs = nnx.Rngs(0)
    obs = zeros(SEEN[name], 11)
    critics = Ensemble([ActionValue(SEEN[name], ACTIONS, CONFIG, rngs=rngs) for _ in range(3)])
    discrete = Ensemble([NetworkValues(QNetwork(SEEN[name], 4, CONFIG, rngs=rngs)) for _ in range(2)])
    model = ActorWithCritics(Actor(SEEN[name], 5, CONFIG, rngs=rngs), critics)
    of_actions, of_numbers, policy = jax.jit(
        lambda obs, actions: (critics(obs, actions), discrete(obs), model(obs).policy)
    )(obs, np.zeros((11, 2, 3), np.float32))
    assert of_actions.shape == (3, 11)
    assert of_numbers.shape == (2, 11, 4)
    assert policy.shape == (11, 5)
    assert model.log_alpha is None


@each_space
def test_several_actions_for_each_observation(name):
    SEEN[name].seed(0)
    obs = jax.tree.map(lambda *leaves: np.stack(leaves), SEEN[name].sample(), SEEN[name].sample())
    actions = np.random.default_rng(0).uniform(-1, 1, (2, 3, 2, 3)).astype(np.float32)
    custom = NetworkValues(WithActions(Encoder(SEEN[name], CONFIG, rngs=nnx.Rngs(0))))
    critics = ActionValue(SEEN[name], ACTIONS, CONFIG, rngs=nnx.Rngs(0)), custom

    @jax.jit
    def values(obs, actions):
        together = [critic(obs, actions.reshape(6, 2, 3)).reshape(2, 3) for critic in critics]
        apart = [jax.vmap(critic, in_axes=(None, 1), out_axes=1)(obs, actions) for critic in critics]
        return together, apart

    together, apart = values(obs, actions)
    np.testing.assert_allclose(together, apart, rtol=1e-5, atol=1e-6)
    assert len(np.unique(np.round(together, 6))) == 12


def test_observations_are_encoded_once_for_several_actions():
    image = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    obs = zeros(image, 2)
    custom = NetworkValues(WithActions(Encoder(image, CONFIG, rngs=nnx.Rngs(0))))
    for critic in (ActionValue(image, ACTIONS, CONFIG, rngs=nnx.Rngs(0)), custom):
        one, many = (
            jax.jit(critic).lower(obs, np.zeros((rows, 2, 3), np.float32)).cost_analysis()["flops"]
            for rows in (2, 2 * 16)
        )
        assert many < 2 * one, f"{many / one:.1f} times the work for 16 times the actions"


class WithActions(nnx.Module):
    """The sum of encoded observations and actions."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    def __call__(self, obs, actions):
        return Outputs(self.encoder(obs).sum(axis=1, keepdims=True) + actions.sum(axis=(1, 2))[:, None])


def test_outputs_of_a_squashed_actor_are_bounded():
    actor = Actor(SEEN["Box"], 2, CONFIG, rngs=nnx.Rngs(0))
    model = ActorWithCritics(actor, Ensemble([actor]), squashed=True)
    squashed, plain = jax.jit(lambda obs: (model(obs).policy, actor(obs).policy))(np.full((3, 4), 1e3, np.float32))
    np.testing.assert_allclose(squashed, np.tanh(plain), rtol=1e-5)


def test_values_depend_on_all_action_elements_and_on_the_member():
    critics = Ensemble([ActionValue(SEEN["Box"], ACTIONS, CONFIG, rngs=rngs) for rngs in (nnx.Rngs(0), nnx.Rngs(1))])
    members = [ActionValue(SEEN["Box"], ACTIONS, CONFIG, rngs=nnx.Rngs(seed)) for seed in (0, 1)]

    @jax.jit
    def everything(obs, actions):
        alone = [member(obs, actions) for member in members]
        taken_out = [critics.member(number)(obs, actions) for number in (0, 1)]
        return critics(obs, actions), alone, taken_out, jax.grad(lambda a: critics(obs, a).sum())(actions)

    inputs = np.ones((1, 4), np.float32), np.full((1, 2, 3), 0.3, np.float32)
    values, alone, taken_out, by_actions = jax.tree.map(np.asarray, everything(*inputs))
    assert values[0, 0] != values[1, 0]
    np.testing.assert_allclose(values, alone, rtol=1e-5)
    np.testing.assert_allclose(taken_out, alone, rtol=1e-5)
    assert (np.abs(by_actions) > 0).all()


def test_initial_temperature():
    actor = Actor(SEEN["Box"], 2, CONFIG, rngs=nnx.Rngs(0))
    model = ActorWithCritics(actor, Ensemble([actor]), initial_alpha=0.25)
    assert model.log_alpha is not None
    np.testing.assert_allclose(np.exp(model.log_alpha[...]), 0.25, rtol=1e-6)


def test_frozen_weights_get_no_gradient_but_pass_it_on():
    critic = ActionValue(SEEN["Box"], ACTIONS, CONFIG, rngs=nnx.Rngs(0))
    graph, state = nnx.split(critic)
    obs, actions = np.ones((1, 4), np.float32), np.full((1, 2, 3), 0.3, np.float32)

    def value(state, actions, critic_of):
        return critic_of(nnx.merge(graph, state))(jnp.asarray(obs), actions).sum()

    gradient = jax.jit(jax.grad(value, (0, 1)), static_argnums=2)
    by_weights, by_actions = gradient(state, actions, frozen)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(by_weights))
    _, expected = gradient(state, actions, lambda critic: critic)
    np.testing.assert_allclose(by_actions, expected, rtol=1e-5)
