"""Tests of all replay buffers: trees, dtypes, memory, saved states, and refused batches."""

import gc
import tracemalloc
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rollax import BatchError, ConfigError, SampleBatch
from rollax.batch import Fragment
from rollax.core import memory, storage, trees
from rollax.core.stored_values import with_arrays, without_arrays
from rollax.policy.sequence_draw import SequenceDraw
from rollax.replay.frames import StackedFrames
from rollax.replay.prioritized import PrioritizedReplay
from rollax.replay.uniform import UniformReplay
from tests.env.refused import raised, refused
from tests.replay.reference import DrawsAll, everything
from tests.replay.streams import TrajectoryStream, batch_of, fragment_of
from tests.replay.test_left_as_it_was import BUFFERS
from tests.replay.test_windows import rows


def structured(count: int, trajectory: int = 0) -> Fragment:
    """A trajectory of `count` steps with trees of observations and actions, each with the number of the row."""
    row = np.arange(count + 1)
    stacks = np.stack([row, row + 1], 1).astype(np.uint8)
    batch = SampleBatch(
        {
            "obs": {
                "place": row[:, None].astype(np.float32),
                "eyes": (stacks[:, :, None, None].repeat(2, 2), row.astype(np.int16)[:, None]),
                "action_mask": (row[:, None] % 3 == np.arange(3)).astype(np.int8),
            },
            "actions": (row.astype(np.int32), row[:, None].astype(np.float64)),
            "rewards": row.astype(np.float32),
            "action_logp": -row.astype(np.float32),
            "terminateds": np.zeros(count + 1, np.bool_),
            "truncateds": row == count - 1,
            "trajectory_id": np.full(count + 1, trajectory),
            "bootstrap": row == count,
        }
    )
    return fragment_of(batch)


@pytest.mark.parametrize("frames", [None, StackedFrames(2, 0, path=("eyes", 0))])
def test_trees_and_dtypes(frames: StackedFrames | None):
    buffer = DrawsAll(50, gamma=0.5, columns=["action_logp"], frames=frames)
    batch = structured(5)
    # The same keys in another order are the same tree.
    batch["obs"] = {key: batch["obs"][key] for key in reversed(batch["obs"])}
    buffer.add(structured(5))
    batch["trajectory_id"] = batch["trajectory_id"] + 1
    buffer.add(batch)
    drawn = everything(buffer)
    number = drawn["actions"][0]
    assert sorted(number.tolist()) == sorted([0, 1, 2, 3, 4] * 2)
    for name, ahead in (("obs", 0), ("new_obs", 1)):
        obs, expected = drawn[name], number + ahead
        assert list(obs) == ["place", "eyes", "action_mask"]
        assert isinstance(obs["eyes"], tuple)
        assert obs["place"].ravel().tolist() == expected.tolist()
        assert obs["eyes"][0][:, 0, 1, 0].tolist() == expected.tolist()
        assert obs["eyes"][0][:, 1, 1, 0].tolist() == (expected + 1).tolist()
        assert (obs["eyes"][0].dtype, obs["eyes"][1].dtype) == (np.uint8, np.int16)
        assert np.argmax(obs["action_mask"], 1).tolist() == (expected % 3).tolist()
        assert obs["action_mask"].dtype == np.int8
    assert drawn["action_logp"].tolist() == (-number).tolist()
    assert (drawn["actions"][0].dtype, drawn["actions"][1].dtype) == (np.int32, np.float64)
    assert (drawn["discounts"].dtype, drawn["weights"].dtype) == (np.float32, np.float32)
    assert set(drawn["discounts"].tolist()) == {0.5}


def test_uniform_draws_are_uniform():
    # Nine rows in twelve slots, drawn by rejection, and two in three hundred, drawn from a list of rows. With 30,000
    # draws a share of 1/9 has a standard deviation of 0.0018, one of 1/2 of 0.0029.
    for capacity, digits in ((12, "123456789"), (1000, "12")):
        buffer = UniformReplay(capacity)
        buffer.add(rows(digits + "/"))
        if capacity == 1000:
            for trajectory in range(2, 300):
                buffer.add(rows("1", trajectory_ids=[trajectory])[1:])  # a slot for an observation only
        drawn = buffer.sample(30_000, np.random.default_rng(0))
        np.testing.assert_allclose(np.bincount(drawn["actions"])[1:] / 30_000, 1 / len(digits), atol=0.012)
        assert (drawn["weights"] == 1).all()


