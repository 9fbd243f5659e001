"""Refused batches and states do not change a replay buffer."""

from typing import Any

import numpy as np
import pytest

from rollax import BatchError, CheckpointError, ConfigError, NonFiniteError, SampleBatch
from rollax.core import memory
from rollax.replay.prioritized import PrioritizedReplay
from rollax.replay.uniform import UniformReplay
from tests.env.refused import refused
from tests.replay.test_windows import rows

BUFFERS = pytest.mark.parametrize("kind", [UniformReplay, PrioritizedReplay])


def drawn(buffer: UniformReplay) -> set[int]:
    return set(buffer.sample(200, np.random.default_rng(0))["actions"].tolist())


@BUFFERS
@pytest.mark.parametrize(("name", "value"), [("rewards", np.nan), ("rewards", -np.inf), ("obs", np.nan)])
@pytest.mark.parametrize("first", [False, True], ids=["later", "first"])
def test_a_batch_with_nan_or_infinity(kind: type[UniformReplay], name: str, value: float, first: bool):
    buffer = kind(20, where="the buffer of 'car'")
    if not first:
        buffer.add(rows("12|"))
    batch = rows("345|", start=2)
    batch[name][1] = value
    with pytest.raises(NonFiniteError, match=rf"the buffer of 'car', column '{name}', row 1 of 3(.|\n)*got: .*{value}"):
        buffer.add(batch)
    assert len(buffer) == (0 if first else 2)
    restored = kind(20)
    restored.set_state(buffer.get_state())
    for each in (buffer, restored):
        each.add(rows("67|", start=9))
        assert drawn(each) == ({6, 7} if first else {1, 2, 6, 7})


@BUFFERS
def test_infinite_observations_are_allowed(kind: type[UniformReplay]):
    buffer = kind(20)
    batch = rows("345|")
    batch["obs"][1] = np.inf
    buffer.add(batch)
    assert np.isinf(buffer.sample(50, np.random.default_rng(0))["obs"]).any()


@BUFFERS
def test_first_batches_without_next_observations(kind: type[UniformReplay]):
    buffer, columns, fragment = kind(20), rows("12").to_dict(), rows("12", "34|")
    fragment.after.clear()
    refused(BatchError, buffer.add, SampleBatch(columns), says="a SampleBatch without...Fragment")
    refused(BatchError, buffer.add, columns, says="not a SampleBatch.\n...got:      dict")
    refused(BatchError, buffer.add, fragment, says="a Fragment without...`obs` after its segments")
    kind(20).set_state(buffer.get_state())
    buffer.add(rows("34|"))
    assert drawn(buffer) == {3, 4}


@BUFFERS
@pytest.mark.parametrize("change", [{"capacity": 21}, {"columns": ["action_logp"]}, "memory"], ids=str)
def test_a_state_that_does_not_fit(kind: type[UniformReplay], change: Any, monkeypatch: pytest.MonkeyPatch):
    other, buffer = kind(20), kind(**{"capacity": 20, **(change if isinstance(change, dict) else {})})
    other.add(rows("12|"))
    own = rows("345|")
    own["action_logp"] = own["rewards"]
    buffer.add(own)
    with monkeypatch.context() as patch:
        if change == "memory":
            patch.setattr(memory, "available_memory_bytes", lambda: 100)
        with pytest.raises((CheckpointError, ConfigError), match="buffer"):
            buffer.set_state(other.get_state())
    assert len(buffer) == 3
    assert drawn(buffer) == {3, 4, 5}
    more = rows("67|", start=9)
    more["action_logp"] = more["rewards"]
    buffer.add(more)
    assert drawn(buffer) == {3, 4, 5, 6, 7}


@BUFFERS
def test_states_can_be_checked_before(kind: type[UniformReplay]):
    other, buffer = kind(20), kind(21)
    other.add(rows("12|"))
    buffer.add(rows("345|"))
    says = "different capacity...got:      20...expected: 21...buffer_size"
    refused(CheckpointError, buffer.check_state, other.get_state(), says=says)
    buffer.check_state({})
    buffer.check_state(kind(3).get_state())
    assert drawn(buffer) == {3, 4, 5}


@BUFFERS
@pytest.mark.parametrize("empty", [UniformReplay, PrioritizedReplay])
def test_the_state_of_an_empty_buffer_empties_one_of_any_kind(kind: type[UniformReplay], empty: type[UniformReplay]):
    buffer = kind(20)
    buffer.add(rows("12|"))
    buffer.set_state(empty(9).get_state())
    assert len(buffer) == buffer.nbytes == buffer.total_priority == 0
    buffer.add(rows("345|"))
    assert drawn(buffer) == {3, 4, 5}


def test_rows_of_a_uniform_buffer_get_the_initial_priority():
    uniform, prioritized = UniformReplay(20), PrioritizedReplay(20)
    uniform.add(rows("12|"))
    prioritized.set_state(uniform.get_state())
    assert drawn(prioritized) == {1, 2}
    uniform.set_state(prioritized.get_state())
    assert drawn(uniform) == {1, 2}
