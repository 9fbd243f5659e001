"""A wrapper has the attributes of the environment inside, besides its own."""

from types import SimpleNamespace

from rollax import BaseEnv
from rollax.env.base_env import DICT_VIEW
from rollax.env.env_wrapper import EnvWrapper

PASSED_ON = [name for name in vars(BaseEnv) if not name.startswith("_") and name not in (*DICT_VIEW, "in_jax")]


class Counts(EnvWrapper):
    def poll_rows(self):
        return "wrapped", self.env.poll_rows()


def test_attributes_are_passed_on():
    inside = SimpleNamespace(**{name: object() for name in PASSED_ON}, observation_spaces={}, in_jax=True)
    inside.poll_rows = lambda: "inside"
    wrapper = Counts(inside)  # type: ignore[arg-type]
    assert {"num_envs", "rest_rows", "sampled_by", "try_render"} <= set(PASSED_ON)
    for name in [*PASSED_ON, "observation_spaces"]:
        assert name in ("adapts", "poll_rows") or getattr(wrapper, name) is getattr(inside, name)
    assert wrapper.poll_rows() == ("wrapped", "inside")
    assert not wrapper.in_jax  # a compiled loop would not poll the wrapper
    assert (wrapper.name, hasattr(wrapper, "mode"), hasattr(wrapper, "_private")) == ("SimpleNamespace", False, False)


def test_the_dict_view_is_that_of_the_wrapper():
    for name in DICT_VIEW:
        assert getattr(EnvWrapper, name) is getattr(BaseEnv, name)
