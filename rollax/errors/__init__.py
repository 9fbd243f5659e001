"""The errors of rollax: each message has the problem, the location, the value, the expectation and the fix."""

from __future__ import annotations

from typing import Any, Self

from rollax.errors.recurring import ABSENT, RecurringErrors
from rollax.errors.texts import corrected as corrected
from rollax.errors.texts import nearest as nearest
from rollax.errors.texts import page as page
from rollax.errors.texts import repr_of as repr_of
from rollax.errors.texts import shown
from rollax.errors.texts import text_of as text_of
from rollax.errors.texts import typing_errors as typing_errors
from rollax.errors.texts import without_links as without_links

_PARTS = ("where", "got", "expected", "fix")
INSTALLS = {
    "Box2D": "pip install 'rollax[box2d]'",
    "ale_py": "pip install 'rollax[atari]'",
    "gymnasium_robotics": "pip install 'rollax[robotics]'",
    "minigrid": "pip install 'rollax[minigrid]'",
    "mujoco": "pip install 'gymnasium[mujoco]'",
    "pettingzoo": "pip install 'rollax[pettingzoo]'",
    "pygame": "pip install 'rollax[video]'",
}
"""The packages of environments -> how to install them."""


class RollaxError(RecurringErrors, Exception):
    """Base class of the errors that rollax raises.

    A call states first the problem, then the remedy: `RollaxError(what, where, got).expected(expected, fix)`. Errors
    that recur have constructors, such as `RollaxError.unknown(...)`.

    Args:
        what: one sentence that describes the problem.
        where: the location: a config key, a sub-environment and agent, a policy and step, a file.
        got: the value found there; shown by `repr` unless it is a string.
        expected: what is valid there.
        fix: how to fix it.

    Attributes:
        parts: name of an argument -> its text, for the arguments that were passed.
    """

    def __init__(
        self, what: str, where: Any = None, got: Any = ABSENT, *, expected: Any = None, fix: str | None = None
    ) -> None:
        self.parts: dict[str, str] = {"what": what}
        if where is not None:
            self.parts["where"] = str(where)
        if got is not ABSENT:
            self.parts["got"] = shown(got)
        super().__init__(what)
        self.expected(expected, fix)

    def expected(self, expected: Any, fix: str | None = None) -> Self:
        """Sets what was expected and the fix, and returns the error itself."""
        if expected is not None:
            self.parts["expected"] = shown(expected)
        if fix is not None:
            self.parts["fix"] = fix
        rest = (name for name in _PARTS if name in self.parts)
        self.args = ("\n".join([self.parts["what"], *(f"  {name + ':':<9} {self.parts[name]}" for name in rest)]),)
        return self

    def fix(self, fix: str) -> Self:
        """Replaces the fix, and returns the error itself."""
        return self.expected(None, fix)

    def __reduce__(self) -> tuple[Any, ...]:
        # __init__ gets the rendered text, which is the whole message; then the attributes are set.
        return type(self), (str(self),), self.__dict__


class ConfigError(RollaxError):
    """A config key, value, or combination of values is wrong."""


class SpaceError(RollaxError):
    """An observation or action space is missing, unsupported, empty, or inconsistent."""


class EnvError(RollaxError):
    """An environment violates its interface."""


class MultiAgentError(EnvError):
    """The dicts of a multi-agent environment contradict each other or earlier dicts."""


class PolicyError(RollaxError):
    """A policy, model or policy mapping violates its interface."""


class NonFiniteError(PolicyError):
    """A NaN or infinity where numbers must be finite."""


class BatchError(RollaxError):
    """Columns of a batch are missing or disagree in length."""


class CheckpointError(RollaxError):
    """A checkpoint cannot be written, or its content is damaged, not trusted or does not fit."""


class DatasetError(RollaxError):
    """A data set is missing, damaged or of an unknown format, or its content contradicts itself."""


class WorkerError(RollaxError):
    """The process of a rollout worker, replay shard or sub-environment died or hung, or no such process is left."""


class RequestError(RollaxError):
    """A request to a policy server was refused, or got no answer; without an answer, it may have been executed.

    Attributes:
        status: the HTTP status; 503 for a server that cannot be reached.
        retry_after_s: seconds to wait before the same request is sent again; None if the server named no time.
        error_id: at a client, the id of the error in the server's log; None without one.
    """

    _status = 400

    def __init__(
        self,
        what: str,
        where: Any = None,
        got: Any = ABSENT,
        *,
        expected: Any = None,
        fix: str | None = None,
        status: int | None = None,
        retry_after_s: float | None = None,
        error_id: str | None = None,
    ) -> None:
        super().__init__(what, where, got, expected=expected, fix=fix)
        self.status = self._status if status is None else status
        self.retry_after_s, self.error_id = retry_after_s, error_id


class InvalidRequestError(RequestError):
    """A request with a value that is not valid: status 422."""

    _status = 422


class EpisodeLostError(RequestError):
    """An episode that a policy server does not have (any more): it ended or expired, or the server restarted."""


class ShapeError(RollaxError, ValueError):
    """An array has the wrong shape."""


class RemoteTraceback(Exception):  # noqa: N818  it is never raised, only the cause of another error
    """The traceback of another process, shown above the error that was raised there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def not_installed(
    feature: str, error: Exception, *, where: str, package: str, extra: str = "", fix: str | None = None
) -> ConfigError:
    """The error of a feature whose packages are missing, or cannot be imported.

    Args:
        feature: what requires the packages, as the subject of a sentence.
        error: the error of the import; it names the missing package, which may be a dependency of `package`.
        where: as in `RollaxError`.
        package: the package that the feature itself imports.
        extra: the extra of rollax with these packages.
        fix: how to install the packages, if no extra of rollax has them.
    """
    missing = missing_package(error)
    problem = "is not installed" if missing else "is missing or cannot be used"
    if missing in (None, package.replace("-", "_")):
        missing = package
    return ConfigError(
        f"{feature} requires a package that {problem}.",
        where=where,
        got=str(error),
        expected=f"the package {missing}",
        fix=fix or f"pip install 'rollax[{extra}]'",
    )


def missing_package(error: Exception) -> str | None:
    """The package whose absence makes an import fail; None for other errors, for example of a broken package."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    return error.name.partition(".")[0]
