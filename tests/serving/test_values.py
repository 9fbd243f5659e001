"""Values of any space survive encoding and decoding; all other values are refused with a RequestError."""

import tracemalloc
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from gymnasium import Space, spaces
from hypothesis import given

from rollax.core import trees
from rollax.core.spaces import walk
from rollax.errors import RequestError
from rollax.serving.agent_reader import check_finite_number, read_plain
from rollax.serving.client_calls import encode
from rollax.serving.limits import Limits
from rollax.serving.values import SpaceValues, plain, unpack
from tests.env.refused import raised
from tests.serving.service_session import refused

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
NESTED = spaces.Dict({"x": BOX, "rest": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary((2, 2))))})
shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)


def boxes() -> st.SearchStrategy[Space]:
    dtypes = st.sampled_from([np.float32, np.float64])
    floats = st.builds(lambda shape, dtype: spaces.Box(-2.0, 3.0, shape, dtype), shapes, dtypes)
    wide = shapes.map(lambda shape: spaces.Box(-np.inf, np.inf, shape, np.float32))
    pixels = shapes.map(lambda shape: spaces.Box(0, 255, shape, np.uint8))
    wholes = shapes.map(lambda shape: spaces.Box(-(2**40), 2**40, shape, np.int64))
    return st.one_of(floats, wide, pixels, wholes)


def leaves() -> st.SearchStrategy[Space]:
    discrete = st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), st.integers(-3, 3))
    several = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(spaces.MultiDiscrete)
    return st.one_of(boxes(), discrete, several, st.integers(1, 4).map(spaces.MultiBinary))


def all_spaces() -> st.SearchStrategy[Space]:
    def outer(inner: st.SearchStrategy[Space]) -> st.SearchStrategy[Space]:
        dicts = st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(spaces.Dict)
        return dicts | st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple)

    return st.recursive(leaves(), outer, max_leaves=4)


def sampled(space: Space, count: int, seed: int) -> list[Any]:
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def pack(array: Any) -> dict[str, Any]:
    array = np.asarray(array)
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": array.tobytes()}


def where(row: int) -> str:
    return f"row {row}"


def same(columns: Any, values: list[Any], space: Space) -> None:
    def compare(leaf: Space, path: Any, column: np.ndarray, *parts: Any) -> None:
        assert column.dtype == leaf.dtype
        np.testing.assert_array_equal(column, np.array(parts, leaf.dtype))

    walk(compare, space, columns, *values)


@given(all_spaces(), st.integers(1, 4), st.integers(0, 99))
def test_plain_values_of_any_space_survive_json(space, count, seed):
    values = sampled(space, count, seed)
    sent = msgspec.json.decode(msgspec.json.encode([plain(value) for value in values]))
    same(SpaceValues(space, bounded=True).columns(sent, where), values, space)


@given(all_spaces(), st.integers(1, 4), st.integers(0, 99))
def test_packed_arrays_of_any_space_survive_msgpack(space, count, seed):
    values = sampled(space, count, seed)
    sent = msgspec.msgpack.decode(encode("get_actions", {"obs": values}, stream=True))["obs"]
    same(SpaceValues(space, bounded=True).columns(sent, where), values, space)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["dtype", "shape", "data", "x", "rest"]), inner)
    ),
    max_leaves=8,
)


@pytest.mark.long
@given(all_spaces() | st.just(NESTED), st.lists(junk, min_size=1, max_size=3))
def test_anything_else_is_refused_or_in_the_space(space, values):
    refused: RequestError | None = None
    try:
        columns = SpaceValues(space, largest=1e6, bounded=True).columns(values, where)
    except RequestError as error:
        refused = error
    if refused is not None:
        assert refused.status == 422
        assert refused.parts["where"].startswith("row ")
        return
    for row in range(len(values)):
        assert space.contains(walk(_typed_as_a_sample, space, trees.index(columns, row)))


def _typed_as_a_sample(leaf: Space, path: Any, part: Any) -> Any:
    # A row of a Box of shape () is a NumPy scalar.
    is_array = isinstance(leaf, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete)
    return np.asarray(part) if is_array else np.int64(part)


