"""Acting with many parameter vectors at once: bit for bit equal to acting with each alone, for any number of them."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax import Outputs
from rollax.core import trees
from rollax.policy.stacked_acting import BLOCK
from rollax.search.es import ES

IMAGE = spaces.Box(0, 255, (10, 10, 3), np.uint8)
MASKED = spaces.Dict({"obs": spaces.Box(-1, 1, (5,)), "action_mask": spaces.MultiBinary(4)})
KINDS = {
    "linear": (spaces.Box(-1, 1, (17,)), spaces.Box(-1, 1, (6,)), ()),
    "MLP": (spaces.Box(-1, 1, (17,)), spaces.Box(-1, 1, (6,)), (64, 64)),
    "narrow": (spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (1,)), (16,)),
    "discrete": (spaces.Box(-1, 1, (4,)), spaces.Discrete(3, start=-1), (64,)),
    "masked": (MASKED, spaces.Discrete(4), (64,)),
    "images": (IMAGE, spaces.Box(-1, 1, (2,)), ()),
    "nested": (
        spaces.Tuple([IMAGE, spaces.Discrete(3)]),
        spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))]),
        (8,),
    ),
}


def made(kind):
    observation_space, action_space, hiddens = KINDS[kind]
    policy = ES.make_policy(observation_space, action_space, {"model": {"fcnet_hiddens": hiddens}, "seed": 0})
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((3 * BLOCK, len(policy.get_vector()))).astype(np.float32)
    if isinstance(observation_space, spaces.Box) and observation_space.dtype == np.float32:
        obs = rng.standard_normal((len(vectors), *observation_space.shape)).astype(np.float32)
    else:
        observation_space.seed(0)
        obs = trees.stack([trees.tree_map(np.asarray, observation_space.sample()) for _ in vectors])
    if kind == "masked":
        obs["action_mask"][:, 0] = 1
    return policy, vectors, obs


def acted(policy, vectors, obs, slots):
    """The actions of the first `slots` vectors."""
    acting = policy.stacked(slots)
    for slot in range(slots):
        acting.set_vector(slot, vectors[slot])
    acting.set_obs(np.arange(slots), trees.index(obs, slice(slots)))
    actions, finite = acting.actions(np.arange(slots), policy.extra)
    assert finite.all()
    return actions


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(trees.leaves(a), trees.leaves(b), strict=True))


@pytest.mark.short("MLP")
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k in ("linear", "MLP") else pytest.mark.long) for k in KINDS]
)
def test_number_and_order_of_vectors_do_not_matter(kind):
    policy, vectors, obs = made(kind)
    together = acted(policy, vectors, obs, len(vectors))
    for slots in (1, 3, BLOCK, BLOCK + 5):
        assert same(acted(policy, vectors, obs, slots), trees.index(together, slice(slots)))
    order = np.random.default_rng(1).permutation(len(vectors))
    assert same(acted(policy, vectors[order], trees.index(obs, order), len(vectors)), trees.index(together, order))


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k in ("MLP", "masked") else pytest.mark.long) for k in KINDS]
)
def test_actions_equal_those_of_the_policy(kind):
    policy, vectors, obs = made(kind)
    together = acted(policy, vectors, obs, BLOCK)
    for slot in range(0, BLOCK, 5):
        policy.set_weights(policy.parts_of(vectors[slot]))
        np.testing.assert_array_equal(policy.get_vector(), vectors[slot])
        alone, _, _ = policy.compute_actions(trees.index(obs, slice(slot, slot + 1)), explore=False)
        for found, expected in zip(trees.leaves(together), trees.leaves(alone), strict=True):
            np.testing.assert_allclose(found[slot : slot + 1], expected, rtol=1e-4, atol=1e-4)


def test_some_slots_of_some_blocks():
    policy, vectors, obs = made("MLP")
    acting = policy.stacked(len(vectors))
    for slot, vector in enumerate(vectors):
        acting.set_vector(slot, vector)
    acting.set_obs(np.arange(len(vectors)), obs)
    everything, _ = acting.actions(np.arange(len(vectors)), policy.extra)
    for slots in ([2, 2 * BLOCK + 1], [2 * BLOCK, 2 * BLOCK + 3], [BLOCK], [0, BLOCK + 2, 3 * BLOCK - 1]):
        np.testing.assert_array_equal(acting.actions(np.array(slots), policy.extra)[0], everything[slots])


def test_a_vector_that_is_not_finite():
    policy, vectors, obs = made("linear")
    acting = policy.stacked(2)
    acting.set_vector(0, vectors[0])
    acting.set_vector(1, np.full_like(vectors[1], np.nan))
    acting.set_obs(np.arange(2), obs[:2])
    assert acting.actions(np.arange(2), policy.extra)[1].tolist() == [True, False]


class MasksByInfinity(nnx.Module):
    """Its outputs are minus infinity where `allowed` is 0."""

    def __init__(self, observation_space, num_outputs, *, rngs):
        self.layer = nnx.Linear(5, num_outputs, rngs=rngs)

    def __call__(self, obs):
        return Outputs(jnp.where(obs["allowed"] > 0, self.layer(obs["x"]), -jnp.inf))


def test_a_model_may_mask_by_minus_infinity():
    space = spaces.Dict({"x": spaces.Box(-1, 1, (5,)), "allowed": spaces.MultiBinary(4)})
    policy = ES.make_policy(space, spaces.Discrete(4), {"model": {"custom_model": MasksByInfinity}, "seed": 0})
    obs = {"x": np.ones((5, 5), np.float32), "allowed": np.vstack([np.eye(4, dtype=np.int8), np.ones(4, np.int8)])}
    obs["x"][4] = np.nan
    acting = policy.stacked(5)
    for slot in range(5):
        acting.set_vector(slot, policy.get_vector())
    acting.set_obs(np.arange(5), obs)
    actions, finite = acting.actions(np.arange(5), policy.extra)
    assert actions[:4].tolist() == [0, 1, 2, 3]
    assert finite.tolist() == [True] * 4 + [False]


def test_an_interrupt_leaves_the_vectors_usable(monkeypatch):
    policy, vectors, obs = made("linear")
    acting = policy.stacked(2)
    put = acting._put

    def interrupted(*arguments):
        put(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(acting, "_put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        acting.set_vector(0, vectors[0])
    monkeypatch.undo()
    for slot in range(2):
        acting.set_vector(slot, vectors[slot])
    acting.set_obs(np.arange(2), obs[:2])
    assert same(acting.actions(np.arange(2), policy.extra)[0], acted(policy, vectors, obs, 2))


def test_the_order_of_a_vector_is_that_of_the_model():
    # In alphabetical order, that of names after a step, layer 10 would come before layer 2.
    config = {"model": {"fcnet_hiddens": (4,) * 12}, "seed": 0}
    policy = ES.make_policy(spaces.Box(-1, 1, (4,)), spaces.Box(-1, 1, (2,)), config)
    policy.apply_gradients(policy.parts_of(np.ones_like(policy.get_vector())))
    parts, obs = policy.parts_of(policy.get_vector()), np.full((1, 4), 0.5, np.float32)
    np.testing.assert_equal({name: np.asarray(part) for name, part in parts.items()}, policy.get_weights())
    np.testing.assert_allclose(acted(policy, [policy.get_vector()], obs, 1), policy.compute_actions(obs)[0], rtol=1e-5)


def test_a_linear_policy_has_no_bias_and_begins_at_zero():
    policy, _, obs = made("linear")
    assert {name: value.shape for name, value in policy.get_weights().items()} == {"head.kernel": (17, 6)}
    np.testing.assert_array_equal(policy.compute_actions(obs, explore=False)[0], 0)
    policy.set_weights({"head.kernel": np.eye(17, 6)})
    np.testing.assert_allclose(policy.compute_actions(obs, explore=True)[0], obs[:, :6], rtol=1e-6)
