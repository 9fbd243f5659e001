"""Rows that stand for what came after a segment: where they lie, what they hold, and that nobody counts them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollax import MultiAgentBatch, SampleBatch
from rollax.evaluation.bootstrap_rows import add_bootstrap_rows
from rollax.policy.policy import Segments


def fragment() -> tuple[SampleBatch, Segments]:
    """Segments of 2 (cut), 1 (terminated), 3 (truncated) and 1 (terminated) rows, of the trajectories 5, 6, 7, 8."""
    row = np.arange(7)
    batch = SampleBatch(
        {
            "obs": {"place": np.stack([row, row], 1).astype(np.float32), "eye": (row.astype(np.uint8)[:, None, None],)},
            "actions": row + 1,
            "infos": [{"row": i} for i in range(7)],
            "terminateds": np.array([0, 0, 1, 0, 0, 0, 1], bool),
            "truncateds": np.array([0, 0, 0, 0, 0, 1, 0], bool),
            "trajectory_id": np.array([5, 5, 6, 7, 7, 7, 8]),
            "eps_id": np.array([1, 1, 1, 2, 2, 2, 2]),
            "agent_id": ["a", "a", "b", "a", "a", "a", "b"],
            "state_in": (row[:, None].astype(np.float32),),
            "prev_rewards": -row.astype(np.float32),
        },
        env_steps=4,
    )
    ends = np.array([10, 11, 12, 13])
    next_obs = {"place": np.stack([ends, ends], 1).astype(np.float32), "eye": (ends.astype(np.uint8)[:, None, None],)}
    next_memory = {"state_in": (ends[:, None].astype(np.float32),), "prev_rewards": -ends.astype(np.float32)}
    return batch, Segments(np.array([0, 1, 1, 0, 0, 1, 1], bool), next_obs, next_memory)


def test_what_they_hold():
    batch, segments = fragment()
    longer = add_bootstrap_rows(batch, segments)
    assert np.flatnonzero(longer["bootstrap"]).tolist() == [2, 7]
    assert longer["obs"]["place"][:, 1].tolist() == [0, 1, 10, 2, 3, 4, 5, 12, 6]
    assert longer["obs"]["eye"][0].ravel().tolist() == [0, 1, 10, 2, 3, 4, 5, 12, 6]
    assert longer["obs"]["eye"][0].dtype == np.uint8
    assert longer["state_in"][0].ravel().tolist() == [0, 1, 10, 2, 3, 4, 5, 12, 6]
    assert longer["prev_rewards"].tolist() == [0, -1, -10, -2, -3, -4, -5, -12, -6]
    assert longer["actions"].tolist() == [1, 2, 0, 3, 4, 5, 6, 0, 7]
    assert longer["terminateds"].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 1]
    assert longer["truncateds"].tolist() == [0, 0, 0, 0, 0, 0, 1, 0, 0]
    assert longer["trajectory_id"].tolist() == [5, 5, 5, 6, 7, 7, 7, 7, 8]
    assert longer["eps_id"].tolist() == [1, 1, 1, 1, 2, 2, 2, 2, 2]
    assert "".join(longer["agent_id"]) == "aaabaaaab"
    assert longer["infos"].tolist()[1:4] == [{"row": 1}, None, {"row": 2}]
    for name, column in batch.items():
        if isinstance(column, np.ndarray):
            assert longer[name].dtype == column.dtype, name


def test_the_batch_itself_stays():
    batch, segments = fragment()
    add_bootstrap_rows(batch, segments)
    assert len(batch) == 7
    assert "bootstrap" not in batch


def test_where_every_segment_terminates_there_are_none():
    batch, _ = fragment()
    part = batch[2:3]
    longer = add_bootstrap_rows(part, Segments(np.array([True]), part["obs"]))
    assert longer["bootstrap"].tolist() == [False]
    assert longer["actions"].tolist() == [3]


def test_nobody_counts_them():
    longer = add_bootstrap_rows(*fragment())
    assert (len(longer), longer.agent_steps, longer.env_steps) == (9, 7, 4)
    twice: Any = SampleBatch.concat_samples([longer, longer])
    assert (twice.agent_steps, twice.env_steps) == (14, 8)
    both = MultiAgentBatch({"x": longer, "y": longer}, 4)
    assert (both.agent_steps, both.env_steps) == (14, 4)
    padded = longer.sequences(2)
    assert (padded.agent_steps, padded.env_steps) == (7, 4)
    assert padded.mask().sum() == 9
    unknown = add_bootstrap_rows(fragment()[0][:2], Segments(np.array([False, True]), *first_of(fragment()[1])))
    assert (unknown.agent_steps, unknown.env_steps) == (2, 2)
    twice = SampleBatch.concat_samples([unknown, unknown])
    assert (twice.agent_steps, twice.env_steps) == (4, 4)


def first_of(segments: Segments) -> tuple[Any, dict]:
    """What follows the first segment."""
    whole = SampleBatch({"obs": segments.next_obs, **segments.next_memory})[:1]
    return whole["obs"], {name: whole[name] for name in segments.next_memory}


def test_sequences_of_a_cut_segment_run_into_them_and_end_there():
    longer = add_bootstrap_rows(*fragment())
    # The trajectory goes on in the next fragment. Its first row saw what the bootstrap row saw: it begins a new
    # sequence.
    following = fragment()[0][:2]
    following["bootstrap"] = np.zeros(2, bool)
    both: Any = SampleBatch.concat_samples([longer[:3], following])
    padded = both.sequences(4)
    assert padded.seq_lens is not None
    assert padded.seq_lens.tolist() == [3, 2]
    assert padded["obs"]["place"][:, 0].tolist() == [0, 1, 10, 0, 0, 1, 0, 0]
    # After a truncation the state that goes with the row is its own.
    padded = longer[4:8].sequences(4)
    assert padded.seq_lens is not None
    assert padded.seq_lens.tolist() == [3, 1]
    assert padded["state_in"][0].ravel().tolist() == [3, 12]
