"""Properties of all action distributions, and the distribution of each space."""

from functools import cache

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from gymnasium import spaces

from rollax.errors import ShapeError, SpaceError
from rollax.models.distributions import MASKED_LOGIT
from rollax.models.distributions.discrete import Bernoulli, Categorical, MultiCategorical
from rollax.models.distributions.factory import make_distribution
from rollax.models.distributions.gaussian import DiagGaussian, SquashedGaussian
from rollax.models.distributions.joint import Joint
from tests.env.refused import refused

BOUNDED = spaces.Box(-1.0, 1.0, (3, 2))
NESTED = spaces.Dict(
    {
        "go": spaces.Discrete(3, start=5),
        "arm": spaces.Tuple((spaces.Box(-9.0, 9.0, (2,)), spaces.MultiDiscrete([2, 4], start=[1, -1]))),
        "grip": spaces.MultiBinary(2),
    }
)
CASES = {
    "discrete": (spaces.Discrete(4, start=-2), False),
    "multi_discrete": (
        spaces.MultiDiscrete(np.array([[2, 3, 5], [4, 1, 3]]), start=np.array([[0, 1, 0], [-3, 7, 0]])),
        False,
    ),
    "multi_binary": (spaces.MultiBinary([2, 3]), False),
    "box": (spaces.Box(-np.inf, np.inf, (3, 2)), False),
    "squashed": (BOUNDED, True),
    "nested": (NESTED, False),
}
# Enough rows for expectations; one size everywhere, so that each method is compiled once.
ROWS = 20_000


@pytest.fixture(params=CASES)
def case(request):
    space, squash = CASES[request.param]
    return space, make_distribution(space, squash=squash)


@cache
def compiled(method):
    return jax.jit(method)


def some_inputs(dist, seed=0, scale=0.7):
    return np.random.default_rng(seed).normal(scale=scale, size=(ROWS, dist.num_inputs)).astype(np.float32)


def same_inputs(dist, seed=0):
    return np.tile(some_inputs(dist, seed)[:1], (ROWS, 1))


def some_noise(dist, seed=1):
    return np.random.default_rng(seed).random((ROWS, dist.num_noise), dtype=np.float32)


def inside(space, actions):
    """Whether every row of the columns is in the space; for a Box, whose bounds are unknown, whether it is finite."""
    if isinstance(space, spaces.Dict):
        return all(inside(part, actions[key]) for key, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return all(inside(part, column) for part, column in zip(space.spaces, actions, strict=True))
    column = np.asarray(actions)
    if column.shape != (ROWS, *space.shape):
        return False
    if isinstance(space, spaces.Box):
        return column.dtype == np.float32 and np.isfinite(column).all()
    return all(space.contains(row.astype(space.dtype)) for row in np.unique(column, axis=0))


def test_samples_and_modes_lie_in_the_space_for_any_noise(case):
    space, dist = case
    inputs = some_inputs(dist, scale=4.0)
    noise = some_noise(dist)
    noise[:5] = np.array([0.0, 1.0, 2.0**-24, 1 - 2.0**-24, 1e-45])[:, None]
    for actions in (compiled(dist.sample)(inputs, noise), compiled(dist.mode)(inputs)):
        assert inside(space, actions)
        assert np.isfinite(compiled(dist.logp)(inputs, actions)).all()


@pytest.mark.long
def test_rows_are_independent(case):
    _, dist = case
    inputs, others, noise = some_inputs(dist), some_inputs(dist, seed=2), some_noise(dist)
    actions = compiled(dist.sample)(inputs, noise)
    for method, arguments in (
        (dist.sample, (inputs, noise)),
        (dist.mode, (inputs,)),
        (dist.logp, (inputs, actions)),
        (dist.entropy, (inputs,)),
        (dist.kl, (inputs, others)),
    ):
        backwards = compiled(method)(*jax.tree.map(lambda x: np.asarray(x)[::-1], arguments))
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(np.asarray(x)[::-1], y, rtol=1e-5, atol=1e-5),
            compiled(method)(*arguments),
            backwards,
        )