@given(st.fixed_dictionaries({}, optional={
    "dtype": st.sampled_from(["<f4", "<i8", ">f4", "|O", "<U9", "f4", "<c8", "<M8", "", "|V4"]) | junk,
    "shape": st.lists(st.integers(-2, 2**40), max_size=3) | junk,
    "data": st.binary(max_size=16) | junk,
    "more": st.none(),
}))  # fmt: skip
def test_malformed_packed_arrays_are_refused_before_anything_is_allocated(packed):
    try:
        array = unpack(packed)
    except RequestError:
        return
    assert array.nbytes == len(packed["data"]) <= 16
    assert array.dtype.kind in "biuf"


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ([0.0], "wrong shape"),
        ([[0.0, 0.0]], "wrong shape"),
        ([0.0, [0.0]], "wrong shape"),
        ([0.0, "0"], "The value does not consist of numbers"),
        ([0.0, None], "The value does not consist of numbers"),
        ([0.0, float("nan")], "not finite"),
        ([0.0, float("inf")], "not finite"),
        ([0.0, 1e300], "cannot be represented in float32"),
        ([0.0, 10**400], "numbers"),
        ({"dtype": "<f4", "shape": [2], "data": b"1234567"}, "wrong size"),
        ({"dtype": "<f4", "shape": [2], "data": "12345678"}, "The data of the packed array is not bytes"),
        ({"dtype": "<f4", "shape": [1, 2], "data": bytes(8)}, "wrong shape"),
        ({"dtype": "|O", "shape": [2], "data": bytes(16)}, "unknown dtype"),
        ({"dtype": "<f4", "shape": [2, -1], "data": bytes(8)}, "The shape of the packed array is malformed"),
        ({"dtype": "<f4", "shape": [2]}, "wrong keys"),
    ],
)
def test_errors_of_a_box(value, what):
    with pytest.raises(RequestError, match=what) as caught:
        SpaceValues(BOX).columns([[0.0, 0.0], value, [0.0, 0.0]], where)
    assert caught.value.parts["where"] == "row 1"


@pytest.mark.parametrize(
    ("value", "what", "place"),
    [
        ({"x": [0, 0]}, "The keys of the value are not", "row 0"),
        ({"x": [0, 0], "rest": [0, [[0, 0], [0, 0]]], "y": 1}, "The keys of the value are not", "row 0"),
        ([0, 0], "The keys of the value are not", "row 0"),
        ({"x": [0, 0], "rest": [0]}, "length of the value is not", "row 0, key 'rest'"),
        ({"x": [0, 0], "rest": 3}, "length of the value is not", "row 0, key 'rest'"),
        ({"x": [0, 0], "rest": [2, [[0, 0], [0, 0]]]}, "out of bounds", "row 0, key 'rest', element 0"),
        ({"x": [0, 0], "rest": [0.5, [[0, 0], [0, 0]]]}, "represented in int64", "row 0, key 'rest', element 0"),
        ({"x": [0, 0], "rest": [0, [[0, 0], [0, 2]]]}, "out of bounds", "row 0, key 'rest', element 1"),
    ],
)
def test_errors_of_a_nested_value(value, what, place):
    with pytest.raises(RequestError, match=what) as caught:
        SpaceValues(NESTED).columns([value], where)
    assert caught.value.parts["where"] == place


def test_keys_that_are_not_strings():
    space = spaces.Dict({0: BOX, 1: spaces.Dict({7: spaces.Discrete(3)})})
    values = sampled(space, 2, seed=0)
    in_json = msgspec.json.decode(msgspec.json.encode([plain(value) for value in values]))
    in_msgpack = msgspec.msgpack.decode(msgspec.msgpack.encode(values, enc_hook=pack), strict=False)
    assert [list(sent[0]) for sent in (in_json, in_msgpack)] == [["0", "1"], [0, 1]]
    same(SpaceValues(space).columns([in_json[0], in_msgpack[1]], where), values, space)
    with pytest.raises(RequestError, match="keys of the value are not those of its space"):
        SpaceValues(space).columns([{0: [0, 0], "1": {7: 0}}], where)


def test_text_takes_no_more_memory_than_the_message():
    tracemalloc.start()
    with pytest.raises(RequestError, match="numbers"):  # NumPy pads each text to the longest: 40 GB
        SpaceValues(BOX).columns([["x" * 100_000, *[""] * 100_000]], str)
    assert tracemalloc.get_traced_memory()[1] < 1 << 26
    tracemalloc.stop()


