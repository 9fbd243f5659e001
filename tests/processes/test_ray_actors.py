"""What a pool gets for exceptions of an actor, without Ray."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rollax import WorkerError
from rollax.processes.ray_actors import RayActors


class FakeRay:
    """Every call ends with Ray's error around one exception of the actor."""

    def __init__(self, cause: BaseException) -> None:
        names = ("RayActorError", "WorkerCrashedError", "OutOfMemoryError", "NodeDiedError", "ObjectLostError")
        ray_error = type("RayError", (Exception,), {"cause": cause})
        self.error = ray_error(f"Traceback:\n{type(cause).__name__}: {cause}")
        self.exceptions = SimpleNamespace(RayError=ray_error, **{name: type(name, (ray_error,), {}) for name in names})

    def get(self, references):
        raise self.error


@pytest.mark.parametrize("cause", [GeneratorExit("closed"), SystemExit("left"), BaseException("own")])
def test_an_exception_that_is_no_exception_class_is_an_error_and_no_result(cause):
    (outcome,) = RayActors(FakeRay(cause), lambda index, restarts: None).outcomes(["call"])
    assert isinstance(outcome, WorkerError)
    assert f"{type(cause).__name__}: {cause}" in str(outcome)


def test_other_exceptions_are_returned_as_they_are():
    cause = ValueError("held")
    assert RayActors(FakeRay(cause), lambda index, restarts: None).outcomes(["call"]) == [cause]