def stored(state: Any) -> Any:
    """A state as restored from a checkpoint: JSON, and arrays by name."""
    arrays: dict[str, np.ndarray] = {}
    written = storage.to_json_bytes(without_arrays(state, "", arrays, {}))
    return with_arrays(storage.from_json_bytes(written, where="the test"), arrays, "the test")


@BUFFERS
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("fragments", [2, 30])
def test_a_restored_buffer_continues_exactly(kind: type[UniformReplay], stack: int, fragments: int):
    settings: Any = {"n_step": 3, "frames": None if stack == 1 else StackedFrames(stack)}
    rng = np.random.default_rng(0)
    trajectories = TrajectoryStream(3, rng, stack=stack, padding="zero")
    buffer, restored = kind(120, **settings), kind(120, **settings)
    for _ in range(fragments):
        buffer.add(batch_of(trajectories.fragment(4)))
        buffer.update_priorities(buffer.sample(16, rng)["indices"], rng.random(16) * 3)
    restored.set_state(stored(buffer.get_state()))
    for _ in range(12):
        assert len(restored) == len(buffer)
        assert (restored.nbytes, restored.capacity) == (buffer.nbytes, buffer.capacity)
        both = (buffer, restored)
        samples = [each.sample(16, np.random.default_rng(7), beta=0.5) for each in both]
        samples += [each.sample(4, np.random.default_rng(8), draw=SequenceDraw(3, 2, overlap=2)) for each in both]
        for ours, theirs in (samples[:2], samples[2:]):
            assert list(ours) == list(theirs)
            for name in ours:
                np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
        batch = batch_of(trajectories.fragment(4))
        errors = rng.random(16)
        for each in both:
            each.add(batch)
            each.update_priorities(samples[0]["indices"], errors)


@pytest.mark.parametrize("frames", [None, StackedFrames(2, 0, path=("eyes", 0))])
def test_trees_are_saved_and_restored(frames: StackedFrames | None):
    buffer, restored = (DrawsAll(50, columns=["action_logp"], frames=frames) for _ in range(2))
    buffer.add(structured(5))
    restored.set_state(stored(buffer.get_state()))
    ours, theirs = everything(buffer), everything(restored)
    assert list(ours) == list(theirs)
    for name in ours:
        assert str(ours[name]) == str(theirs[name])  # the same kinds of trees, with their keys in the same order
        trees.tree_map(np.testing.assert_array_equal, ours[name], theirs[name])
    restored.add(structured(5, trajectory=1))
    assert len(restored) == 10


def test_keys_that_are_not_strings_are_saved_and_restored():
    buffer, restored = DrawsAll(20), DrawsAll(20)
    fragments = rows("12|"), rows("345|", start=2)
    for fragment in fragments:
        for columns in (fragment, fragment.after):
            columns["obs"] = {1: columns["obs"], (0, "x"): {2: 10 * columns["obs"]}}
    buffer.add(fragments[0])
    restored.set_state(stored(buffer.get_state()))
    for each in (buffer, restored):
        each.add(fragments[1])
    ours, theirs = (everything(each)["obs"] for each in (buffer, restored))
    assert list(theirs) == [1, (0, "x")]
    trees.tree_map(np.testing.assert_array_equal, ours, theirs)


def test_the_layout_of_an_older_version_is_read():
    buffer, restored = DrawsAll(20), DrawsAll(20)
    fragment = rows("12|")
    for columns in (fragment, fragment.after):
        columns["obs"] = {"b": columns["obs"], "a": 10 * columns["obs"]}
    buffer.add(fragment)
    state = stored(buffer.get_state())
    like = state["columns"]["obs"]["like"]
    like["dict"] = dict(like["dict"])  # in place of pairs
    restored.set_state(state)
    trees.tree_map(np.testing.assert_array_equal, everything(buffer)["obs"], everything(restored)["obs"])


def test_the_saved_state_is_a_copy():
    buffer = UniformReplay(8)
    buffer.add(rows("1234|"))
    state = buffer.get_state()
    buffer.add(rows("56789|", start=2))
    restored = UniformReplay(8)
    restored.set_state(state)
    assert set(restored.sample(50, np.random.default_rng(0))["actions"].tolist()) == {1, 2, 3, 4}


