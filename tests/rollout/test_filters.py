import numpy as np
import pytest
from gymnasium import spaces

from rollax.core.running_statistics import merged
from rollax.errors import CheckpointError, ConfigError, EnvError, ShapeError
from rollax.rollout.filters import MeanStdFilter, NoFilter, make_filter
from tests.env.refused import refused


def f32(rows) -> np.ndarray:
    return np.array(rows, np.float32)


VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
NESTED = spaces.Dict(
    {
        "action_mask": spaces.Box(0, 1, (2,), np.float32),
        "avail_actions": spaces.Box(-1, 1, (2, 4), np.float32),
        "camera": spaces.Box(0, 255, (4, 5, 3), np.uint8),
        "gear": spaces.Discrete(3),
        "arm": spaces.Tuple([spaces.Box(-1, 1, (2, 3), np.float64), spaces.MultiBinary(2)]),
    }
)


def polls(*sizes: int, shape: tuple[int, ...] = (3,), offset: float = 5.0) -> list[np.ndarray]:
    rng = np.random.default_rng(sum(sizes))
    return [(offset + 2 * rng.normal(size=(size, *shape))).astype(np.float32) for size in sizes]


def filter_after(*seen: np.ndarray) -> MeanStdFilter:
    made = MeanStdFilter(VECTOR)
    for rows in seen:
        made(rows)
    return made


def assert_same_state(a, b, rtol=0.0):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=rtol, atol=0, err_msg=name)


class TestStandardizing:
    def test_by_hand(self):
        # 1 and 3: mean 2, deviation 1. Then 8 as well: mean 4, deviation sqrt((9 + 1 + 16) / 3) = 2.943920.
        made = MeanStdFilter(spaces.Box(-9, 9, (1,), np.float32))
        out = made(f32([[1], [3]]))
        np.testing.assert_allclose(out, [[-1], [1]], rtol=1e-7)
        np.testing.assert_allclose(made(f32([[8]])), [[4 / 2.943920]], rtol=1e-6)
        assert out.dtype == np.float32

    @pytest.mark.parametrize("offset", [0.0, 1e5])
    def test_statistics_are_those_of_all_rows(self, offset):
        seen = polls(1, 64, 3, 1, 200, offset=offset)
        state = filter_after(*seen).state()
        rows = np.concatenate(seen).astype(np.float64)
        assert state["count"] == 269
        np.testing.assert_allclose(state["mean"], rows.mean(0), rtol=1e-12)
        np.testing.assert_allclose(state["squares"] / 269, rows.var(0), rtol=1e-9)

    def test_output_uses_all_rows_up_to_this_poll(self):
        first, second = polls(7, 9)
        made = filter_after(first)
        rows = np.concatenate([first, second]).astype(np.float64)
        np.testing.assert_allclose(made(second), (second - rows.mean(0)) / rows.std(0), rtol=1e-5)

    def test_without_update_the_statistics_are_not_changed(self):
        first, second = polls(7, 9)
        made = filter_after(first)
        before = made.state()
        out = made(second, update=False)
        wide = first.astype(np.float64)
        np.testing.assert_allclose(out, (second - wide.mean(0)) / wide.std(0), rtol=1e-5)
        assert_same_state(made.state(), before)

    def test_without_any_observation(self):
        made = MeanStdFilter(VECTOR)
        np.testing.assert_array_equal(made(f32([[1, 2, 3]]), update=False), [[1, 2, 3]])
        np.testing.assert_array_equal(made(f32([[1, 2, 3]])), [[0, 0, 0]])
        assert made(np.zeros((0, 3), np.float32)).shape == (0, 3)

    def test_constant_element_and_clip(self):
        made = filter_after(f32([[1, 0, 7]] * 5))
        np.testing.assert_array_equal(made(f32([[1, 0, 7]])), [[0, 0, 0]])
        np.testing.assert_array_equal(made(f32([[2, -1, 7]]), update=False), [[10, -10, 0]])

    def test_argument_is_not_changed(self):
        (rows,) = polls(4)
        copy = rows.copy()
        filter_after(rows)
        np.testing.assert_array_equal(rows, copy)


class TestNested:
    def columns(self):
        rng = np.random.default_rng(0)
        return {
            "action_mask": f32([[0, 1], [1, 1]]),
            "avail_actions": rng.normal(size=(2, 2, 4)).astype(np.float32),
            "camera": rng.integers(0, 256, (2, 4, 5, 3), np.uint8),
            "gear": np.array([0, 2]),
            "arm": (np.stack([np.zeros((2, 3)), np.full((2, 3), 4.0)]), np.zeros((2, 2), np.int8)),
        }

    def test_only_floating_point_boxes_change(self):
        columns = self.columns()
        out = MeanStdFilter(NESTED)(columns)
        for key in ("action_mask", "avail_actions", "camera", "gear"):
            assert out[key] is columns[key]
        assert out["arm"][1] is columns["arm"][1]
        np.testing.assert_array_equal(out["arm"][0], np.stack([np.full((2, 3), -1), np.full((2, 3), 1)]))
        assert out["arm"][0].dtype == np.float32

    def test_state_names_the_leaf(self):
        made = MeanStdFilter(NESTED)
        made(self.columns())
        state = made.state()
        assert sorted(state) == ["arm/0/count", "arm/0/mean", "arm/0/squares"]
        assert state["arm/0/mean"].shape == (2, 3)

    def test_masks_inside_a_group_of_agents(self):
        group = spaces.Tuple([spaces.Dict({"action_mask": spaces.Box(0, 1, (2,)), "x": spaces.Box(0, 1, (1,))})] * 2)
        assert {name.rsplit("/", 1)[0] for name in MeanStdFilter(group).state()} == {"0/x", "1/x"}

    def test_no_two_leaves_share_a_name(self):
        box = spaces.Box(0, 1, (1,))
        space = spaces.Dict({"a/b": box, "a": spaces.Dict({"b": box}), "a~1b": box})
        assert len(MeanStdFilter(space).state()) == 9