def test_sample_and_logp_equals_sample_then_logp(case):
    _, dist = case
    inputs, noise = some_inputs(dist, scale=0.3), some_noise(dist)
    actions, logp = compiled(dist.sample_and_logp)(inputs, noise)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6),
        actions,
        compiled(dist.sample)(inputs, noise),
    )
    # A squashed action near 1 is rounded to a multiple of 2**-24, which changes log(1 - a²).
    squashed = isinstance(dist, SquashedGaussian)
    sound = np.abs(np.asarray(actions)).max(axis=(1, 2)) < 0.99 if squashed else np.full(ROWS, True)
    assert sound.mean() > 0.5
    again = np.asarray(compiled(dist.logp)(inputs, actions))
    np.testing.assert_allclose(np.asarray(logp)[sound], again[sound], rtol=1e-4, atol=1e-4)


def test_entropy_and_kl_are_the_expectations_that_define_them(case):
    # H = -E_p[log p] and KL = E_p[log p - log q], within 5 standard errors (and the rounding of the closed forms).
    _, dist = case
    p, q = same_inputs(dist), same_inputs(dist, seed=2)
    actions = compiled(dist.sample)(p, some_noise(dist))
    logp, logq = (np.asarray(compiled(dist.logp)(x, actions), np.float64) for x in (p, q))
    for got, terms in ((compiled(dist.entropy)(p)[0], -logp), (compiled(dist.kl)(p, q)[0], logp - logq)):
        assert terms.std() > 0.1
        assert abs(got - terms.mean()) < 5 * terms.std() / ROWS**0.5 + 1e-4


def test_kl_of_a_row_to_itself_is_zero_and_otherwise_positive(case):
    _, dist = case
    p, q = some_inputs(dist), some_inputs(dist, seed=2)
    np.testing.assert_allclose(compiled(dist.kl)(p, p), np.zeros(ROWS), atol=1e-6)
    assert (compiled(dist.kl)(p, q) > 0).all()


def test_no_unsquashed_action_is_more_probable_than_the_mode(case):
    _, dist = case
    inputs = some_inputs(dist)
    best = compiled(dist.logp)(inputs, compiled(dist.mode)(inputs))
    other = compiled(dist.logp)(inputs, compiled(dist.sample)(inputs, some_noise(dist)))
    assert (np.asarray(best) >= np.asarray(other) - 1e-5).all() != isinstance(dist, SquashedGaussian)


@pytest.mark.long
def test_gradients_are_finite_even_for_extreme_inputs(case):
    _, dist = case
    noise = some_noise(dist)

    def values(x, other, actions, noise):
        drawn = dist.sample_and_logp(x, noise)[1]
        parts = (dist.logp(x, actions), dist.entropy(x), dist.kl(x, other), dist.kl(other, x), drawn)
        return jnp.stack([part.mean() for part in parts])

    both = jax.jit(lambda *arguments: (values(*arguments), jax.jacrev(values)(*arguments)))
    for scale in (0.7, 50.0):
        inputs, other = some_inputs(dist, scale=scale), some_inputs(dist, seed=2, scale=scale)
        value, gradient = both(inputs, other, compiled(dist.sample)(inputs, noise), noise)
        assert np.isfinite(value).all()
        assert np.isfinite(gradient).all()
        assert (np.abs(gradient).sum(axis=(1, 2)) > 0).all()


def test_distributions_are_static_arguments(case):
    space, dist = case
    again = make_distribution(space, squash=isinstance(dist, SquashedGaussian))
    assert dist == again
    assert hash(dist) == hash(again)
    entropy = jax.eval_shape(jax.jit(lambda d, x: d.entropy(x), static_argnums=0), dist, some_inputs(dist))
    assert entropy.shape == (ROWS,)