@BUFFERS
def test_windows_are_recomputed_with_other_settings(kind: type[UniformReplay]):
    buffer = kind(20, gamma=0.9, n_step=3)
    buffer.add(rows("1234"))
    restored = kind(20, gamma=0.1, n_step=2)
    restored.set_state(stored(buffer.get_state()))
    # 1 + 0.2, 2 + 0.3, and 3 + 0.4, which lacked a step before; 4 waits for the next row.
    drawn = restored.sample(100, np.random.default_rng(0))["rewards"]
    assert sorted({round(float(reward), 4) for reward in drawn}) == [1.2, 2.3, 3.4]


@pytest.mark.long
@BUFFERS
def test_memory_is_as_reported_and_constant(kind: type[UniformReplay]):
    rng = np.random.default_rng(0)
    trajectories = TrajectoryStream(4, rng, ends=0.02)
    batches = [batch_of(trajectories.fragment(16)) for _ in range(200)]
    first, buffer = (kind(6600, n_step=3) for _ in range(2))
    for batch in batches[:120]:  # so that imports and compilations do not count as the buffer's memory
        first.add(batch)
        first.update_priorities(first.sample(8, rng)["indices"], rng.random(8))
    tracemalloc.start()
    try:
        held, in_package = [], []
        for start in (0, 0, 100):
            for batch in batches[start : start + 100]:
                buffer.add(batch)
                buffer.update_priorities(buffer.sample(8, rng)["indices"], rng.random(8))
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
            # Other threads of the process allocate too, but not in modules of the package.
            taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/rollax/*")])
            in_package.append(sum(trace.size for trace in taken.traces))
            del taken
    finally:
        tracemalloc.stop()
    assert held[0] == pytest.approx(buffer.nbytes, rel=0.03)
    # A single object kept for each of the 100 batches would exceed this.
    assert in_package[2] - in_package[1] < 100 * 40


@pytest.mark.long
def test_a_million_atari_transitions_fit_into_8_gb():
    # One env in fragments of 4 steps, trajectories of about 800 steps, 84×84 images of 7056 bytes. One in five rows is
    # the observation after a fragment. The next fragment begins with it, so that it takes no slot of its own.
    buffer = PrioritizedReplay(2000, n_step=3, frames=StackedFrames(4))
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (3000, 84, 84), dtype=np.uint8)
    for start in range(0, 2600, 4):
        steps = np.arange(start, start + 5)
        trajectory = start // 800
        obs = np.stack([image[np.maximum(np.arange(step - 3, step + 1), trajectory * 800)] for step in steps])
        over = (steps % 800 == 799) & (steps < start + 4)
        columns = {"obs": obs, "actions": steps, "rewards": np.ones(5, np.float32), "terminateds": over}
        batch = SampleBatch({**columns, "truncateds": over & False, "trajectory_id": np.full(5, trajectory)})
        batch["bootstrap"] = steps == start + 4
        buffer.add(fragment_of(batch.rows(np.arange(4)) if over.any() else batch))
    assert len(buffer) >= 2000 - 10  # without the first three, whose images are overwritten, and the last, which wait
    assert buffer.nbytes * 1_000_000 / len(buffer) <= 8e9
    drawn = buffer.sample(64, rng)
    for step, obs in zip(drawn["actions"].tolist(), drawn["obs"], strict=True):
        assert (obs == image[np.maximum(np.arange(step - 3, step + 1), step // 800 * 800)]).all()


def test_a_capacity_larger_than_main_memory_is_refused(monkeypatch: pytest.MonkeyPatch):
    buffer = UniformReplay(10**9, where="replay buffer of policy 'car'")
    tracemalloc.start()
    try:
        monkeypatch.setattr(memory, "available_memory_bytes", lambda: 10 * 2**30)
        # Bytes of a row: 4 for the observation, 8 for the action, 4 for the reward, 15 for links, 21 for its window.
        caught = refused(ConfigError, buffer.add, rows("12|"))
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()
    for words in ("policy 'car'", "52 bytes", "48.4 GiB", "10.0 GiB", f"{10 * 2**30 // 52:,}"):
        assert words in str(caught)
    assert len(buffer) == buffer.nbytes == 0


def test_available_memory():
    assert 2**28 < memory.available_memory_bytes() < 2**50


def test_a_buffer_too_small_for_its_windows_logs_one_warning(caplog):
    for n_step, message in ((None, "before the end of their trajectory is"), (7, "before the 7 rows after"), (1, "")):
        caplog.clear()
        buffer = UniformReplay(4, n_step=n_step)
        for segment in ("12", "34", "56", "78"):
            buffer.add(rows(segment, trajectory_ids=[0]))
        assert len(caplog.messages) == bool(message)
        assert message in caplog.text
    caplog.clear()
    buffer = UniformReplay(6)
    for number in range(6):  # the first trajectory does not continue, which is not due to the size of the buffer
        buffer.add(rows("12" if number == 0 else "12|", trajectory_ids=[number]))
    assert caplog.messages == []


def test_an_empty_batch_changes_nothing():
    buffer = UniformReplay(3)
    buffer.add(rows("12|")[:0])
    buffer.add(rows("12|"))
    buffer.add(rows("12|")[:0])
    assert len(buffer) == 2


@pytest.mark.parametrize("flag", ["terminateds", "truncateds"])
def test_a_trajectory_that_ends_inside_a_segment_is_refused(flag: str):
    fragment = rows("12|", "345|")
    fragment[flag][3] = True
    raised(BatchError, UniformReplay(10).add, fragment, says="row 3 of 5")


def test_trajectories_continue_with_dict_keys_in_another_order():
    buffer = UniformReplay(20, n_step=2)
    first, second = rows("12"), rows("34|")
    for batch, keys in ((first, "xy"), (second, "yx")):
        for columns in (batch, batch.after):
            part = {"x": columns["obs"], "y": 2 * columns["obs"]}
            columns["obs"] = {key: part[key] for key in keys}
        buffer.add(batch)
    assert len(buffer) == 4  # the window of 2 spans both fragments


def test_incomplete_windows_are_dropped_if_a_trajectory_does_not_continue():
    buffer = UniformReplay(1000, n_step=3)
    for _ in range(50):
        buffer.add(rows("1234"))  # of the same trajectory, but not from its last observation, 5
    assert len(buffer) == 2 * 50
    assert len(buffer._waiting) == 2


@pytest.mark.parametrize(
    ("name", "column", "words"),
    [
        ("obs", np.zeros((2, 2), np.float32), r"column 'obs'(.|\n)*'shape': \[2\]"),
        ("obs", np.zeros((2, 1), np.float64), r"column 'obs'(.|\n)*f8"),
        ("obs", (np.zeros((2, 1), np.float32),), "tuple"),
        ("actions", np.zeros((2, 1), np.int64), "column 'actions'"),
        ("actions", np.array([None, None]), "dtype object"),
        ("actions", np.zeros(2, jnp.bfloat16), "bfloat16"),
        ("rewards", np.zeros((2, 1), np.float32), "rewards"),
        ("trajectory_id", None, "trajectory_id"),
        ("obs", None, "obs"),
    ],
)
def test_columns_that_do_not_fit_are_refused(name: str, column: Any, words: str):
    buffer = UniformReplay(10)
    buffer.add(rows("12/"))
    given = rows("34/", start=2)
    columns = {key: value for key, value in {**given, name: column}.items() if value is not None}
    batch = Fragment(columns, given.ends, given.after)
    with pytest.raises(BatchError, match=words):
        buffer.add(batch)
    assert len(buffer) == 2


def test_nothing_to_draw_from():
    buffer = UniformReplay(10, n_step=3)
    for _ in range(2):
        raised(BatchError, buffer.sample, 1, np.random.default_rng(0), says="nothing to draw")
        buffer.add(rows("12"))
    with pytest.raises(BatchError, match="nothing to draw"):
        UniformReplay(10).sample(1, np.random.default_rng(0), draw=SequenceDraw(1))


@pytest.mark.parametrize(
    "frames",
    [
        StackedFrames(3, path=("eyes", 0)),
        StackedFrames(2, 3, path=("eyes", 0)),
        StackedFrames(2),
        StackedFrames(2, path=("nose",)),
    ],
)
def test_observations_without_the_declared_stacks_are_refused(frames: StackedFrames):
    refused(ConfigError, UniformReplay(10, frames=frames).add, structured(3), says="StackedFrames")


def test_a_stack_of_one_frame_is_refused():
    refused(ConfigError, StackedFrames, 1, says="at least 2")
