import pytest

from rollax.core.schedules import Schedule
from rollax.errors import ConfigError


def test_number_is_constant():
    schedule = Schedule(0.5)
    assert [schedule(t) for t in (0, 1, 10**9)] == [0.5, 0.5, 0.5]


# Points (10, 4) and (20, 2), (40, 3): slopes -0.2 and 0.05.
@pytest.mark.parametrize(
    ("timestep", "value"), [(0, 4), (10, 4), (11, 3.8), (15, 3), (20, 2), (30, 2.5), (40, 3), (41, 3), (10**9, 3)]
)
def test_linear_between_points_and_constant_outside(timestep, value):
    assert Schedule([[10, 4], (20, 2.0), [40, 3]])(timestep) == pytest.approx(value, abs=1e-15)


def test_jump():
    schedule = Schedule([[0, 1], [99, 1], [100, 0]])
    assert [schedule(t) for t in (98, 99, 100)] == [1, 1, 0]


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "The schedule has no points"),
        (None, "The schedule has no points"),
        ("0.1", "The schedule has no points"),
        ([[10, 1], [5, 2]], "got:      5 after 10"),
        ([[10, 1], [10, 2]], "got:      10 after 10"),
        ([[0, 1], [2]], r"got:      \[2\]"),
        ([[0, "a"]], "two finite numbers"),
        ([[0, float("nan")]], "two finite numbers"),
        *((value, "two finite numbers") for value in (float("inf"), 10**400, [[10**400, 1]], [[0, 10**400]])),
        ([[-1, 0.5]], "0 or more"),
    ],
)
def test_invalid_schedules(points, message):
    with pytest.raises(ConfigError, match=message) as error:
        Schedule(points, where="config key 'lr_schedule'")
    assert "config key 'lr_schedule'" in str(error.value)


def test_repr_shows_the_points():
    assert repr(Schedule([[0, 1], [10, 2]])) == "Schedule([[0.0, 1.0], [10.0, 2.0]])"
