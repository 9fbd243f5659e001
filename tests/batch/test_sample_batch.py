"""Columns of rows: checked lengths, views and copies, and cuts into episodes."""

from typing import Any

import numpy as np
import pytest

from rollax.batch import MissingColumnError, MultiAgentBatch, SampleBatch
from rollax.errors import BatchError
from tests.env.refused import raised, refused


def rows(count: int, **columns: Any) -> SampleBatch:
    """Unequal sizes on every axis: `obs` is a dict of [count, 2] and [count, 3, 1]."""
    pixels = np.arange(count * 3, dtype=np.uint8).reshape(count, 3, 1)
    obs = {"place": np.arange(count * 2, dtype=np.float32).reshape(count, 2), "eye": (pixels,)}
    return SampleBatch({"obs": obs, "rewards": np.arange(count, dtype=np.float32), **columns})


def test_names_of_the_columns():
    names = {name: getattr(SampleBatch, name) for name in dir(SampleBatch) if name.isupper()}
    assert len(names) == 35
    assert all(value == name.lower() for name, value in names.items())


def test_length_is_rows_and_the_views_are_columns():
    batch = rows(5)
    assert (len(batch), batch.count, batch.env_steps, batch.agent_steps) == (5, 5, 5, 5)
    assert list(batch) == ["obs", "rewards"]
    assert (len(batch.keys()), len(batch.values()), len(batch.items())) == (2, 2, 2)
    assert "obs" in batch
    assert "actions" not in batch
    assert batch.get("actions") is None
    assert batch.to_dict()["rewards"] is batch["rewards"]
    assert batch.nbytes == 5 * (2 * 4 + 3 * 1 + 4)
    assert batch == batch
    assert batch != rows(5)
    assert repr(batch) == "SampleBatch(count=5, columns=['obs', 'rewards'])"
    assert batch.mask().tolist() == [True] * 5


def test_a_missing_column_is_a_key_error_with_the_existing_names():
    with pytest.raises(MissingColumnError, match=r"got: +actions\n.*one of \['obs', 'rewards'\]") as caught:
        rows(2)["actions"]
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, BatchError)
    assert "\\n" not in str(caught.value)
    with pytest.raises(MissingColumnError, match="use terminateds and truncateds"):
        rows(2)["dones"]
    with pytest.raises(BatchError, match="rows"):
        rows(2)[0]  # pyright: ignore[reportArgumentType]


def test_columns_can_be_added_replaced_and_removed():
    batch = SampleBatch()
    assert len(batch) == 0
    batch["rewards"] = [1.0, 2.0]
    batch["advantages"] = np.zeros(2)
    assert batch["rewards"].tolist() == [1.0, 2.0]
    assert batch.pop("advantages").shape == (2,)
    assert list(batch) == ["rewards"]
    del batch["rewards"]
    assert list(batch) == []
    with pytest.raises(BatchError, match="3 rows"):
        batch["rewards"] = [1.0, 2.0, 3.0]


def test_lists_of_numbers_are_rows_and_lists_of_arrays_are_structure():
    state = [np.zeros((2, 4)), np.ones((2, 3))]
    rows_of = {"actions": [[1, 2], [3, 4]], "agent_id": ["a", "bc"], "infos": [{"x": 1}, {}]}
    batch = SampleBatch({**rows_of, "state_in": state, "state_out": []})
    assert batch["actions"].shape == (2, 2)
    assert batch["agent_id"].tolist() == ["a", "bc"]
    assert batch["state_in"][1] is state[1]
    assert batch["state_out"] == []
    assert batch["infos"].dtype == object
    assert batch["infos"].tolist() == [{"x": 1}, {}]
    assert batch[1:]["infos"].tolist() == [{}]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"obs": np.zeros((4, 2)), "rewards": np.zeros(3)}, r"'rewards'\n.*3 rows\n.*4 rows, as in \['obs'\]"),
        ({"obs": {"a": np.zeros(4), "b": np.zeros(3)}}, r"'obs'\n.*\[3, 4\]"),
        ({"rewards": 1.0}, "has no rows"),
        ({"rewards": np.float32(1.0)}, "has no rows"),
        ({"rewards": None}, "has no rows"),
        ({"obs": [[1, 2], [3]]}, "The list cannot be converted to an array"),
        ({"obs": [{"a": 1}, {"a": 2}]}, "The list cannot be converted to an array"),
        ({"rewards": np.zeros(2), "actions": []}, r"'actions'\n.*0 rows"),
        # 2 sequences: 7 rows do not divide, 6 rows give 3 each instead of 4 real ones, state_in requires 2.
        ({"seq_lens": [3, 2], "rewards": np.zeros(7)}, "7 rows\n.*2 sequences, each of 3"),
        ({"seq_lens": [3, 4], "rewards": np.zeros(6)}, "6 rows\n.*2 sequences, each of 4"),
        ({"seq_lens": np.zeros(0, int), "rewards": np.zeros(6)}, "6 rows\n.*0 sequences"),
        ({"rewards": np.zeros(8), "state_in": np.zeros((8, 5)), "seq_lens": [3, 4]}, r"8 rows\n.*2 rows, one per seq"),
    ],
)
def test_columns_of_wrong_length_are_refused(columns: dict[str, Any], message: str):
    with pytest.raises(BatchError, match=message):
        SampleBatch(columns)


