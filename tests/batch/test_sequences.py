"""Batches in sequences: cuts at the ends of trajectories, padding, and what keeps sequences whole."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from rollax.batch import Fragment, MultiAgentBatch, SampleBatch
from rollax.errors import BatchError
from tests.env.refused import raised, refused


#   row         0  1  2  3  4 | 5 | 6  7 | 8      ends: after 4 the episode changes, after 5 the agent, after 7
#   eps_id      1  1  1  1  1   2   2  2   2      the flag (a new trajectory of the same agent)
#   agent_id    0  0  0  0  0   0   1  1   1
#   max_seq_len 3: [0 1 2] [3 4 -] [5 - -] [6 7 -] [8 - -]
def recurrent_rows(**columns: Any) -> SampleBatch:
    return SampleBatch(
        {
            "obs": np.arange(10, 28, dtype=np.float32).reshape(9, 2),
            "eps_id": [1, 1, 1, 1, 1, 2, 2, 2, 2],
            "agent_id": [0, 0, 0, 0, 0, 0, 1, 1, 1],
            "state_in": (np.arange(9 * 4, dtype=np.float32).reshape(9, 4), {"c": np.arange(9)}),
            **columns,
        },
        env_steps=6,
    )


@pytest.mark.parametrize("flag", ["terminateds", "truncateds"])
def test_sequences_are_cut_at_the_ends_of_trajectories_and_padded_with_zeros(flag: str):
    infos = [{"row": row} for row in range(9)]
    padded = recurrent_rows(**{flag: np.arange(9) == 7, "infos": infos}).sequences(3)
    assert padded.seq_lens is not None
    assert padded["seq_lens"] is padded.seq_lens
    assert padded.seq_lens.tolist() == [3, 2, 1, 2, 1]
    assert (len(padded), padded.max_seq_len) == (15, 3)
    assert (padded.agent_steps, padded.env_steps) == (9, 6)
    first = [10, 12, 14, 16, 18, 0, 20, 0, 0, 22, 24, 0, 26, 0, 0]
    assert padded["obs"][:, 0].tolist() == first
    assert padded["obs"][:, 1].tolist() == [x + 1 if x else 0 for x in first]
    assert padded["eps_id"].tolist() == [1, 1, 1, 1, 1, 0, 2, 0, 0, 2, 2, 0, 2, 0, 0]
    assert padded["state_in"][0][:, 0].tolist() == [0, 12, 20, 24, 32]
    assert padded["state_in"][1]["c"].tolist() == [0, 3, 5, 6, 8]
    assert padded.mask().tolist() == [x > 0 for x in first]
    assert padded["infos"][:6].tolist() == [*infos[:5], None]


def test_sequences_without_flags_or_agents_follow_the_episodes():
    batch = SampleBatch({"eps_id": [4, 4, 4, 6, 6], "t": [0, 1, 2, 0, 1]})
    assert [batch.sequences(n)["seq_lens"].tolist() for n in (1, 2, 3, 9)] == [[1] * 5, [2, 1, 2], [3, 2], [3, 2]]
    assert len(batch.sequences(9)) == 18


def test_sequences_end_between_copies_of_a_fragment():
    fragment = SampleBatch({"eps_id": [4, 4], "t": [5, 8]})
    assert SampleBatch.concat_samples([fragment, fragment]).sequences(10)["seq_lens"].tolist() == [2, 2]


def test_sequences_end_with_the_segments_of_a_fragment():
    # Two segments of one trajectory, of which the second repeats the first or begins later.
    fragment = Fragment({"eps_id": [4] * 5, "trajectory_id": [7] * 5, "state_in": np.arange(5.0)}, [2, 4], {})
    padded = fragment.sequences(10)
    assert padded["seq_lens"].tolist() == [3, 2]
    assert padded["state_in"].tolist() == [0, 3]


def test_sequences_of_no_rows():
    padded = SampleBatch({"eps_id": np.zeros(0, int), "state_in": np.zeros((0, 4))}).sequences(5)
    assert padded["seq_lens"].tolist() == []
    assert padded["state_in"].shape == (0, 4)
    assert (len(padded), padded.max_seq_len, padded.mask().tolist()) == (0, 0, [])


def test_a_padded_batch_cannot_be_split():
    padded = recurrent_rows().sequences(4)  # lengths 4 1 1 3: rows 0-3, 4, 5, 6-8
    assert padded["seq_lens"].tolist() == [4, 1, 1, 3]
    raised(BatchError, padded.split_by_episode, says="Splitting by episode")
    for tear in (
        lambda: padded[1:3],
        lambda: padded.rows([1]),
        lambda: padded.sequences(2),
        lambda: padded.update(seq_lens=[1, 1, 1, 1]),
        lambda: padded.pop("seq_lens"),
        lambda: padded.update(state_in=np.zeros((16, 2))),
        lambda: padded.update(rewards=np.zeros(9)),
        lambda: recurrent_rows().sequences(0),
    ):
        raised(BatchError, tear)


def test_padded_batches_concatenate_when_padded_alike():
    padded = recurrent_rows().sequences(4)
    merged = SampleBatch.concat_samples([padded, padded])
    assert merged["seq_lens"].tolist() == [4, 1, 1, 3, 4, 1, 1, 3]
    assert (len(merged), merged.max_seq_len, merged.env_steps) == (32, 4, 12)
    assert merged["state_in"][0].shape == (8, 4)
    with pytest.raises(BatchError, match=r"sequences of 3 rows\n.*sequences of 4 rows"):
        SampleBatch.concat_samples([padded, recurrent_rows().sequences(3)])


def test_unpadded_sequences_equal_the_rows():
    rng = np.random.default_rng(0)
    for max_seq_len in (1, 2, 7):
        lengths = rng.integers(1, 12, size=40)
        eps_id = np.repeat(np.arange(40), lengths)
        t = np.concatenate([np.arange(n) for n in lengths])
        padded = SampleBatch({"eps_id": eps_id, "t": t, "state_in": t}).sequences(max_seq_len)
        real = padded.mask()
        assert padded["t"][real].tolist() == t.tolist()
        assert padded["eps_id"][real].tolist() == eps_id.tolist()
        assert padded["state_in"].tolist() == [s for n in lengths for s in range(0, n, max_seq_len)]
        assert not padded["t"][~real].any()


def test_a_padded_batch_is_shuffled_and_divided_by_sequences():
    padded = recurrent_rows().sequences(4)  # lengths 4 1 1 3: rows 0-3, 4, 5, 6-8
    shuffled = padded.shuffled(1)
    order = np.random.default_rng(1).permutation(4)
    assert shuffled["seq_lens"].tolist() == padded["seq_lens"][order].tolist()
    for name in ("obs", "eps_id"):
        by_sequence = padded[name].reshape(4, 4, -1)
        np.testing.assert_array_equal(shuffled[name].reshape(4, 4, -1), by_sequence[order])
    assert shuffled["state_in"][1]["c"].tolist() == padded["state_in"][1]["c"][order].tolist()
    assert (shuffled.env_steps, shuffled.max_seq_len) == (6, 4)
    # 11 rows hold 2 sequences of 4; 3 rows hold none, so one each.
    parts = list(padded.minibatches(11))
    assert [part["seq_lens"].tolist() for part in parts] == [[4, 1], [1, 3]]
    assert parts[1]["obs"][:, 0].tolist() == [20, 0, 0, 0, 22, 24, 26, 0]
    assert parts[1]["state_in"][1]["c"].tolist() == [5, 6]
    assert [part["seq_lens"].tolist() for part in padded.minibatches(3, 1)] == [[n] for n in shuffled["seq_lens"]]
    none = SampleBatch({"eps_id": np.zeros(0, int), "state_in": np.zeros((0, 4))}).sequences(5)
    assert (list(none.minibatches(4)), len(none.shuffled(0))) == ([], 0)


def test_bootstrap_rows_stay_behind_their_segments():
    batch = recurrent_rows(bootstrap=np.arange(9) == 4)
    for separate in (lambda: batch.shuffled(0), lambda: batch.minibatches(2)):
        refused(BatchError, separate, says="1 bootstrap rows...sequences()")
    assert len(batch.rows(~batch["bootstrap"]).shuffled(0)) == 8
    shuffled = batch.sequences(5).shuffled(0)
    assert shuffled["bootstrap"].reshape(3, 5).nonzero()[1].tolist() == [4]
    assert len(recurrent_rows(bootstrap=np.zeros(9, bool)).shuffled(0)) == 9


@pytest.mark.parametrize("again", [copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))])  # noqa: S301
def test_batches_are_sent_between_processes(again: Any):
    batch = MultiAgentBatch({"car": recurrent_rows().sequences(4)}, env_steps=6)
    there = again(batch)
    assert there.env_steps == there["car"].env_steps == 6
    assert there["car"]["obs"].tolist() == batch["car"]["obs"].tolist()
    assert there["car"].max_seq_len == 4
