import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rollax.errors import PolicyError
from rollax.policy.split_model import SplitModel


class Noisy(nnx.Module):
    """Dropout, batch statistics, a list, and a part called `value`: all that a name or a mode may stumble over."""

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
def split():
    return SplitModel(Noisy(nnx.Rngs(0)))


X = jnp.array([[1.0, 2.0], [3.0, 5.0], [-1.0, 0.0]])


def test_names_are_the_attributes(split):
    assert sorted(split.params) == [
        *("kernel", "layers.0.bias", "layers.0.kernel", "layers.1.bias", "layers.1.scale", "value.bias", "value.kernel")
    ]
    assert sorted(split.extra) == ["dropout.rngs.count", "dropout.rngs.key", "layers.1.mean", "layers.1.var"]
    # Plain arrays of settled types: they can be stored, and an update compiles once.
    assert all(np.asarray(value).dtype.kind in "fu" for value in split.extra.values())
    assert not any(value.weak_type for value in (split.params | split.extra).values())


def test_acting_is_the_same_every_time_and_leaves_no_trace(split):
    model = split.merge(split.params, split.extra)
    first = model(X)
    np.testing.assert_array_equal(first, split.merge(split.params, split.extra)(X))
    for name, value in split.extra_of(model).items():
        np.testing.assert_array_equal(value, split.extra[name])


def test_learning_drops_out_and_moves_the_statistics(split):
    model = split.merge(split.params, split.extra, learning=True)
    out = model(X)
    assert (np.asarray(out) == 0).any()
    after = split.extra_of(model)
    assert after.keys() == split.extra.keys()
    assert not np.array_equal(after["layers.1.mean"], split.extra["layers.1.mean"])
    # The next step draws another mask.
    assert not np.array_equal(out, split.merge(split.params, after, learning=True)(X))


def test_inside_a_compiled_function(split):
    @jax.jit
    def step(params, extra):
        model = split.merge(params, extra, learning=True)
        return model(X), split.extra_of(model)

    out, extra = step(split.params, split.extra)
    for _ in range(3):
        out, extra = step(split.params, extra)
    assert out.shape == (3, 2)
    assert step._cache_size() == 1


def test_weights_of_another_model_are_refused(split):
    weights = {name: np.array(value) for name, value in (split.params | split.extra).items()}
    params, extra = split.checked(weights, "policy 'p'")
    assert params.keys() == split.params.keys()
    assert extra.keys() == split.extra.keys()
    with pytest.raises(
        PolicyError, match=r"another model(.|\n)*policy 'p'(.|\n)*missing: \['kernel'\], unknown: \['k'\]"
    ):
        split.checked({**{n: v for n, v in weights.items() if n != "kernel"}, "k": 0}, "policy 'p'")
    with pytest.raises(
        PolicyError, match=r"wrong shape(.|\n)*value.kernel(.|\n)*\(3, 2\)(.|\n)*\(2, 2\)(.|\n)*num_atoms"
    ):
        split.checked({**weights, "value.kernel": np.zeros((3, 2))}, "policy 'p'")


def test_weights_are_copied(split):
    weights = {name: np.array(value) for name, value in (split.params | split.extra).items()}
    params, _ = split.checked(weights, "")
    weights["value.bias"][:] = 7
    assert not np.asarray(params["value.bias"] == 7).any()
