"""Actors and critics: shapes for every space, ensembles, and frozen weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax import PolicyError, SpaceError
from rollax.core.spaces import zeros
from rollax.models import actor_with_critics
from rollax.models.actor_with_critics import ActionValue, Actor, Ensemble, NetworkValues, make_critic, make_critics
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


@pytest.mark.short("Box")
@each_space
def test_shapes(name):
    rngs = nnx.Rngs(0)
    obs = zeros(SEEN[name], 11)
    critics = Ensemble([ActionValue(SEEN[name], ACTIONS, CONFIG, rngs=rngs) for _ in range(3)])
    discrete = Ensemble([NetworkValues(QNetwork(SEEN[name], 4, CONFIG, rngs=rngs)) for _ in range(2)])
    model = actor_with_critics.ActorWithCritics(Actor(SEEN[name], 5, CONFIG, rngs=rngs), critics)
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
    model = actor_with_critics.ActorWithCritics(actor, Ensemble([actor]), squashed=True)
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
    model = actor_with_critics.ActorWithCritics(actor, Ensemble([actor]), initial_alpha=0.25)
    assert model.log_alpha is not None
    np.testing.assert_allclose(np.exp(model.log_alpha[...]), 0.25, rtol=1e-6)


def test_frozen_weights_get_no_gradient_but_pass_it_on():
    critic = ActionValue(SEEN["Box"], ACTIONS, CONFIG, rngs=nnx.Rngs(0))
    graph, state = nnx.split(critic)
    obs, actions = np.ones((1, 4), np.float32), np.full((1, 2, 3), 0.3, np.float32)

    def value(state, actions, critic_of):
        return critic_of(nnx.merge(graph, state))(jnp.asarray(obs), actions).sum()

    gradient = jax.jit(jax.grad(value, (0, 1)), static_argnums=2)
    by_weights, by_actions = gradient(state, actions, actor_with_critics.frozen)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(by_weights))
    _, expected = gradient(state, actions, lambda critic: critic)
    np.testing.assert_allclose(by_actions, expected, rtol=1e-5)


class TestMakeCritics:
    @pytest.mark.parametrize(("outputs", "shape"), [(None, (3, 11)), (1, (3, 11, 1)), (2, (3, 11, 2))])
    def test_continuous_actions(self, outputs, shape):
        rngs, obs, actions = nnx.Rngs(0), zeros(SEEN["Box"], 11), np.zeros((11, 2, 3), np.float32)
        critics = make_critics(3, lambda: make_critic(SEEN["Box"], ACTIONS, CONFIG, outputs=outputs, rngs=rngs))
        assert jax.jit(lambda: actor_with_critics.values_of_actions(critics, obs, actions, ACTIONS))().shape == shape

    @pytest.mark.parametrize("custom", [False, True])
    @pytest.mark.parametrize("outputs", [None, 1, 2])
    def test_discrete_actions(self, outputs, custom):
        config = CONFIG.model_copy(update={"custom_model": Linear}) if custom else CONFIG
        space, rngs, obs = spaces.Discrete(4, start=5), nnx.Rngs(0), np.ones((11, 4), np.float32)
        critics = make_critics(3, lambda: make_critic(SEEN["Box"], space, config, outputs=outputs, rngs=rngs))
        actions = 5 + np.arange(11) % 4
        values, taken = jax.jit(
            lambda: (critics(obs), actor_with_critics.values_of_actions(critics, obs, actions, space))
        )()
        assert values.shape == (3, 11, 4) if outputs is None else (3, 11, 4, outputs)
        np.testing.assert_array_equal(taken, np.asarray(values)[:, np.arange(11), actions - 5])

    def test_several_outputs_of_a_custom_model(self):
        config = CONFIG.model_copy(update={"custom_model": Linear})
        critic = make_critic(SEEN["Box"], ACTIONS, config, outputs=2, rngs=nnx.Rngs(0))
        obs, actions = np.eye(4, dtype=np.float32)[:2], jnp.linspace(-1, 1, 36).reshape(6, 2, 3)
        repeated = np.repeat(obs, 3, axis=0)
        together, apart = jax.jit(lambda: (critic(obs, actions), critic(repeated, actions)))()  # type: ignore[operator]
        assert together.shape == (6, 2)
        np.testing.assert_allclose(together, apart, rtol=1e-6)

    def test_modules_of_a_user(self):
        rngs = nnx.Rngs(0)
        critics = make_critics(2, lambda: nnx.Linear(4, 3, rngs=rngs))
        assert jax.jit(critics)(np.ones((5, 4), np.float32)).shape == (2, 5, 3)

    @pytest.mark.parametrize("number", [0, -1, True])
    def test_the_number_is_at_least_one(self, number):
        with pytest.raises(PolicyError, match="number"):
            make_critics(number, lambda: nnx.Linear(4, 3, rngs=nnx.Rngs(0)))

    def test_critics_have_equal_layers(self):
        widths = iter((3, 5))
        with pytest.raises(PolicyError, match=r"make_one(.|\n)*kernel"):
            make_critics(2, lambda: nnx.Linear(4, next(widths), rngs=nnx.Rngs(0)))

    def test_several_outputs_for_embedded_actions_are_refused(self):
        space = spaces.Dict({"avail_actions": spaces.Box(-1, 1, (3, 2), np.float32), "state": SEEN["Box"]})
        with pytest.raises(SpaceError, match="outputs"):
            make_critic(space, spaces.Discrete(3), CONFIG, outputs=2, rngs=nnx.Rngs(0))


class Linear(nnx.Module):
    """A linear layer of observations, and of actions where it is a critic of these."""

    def __init__(self, observation_space, num_outputs, *, rngs, action_space=None):
        self.head = nnx.Linear(4 if action_space is None else 10, num_outputs, rngs=rngs)

    def __call__(self, obs, actions=None):
        x = obs if actions is None else jnp.concatenate([obs, actions.reshape(len(obs), -1)], axis=-1)
        return Outputs(self.head(x))


class Normalizing(nnx.Module):
    """Normalizes actions by their batch statistics, of which running averages are kept."""

    def __init__(self, rngs):
        self.scale = nnx.Param(jnp.asarray(1.0))
        self.norm = nnx.BatchNorm(1, momentum=0.75, epsilon=0.0, rngs=rngs)

    def __call__(self, obs, actions):
        return self.norm(self.scale[...] * actions)[:, 0]


class Dropping(nnx.Module):
    def __init__(self, rngs):
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, obs):
        return self.dropout(obs)


class TestStateOfMembers:
    """The actions of two rows are 0 and 4: mean 2, variance 4; scaled by 3 in the second critic: mean 6, variance 36.

    From mean 0 and variance 1 the running averages become ¾ 0 + ¼ 2 = 0.5 and ¾ 1 + ¼ 4 = 1.75; in the second critic
    1.5 and 9.75.
    """

    obs, actions = np.zeros((2, 1), np.float32), np.array([[0.0], [4.0]], np.float32)

    def critics(self):
        rngs = nnx.Rngs(0)
        critics = make_critics(2, lambda: Normalizing(rngs))
        critics.members.scale[...] = jnp.array([1.0, 3.0])
        return critics

    def called(self, of=lambda critics: critics, mode=nnx.Module.train):
        """Values in this mode, and running means and variances after the call."""
        critics = self.critics()
        mode(critics)
        graph, state = nnx.split(critics)

        @jax.jit
        def call(state):
            critics = nnx.merge(graph, state)
            values = of(critics)(self.obs, self.actions)
            return values, critics.members.norm.mean[...], critics.members.norm.var[...]

        return jax.tree.map(np.asarray, call(state))

    def test_each_member_has_batch_statistics_of_its_own(self):
        values, means, variances = self.called()
        np.testing.assert_allclose(values, [[-1, 1], [-1, 1]], rtol=1e-5)
        np.testing.assert_allclose(means, [[0.5], [1.5]], rtol=1e-6)
        np.testing.assert_allclose(variances, [[1.75], [9.75]], rtol=1e-6)

    @pytest.mark.parametrize(
        "options", [{"mode": nnx.Module.eval}, {"of": actor_with_critics.frozen}], ids=["evaluation", "frozen"]
    )
    def test_evaluation_and_frozen_critics_use_them_unchanged(self, options):
        values, means, variances = self.called(**options)
        np.testing.assert_allclose(values, [[0, 4], [0, 12]], rtol=1e-5)
        np.testing.assert_array_equal(means, 0)
        np.testing.assert_array_equal(variances, 1)

    def test_each_member_has_a_random_stream_of_its_own(self):
        rngs = nnx.Rngs(0)
        critics = make_critics(2, lambda: Dropping(rngs))
        graph, state = nnx.split(critics)

        @jax.jit
        def calls(state):
            critics = nnx.merge(graph, state)
            return [critics(jnp.ones((2, 32))) for _ in range(2)]

        drawn = np.concatenate(calls(state))
        assert len(np.unique(drawn.reshape(4, -1), axis=0)) == 4
        assert set(np.unique(drawn)) == {0, 2}
