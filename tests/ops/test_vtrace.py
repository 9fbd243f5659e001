"""V-trace against numbers derived by hand, the sum of the paper, generalized advantages, and rlax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollax.batch import Fragment
from rollax.errors import ShapeError
from rollax.ops.advantages import generalized_advantages
from rollax.ops.vtrace import vtrace

LIMITS = {"clip_rho_threshold": 2.0, "clip_pg_rho_threshold": 3.0, "clip_c_threshold": 1.0}
NAN = float("nan")

# Two segments, γ = 1/2: one of 2 rows that terminates, one of 3 that is cut; padding before, inside and after the
# latter. The ratio ρ is limited to 2 in δ and to 3 in A, c to 1.
#   row     V  r   π/μ   ρ   c    δ = ρ (r + V'/2 - V)      v - V = δ + c x'/2         v       A = ρ' (r + v'/2 - V)
#    0      2  2   1/2  1/2 1/2   (2 + 2 - 2)/2 = 1         1 + (-2)/4      =  1/2     5/2     (2 + 1 - 2)/2     = 1/2
#    1      4  3    4    2   1    2 (3 - 4) = -2            -2                          2      3 (3 - 4)         = -3
#    2    padding
#    3      1  2    1    1   1    2 + 1 - 1 = 2             2 + (9/4)/2     = 25/8    33/8     2 + 17/8 - 1      = 25/8
#    4    padding
#    5      2  1    4    2   1    2 (1 + 2 - 2) = 2         2 + (1/2)/2     =  9/4    17/4     3 (1 + 9/4 - 2)   = 15/4
#    6      4  1   1/2  1/2 1/2   (1 + 4 - 4)/2 = 1/2       1/2                        9/2     (1 + 4 - 4)/2     = 1/2
#    7      8    bootstrap
#    8    padding
ROWS: dict[str, Any] = {
    "log_rhos": np.log([0.5, 4, NAN, 1, NAN, 4, 0.5, NAN, NAN]).astype(np.float32),
    "discounts": np.array([0.5, 0, NAN, 0.5, NAN, 0.5, 0.5, 0.5, NAN], np.float32),
    "rewards": np.array([2, 3, NAN, 2, NAN, 1, 1, NAN, NAN], np.float32),
    "values": np.array([2, 4, NAN, 1, NAN, 2, 4, 8, NAN], np.float32),
    "bootstrap": np.array([0, 0, 1, 0, 0, 0, 0, 1, 0], bool),  # the value in padding does not matter
    "mask": np.array([1, 1, 0, 1, 0, 1, 1, 1, 0], np.float32),
}


def arrays(rows=ROWS):
    return {name: jnp.asarray(column) for name, column in rows.items()}


def test_by_hand(wrap):
    targets, advantages = wrap(lambda rows: vtrace(**rows, **LIMITS))(arrays())
    np.testing.assert_allclose(targets, [2.5, 2, 0, 33 / 8, 0, 17 / 4, 4.5, 8, 0], rtol=1e-6)
    np.testing.assert_allclose(advantages, [0.5, -3, 0, 25 / 8, 0, 15 / 4, 0.5, 0, 0], rtol=1e-6)


def test_lambda_by_hand(wrap):
    # λ = 1/2 halves c and the share of v' - V' in the advantage:
    #   row 5: x = 2 + (1/2)/4 = 17/8, A = 3 (1 + (4 + 1/4)/2 - 2) = 27/8
    #   row 3: x = 2 + (17/8)/4 = 81/32, A = 2 + (2 + 17/16)/2 - 1 = 81/32
    #   row 0: x = 1 + (-2)/8 = 3/4, A = (2 + (4 - 1)/2 - 2)/2 = 3/4
    targets, advantages = wrap(lambda rows, lambda_: vtrace(**rows, **LIMITS, lambda_=lambda_))(arrays(), 0.5)
    np.testing.assert_allclose(targets, [2.75, 2, 0, 113 / 32, 0, 33 / 8, 4.5, 8, 0], rtol=1e-6)
    np.testing.assert_allclose(advantages, [0.75, -3, 0, 81 / 32, 0, 27 / 8, 0.5, 0, 0], rtol=1e-6)


def test_results_are_constant():
    rows = arrays()
    floats = {name: column for name, column in rows.items() if column.dtype == jnp.float32}

    def total(floats):
        targets, advantages = vtrace(**{**rows, **floats}, **LIMITS)
        return (targets + advantages).sum()

    assert all((gradient == 0).all() for gradient in jax.jit(jax.grad(total))(floats).values())


def test_enormous_ratios_are_limited():
    rows = {name: column[[5, 7]] for name, column in ROWS.items()}
    rows["log_rhos"] = np.array([1e4, 0.0], np.float32)
    targets, advantages = compiled(rows, LIMITS)
    # δ = 2 (1 + 4 - 2) = 6, A = 3 (1 + 4 - 2) = 9
    assert (targets.tolist(), advantages.tolist()) == ([8, 8], [9, 0])


@pytest.mark.parametrize("name", ROWS)
def test_shapes_that_would_broadcast_are_refused(name, own_checks):
    rows = {key: jnp.asarray(np.nan_to_num(column)) for key, column in ROWS.items()}
    with pytest.raises(ShapeError, match=f"(?s){name}.*one shape for all"):
        vtrace(**{**rows, name: rows[name][:4]})


def test_no_rows():
    targets, advantages = compiled({name: column[:0] for name, column in ROWS.items()}, {})
    assert targets.shape == advantages.shape == (0,)


Segment = dict[str, np.ndarray]
FLAT_ROWS = 256  # one size, which compiles once
compiled = jax.jit(lambda rows, limits: vtrace(**rows, **limits))


def random_segment(rng: np.random.Generator, length: int) -> Segment:
    """T rows, and T + 1 values: those of the rows and of the next observation."""
    return {
        "log_rhos": rng.normal(size=length),
        "discounts": np.where(rng.random(length) < 0.2, 0.3, 0.9),
        "rewards": rng.normal(size=length),
        "values": rng.normal(size=length + 1),
    }


def flat(rng: np.random.Generator, segments: list[Segment], ends: list[bool], padding: float) -> tuple[Segment, list]:
    """The concatenated segments, with random padding, and the positions of each segment's rows."""
    rows: dict[str, list] = {name: [] for name in ROWS}
    places = []
    for segment, terminates in zip(segments, ends, strict=True):
        length, places_of_segment = len(segment["rewards"]), []
        for t in range(length + (not terminates)):
            while rng.random() < padding:
                for name, value in zip(ROWS, (NAN, NAN, NAN, NAN, rng.random() < 0.5, 0.0), strict=True):
                    rows[name].append(value)
            after = t == length
            places_of_segment.append(len(rows["mask"]))
            rows["log_rhos"].append(NAN if after else segment["log_rhos"][t])
            rows["discounts"].append(
                0.9 if after else 0.0 if terminates and t == length - 1 else segment["discounts"][t]
            )
            rows["rewards"].append(NAN if after else segment["rewards"][t])
            rows["values"].append(segment["values"][t])
            rows["bootstrap"].append(after)
            rows["mask"].append(1.0)
        places.append(np.array(places_of_segment[:length]))
    dtypes = {name: column.dtype for name, column in ROWS.items()}
    longer = FLAT_ROWS - len(rows["mask"])
    columns = {name: np.array(column, dtypes[name]) for name, column in rows.items()}
    return {name: np.append(column, np.zeros(longer, column.dtype)) for name, column in columns.items()}, places


