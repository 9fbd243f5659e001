import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rollax.errors import PolicyError
from rollax.policy.split_model import SplitModel


class Noisy(nnx.Module):
    """Dropout, batch statistics, a list, and a part called `value`: difficult cases for names and modes."""

    def __init__(self, rngs):
        self.value = nnx.Linear(2, 2, rngs=rngs)
        self.kernel = nnx.Param(jnp.array(3.0))
        self.layers = nnx.List([nnx.Linear(2, 2, rngs=rngs), nnx.BatchNorm(2, rngs=rngs)])
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        for layer in (self.value, *self.layers, self.dropout):
            x = layer(x)
        return self.kernel * x


@pytest.fixture
def model():
    return Noisy(nnx.Rngs(0))


@pytest.fixture
def split(model):
    return SplitModel(model)


@pytest.fixture
def params(split, model):
    return split.arrays_of(model)[0]


@pytest.fixture
def extra(split, model):
    return split.arrays_of(model)[1]


X = jnp.array([[1.0, 2.0], [3.0, 5.0], [-1.0, 0.0]])


def test_names_are_the_attributes(split, params, extra):
    shapes = {name: (array.shape, array.dtype) for name, array in (params | extra).items()}
    assert shapes == {name: (array.shape, array.dtype) for name, array in (split.params | split.extra).items()}
    layers = ["layers.0.bias", "layers.0.kernel", "layers.1.bias", "layers.1.scale"]
    assert sorted(params) == ["kernel", *layers, "value.bias", "value.kernel"]
    assert sorted(extra) == ["dropout.rngs.count", "dropout.rngs.key", "layers.1.mean", "layers.1.var"]
    # Plain arrays of settled types: they can be stored, and an update compiles once.
    assert all(np.asarray(value).dtype.kind in "fu" for value in extra.values())
    assert not any(value.weak_type for value in (params | extra).values())


def test_acting_is_deterministic_and_changes_nothing(split, params, extra):
    model = split.merge(params, extra)
    first = model(X)
    np.testing.assert_array_equal(first, split.merge(params, extra)(X))
    jax.tree.map(np.testing.assert_array_equal, split.extra_of(model), extra)


def test_learning_uses_dropout_and_updates_statistics(split, params, extra):
    model = split.merge(params, extra, learning=True)
    out = model(X)
    assert (np.asarray(out) == 0).any()
    after = split.extra_of(model)
    assert after.keys() == extra.keys()
    assert not np.array_equal(after["layers.1.mean"], extra["layers.1.mean"])
    # The next step draws another mask.
    assert not np.array_equal(out, split.merge(params, after, learning=True)(X))


def test_exploring_uses_dropout_and_the_running_statistics(split, params, extra):
    extra = {**extra, "layers.1.mean": np.full(2, 3, np.float32)}
    model = split.merge(params, extra, exploring=True)
    model.dropout.eval()
    np.testing.assert_array_equal(model(X), split.merge(params, extra)(X))
    assert (split.merge(params, extra, exploring=True)(X) == 0).any()


def test_values_that_a_pass_adds_are_no_state(split, params, extra):
    model = split.merge(params, extra, learning=True)
    model.seen = nnx.Intermediate(X)
    assert split.extra_of(model).keys() == extra.keys()


def test_works_inside_a_compiled_function(split, params, extra):
    @jax.jit
    def step(params, extra):
        model = split.merge(params, extra, learning=True)
        return model(X), split.extra_of(model)

    out, extra = step(params, extra)
    for _ in range(3):
        out, extra = step(params, extra)
    assert out.shape == (3, 2)
    assert step._cache_size() == 1


def test_weights_of_another_model_are_refused(split, params, extra):
    weights = {name: np.array(value) for name, value in (params | extra).items()}
    checked = split.checked(weights, "policy 'p'")
    assert [arrays.keys() for arrays in checked] == [params.keys(), extra.keys()]
    message = r"different model(.|\n)*policy 'p'(.|\n)*missing: \['kernel'\], unknown: \['k'\]"
    with pytest.raises(PolicyError, match=message):
        split.checked({**{n: v for n, v in weights.items() if n != "kernel"}, "k": 0}, "policy 'p'")
    message = r"wrong shape(.|\n)*value.kernel(.|\n)*\(3, 2\)(.|\n)*\(2, 2\)(.|\n)*num_atoms"
    with pytest.raises(PolicyError, match=message):
        split.checked({**weights, "value.kernel": np.zeros((3, 2))}, "policy 'p'")


def test_weights_without_names_are_refused(split, params, extra):
    with pytest.raises(PolicyError, match=r"not a dict of arrays by name(.|\n)*policy 'p'(.|\n)*list"):
        split.checked([*params.values(), *extra.values()], "policy 'p'")


def test_weights_are_copied(split, params, extra):
    weights = {name: np.array(value) for name, value in (params | extra).items()}
    copies, _ = split.checked(weights, "")
    weights["value.bias"][:] = 7
    assert not np.asarray(copies["value.bias"] == 7).any()
