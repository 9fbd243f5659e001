"""Fragments: next rows, slices, concatenation, and bootstrap rows."""

from typing import Any

import numpy as np
import pytest

from rollax import BatchError, MultiAgentBatch, SampleBatch
from rollax.batch import Fragment
from rollax.core import trees


def fragment() -> Fragment:
    """Segments of 2 (cut), 1 (terminated), 3 (truncated) and 1 (terminated) rows, of the trajectories 5, 6, 7, 8."""
    row = np.arange(7)
    ends = np.array([10, 11, 12, 13])
    next_obs = {"place": np.stack([ends, ends], 1).astype(np.float32), "eye": (ends.astype(np.uint8)[:, None, None],)}
    next_memory = {"state_in": (ends[:, None].astype(np.float32),), "prev_rewards": -ends.astype(np.float32)}
    return Fragment(
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
        [1, 2, 5, 6],
        {"obs": next_obs, **next_memory},
        env_steps=4,
    )


def observed(column: Any) -> list[int]:
    return column["place"][:, 0].astype(int).tolist()


def test_positions_of_segments():
    batch = fragment()
    assert batch.starts.tolist() == [0, 2, 3, 6]
    assert batch.last.tolist() == [0, 1, 1, 0, 0, 1, 1]
    assert batch.goes_on.tolist() == [1, 0, 1, 0]
    # 0 where a step terminated; a truncation has γ.
    np.testing.assert_allclose(batch.discounts(0.9), np.float32([0.9, 0.9, 0, 0.9, 0.9, 0.9, 0]))


def test_next_rows():
    batch = fragment()
    assert observed(batch.following("obs")) == [1, 10, 11, 4, 5, 12, 13]
    assert batch.following("prev_rewards").tolist() == [-1, -10, -11, -4, -5, -12, -13]
    assert batch.following("state_in")[0].ravel().tolist() == [1, 10, 11, 4, 5, 12, 13]
    assert observed(batch["obs"]) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("rows", "ends", "after"),
    [
        (slice(0, 3), [1, 2], [10, 11]),
        (slice(3, 5), [1], [5]),  # cut before row 5, which comes next
        (slice(1, 4), [0, 1, 2], [10, 11, 4]),
        (slice(6, None), [0], [13]),
        (slice(2, 2), [], []),
    ],
)
def test_a_slice_is_a_fragment(rows: slice, ends: list[int], after: list[int]):
    part = fragment()[rows]
    assert isinstance(part, Fragment)
    assert (part.ends.tolist(), observed(part.after["obs"])) == (ends, after)
    assert part["actions"].tolist() == fragment()["actions"][rows].tolist()


def test_rows_in_random_order_are_no_fragment():
    batch = fragment()
    for part in (batch.shuffled(0), *batch.minibatches(3, 0)):
        assert type(part) is SampleBatch
    batch["rewards"] = np.arange(7, dtype=np.float32)
    transitions = batch.transitions(1, 0.9)
    after = np.array(observed(transitions["new_obs"]))
    assert observed(transitions.shuffled(0)["new_obs"]) == after[np.random.default_rng(0).permutation(7)].tolist()


def test_minibatches_in_order_are_fragments():
    # Segments of rows 0-1, 2, 3-5, 6; the second part cuts the third segment after row 3, so row 4 is after it.
    parts = list(fragment().minibatches(2))
    assert [type(part) for part in parts] == [Fragment] * 4
    assert [part.ends.tolist() for part in parts] == [[1], [0, 1], [1], [0]]
    assert [observed(part.after["obs"]) for part in parts] == [[10], [11, 4], [12], [13]]


def test_concatenated_segments_equal_the_fragment():
    batch = fragment()
    segments = batch.segments()
    assert [len(segment) for segment in segments] == [2, 1, 3, 1]
    assert np.shares_memory(segments[2]["actions"], batch["actions"])
    again = SampleBatch.concat_samples(segments)
    assert isinstance(again, Fragment)
    assert again.ends.tolist() == batch.ends.tolist()
    for name in batch.after:
        trees.tree_map(np.testing.assert_array_equal, again.after[name], batch.after[name])
        trees.tree_map(np.testing.assert_array_equal, again.following(name), batch.following(name))
    assert type(SampleBatch.concat_samples([batch, SampleBatch(batch.to_dict())])) is SampleBatch


def test_a_copy_shares_nothing():
    batch = fragment()
    copy = batch.copy()
    copy["actions"][:] = 0
    copy.after["obs"]["place"][:] = 0
    copy.ends[:] = 0
    assert (batch["actions"][0], batch.ends[0], observed(batch.after["obs"])) == (1, 1, [10, 11, 12, 13])
    assert copy.env_steps == 4


def test_invalid_fragments_are_refused():
    columns = {"obs": np.arange(3)}
    with pytest.raises(BatchError, match="The last row of the fragment does not end a segment"):
        Fragment(columns, [1], {"obs": np.zeros(1)})
    with pytest.raises(BatchError, match=r"after=\.\.\.\), column 'obs'(.|\n)*got: *2(.|\n)*expected: *1"):
        Fragment(columns, [2], {"obs": np.zeros(2)})
    assert len(Fragment({"obs": np.zeros(0)}, [], {"obs": np.zeros(0)}).segments()) == 0


def test_content_of_bootstrap_rows():
    batch = fragment()
    longer = batch.with_bootstrap_rows()
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
    assert (len(batch), "bootstrap" in batch) == (7, False)


def test_bootstrap_rows_are_not_counted():
    longer = fragment().with_bootstrap_rows()
    assert (len(longer), longer.agent_steps, longer.env_steps) == (9, 7, 4)
    twice: Any = SampleBatch.concat_samples([longer, longer])
    assert (twice.agent_steps, twice.env_steps) == (14, 8)
    both = MultiAgentBatch({"x": longer, "y": longer}, 4)
    assert (both.agent_steps, both.env_steps) == (14, 4)
    padded = longer.sequences(2)
    assert (padded.agent_steps, padded.env_steps) == (7, 4)
    assert padded.mask().sum() == 9
    unknown = fragment()[:2].with_bootstrap_rows()
    assert (unknown.agent_steps, unknown.env_steps) == (2, 2)
    twice = SampleBatch.concat_samples([unknown, unknown])
    assert (twice.agent_steps, twice.env_steps) == (4, 4)


@pytest.mark.parametrize("with_t", [False, True])
def test_sequences_of_a_cut_segment_end_with_bootstrap_rows(with_t):
    batch = fragment()
    if with_t:  # 0 in bootstrap rows
        batch["t"] = np.arange(3, 10)
    longer = batch.with_bootstrap_rows()
    # The trajectory continues in the next fragment. Its first row has the observation of the bootstrap row and begins
    # a new sequence.
    following = SampleBatch(batch[:2].to_dict())
    following["bootstrap"] = np.zeros(2, bool)
    both: Any = SampleBatch.concat_samples([longer[:3], following])
    padded = both.sequences(4)
    assert padded.seq_lens is not None
    assert padded.seq_lens.tolist() == [3, 2]
    assert padded["obs"]["place"][:, 0].tolist() == [0, 1, 10, 0, 0, 1, 0, 0]
    # After a truncation the bootstrap row has its own state.
    padded = longer[4:8].sequences(4)
    assert padded.seq_lens is not None
    assert padded.seq_lens.tolist() == [3, 1]
    assert padded["state_in"][0].ravel().tolist() == [3, 12]