def sum_of_the_paper(
    segment: Segment, terminates: bool, rho_bar: float, pg_rho_bar: float, c_bar: float, lambda_: float
):
    """Eq. 1 literally: for each s a sum over t of a product over i."""
    rhos, rewards, values = np.exp(segment["log_rhos"]), segment["rewards"], segment["values"]
    discounts = np.append(segment["discounts"][:-1], 0.0 if terminates else segment["discounts"][-1])
    length = len(rewards)
    targets = values.copy()
    for s in range(length):
        for t in range(s, length):
            factor = 1.0
            for i in range(s, t):
                factor *= discounts[i] * lambda_ * min(c_bar, rhos[i])
            targets[s] += factor * min(rho_bar, rhos[t]) * (rewards[t] + discounts[t] * values[t + 1] - values[t])
    following = lambda_ * targets[1:] + (1 - lambda_) * values[1:]
    advantages = np.minimum(pg_rho_bar, rhos) * (rewards + discounts * following - values[:-1])
    return targets[:-1], advantages


@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    padding=st.sampled_from([0.0, 0.3, 0.6]),
    limits=st.tuples(*[st.floats(0.1, 5.0)] * 3, st.sampled_from([0.0, 0.7, 1.0])),
)
def test_equals_the_sum_of_the_paper(seed, lengths, padding, limits):
    rng = np.random.default_rng(seed)
    segments = [random_segment(rng, length) for length in lengths]
    ends = [bool(end) for end in rng.random(len(segments)) < 0.5]
    rows, places = flat(rng, segments, ends, padding)
    names = ("clip_rho_threshold", "clip_pg_rho_threshold", "clip_c_threshold", "lambda_")
    targets, advantages = compiled(arrays(rows), dict(zip(names, limits, strict=True)))
    for segment, terminates, place in zip(segments, ends, places, strict=True):
        expected = sum_of_the_paper(segment, terminates, *limits)
        np.testing.assert_allclose(np.asarray(targets)[place], expected[0], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(np.asarray(advantages)[place], expected[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lambda_", [1.0, 0.8])
def test_agrees_with_rlax(rlax, lambda_):
    rng = np.random.default_rng(0)
    segments = [random_segment(rng, length) for length in (1, 13, 40)]
    ends = [False, True, False]
    rows, places = flat(rng, segments, ends, padding=0.3)
    limits = {"clip_rho_threshold": 1.5, "clip_pg_rho_threshold": 2.5}

    @jax.jit
    def theirs(values, *rest):
        errors = rlax.vtrace(values, *rest, lambda_, clip_rho_threshold=1.5)
        return errors + values, rlax.vtrace_td_error_and_advantage(values, *rest, lambda_, **limits).pg_advantage

    targets, advantages = compiled(arrays(rows), {**limits, "lambda_": lambda_})
    for segment, terminates, place in zip(segments, ends, places, strict=True):
        discounts = np.append(segment["discounts"][:-1], 0.0 if terminates else segment["discounts"][-1])
        values, rewards, rhos = segment["values"], segment["rewards"], np.exp(segment["log_rhos"])
        columns = values[:-1], values[1:], rewards, discounts, rhos
        expected = theirs(*(column.astype(np.float32) for column in columns))
        np.testing.assert_allclose(np.asarray(targets)[place], expected[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(np.asarray(advantages)[place], expected[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lambda_", [1.0, 0.6, 0.0])
def test_on_policy_equals_generalized_advantage_estimation(lambda_):
    rng = np.random.default_rng(1)
    segments = [random_segment(rng, length) for length in (5, 1, 9)]
    for segment in segments:
        segment["log_rhos"][:], segment["discounts"][:] = 0, 0.9
    ends = [True, False, False]
    rows, places = flat(rng, segments, ends, padding=0.3)
    targets, advantages = compiled(arrays(rows), {"lambda_": lambda_})
    last = np.cumsum([len(place) for place in places]) - 1
    columns = {
        "rewards": np.concatenate([segment["rewards"] for segment in segments]),
        "vf_preds": np.concatenate([segment["values"][:-1] for segment in segments]),
        "terminateds": np.isin(np.arange(last[-1] + 1), last[ends]),
    }
    next_values = np.array([segment["values"][-1] for segment in segments])
    expected = generalized_advantages(Fragment(columns, last, {}), next_values, gamma=0.9, lambda_=lambda_)
    np.testing.assert_allclose(np.asarray(advantages)[np.concatenate(places)], expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(targets)[np.concatenate(places)], expected[1], rtol=1e-5, atol=1e-6)