def test_rows_are_no_columns():
    refused(BatchError, SampleBatch, [{"rewards": 1.0}], says="made of named columns...got:      list")


@pytest.mark.parametrize("steps", [-1, 2.0, True, "3"])
def test_env_steps_must_count(steps: Any):
    raised(BatchError, SampleBatch, {"rewards": np.zeros(2)}, env_steps=steps, says="env_steps")
    raised(BatchError, MultiAgentBatch, {}, steps, says="env_steps")


def test_a_slice_holds_views_and_rows_hold_copies():
    batch = rows(5)
    part, chosen, masked = batch[1:3], batch.rows([3, 0, -1]), batch.rows(np.array([False, True, False, False, True]))
    assert part["rewards"].tolist() == [1, 2]
    assert part["obs"]["eye"][0].ravel().tolist() == [3, 4, 5, 6, 7, 8]
    assert np.shares_memory(part["obs"]["place"], batch["obs"]["place"])
    assert chosen["rewards"].tolist() == [3, 0, 4]
    assert chosen["obs"]["place"].tolist() == [[6, 7], [0, 1], [8, 9]]
    assert chosen["obs"]["eye"][0].dtype == np.uint8
    assert not np.shares_memory(chosen["rewards"], batch["rewards"])
    assert masked["rewards"].tolist() == [1, 4]
    assert len(batch.rows([])) == 0
    assert batch[::-2]["rewards"].tolist() == [4, 2, 0]


@pytest.mark.parametrize("index", [[5], [-6], [0.5], [[1]], [True, False], 3])
def test_invalid_indices_are_refused(index: Any):
    refused(BatchError, rows(5).rows, index, says="The index does not select rows")


def test_a_copy_shares_nothing():
    batch = SampleBatch({"obs": {"a": np.zeros(3)}, "rewards": np.zeros(3)}, env_steps=2)
    copied = batch.copy()
    copied["obs"]["a"][0] = copied["rewards"][0] = 1.0
    assert batch["obs"]["a"][0] == batch["rewards"][0] == 0.0
    assert copied.env_steps == 2


def test_concat_keeps_the_order_and_adds_the_env_steps():
    merged = SampleBatch.concat_samples([rows(2), rows(3), rows(0)])
    assert merged["rewards"].tolist() == [0, 1, 0, 1, 2]
    assert merged["obs"]["place"][:, 0].tolist() == [0, 2, 0, 2, 4]
    assert merged.env_steps == 5
    counted = SampleBatch({"t": [1, 2]}, env_steps=1)
    assert SampleBatch.concat_samples([counted, SampleBatch({"t": [3, 4, 5]})]).env_steps == 1 + 3
    assert SampleBatch.concat_samples(iter([counted]))["t"] is counted["t"]


def test_concat_compares_names_not_their_order():
    first = SampleBatch({"obs": {"x": np.zeros(1), "y": np.ones(1)}, "t": [0]})
    other = SampleBatch({"t": [1], "obs": {"y": np.full(1, 3.0), "x": np.full(1, 2.0)}})
    merged = SampleBatch.concat_samples([first, other])
    assert merged["obs"]["x"].tolist() == [0, 2]
    assert merged["obs"]["y"].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "nothing to concatenate"),
        (
            [rows(2), rows(2), rows(2, t=[1, 2])],
            r"batch 2 of 3(.|\n)*missing: \[\]; columns that batch 0 lacks: \['t'\]",
        ),
        ([rows(2, t=[1, 2]), rows(2)], r"batch 1 of 2(.|\n)*missing: \['t'\]; columns that batch 0 lacks: \[\]"),
        ([SampleBatch({"a": np.zeros((2, 3))}), SampleBatch({"a": np.zeros((2, 4))})], r"'a'\n.*\(4,\)\n.*\(3,\)"),
        ([SampleBatch({"a": {"x": np.zeros(2)}}), SampleBatch({"a": {"y": np.zeros(2)}})], "'y'(.|\n)*'x'"),
        ([SampleBatch({"a": {"x": np.zeros(2)}}), SampleBatch({"a": np.zeros(2)})], "column 'a'"),
        ([rows(2), MultiAgentBatch({}, 0)], "different kinds"),
        ([rows(2), {"rewards": np.zeros(2)}], "different kinds"),
    ],
)
def test_concat_names_the_difference(batches: list[Any], message: str):
    with pytest.raises(BatchError, match=message):
        SampleBatch.concat_samples(batches)


#   row      0  1  2  3  4  5  6
#   eps_id   7  3  7  7  3  7  3
#   agent    a  a  b  a  a  b  b     first appearances: 7a (0), 3a (1), 7b (2), 3b (6)
INTERLEAVED = {"eps_id": [7, 3, 7, 7, 3, 7, 3], "t": np.arange(7)}
AGENTS = list("aabaabb")


