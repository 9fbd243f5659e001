"""Stacked images by hand: the number of slots, and exact stacks in draws."""

import numpy as np
import pytest

from rollax import ConfigError, SampleBatch
from rollax.batch import Fragment
from rollax.replay.frames import StackedFrames
from rollax.replay.prioritized import PrioritizedReplay
from rollax.replay.uniform import UniformReplay
from tests.env.refused import refused
from tests.replay.reference import DrawsAll, everything
from tests.replay.streams import fragment_of


def trajectory(stacks: list[str], *, number: int = 1, terminated: bool = True) -> Fragment:
    """A row for each stack, with one letter per image. The last stack is only observed, unless `terminated`."""
    obs = np.array([[[[ord(letter)]] for letter in stack] for stack in stacks], np.uint8)
    row = np.arange(len(stacks))
    batch = SampleBatch(
        {
            "obs": obs,
            "actions": np.array([stack.encode() for stack in stacks]).view(np.uint8).reshape(len(row), -1),
            "rewards": np.ones(len(row), np.float32),
            "terminateds": (row == row[-1]) & terminated,
            "truncateds": np.zeros(len(row), np.bool_),
            "trajectory_id": np.full(len(row), number),
            "bootstrap": (row == row[-1]) & (not terminated),
        }
    )
    return fragment_of(batch)


def stacks_in(buffer: DrawsAll) -> list[str]:
    """The stacks of all transitions; checks that each has the action of the same letters."""
    drawn = everything(buffer)
    assert (drawn["obs"][:, :, 0, 0] == drawn["actions"]).all()
    return sorted("".join(map(chr, stack)) for stack in drawn["actions"])


@pytest.mark.parametrize(
    ("stacks", "slots"),
    [
        (["aaa", "aab", "abc"], 3),  # copies of the first image before it: one slot per image
        (["00a", "0ab", "abc"], 4),  # zeros before it: one slot for all of them
        (["abc", "bcd", "cde"], 5),  # the beginning of the trajectory was not added: also a and b
        (["aab", "abc", "bcd"], 4),
        (["aaa", "aab", "xyz", "yzu"], 6),  # a stack that does not continue adds its own images: x and y
        (["aba", "bab", "aba"], 5),  # equal images that are not neighbours
    ],
)
def test_slots(stacks: list[str], slots: int):
    exact, smaller = (DrawsAll(size, frames=StackedFrames(3)) for size in (slots, slots - 1))
    exact.add(trajectory(stacks))
    assert stacks_in(exact) == sorted(stacks)
    refused(ConfigError, smaller.add, trajectory(stacks), says=f"at least {slots}")


def test_transitions_are_overwritten_with_their_oldest_image():
    # Six slots. abc takes three, for a, b and c; bcd and cde take one each; def, only observed, takes the sixth.
    buffer = DrawsAll(6, frames=StackedFrames(3))
    buffer.add(trajectory(["abc", "bcd", "cde", "def"], terminated=False))
    assert stacks_in(buffer) == ["abc", "bcd", "cde"]
    buffer.add(trajectory(["xxx"], number=2))  # overwrites a, a part of abc
    assert stacks_in(buffer) == ["bcd", "cde", "xxx"]
    buffer.add(trajectory(["yyy"], number=3))  # overwrites b
    assert stacks_in(buffer) == ["cde", "xxx", "yyy"]


def test_late_errors_do_not_restore_transitions_without_an_image():
    buffer, rng = PrioritizedReplay(6, frames=StackedFrames(3), alpha=1.0), np.random.default_rng(0)
    buffer.add(trajectory(["abc", "bcd", "cde", "def"], terminated=False))
    late = buffer.sample(50, rng)["indices"]
    buffer.add(trajectory(["xxx"], number=2))  # overwrites a, but not the row of abc
    buffer.update_priorities(late, np.full(50, 1e6))
    assert set(buffer.sample(50, rng)["actions"][:, 0].tolist()) <= set(b"bcx")


def test_images_are_stored_again_if_a_continued_end_would_lose_them():
    # Eight slots: aaa is in slot 0, aab, at first only observed, in 1, and abc, the last observation, in 5; other
    # trajectories have the slots between and after. Then the first one continues: the batch would overwrite the images
    # a and b, but not abc itself.
    buffer = DrawsAll(8, frames=StackedFrames(3))
    buffer.add(trajectory(["aaa", "aab"], terminated=False))
    buffer.add(trajectory(["vvv", "vvw", "vwx"], number=2))
    buffer.add(trajectory(["aab", "abc"], terminated=False))
    buffer.add(trajectory(["xxx", "xxy"], number=3))
    buffer.add(trajectory(["abc", "bcd"]))
    # So a, b, c and d are stored again in slots 0 to 3. This overwrites vvv and vvw, which are also parts of vwx.
    assert stacks_in(buffer) == ["abc", "bcd", "xxx", "xxy"]


