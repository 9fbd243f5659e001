"""JAX functions as ONNX graphs, compared with JAX for two numbers of rows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from jax import lax

from rollax.errors import PolicyError
from rollax.serving.export.graph import ROWS, Graph
from rollax.serving.export.inlining import Variable, inlined
from rollax.serving.export.primitives import convert

_TABLE = np.arange(12, dtype=np.float32).reshape(4, 3) / 7


def converted(function: Any, *inputs: np.ndarray) -> onnx.ModelProto:
    """The model of `function(x0, x1, ...)`, whose leading axes are the rows."""
    (rows,) = jax.export.symbolic_shape(ROWS)
    given = [jax.ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype) for array in inputs]
    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(function)(*given)
        variables = [Variable(atom.aval.shape, atom.aval.dtype) for atom in jaxpr.jaxpr.invars]
        equations, results = inlined(jaxpr, variables)
    graph = Graph()
    values = {
        variable: graph.input(f"x{place}", variable.dtype, variable.shape) for place, variable in enumerate(variables)
    }

    def value_of(operand: Any) -> Any:
        return values[operand] if isinstance(operand, Variable) else graph.constant(operand)

    for equation in equations:
        found = convert(graph, equation, [value_of(operand) for operand in equation.inputs])
        values.update(zip(equation.outputs, found, strict=True))
    outputs = {f"y{place}": value_of(result) for place, result in enumerate(results)}
    model = graph.model(outputs, name="function", producer=("test", ""))
    onnx.checker.check_model(model, full_check=True)
    return model


def check(function: Any, *kinds: tuple[Any, tuple[int, ...]]) -> None:
    random = np.random.default_rng(0)

    def columns(rows: int) -> list[np.ndarray]:
        drawn = []
        for dtype, shape in kinds:
            normal = random.normal(0, 1.5, (rows, *shape))
            drawn.append(normal > 0 if dtype is bool else normal.astype(dtype))
        return drawn

    session = onnxruntime.InferenceSession(converted(function, *columns(1)).SerializeToString())
    for rows in (1, 4):
        inputs = columns(rows)
        with jax.enable_x64(True):
            expected = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*inputs))]
        got = session.run(None, {f"x{place}": array for place, array in enumerate(inputs)})
        for one, other in zip(got, expected, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)


F = (np.float32, (3,))
I = (np.int32, (3,))  # noqa: E741
B = (bool, (3,))


def _lookups(x, i):
    i = abs(i) % 4
    return [
        jnp.asarray(_TABLE)[i],
        jnp.take(jnp.asarray(_TABLE), i, axis=1, mode="clip"),
        jnp.take(jnp.asarray(_TABLE), 3 * i - 2, axis=0, mode="fill"),
        jnp.take_along_axis(x, i[:, :1] % 3, axis=1),
        jnp.take_along_axis(x, 2 * i - 3, axis=1, mode="fill"),
        x[:, 1],
        x[:, -2],
        x[:, jnp.array([2, 0])],
        lax.dynamic_slice_in_dim(x, i.sum() % 2, 2, axis=1),
        lax.dynamic_index_in_dim(x, 1, axis=1, keepdims=False),
    ]


def _shapes(x):
    rows = x.shape[0]
    return [
        x.reshape(-1, 1, 3).swapaxes(0, 2),
        jnp.concatenate([x, x * 2]).reshape(2, rows, 3).sum(axis=0),
        jnp.stack([x, -x], axis=1).reshape(2 * rows, 3),
        (x[:, None] * x).reshape(rows * rows, 3).sum(axis=0) + x,
        jnp.pad(x, ((0, 0), (2, 1)), constant_values=5.0),
        lax.pad(x, jnp.float32(0), ((0, 0, 0), (-1, 1, 0))),
        x[:, ::-1],
        x[:, ::2],
        jnp.split(x, [1], axis=1),
        jnp.tile(x, (2, 2)),
        jnp.repeat(x, 2, axis=1),
        jnp.broadcast_to(x[:, :, None], (rows, 3, 2)),
        jnp.ones((rows, 2)),
        jnp.arange(rows)[:, None] + jnp.arange(2),
        jnp.zeros((rows, rows)) + x[:, :1],
        jnp.expand_dims(x, (0, 3)),
        jnp.float32(rows * 2 + 1),
    ]


def _functions(x):
    p = abs(x) + 0.5
    return [
        *(f(x) for f in (jnp.tanh, jnp.exp, jnp.sin, jnp.cos, jnp.sign, jnp.floor, jnp.ceil, jnp.round, jnp.expm1)),
        *(f(p) for f in (jnp.log, jnp.sqrt, jnp.log1p, lax.rsqrt, jnp.exp2, jnp.square)),
        *(f(x) for f in (jax.nn.relu, jax.nn.elu, jax.nn.gelu, jax.nn.silu, jax.nn.softplus, jax.nn.sigmoid)),
        *(f(x) for f in (jax.nn.softmax, jax.nn.log_softmax, jax.nn.leaky_relu, jax.scipy.special.erf)),
        *(x**n for n in (2, 3, 4, 5, -1)),
        *(p**1.5, x / p, x % p, jnp.maximum(x, 0.3), jnp.clip(x, -1, 1), lax.clamp(np.float32(0), x, np.float32(1))),
        *(jnp.isfinite(x / jnp.maximum(x, 0)), jax.nn.gelu(x, approximate=False), jnp.fmod(x, 0.7)),
    ]


def _sums(x):
    return [
        *(f(x, axis=1) for f in (jnp.sum, jnp.max, jnp.min, jnp.prod, jnp.mean, jnp.var, jnp.argmax, jnp.argmin)),
        *((x > 0).any(axis=1), (x > 0).all(axis=1), x.sum(), jnp.cumsum(x, axis=1), jnp.cumsum(x[:, ::-1], axis=1)),
        *(jnp.sort(x, axis=1), jnp.argsort(x, axis=1), *lax.top_k(x, 2), jax.nn.logsumexp(x, axis=1)),
        jax.nn.one_hot(jnp.argmax(x, axis=1), 3) @ _TABLE.T,
    ]


def _products(x, y):
    return [
        x @ _TABLE.T,
        jnp.einsum("bi,bi->b", x, y[:, 0]),
        jnp.einsum("bi,bki->bk", x, y),
        jnp.einsum("bki,ji->bkj", y, _TABLE),
        jnp.einsum("bki,bmi->bkm", y, y),
        y @ _TABLE.T,
        jax.vmap(lambda w: x @ w)(_TABLE.reshape(2, 3, 2)),
    ]


def _logic(x, i, b):
    return [
        *(b & (x > 0), b | (x < 0), b ^ (i >= 1), ~b, b == (i != 0), jnp.where(b, i, -i), jnp.where(b, b, i > 2)),
        *(i + 2, i * i, i // 2, i % 2, i.astype(np.int8) + np.int8(1), b.astype(jnp.float32), x.astype(jnp.int32)),
        *(jnp.maximum(i, 0), jnp.maximum(b, i > 0), b * (i > 0), i.astype(np.uint8) > 2, i.astype(np.int64) + 1),
        *((x > 0).sum(axis=1), lax.select_n(jnp.clip(i, 0, 2), x, -x, 2 * x), x.astype(jnp.bfloat16) > 0),
    ]


def _loops(x):
    def step(carry, row):
        return carry * 0.5 + row, carry.sum(axis=-1)

    last, sums = lax.scan(step, x, jnp.asarray(_TABLE))
    _, back = lax.scan(step, x, jnp.asarray(_TABLE), reverse=True)
    chosen = lax.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, x)
    return last, sums, back, chosen, jax.checkpoint(jnp.sin)(x), lax.switch(2, [jnp.sin, jnp.cos, jnp.tanh], x)


def _images(x):
    kernel = np.random.default_rng(1).normal(size=(3, 2, 2, 5)).astype(np.float32)
    plain = lax.conv_general_dilated(
        x, kernel, (2, 1), [(1, 0), (0, 1)], dimension_numbers=("NHWC", "HWIO", "NHWC"), rhs_dilation=(1, 2)
    )
    groups = np.random.default_rng(1).normal(size=(4, 1, 2, 2)).astype(np.float32)
    by_channel = lax.conv_general_dilated(jnp.moveaxis(x, 3, 1), groups, (1, 1), "SAME", feature_group_count=2)
    window = (1, 2, 3, 1)
    largest = lax.reduce_window(x, -jnp.inf, lax.max, window, (1, 2, 1, 1), "VALID")
    total = lax.reduce_window(x, 0.0, lax.add, window, (1, 1, 2, 1), "SAME")
    return plain, by_channel, largest, total


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "kinds"),
    [
        (_functions, [F]),
        (_shapes, [F]),
        (_sums, [F]),
        (_products, [F, (np.float32, (2, 3))]),
        (_logic, [F, I, B]),
        (_lookups, [F, I]),
        (_loops, [F]),
        (_images, [(np.float32, (5, 6, 2))]),
    ],
    ids=lambda value: getattr(value, "__name__", "").strip("_"),
)
def test_functions_are_equal(function, kinds):
    check(function, *kinds)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("while", lambda x: lax.while_loop(lambda v: v.sum() < 9, lambda v: v + 1, x)),
        ("scatter", lambda x: x.at[:, 0].set(1.0)),
        ("erf_inv", lax.erf_inv),
        ("reduce_or", lambda x: lax.reduce_or(x.astype(jnp.int32), (1,))),
        ("'scan'", lambda x: lax.scan(lambda c, _: (c + 1, None), x, None, length=1000)[0]),
        (
            "'reduce_window_max', of the window",
            lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 1), (1, 1), "SAME"),
        ),
    ],
)
def test_unknown_operations_are_named(name, function):
    with pytest.raises(PolicyError, match=name):
        converted(function, np.zeros((1, 3), np.float32))


def test_unused_equations_are_left_out():
    """An unknown operation without a used result is no error, and has no node."""
    model = converted(lambda x: (lax.erf_inv(x), x + 1)[1], np.zeros((1, 3), np.float32))
    assert [node.op_type for node in model.graph.node] == ["Add", "Identity"]


@pytest.mark.parametrize("axis", [0, 1])
def test_indices_out_of_range_are_filled(axis):
    table = jnp.asarray(_TABLE)

    def places_of(x):
        return jnp.floor(x[:, 0] * 3).astype(jnp.int32)

    check(lambda x: jnp.take(table, places_of(x), axis=axis, mode="fill", fill_value=2.5), (np.float32, (2,)))
    check(lambda x: table.at[places_of(x)].get(mode="fill", fill_value=1.0), (np.float32, (2,)))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_numbers_out_of_range_become_the_bounds_of_integers(dtype):
    check(lambda x: [(1e5 * x).astype(dtype), (20 * x).astype(jnp.float16).astype(dtype)], F)


def test_booleans_are_sorted():
    check(lambda x: jnp.sort(x, axis=-1), (bool, (5,)))