def test_wrong_shapes_are_refused(case, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # so that the library's own check is tested
    _, dist = case
    inputs, noise = some_inputs(dist), some_noise(dist)
    actions = compiled(dist.sample)(inputs, noise)
    wide = np.zeros((ROWS, dist.num_inputs + 1), np.float32)
    for method, *arguments in (
        (dist.mode, inputs[0]),
        (dist.entropy, wide),
        (dist.sample, wide, noise),
        (dist.sample, inputs, noise[:-1]),
        (dist.sample_and_logp, inputs, np.zeros((ROWS, dist.num_noise + 1), np.float32)),
        (dist.logp, inputs, jax.tree.map(lambda x: np.asarray(x)[:-1], actions)),
        (dist.logp, inputs, jax.tree.map(lambda x: np.asarray(x)[..., None], actions)),
        (dist.kl, inputs, inputs[:-1]),
        (dist.kl, inputs, wide),
    ):
        for call in (method, jax.jit(method)):
            refused(ShapeError, call, *arguments, says="shape...got:...expected:")


def test_logp_entropy_and_kl_of_a_joint_are_sums():
    # Weights 1:3, so p = 1/4, 3/4; and N(1, 2²). With c = log(2π)/2 = 0.918939, log 2 = 0.693147:
    #   logp(second, 2) = log 3/4 - (1/2)²/2 - log 2 - c = -0.287682 - 0.125 - 0.693147 - 0.918939 = -2.024768
    #   H = 0.562335 + (1/2 + c + log 2) = 2.674421;  KL to (1/2, N(0, 1)) = (log 2 - 0.562335) + 1.306853 = 1.437665
    #   sample: 0.3 > 1/4 is the second; Φ(1) = 0.841345 is 1 + 2
    parts = {"a": spaces.Discrete(2, start=7), "b": spaces.Tuple((spaces.Box(-9, 9, ()),))}
    dist = make_distribution(spaces.Dict(parts))

    @jax.jit
    def everything(inputs, actions, noise):
        kl = dist.kl(inputs, jnp.zeros((1, 4)))
        return dist.logp(inputs, actions), dist.entropy(inputs), kl, dist.sample(inputs, noise), dist.mode(inputs)

    inputs = np.array([[0.0, np.log(3.0), 1.0, np.log(2.0)]], np.float32)
    actions = {"a": np.array([8]), "b": (np.array([2.0], np.float32),)}
    logp, entropy, kl, drawn, greedy = everything(inputs, actions, np.array([[0.3, 0.841345]], np.float32))
    np.testing.assert_allclose(logp, [-2.024768], rtol=1e-6)
    np.testing.assert_allclose(entropy, [2.674421], rtol=1e-6)
    np.testing.assert_allclose(kl, [1.437665], rtol=1e-6)
    assert (drawn["a"].tolist(), drawn["b"][0].tolist()) == ([8], [pytest.approx(3.0, rel=1e-5)])
    assert (greedy["a"].tolist(), greedy["b"][0].tolist()) == ([8], [1.0])


def test_masks_reach_every_discrete_part_and_no_other():
    dist = make_distribution(NESTED)
    # The Box takes 4 inputs and its 2 bits 2, none of which can be masked; 3 + 2 + 4 choices can.
    assert (dist.num_inputs, dist.num_noise, dist.num_mask) == (4 + 2 + 9, 2 + 2 + 3, 9)
    keep = {"go": [0, 1, 1], "arm": [1, 0, 1, 0, 0, 1]}
    mask = np.tile(np.concatenate([keep[key] for key in NESTED.spaces if key in keep]), (ROWS, 1))
    inputs = some_inputs(dist)
    masked = np.asarray(compiled(dist.mask)(inputs, mask))
    assert ((masked == MASKED_LOGIT).sum(axis=1) == 4).all()
    assert (masked[masked != MASKED_LOGIT] == inputs[masked != MASKED_LOGIT]).all()
    actions = jax.tree.map(np.asarray, compiled(dist.sample)(masked, some_noise(dist)))
    assert set(actions["go"].tolist()) == {6, 7}
    assert set(actions["arm"][1][:, 0].tolist()) == {1}
    assert set(actions["arm"][1][:, 1].tolist()) == {-1, 2}
    assert set(actions["grip"].ravel().tolist()) == {0, 1}
    gradient = np.asarray(jax.jit(jax.grad(lambda x: dist.entropy(dist.mask(x, jnp.asarray(mask))).sum()))(inputs))
    assert np.isfinite(gradient).all()
    assert (gradient[masked == MASKED_LOGIT] == 0).all()


@pytest.mark.parametrize(
    ("space", "squash", "expected"),
    [
        (spaces.Discrete(4, start=-2), True, Categorical(4, -2)),
        (
            spaces.MultiDiscrete(np.array([[2, 3]]), start=np.array([[0, 1]])),
            False,
            MultiCategorical((2, 3), (0, 1), (1, 2)),
        ),
        (spaces.MultiBinary(3), False, Bernoulli((3,))),
        (spaces.Box(-1, 1, (2, 3), np.float64), False, DiagGaussian((2, 3))),
        (spaces.Box(-1, 1, (2, 3)), True, SquashedGaussian((2, 3))),
        (spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))), False, Joint((Categorical(2), Categorical(3)))),
        (spaces.Dict({"a": spaces.Box(0, 1, ())}), True, Joint((SquashedGaussian(()),), ("a",))),
    ],
)
def test_make_distribution(space, squash, expected):
    assert make_distribution(space, squash=squash) == expected