def test_equal_numbers_of_other_types_are_accepted():
    # JSON has one type of number: some languages write 1 for 1.0, and some 1.0 for 1.
    assert SpaceValues(spaces.Discrete(3)).columns([1.0, 2], where).tolist() == [1, 2]
    assert SpaceValues(BOX).columns([[1, 0]], where).dtype == np.float32
    assert SpaceValues(spaces.MultiBinary(2)).columns([[True, False]], where).tolist() == [[1, 0]]
    wide = {"dtype": "<f8", "shape": [2], "data": np.array([0.5, 1.0]).tobytes()}
    assert SpaceValues(BOX).columns([wide, [0.0, 1.0]], where).tolist() == [[0.5, 1.0], [0.0, 1.0]]
    large = pack(np.array([2**63], np.uint64))
    with pytest.raises(RequestError, match="cannot be represented in int64"):
        SpaceValues(spaces.Box(-(2**62), 2**62, (1,), np.int64)).columns([large], where)


def test_wider_bounds_of_a_space_raise_the_limit_of_numbers():
    unbounded, wide = spaces.Box(-np.inf, np.inf, (1,)), spaces.Box(-1e8, 1e8, (1,))
    SpaceValues(unbounded).columns([[1e30]], where)
    raised(RequestError, SpaceValues(unbounded, largest=1e6).columns, [[2e6]], where, says="too large")
    SpaceValues(wide, largest=1e6).columns([[9e7]], where)
    raised(RequestError, SpaceValues(wide, largest=1e6).columns, [[2e8]], where, says="too large")


def test_a_server_that_learns_accepts_unix_time():
    SpaceValues(spaces.Box(-np.inf, np.inf, (1,)), largest=Limits().largest_number).columns([[1.8e9]], where)
    assert np.isfinite(np.float32(Limits().largest_number) ** 4)


def test_observations_out_of_bounds_are_accepted_and_actions_refused():
    SpaceValues(BOX).columns([[2.0, 0.0]], where)
    raised(RequestError, SpaceValues(BOX, bounded=True).columns, [[2.0, 0.0]], where, says="out of bounds")


def test_errors_do_not_repeat_large_values():
    for value in ("x" * 10**6, ["x" * 10**6], [0.0] * 10**6, {"dtype": "x" * 10**6, "shape": [], "data": b""}):
        with pytest.raises(RequestError) as caught:
            SpaceValues(BOX).columns([value], where)
        assert len(str(caught.value)) < 1000


def test_arrays_of_a_client():
    for stream in (True, False):
        raised(RequestError, encode, "get_action", {"obs": np.array([None])}, says="cannot be sent", stream=stream)
    for obs in (np.array([np.nan, 0.0]), [float("nan"), 0.0], (np.float64("inf"), 0.0), float("nan")):  # not in JSON
        raised(RequestError, encode, "get_action", {"obs": obs}, says="cannot be sent...NaN or infinity", stream=False)
    sent = msgspec.msgpack.decode(encode("get_action", {"obs": np.array([1.5], ">f8")}, stream=True))
    assert unpack(sent["obs"]).tolist() == [1.5]


@pytest.mark.parametrize("value", [True, None, "1", [1.0], float("nan"), float("-inf"), 1e39, 10**400])
def test_numbers_that_are_not_finite(value):
    refused(422, check_finite_number, value, "reward", "here", says="reward")


def test_the_depth_of_plain_values_is_limited():
    value = {"a": [{"b": [1, 2.0, "c", None, False]}]}
    assert read_plain(value, "An info", "here") == value
    for value in ({"a": np.float32(1)}, {"a": (1,)}, {1: 2}, [[1]]):
        raised(RequestError, read_plain, value, "An info", "here", says="An info", depth=1)


def test_packed_arrays_in_plain_values_are_lists():
    packed = pack(np.array([[1, 2]], np.int16))
    assert read_plain({"a": [packed]}, "An info", "here") == {"a": [[[1, 2]]]}
    for value in (pack(np.array([np.nan])), {**packed, "data": b"1"}, {"data": b""}):
        with pytest.raises(RequestError) as caught:
            read_plain({"a": value}, "An info", "here")
        assert caught.value.parts["where"] == "here"
