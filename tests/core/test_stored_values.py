"""States as JSON and arrays."""

import math

import numpy as np
import pytest

from rollax.core.stored_values import with_arrays, without_arrays
from rollax.errors import CheckpointError
from tests.env.refused import refused


def test_what_is_read_is_what_was_written():
    array, arrays = np.arange(3), {}
    state = {"a": [array, {"b": array}], "a/0": np.ones(2), "x": [math.inf, -math.inf], "$array": 1, "y": np.int64(3)}
    np.testing.assert_equal(with_arrays(without_arrays(state, "", arrays, {}), arrays, "state"), state)
    assert len(arrays) == 2  # one array has one place


@pytest.mark.parametrize("reserved", [{"$float": "nan"}, {"$array": "/a"}])
def test_a_dict_that_would_be_read_as_a_number_or_an_array_is_refused(reserved):
    refused(CheckpointError, without_arrays, {"callbacks": [reserved]}, "", {}, {})