@pytest.mark.parametrize(
    ("space", "squash", "place"),
    [
        (None, False, "action_space"),
        (4, False, "action_space"),
        (spaces.Text(3), False, "action_space"),
        (spaces.Tuple((spaces.Discrete(2), spaces.Sequence(spaces.Discrete(2)))), False, "action_space, element 1"),
        (spaces.Tuple(()), False, "action_space"),
        (spaces.Dict({"a": spaces.Dict({})}), False, "action_space, key 'a'"),
        (spaces.Box(0, 1, (0,)), False, "action_space"),
        (spaces.Box(0, 255, (2,), np.uint8), False, "action_space"),
        (spaces.Dict({"a": spaces.Box(-3, 3, (2,), np.int64)}), True, "action_space, key 'a'"),
        (spaces.Box(-np.inf, 1, (2,)), True, "action_space"),
    ],
)
def test_spaces_without_a_distribution_are_refused(space, squash, place, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    refused(SpaceError, make_distribution, space, says=f"where:    {place}\n...got:...expected:...fix:", squash=squash)


@pytest.mark.parametrize("space", [BOUNDED, spaces.MultiBinary(3), spaces.Tuple((BOUNDED, spaces.MultiBinary(2)))])
def test_a_mask_for_actions_that_have_no_choices_is_refused(space):
    dist = make_distribution(space)
    assert dist.num_mask == 0
    refused(SpaceError, dist.mask, jnp.ones((5, dist.num_inputs)), jnp.ones((5, dist.num_inputs)), says="mask...fix:")


def test_a_mask_of_the_wrong_width_and_actions_of_another_structure_are_refused():
    dist = make_distribution(NESTED)
    inputs = jnp.ones((5, dist.num_inputs))
    refused(ShapeError, dist.mask, inputs, inputs, says="action_mask")
    refused(ShapeError, dist.logp, inputs, {"go": jnp.zeros(5)}, says="structure")
    with pytest.raises(ShapeError, match=r"structure"):
        make_distribution(spaces.Tuple((spaces.Discrete(2),))).logp(jnp.zeros((5, 2)), jnp.zeros(5))
