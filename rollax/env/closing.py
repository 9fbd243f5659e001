"""`close_all`: closes every environment, even if closing one of them fails."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rollax.env import checks
from rollax.env.checks import env_name
from rollax.errors import EnvError


def close_all(envs: Iterable[Any]) -> None:
    """Closes each environment; the first error is raised at the end, as an EnvError."""
    failure: EnvError | None = None
    for index, env in enumerate(envs):
        try:
            getattr(env, "close", lambda: None)()
        except Exception as error:
            if failure is None:
                failure = checks.failed(error, "close()", f"{env_name(env)}, sub-environment {index}")
                failure.__cause__ = error
    if failure is not None:
        raise failure
