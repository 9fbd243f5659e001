import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces

from rollax.config import TrainerConfig
from rollax.core import sharing
from rollax.core.schedules import Schedule
from rollax.core.sharing import cached_compilation
from rollax.models.layers import orthogonal
from rollax.policy.update_plan import polyak_average


class Users:
    """A user's class, which may read any state."""


def made_by_a_user():
    return 1


class Cell:
    def __init__(self, *parts):
        self.parts = parts


@pytest.fixture(autouse=True)
def nothing_is_kept():
    sharing.clear()
    yield
    sharing.clear()


EQUAL = {
    "numbers": lambda: (1, 2.5, None, "a", np.float32(0.1)),
    "array": lambda: np.arange(6.0).reshape(2, 3),
    "space": lambda: spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(3, seed=1)}),
    "config": lambda: TrainerConfig(gamma=0.9, env_config={"a": [1, 2]}),
    "schedule": lambda: Schedule([[0, 1.0], [9, 0.0]]),
    "closure": lambda: polyak_average(0.1, ("critics",)),
    "initializer": lambda: orthogonal(0.5),
    "partial": lambda: functools.partial(jnp.clip, min=-1, max=1),
    "optimizer": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.scale_by_adam(eps=1e-5)),
    "structure of a tree": lambda: jax.tree.structure({"a": 1, "b": (2, 3)}),
    "function of JAX": lambda: jax.nn.relu,
}

DIFFERENT = {
    "types of numbers": (1, 1.0, True, np.float32(1), "1"),
    "signs of zero": (0.0, -0.0),
    "kinds of sequences": ((1, 2), [1, 2]),
    "order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "shapes": (np.zeros((2, 3)), np.zeros((3, 2)), np.zeros((2, 3), np.float32)),
    "bounds": (spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1 + 1e-6, (2,)), spaces.Box(-1, 1, (3,))),
    "configs": (TrainerConfig(), TrainerConfig(gamma=0.5)),
    "schedules": (Schedule(1.0), Schedule(2.0), Schedule([[0, 1.0], [1, 2.0]])),
    "numbers in closures": (polyak_average(0.1, ("a",)), polyak_average(0.2, ("a",)), polyak_average(0.1, ("b",))),
    "functions": (jnp.tanh, jax.nn.relu),
    "optimizers": (optax.scale_by_adam(), optax.scale_by_adam(eps=1e-5), optax.scale_by_rms()),
    "parts that run together": (("a", "bc"), ("ab", "c")),
}

UNKNOWN = {
    "a user's class": Users,
    "an object of it": Users(),
    "a user's function": made_by_a_user,
    "a closure": lambda: made_by_a_user(),
    "a user's function that JAX compiles": jax.jit(made_by_a_user),
    "one in an object of JAX": jax.custom_jvp(made_by_a_user),
    "one in an optimizer": optax.GradientTransformation(made_by_a_user, made_by_a_user),
    "a method of a list": [1].append,
    "a JAX array": jnp.zeros(2),
    "a random generator": np.random.default_rng(0),
    "an array of objects": np.array([Users()]),
}


def deeper(value):
    return {"a": (value,)}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_content_is_made_once(name):
    one, other = (cached_compilation(Cell, EQUAL[name]()) for _ in range(2))
    assert one is other is not None
    assert cached_compilation(Cell, deeper(EQUAL[name]())) is cached_compilation(Cell, deeper(EQUAL[name]())) is not one


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_content_is_made_separately(name):
    made = [cached_compilation(Cell, value) for value in DIFFERENT[name]]
    assert None not in made
    assert len(set(map(id, made))) == len(DIFFERENT[name])


@pytest.mark.parametrize("name", UNKNOWN)
def test_values_that_may_read_any_state_are_not_shared(name):
    assert cached_compilation(Cell, UNKNOWN[name]) is None
    assert cached_compilation(Cell, 1, deeper(UNKNOWN[name])) is None


def test_a_value_that_contains_itself_is_not_shared():
    around = []
    around.append(around)
    assert cached_compilation(Cell, around) is None


def test_values_of_other_makers_are_separate():
    class Other(Cell):
        pass

    assert cached_compilation(Cell, 1) is not cached_compilation(Other, 1)
    assert cached_compilation(Cell, 1, 2).parts == (1, 2)


def test_changed_values_are_made_separately():
    sizes = [1, 2]
    before = cached_compilation(Cell, sizes)
    sizes.append(3)
    assert before.parts == ([1, 2],)
    assert cached_compilation(Cell, sizes) is not before is not None


@pytest.mark.long
def test_only_the_most_recent_values_are_kept():
    alive = [weakref.ref(cached_compilation(Cell, number)) for number in range(1000)]
    gc.collect()
    kept = [number for number, ref in enumerate(alive) if ref() is not None]
    assert kept == list(range(1000 - sharing._KEPT, 1000))
    again = cached_compilation(Cell, kept[0])  # the oldest becomes the newest
    for number in range(sharing._KEPT - 1):
        cached_compilation(Cell, -number - 1)
    assert cached_compilation(Cell, kept[0]) is again
