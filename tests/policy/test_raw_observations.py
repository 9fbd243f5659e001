"""Errors of raw observations that do not fit their space name the part, and the expected value."""

from collections import UserDict

import numpy as np
import pytest
from gymnasium import spaces

from rollax import EnvError, NonFiniteError
from rollax.policy.raw_observations import columns_of, columns_of_one
from rollax.rollout.filters import make_filter
from rollax.rollout.policy_runner import PolicyRunner
from tests.env.refused import refused
from tests.policy.small_ppo import make

BOX = spaces.Box(-1, 1, (2,), np.float32)
UNBOUNDED = spaces.Box(-np.inf, np.inf, (2,), np.float32)
SEEN = spaces.Dict({"pos": BOX, "kind": spaces.Discrete(3), "mask": spaces.MultiBinary(2)})
FITS = {"pos": [0.5, -1], "kind": 2, "mask": [True, False]}


@pytest.mark.parametrize(
    ("space", "obs", "columns"),
    [
        (BOX, [0.5, -1], np.array([[0.5, -1]], np.float32)),
        (BOX, np.array([0.5, -1]), np.array([[0.5, -1]], np.float32)),
        (spaces.Discrete(3), np.int8(2), np.array([2])),
        (UNBOUNDED, [np.inf, 0], np.array([[np.inf, 0]], np.float32)),
    ],
)
def test_one_row_of_the_dtype_of_the_space(space, obs, columns):
    found = columns_of_one(space, obs, "here")
    np.testing.assert_array_equal(found, columns)
    assert found.dtype == space.dtype


def test_nested():
    for obs in (FITS, {**FITS, "more": "than asked for"}, UserDict(FITS)):
        columns, number = columns_of_one(spaces.Tuple([SEEN, spaces.Discrete(4)]), (obs, 3), "here")
        expected = {"pos": [[0.5, -1]], "kind": [2], "mask": [[1, 0]]}
        assert {key: column.tolist() for key, column in columns.items()} == expected
        assert number.tolist() == [3]


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (BOX, [[0, 1], [0, 1]], r"where: +here\n +got: +shape \(2, 2\)\n +expected: shape \(2,\), one observation of"),
        (BOX, [[0, 1]], r"shape \(1, 2\)"),
        (BOX, [[0], [1]], r"shape \(2, 1\)"),
        (BOX, [0, 1, 0], r"shape \(3,\)"),
        (BOX, None, "got: +None"),
        (BOX, [0, "left"], "numbers of Box"),
        (BOX, [[0, 1], 2], "numbers of Box"),
        (spaces.Discrete(3), [1], r"shape \(1,\)"),
        (spaces.Box(0, 255, (1,), np.uint8), [256], "numbers of Box"),
        (spaces.Box(0, 255, (1,), np.uint8), [0.5], "numbers of Box"),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([300]), "numbers of Box"),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([np.nan]), "numbers of Box"),
        (spaces.Discrete(3), 1.5, "numbers of Discrete"),
        (spaces.Discrete(3), "1", "numbers of Discrete"),
        (spaces.Discrete(3, start=5), 4, "numbers from 5 to 7"),
        (spaces.MultiDiscrete([2, 3]), [1, 3], "numbers from"),
        (SEEN, {"pos": [0, 1], "kind": 2}, r"keys \['kind', 'pos'\]\n +expected: .*keys \['kind', 'mask', 'pos'\]"),
        (SEEN, [0, 1], r"got: +\[0, 1\]"),
        (SEEN, {**FITS, "pos": [0, 1, 2]}, r"here, key 'pos'\n +got: +shape \(3,\)"),
        (spaces.Tuple([BOX, SEEN]), ([0, 1], {**FITS, "kind": "x"}), "here, element 1, key 'kind'\n"),
        (spaces.Tuple([BOX, BOX]), {"a": [0, 1], "b": [0, 1]}, "a tuple of 2"),
        (spaces.Tuple([BOX, BOX]), ([0, 1],), "a tuple of 2"),
    ],
)
def test_observations_that_do_not_fit_are_refused(space, obs, message):
    with pytest.raises(EnvError, match=message):
        columns_of_one(space, obs, "here")


@pytest.mark.parametrize(("space", "number"), [(BOX, np.nan), (BOX, np.inf), (UNBOUNDED, np.nan)])
def test_non_finite_observations_are_refused(space, number):
    with pytest.raises(NonFiniteError, match=r"NaN or infinity.\n +where: +here, element 0\n"):
        columns_of_one(spaces.Tuple([space]), [[0, number]], "here")


def test_a_list_equals_its_rows():
    found = columns_of(SEEN, [FITS, {**FITS, "kind": 0}], "here")
    expected = {"pos": [[0.5, -1], [0.5, -1]], "kind": [2, 0], "mask": [[1, 0], [1, 0]]}
    assert {key: column.tolist() for key, column in found.items()} == expected
    assert [found[key].dtype for key in SEEN] == [SEEN[key].dtype for key in SEEN]
    for wrong in ({**FITS, "kind": 3}, {"pos": [0, 1]}, {**FITS, "pos": [0, 1, 2]}):
        refused(EnvError, columns_of, SEEN, [FITS, wrong], "here", says="here, row 1")
    with pytest.raises(EnvError, match=r"got: +shape \(2,\)\n +expected: rows of shape \(2,\), of Box"):
        columns_of(BOX, np.zeros(2), "here")
    with pytest.raises(NonFiniteError, match="here, key 'pos', row 1"):
        columns_of(SEEN, [FITS, {**FITS, "pos": [0, np.nan]}], "here")


def test_the_error_of_a_policy_for_stacks_says_what_to_stack():
    space = spaces.Box(-1, 1, (8,), np.float32)
    for count, says in ((4, "of the last 4 ...rollax docs environments#stacks"), (1, "environment returns")):
        policy = make(space, frame_stack=count)
        runner = PolicyRunner.of(policy, policy.config, make_filter("NoFilter", space))
        for compute in (policy.compute_single_action, runner.compute_single_action):
            assert compute(np.zeros(8)) in policy.action_space
            refused(EnvError, compute, np.zeros(2), says=f"got:      shape (2,)\n...fix: ...{says}")
        refused(EnvError, runner.compute_actions, [np.zeros(2)], says=f"fix: ...{says}")
