import numpy as np
import pytest
from gymnasium import spaces

from rollax.errors import ShapeError
from rollax.rollout.actions import ActionMap
from tests.env.refused import refused


def f32(rows) -> np.ndarray:
    return np.array(rows, np.float32)


def check_copy(sent, chosen):
    """The environment may write into what is sent: what the policy has chosen is learned from."""
    np.testing.assert_array_equal(sent, chosen)
    assert sent.dtype == chosen.dtype
    assert sent.flags.writeable
    assert not np.shares_memory(sent, chosen)


# Bounds by element: both, both, above only, none.
MIXED = spaces.Box(f32([-2, 0, -np.inf, -np.inf]), f32([2, 10, 3, np.inf]))


def mapped(space, actions, clip=False, normalize=False):
    return ActionMap(space, clip_actions=clip, normalize_actions=normalize)(np.asarray(actions))


#   policy's action            -1.5   -0.5      5      9
#   normalized                 -2*   2.5      5      9     * limited: an element with both bounds stays inside them
#   normalized and clipped     -2    2.5      3      9
#   clipped                    -1.5    0      3      9
#   neither                    -1.5 -0.5      5      9
@pytest.mark.parametrize(
    ("clip", "normalize", "expected"),
    [
        (False, True, [-2, 2.5, 5, 9]),
        (True, True, [-2, 2.5, 3, 9]),
        (True, False, [-1.5, 0, 3, 9]),
        (False, False, [-1.5, -0.5, 5, 9]),
    ],
)
def test_bounds(clip, normalize, expected):
    out = mapped(MIXED, f32([[-1.5, -0.5, 5, 9]]), clip, normalize)
    np.testing.assert_array_equal(out, [expected])
    assert out.dtype == np.float32


def test_ends_are_exact():
    space = spaces.Box(np.float32(-0.1), np.float32(0.3), (1,))
    out = mapped(space, f32([[-1], [1]]), normalize=True)
    np.testing.assert_array_equal(out, f32([[-0.1], [0.3]]))
    assert all(space.contains(action) for action in out)


def test_wide_float64_bounds_do_not_overflow():
    space = spaces.Box(-1.7e308, 1.7e308, (1,), np.float64)
    np.testing.assert_array_equal(mapped(space, [[-1.0], [0.5]], normalize=True), [[-1.7e308], [0.85e308]])


def test_integer_boxes_are_rounded_and_kept_in_range():
    space = spaces.Box(0, 255, (2,), np.uint8)
    out = mapped(space, [[300.0, 7.6], [-4.0, 0.4]])
    np.testing.assert_array_equal(out, [[255, 8], [0, 0]])
    assert out.dtype == np.uint8
    np.testing.assert_array_equal(mapped(space, [[-1.0, 1.0]], normalize=True), [[0, 255]])


def test_spaces_without_a_box_are_not_changed():
    space = spaces.Dict({"a": spaces.Discrete(3, start=1), "b": spaces.Tuple([spaces.MultiDiscrete([2, 3])])})
    action_map = ActionMap(space, clip_actions=True, normalize_actions=True)
    columns = {"a": np.array([1, 3]), "b": (np.zeros((2, 2), np.int64),)}
    assert action_map.identity
    sent = action_map(columns)
    check_copy(sent["a"], columns["a"])
    check_copy(sent["b"][0], columns["b"][0])
    assert action_map.to_policy(columns) is columns


def test_nested():
    space = spaces.Tuple([spaces.Dict({"x": spaces.Box(0, 4, (2, 3)), "n": spaces.Discrete(2)}), spaces.MultiBinary(2)])
    columns = ({"x": np.zeros((5, 2, 3), np.float32), "n": np.arange(5) % 2}, np.ones((5, 2), np.int8))
    action_map = ActionMap(space, clip_actions=False, normalize_actions=True)
    out = action_map(columns)
    np.testing.assert_array_equal(out[0]["x"], np.full((5, 2, 3), 2))
    check_copy(out[0]["n"], columns[0]["n"])
    check_copy(out[1], columns[1])
    np.testing.assert_array_equal(action_map.to_policy(out)[0]["x"], columns[0]["x"])
    assert not action_map.identity


def test_to_policy_undoes_the_map():
    action_map = ActionMap(MIXED, clip_actions=True, normalize_actions=True)
    actions = f32([[-1, 0.25, 2, 50], [0.5, 1, -7, -50]])
    np.testing.assert_allclose(action_map.to_policy(action_map(actions)), actions, rtol=1e-6)
    # The map continues linearly outside the bounds: 4 in [-2, 2] is 2, and 15 in [0, 10] is 2.
    np.testing.assert_allclose(action_map.to_policy([[4, 15, 0, 0]]), [[2, 2, 0, 0]])


def test_element_with_one_possible_value():
    action_map = ActionMap(spaces.Box(3, 3, (1,)), clip_actions=True, normalize_actions=True)
    np.testing.assert_array_equal(action_map(f32([[0.7]])), [[3]])
    np.testing.assert_array_equal(action_map.to_policy([[3.0]]), [[0]])


def test_nan_is_kept():
    assert np.isnan(mapped(MIXED, [[np.nan] * 4], clip=True, normalize=True)).all()


def test_argument_is_not_changed():
    actions = f32([[-5, 5, 5, 5]])
    copy = actions.copy()
    mapped(MIXED, actions, clip=True, normalize=True)
    np.testing.assert_array_equal(actions, copy)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (4,), ()])
def test_wrong_shape(shape):
    refused(ShapeError, mapped, MIXED, np.zeros(shape), clip=True, says="('N', 4)")


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_choices_of_a_narrow_dtype_are_in_the_space(dtype):
    choices = spaces.MultiDiscrete([2, 3], dtype=dtype)
    nested = spaces.Dict({"a": choices, "b": spaces.Discrete(3)})
    columns = {"a": np.int32([[0, 2]]), "b": np.int32([1])}  # the dtype that distributions return
    assert not choices.contains(columns["a"][0])
    mapped = ActionMap(nested, clip_actions=True, normalize_actions=True)(columns)
    assert choices.contains(mapped["a"][0])
    check_copy(mapped["b"], columns["b"])  # wider dtypes need no cast