@pytest.mark.parametrize("ids", [np.array(AGENTS), np.array(AGENTS, dtype=object)], ids=["text", "objects"])
def test_split_by_episode_gathers_interleaved_rows(ids: np.ndarray):
    parts = SampleBatch({**INTERLEAVED, "agent_id": ids}).split_by_episode()
    assert [part["t"].tolist() for part in parts] == [[0, 3], [1, 4], [2, 5], [6]]
    assert [part["eps_id"][0] for part in parts] == [7, 3, 7, 3]
    assert [part["agent_id"][0] for part in parts] == ["a", "a", "b", "b"]


def test_split_by_episode_without_agents():
    batch = SampleBatch(INTERLEAVED)
    parts = batch.split_by_episode()
    assert [part["t"].tolist() for part in parts] == [[0, 2, 3, 5], [1, 4, 6]]
    assert not any(np.shares_memory(part["t"], batch["t"]) for part in parts)
    assert [part.env_steps for part in parts] == [4, 3]


def test_split_by_episode_takes_ids_of_any_type():
    ids = np.array([("x", 1), 5, "x", 5, ("x", 1)], dtype=object)
    parts = SampleBatch({"eps_id": ids, "t": np.arange(5)}).split_by_episode()
    assert [part["t"].tolist() for part in parts] == [[0, 4], [1, 3], [2]]


def test_shuffled_permutes_whole_rows():
    batch = SampleBatch(rows(50).to_dict(), env_steps=20)
    shuffled = batch.shuffled(np.random.default_rng(3))
    order = np.random.default_rng(3).permutation(50)
    assert shuffled["rewards"].tolist() == order.tolist()
    assert shuffled["obs"]["place"][:, 1].tolist() == (2 * order + 1).tolist()
    assert shuffled["obs"]["eye"][0][:, 2, 0].tolist() == (3 * order + 2).tolist()
    assert shuffled.env_steps == 20
    assert batch.shuffled(3)["rewards"].tolist() == order.tolist()
    assert batch["rewards"].tolist() == list(range(50))
    assert len(rows(0).shuffled(3)) == 0


def test_minibatches_have_every_row_once():
    batch = SampleBatch(rows(7).to_dict(), env_steps=20)
    parts = list(batch.minibatches(3))
    assert [part["rewards"].tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6]]
    assert np.shares_memory(parts[0]["rewards"], batch["rewards"])
    assert [part.env_steps for part in parts] == [3, 3, 1]
    parts = list(batch.minibatches(3, 0))
    order = np.random.default_rng(0).permutation(7)
    assert [part["rewards"].tolist() for part in parts] == [order[:3].tolist(), order[3:6].tolist(), order[6:].tolist()]
    assert [len(part) for part in batch.minibatches(100)] == [7]
    assert list(rows(0).minibatches(3)) == []
    for size in (0, -1, 2.5, True):
        raised(BatchError, batch.minibatches, size, says="minibatches")


def test_split_by_episode_needs_the_column():
    assert SampleBatch({"eps_id": np.zeros(0, int)}).split_by_episode() == []
    refused(BatchError, rows(3).split_by_episode, says="eps_id")


def test_multi_agent_batch_counts_env_and_agent_steps():
    batch = MultiAgentBatch({"car": rows(4), "light": rows(2)}, env_steps=3)
    assert (batch.env_steps, batch.agent_steps, len(batch)) == (3, 6, 2)
    assert batch["car"].count == 4
    assert batch.nbytes == 6 * 15
    assert dict(batch) == batch.policy_batches
    assert repr(batch) == "MultiAgentBatch(env_steps=3, rows={'car': 4, 'light': 2})"
    batch.copy()["car"]["rewards"][0] = 9.0
    assert batch["car"]["rewards"][0] == 0.0
    refused(BatchError, MultiAgentBatch, {"car": {"rewards": [1.0]}}, 1, says="policy 'car'...dict")


def test_multi_agent_batches_concatenate_by_policy():
    first = MultiAgentBatch({"car": rows(4), "light": rows(2)}, env_steps=3)
    other = MultiAgentBatch({"walker": rows(1), "car": rows(1)}, env_steps=2)
    for concat in (MultiAgentBatch.concat_samples, SampleBatch.concat_samples):
        merged = concat([first, other])
        assert isinstance(merged, MultiAgentBatch)
        assert {policy: len(batch) for policy, batch in merged.items()} == {"car": 5, "light": 2, "walker": 1}
        assert merged["car"]["rewards"].tolist() == [0, 1, 2, 3, 0]
        assert merged.env_steps == 5
    for wrong, message in (
        ([], "nothing"),
        ([first, rows(1)], "different kinds"),
        ([first, MultiAgentBatch({"car": rows(1, t=[0])}, 1)], "policy 'car': batch 1 of 2"),
    ):
        with pytest.raises(BatchError, match=message):
            MultiAgentBatch.concat_samples(wrong)
