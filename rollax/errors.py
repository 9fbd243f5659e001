"""The named errors of rollax: each says what is wrong, where, what was got, what was expected, and how to mend it."""

from __future__ import annotations

from typing import Any

_ABSENT: Any = object()


class RollaxError(Exception):
    """Base of every error that rollax raises on purpose.

    Args:
        what: one sentence that says what is wrong.
        where: the place: a config key, a sub-environment and agent, a policy and step, a file.
        got: what was found there; shown by `repr` unless it is a string.
        expected: what should have been there.
        fix: how to mend it.
    """

    def __init__(
        self, what: str, *, where: Any = None, got: Any = _ABSENT, expected: Any = None, fix: str | None = None
    ) -> None:
        lines = [what]
        if where is not None:
            lines.append(f"  where:    {where}")
        if got is not _ABSENT:
            lines.append(f"  got:      {_shown(got)}")
        if expected is not None:
            lines.append(f"  expected: {_shown(expected)}")
        if fix is not None:
            lines.append(f"  fix:  {fix}")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call __init__ with the rendered text alone, which is right: it is the whole message.
        return type(self), (str(self),)


class ConfigError(RollaxError):
    """A config key, value, or combination of values is wrong."""


class SpaceError(RollaxError):
    """An observation or action space is missing, unsupported, empty, or inconsistent."""


class EnvError(RollaxError):
    """An environment broke the interface that it claims to have."""


class MultiAgentError(EnvError):
    """A multi-agent environment's dicts contradict each other or what went before."""


class PolicyError(RollaxError):
    """A policy, model or policy mapping broke its interface."""


class NonFiniteError(PolicyError):
    """A NaN or an infinity where only finite numbers may be."""


class BatchError(RollaxError):
    """Columns of a batch are missing or disagree in length."""


class CheckpointError(RollaxError):
    """A checkpoint cannot be written, or what is on disk cannot be trusted or does not fit."""


class WorkerError(RollaxError):
    """A rollout worker died, hung, or is not left at all."""


class ShapeError(RollaxError, ValueError):
    """An array has the wrong shape."""


class RemoteTraceback(Exception):  # noqa: N818  it is no error of its own, but where another one came from
    """Shows the traceback of another process above the error that came from there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _shown(value: Any, limit: int = 300) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
