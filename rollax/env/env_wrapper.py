"""`EnvWrapper`: a `BaseEnv` around another `BaseEnv`."""

from __future__ import annotations

from typing import Any

from rollax.env.base_env import DICT_VIEW, BaseEnv


class EnvWrapper(BaseEnv):
    """Passes on attributes and methods of the environment inside, unless a subclass defines them.

    Exceptions are the dict view, which is derived from the wrapper's columnar view; `in_jax`, because a compiled
    loop would not poll the wrapper; and `adapts`, because a subclass may change rows.
    """

    def __init__(self, env: BaseEnv) -> None:
        self.env = env

    @property
    def name(self) -> str:
        return getattr(self.env, "name", type(self.env).__name__)

    def __getattr__(self, name: str) -> Any:
        """Attributes that `BaseEnv` does not have, such as `observation_spaces`."""
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)


def _of_env(name: str) -> Any:
    return property(lambda self: getattr(self.env, name))


for _name in vars(BaseEnv):
    if not (_name.startswith("_") or _name in (*DICT_VIEW, "in_jax", "adapts")):
        setattr(EnvWrapper, _name, _of_env(_name))
