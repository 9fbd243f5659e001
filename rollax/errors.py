"""The errors of rollax: each message has the problem, the location, the value, the expectation and the fix."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_ABSENT: Any = object()
_LETTERS_PER_ERROR = 6


class RollaxError(Exception):
    """Base class of the errors that rollax raises.

    Args:
        what: one sentence that describes the problem.
        where: the location: a config key, a sub-environment and agent, a policy and step, a file.
        got: the value found there; shown by `repr` unless it is a string.
        expected: what is valid there.
        fix: how to fix it.

    Attributes:
        parts: the arguments that were given, as text, by name.
    """

    def __init__(
        self, what: str, *, where: Any = None, got: Any = _ABSENT, expected: Any = None, fix: str | None = None
    ) -> None:
        self.parts: dict[str, str] = {"what": what}
        if where is not None:
            self.parts["where"] = str(where)
        if got is not _ABSENT:
            self.parts["got"] = _shown(got)
        if expected is not None:
            self.parts["expected"] = _shown(expected)
        if fix is not None:
            self.parts["fix"] = fix
        lines = [f"  {name + ':':<9} {text}" for name, text in self.parts.items() if name != "what"]
        super().__init__("\n".join([what, *lines]))

    def __reduce__(self) -> tuple[Any, ...]:
        # The default __reduce__ calls __init__ with the rendered text, which is the whole message.
        return type(self), (str(self),), self.__dict__


class ConfigError(RollaxError):
    """A config key, value, or combination of values is wrong."""


class SpaceError(RollaxError):
    """An observation or action space is missing, unsupported, empty, or inconsistent."""


class EnvError(RollaxError):
    """An environment violates its interface."""


class MultiAgentError(EnvError):
    """The dicts of a multi-agent environment contradict each other or earlier ones."""


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
    """The process of a rollout worker, replay shard or sub-environment died or hung, or none is left."""


class RequestError(RollaxError):
    """A request to a policy server that was not executed.

    Attributes:
        status: the HTTP status; 503 for a server that cannot be reached.
        retry_after_s: seconds after which the same request may succeed; None if it must be changed.
        error_id: at a client, the id of the error in the server's log; None without one.
    """

    def __init__(
        self,
        what: str,
        *,
        status: int = 400,
        retry_after_s: float | None = None,
        error_id: str | None = None,
        **parts: Any,
    ) -> None:
        super().__init__(what, **parts)
        self.status, self.retry_after_s, self.error_id = status, retry_after_s, error_id

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), dict(vars(self)))


class EpisodeLostError(RequestError):
    """An episode that a policy server does not have (any more): it ended or expired, or the server restarted."""


class ShapeError(RollaxError, ValueError):
    """An array has the wrong shape."""


class RemoteTraceback(Exception):  # noqa: N818  it is no error of its own, but where another one came from
    """The traceback of another process, shown above the error that was raised there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def repr_of(value: Any) -> str:
    """The value's `repr`, or that of any object where it fails: in a user's class, or with too many levels."""
    try:
        return repr(value)
    except Exception:
        return object.__repr__(value)


def text_of(error: BaseException) -> str:
    """The message of an error, or that it has none that can be shown: `str` of a user's class may raise."""
    try:
        return str(error)
    except Exception as failure:
        return f"a message that cannot be shown, because its __str__ raises {type(failure).__name__}"


def _shown(value: Any, limit: int = 300) -> str:
    text = value if isinstance(value, str) else repr_of(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def not_installed(
    feature: str, error: Exception, *, where: str, package: str, extra: str = "", fix: str | None = None
) -> ConfigError:
    """The error of a feature whose packages are missing, or cannot be imported.

    Args:
        feature: what requires them, the subject of a sentence.
        error: the one of the import; it names the missing package, which may be one that `package` requires.
        where: as in `RollaxError`.
        package: the package that the feature itself imports.
        extra: the extra of rollax with these packages.
        fix: how to install them, if they are in no extra.
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
    """The package whose absence makes an import fail; None for other errors, such as one of a broken package."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    return error.name.partition(".")[0]


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the name in `known` that `corrected` returns, or else all of them."""
    names = sorted(known)
    match = corrected(name, names)
    return f"did you mean '{match}'?" if match is not None else f"use one of: {', '.join(names)}"


def corrected(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `name` misspells, else the only one that begins with `name`, else None.

    A name is misspelled if it has at most one error for every six letters. Of equally near ones, one that begins with
    `name` is preferred.
    """
    names, written = list(known), name.lower()
    begun = [other for other in names if written and other.lower().startswith(written)]
    distance, _, match = min(
        ((typing_errors(written, other.lower()), other not in begun, other) for other in names), default=(0, True, None)
    )
    if distance <= max(len(name) // _LETTERS_PER_ERROR, 1):
        return match
    return begun[0] if len(begun) == 1 else None


def typing_errors(a: str, b: str) -> int:
    """The Damerau-Levenshtein distance of two names: letters omitted, added, replaced or swapped (Damerau, 1964)."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        before, last, row = row, before, [i + 1]
        for j, y in enumerate(b):
            row.append(min(before[j] + (x != y), before[j + 1] + 1, row[j] + 1))
            if i and j and (x, a[i - 1]) == (b[j - 1], y):
                row[-1] = min(row[-1], last[j - 1] + 1)
    return row[-1]
