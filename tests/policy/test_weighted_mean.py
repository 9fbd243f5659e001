"""Means over parts against means over all rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.policy.gradient_steps import weighted_mean

NUMBERS = np.float32([1, 2, 6, np.nan, 7])


def part(state, rows):
    mask = rows >= 0
    count = mask.sum().astype(jnp.float32)
    # 0 / 0 if no row is valid, which not every loss avoids.
    means = {"mean": jnp.where(mask, jnp.asarray(NUMBERS)[rows], 0).sum() / count, "rows": count}
    return means, 10 * rows, state + 1, count


@pytest.mark.parametrize("compiled", [False, True])
def test_weights_by_valid_rows_and_skips_empty_parts(compiled):
    #   part    rows      mean   valid rows
    #    0    0, 1, 2      3         3
    #    1    4, -, -      7         1         means (3·3 + 1·7) / 4 = 4  and  (3·3 + 1·1) / 4 = 2.5
    #    2    -, -, -     NaN        0
    function = jax.jit(weighted_mean, static_argnums=0) if compiled else weighted_mean
    means, by_row, state = function(part, jnp.int32(0), jnp.array([[0, 1, 2], [4, -1, -1], [-1, -1, -1]]))
    assert (float(means["mean"]), float(means["rows"]), int(state)) == (4.0, 2.5, 2)
    assert by_row.tolist() == [[0, 10, 20], [40, -10, -10], [-10, -10, -10]]


def test_mean_of_no_rows_is_zero():
    means, _, state = weighted_mean(part, jnp.int32(5), jnp.full((2, 3), -1))
    assert (float(means["mean"]), float(means["rows"]), int(state)) == (0.0, 0.0, 5)


def test_non_finite_valid_rows_give_non_finite_means():
    means, *_ = weighted_mean(part, jnp.int32(0), jnp.array([[0, 1], [3, -1]]))
    assert np.isnan(means["mean"])
