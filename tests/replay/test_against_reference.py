"""Random streams of trajectories: buffers hold and draw the same transitions as plain Python lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollax.replay.frames import StackedFrames
from tests.replay.reference import DrawsAll, Reference, everything
from tests.replay.streams import Row, TrajectoryStream, batch_of


def compare(buffer: DrawsAll, reference: Reference, axis: int = 0) -> None:
    """Checks that both hold the same transitions."""
    expected = reference.transitions()
    assert len(buffer) == len(expected)
    if not expected:
        return
    drawn = everything(buffer)
    assert sorted(drawn["actions"].tolist()) == sorted(expected)
    for row, action in enumerate(drawn["actions"].tolist()):
        obs, reward, discount, next_obs = expected[action]
        np.testing.assert_array_equal(np.moveaxis(drawn["obs"][row], axis, 0), obs)
        np.testing.assert_allclose(drawn["rewards"][row], reward, rtol=1e-6)
        np.testing.assert_allclose(drawn["discounts"][row], discount, rtol=1e-6)
        if next_obs is not None:
            np.testing.assert_array_equal(np.moveaxis(drawn["new_obs"][row], axis, 0), next_obs)


def batches(trajectories: TrajectoryStream, rng: np.random.Generator, rows_at_most: int) -> list[list[Row]]:
    """Batches of one or two fragments of different lengths. Some fragments are lost; trajectories may pause."""
    found: list[list[Row]] = []
    idle = rng.choice([0.0, 0.6])
    for _ in range(int(rng.integers(1, 30))):
        rows = trajectories.fragment(int(rng.integers(1, 6)), idle)
        if rng.random() < 0.1:
            continue
        if found and rng.random() < 0.3 and len(found[-1]) + len(rows) <= rows_at_most:
            found[-1] += rows
        elif len(rows) <= rows_at_most:
            found.append(rows)
    return found


@given(seed=st.integers(0, 10**6), envs=st.integers(1, 4), n_step=st.integers(1, 4), capacity=st.integers(12, 80))
def test_transitions(seed: int, envs: int, n_step: int, capacity: int) -> None:
    rng = np.random.default_rng(seed)
    buffer, reference = DrawsAll(capacity, gamma=0.9, n_step=n_step), Reference(capacity, n_step, 0.9)
    for rows in batches(TrajectoryStream(envs, rng), rng, capacity):
        buffer.add(batch_of(rows))
        reference.add(rows)
        compare(buffer, reference)


@pytest.mark.long
@given(
    seed=st.integers(0, 10**6),
    envs=st.integers(1, 3),
    n_step=st.integers(1, 3),
    stack=st.integers(2, 4),
    padding=st.sampled_from(["reset", "zero"]),
    axis=st.sampled_from([0, -1]),
)
def test_stacked_frames(seed: int, envs: int, n_step: int, stack: int, padding: str, axis: int) -> None:
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(60, 90))
    buffer = DrawsAll(capacity, gamma=0.9, n_step=n_step, frames=StackedFrames(stack, axis))
    reference = Reference(capacity, n_step, 0.9, stack)
    for rows in batches(TrajectoryStream(envs, rng, stack=stack, padding=padding), rng, capacity // 4):
        batch = batch_of(rows)
        for columns in (batch, batch.after):
            columns["obs"] = np.ascontiguousarray(np.moveaxis(columns["obs"], 1, axis if axis < 0 else axis + 1))
        buffer.add(batch)
        reference.add(rows)
        compare(buffer, reference, axis)