class TestMerging:
    def test_synchronized_workers_have_the_statistics_of_one_worker(self):
        seen = polls(5, 1, 30, 8, 8, 2)
        driver, workers = MeanStdFilter(VECTOR), [MeanStdFilter(VECTOR) for _ in range(3)]
        for round_ in (seen[:3], seen[3:]):
            for worker, rows in zip(workers, round_, strict=True):
                worker(rows)
            for worker in workers:
                driver.merge(worker.take_delta())
            for worker in workers:
                worker.sync(driver.state())
        for made in (driver, *workers):
            assert_same_state(made.state(), filter_after(*seen).state(), rtol=1e-12)

    @pytest.mark.parametrize("sizes", [(5, 4), (0, 4), (5, 0), (0, 0)])
    def test_two_deltas_together(self, sizes):
        nested = spaces.Dict({"arm": spaces.Tuple([VECTOR, VECTOR]), "height": spaces.Box(-9, 9, (), np.float32)})
        expected, deltas = MeanStdFilter(nested), []
        for size in sizes:
            (rows,) = polls(size)
            columns = {"arm": (rows, rows + 1), "height": rows[:, 0]}
            expected(columns)
            deltas.append(MeanStdFilter(nested))
            deltas[-1](columns)
        found = merged(*(delta.take_delta() for delta in deltas))
        assert_same_state(found, expected.state(), rtol=1e-12)
        made = MeanStdFilter(nested)
        made.merge(found)
        assert_same_state(made.state(), expected.state(), rtol=1e-12)


class TestSaving:
    def test_restoring_continues_exactly(self):
        first, second, third = polls(50, 3, 7)
        made, restored = filter_after(first, second), filter_after(third)
        restored.set_state(made.state())
        assert restored.take_delta()["count"] == 0
        np.testing.assert_array_equal(made(third), restored(third))
        assert_same_state(made.state(), restored.state())

    def test_state_is_a_copy(self):
        made = filter_after(*polls(5))
        state = made.state()
        made(polls(9)[0])
        assert state["count"] == 5

    def test_state_of_another_space_or_filter(self):
        with pytest.raises(CheckpointError, match=r"mean\n.*\(3,\)\n.*\(2,\)"):
            MeanStdFilter(spaces.Box(0, 1, (2,))).set_state(MeanStdFilter(VECTOR).state())
        refused(CheckpointError, MeanStdFilter(VECTOR).set_state, MeanStdFilter(NESTED).state(), says="arm/0/mean")
        refused(CheckpointError, NoFilter(VECTOR).set_state, MeanStdFilter(VECTOR).state(), says="different filter")


class TestMakeFilter:
    def test_unknown_name(self):
        refused(ConfigError, make_filter, "MeanStdFiltr", VECTOR, says="did you mean 'MeanStdFilter'")

    def test_no_filter_does_nothing(self):
        made = make_filter("NoFilter", VECTOR)
        columns = {"a": np.zeros(3)}
        assert made(columns) is columns
        made.merge(made.take_delta())
        made.sync(made.state())


NUMBERS = "observation filter, b(.|\n)*finite observations"


@pytest.mark.parametrize(
    ("later", "error", "says"),
    [
        *(([[bad], [1]], EnvError, NUMBERS) for bad in (np.inf, -np.inf, np.nan, 1e300)),
        (np.ones((2, 2)), ShapeError, r"\(2, 2\)"),
    ],
)
def test_an_error_of_a_later_leaf_changes_no_statistics(later, error, says):
    leaf = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    observation_filter = MeanStdFilter(spaces.Dict({"a": leaf, "b": leaf}))
    observation_filter({"a": f32([[1], [3]]), "b": f32([[5], [6]])})
    before = observation_filter.state()
    observation_filter.take_delta()
    with pytest.raises(error, match=says):
        observation_filter({"a": f32([[7], [9]]), "b": np.array(later)})
    assert_same_state(observation_filter.state(), before)
    assert observation_filter.take_delta()["a/count"] == 0


def test_images_of_floats_are_not_changed():
    images = f32(np.random.default_rng(0).uniform(0, 255, (4, 8, 8, 3)))
    assert make_filter("MeanStdFilter", spaces.Box(0, 255, (8, 8, 3), np.float32))(images) is images