def test_images_of_other_trajectories_count_for_overwriting():
    # Eight slots: the first trajectory has 0 to 4, its end cde has 2 to 4, and another trajectory has the rest. In a
    # batch of two rows xyz alone requires three slots, 0 to 2. So c, d and e are stored again after it, which
    # overwrites 0 to 5. Slot 5 has vvv, which is also part of vvw and vwx.
    buffer = DrawsAll(8, frames=StackedFrames(3))
    buffer.add(trajectory(["aaa", "aab", "abc", "bcd", "cde"], terminated=False))
    buffer.add(trajectory(["vvv", "vvw", "vwx"], number=2))
    buffer.add(SampleBatch.concat_samples([trajectory(["cde"]), trajectory(["xyz"], number=3)]))
    assert stacks_in(buffer) == ["cde", "xyz"]


def test_observations_are_the_added_ones():
    # abc also stores a and b, and xyz stores x and y; these images alone are no observations.
    buffer = DrawsAll(20, frames=StackedFrames(3))
    buffer.add(trajectory(["abc", "bcd", "xyz", "yzu"], terminated=False))
    buffer.add(trajectory(["aaa", "aab"], number=2))
    parts = list(buffer.observations(2))
    assert max(map(len, parts)) == 2
    stacks = ["".join(map(chr, stack.ravel())) for stack in np.concatenate(parts)]
    assert stacks == ["abc", "bcd", "xyz", "yzu", "aaa", "aab"]


def noisy_images(steps: int, axis: int, number: int = 1) -> Fragment:
    """A trajectory of stacks of three noisy images, 3 by 3, along an axis."""
    images = np.random.default_rng(number).integers(255, size=(steps + 2, 3, 3)).astype(np.uint8)
    stacks = np.stack([images[i : i + 3] for i in range(steps)])
    batch = trajectory(["aaa"] * steps, number=number)
    return with_obs(batch, np.ascontiguousarray(np.moveaxis(stacks, 1, axis)))


def with_obs(batch: Fragment, obs: np.ndarray) -> Fragment:
    """The same trajectory, which terminates, with other observations."""
    return Fragment({**batch.to_dict(), "obs": obs}, batch.ends, {"obs": obs[batch.ends]})


@pytest.mark.parametrize("axis", [0, 2])
def test_stacks_that_do_not_continue_are_logged_once(axis: int, caplog: pytest.LogCaptureFixture):
    buffer = UniformReplay(500, frames=StackedFrames(3, axis), where="buffer of 'car'")
    for number in range(1, 8):
        buffer.add(noisy_images(40, 1, number))
    if axis == 0:
        assert not caplog.records
        return
    (record,) = caplog.records
    # 39 of each 40 stacks follow another; three trajectories have enough of them.
    assert "buffer of 'car': 117 of 117 stacks of 3 images do not continue" in record.getMessage()
    assert "axis 2 (frame_stack_axis)" in record.getMessage()


def test_axis_of_the_stack_is_kept():
    for axis in (0, 1, 2, -1, -2, -3):
        batch = trajectory(["aab", "abc"])
        batch = with_obs(batch, np.ascontiguousarray(np.moveaxis(batch["obs"], 1, axis + 1 if axis >= 0 else axis)))
        buffer = DrawsAll(9, frames=StackedFrames(3, axis))
        buffer.add(batch)
        drawn = everything(buffer)
        assert drawn["obs"].tolist() == batch["obs"].tolist()
        assert drawn["obs"].flags.c_contiguous


@pytest.mark.parametrize("axis", [0, 2, -1])
def test_images_that_have_the_axis_of_the_stack(axis: int):
    """As images with colours: here each has the length 2 along the axis of three of them."""
    images = np.random.default_rng(0).integers(255, size=(6, 2, 3, 4), dtype=np.uint8)
    along = images if axis == 0 else np.moveaxis(images, 1, 3)
    obs = np.stack([np.concatenate(along[i : i + 3], axis=axis) for i in range(4)])
    buffer = DrawsAll(6, frames=StackedFrames(3, axis, width=2))  # two images before the first stack, and one for each
    buffer.add(with_obs(trajectory(["aaa"] * 4), obs))
    assert everything(buffer)["obs"].tolist() == obs.tolist()
