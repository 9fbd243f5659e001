"""The errors that recur, as constructors of the error classes: `ConfigError.unknown("filter", name, known, where)`.

Each constructor supplies the text that all errors of its kind share. The arguments `where`, `got`, `expected` and `fix`
are as in `RollaxError`. A call can replace the last two: `ConfigError.is_not(...).fix("...")`, or
`.expected(expected, fix)`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Self

from rollax.errors.texts import nearest, text_of

ABSENT: Any = object()


class RecurringErrors:
    """The base of `RollaxError` with the constructors."""

    if TYPE_CHECKING:

        def __init__(
            self, what: str, where: Any = None, got: Any = ABSENT, *, expected: Any = None, fix: str | None = None
        ) -> None: ...

        def expected(self, expected: Any, fix: str | None = None) -> Self: ...
        def fix(self, fix: str) -> Self: ...

    # Names and settings

    @classmethod
    def unknown(cls, kind: str, name: Any, known: Iterable[Any], where: Any) -> Self:
        """A name that is none of `known`; the fix names the nearest one."""
        names = list(map(str, known))
        return cls(f"Unknown {kind}.", where, name).expected(f"one of {', '.join(names)}", nearest(str(name), names))

    @classmethod
    def missing(cls, thing: str, where: Any, expected: Any) -> Self:
        """A value that the caller left out."""
        return cls(f"No {thing} is given.", where, None, expected=expected, fix=f"give {expected}")

    @classmethod
    def twice(cls, name: str, where: Any, got: Any) -> Self:
        """A value that is given in two places."""
        return cls(f"{name} is given twice.", where, got, expected="one value", fix="leave one of them out")

    @classmethod
    def no_effect(cls, key: str, why: str, where: Any, got: Any, expected: Any = "no such key") -> Self:
        """A setting that nothing reads; `why` is the text after the colon of the message."""
        return cls(f"{key} has no effect: {why}.", where, got, expected=expected, fix=f"leave {key} out")

    # Values

    @classmethod
    def is_not(cls, subject: str, thing: str, where: Any, got: Any) -> Self:
        """A value of the wrong kind: "{subject} is not {thing}."."""
        return cls(f"{subject} is not {thing}.", where, got, expected=thing, fix=f"pass {thing}")

    @classmethod
    def not_callable(cls, subject: str, where: Any, got: Any, function: str) -> Self:
        """A value that cannot be called where a function is expected."""
        return cls(f"{subject} is not callable.", where, got, expected=function, fix=f"pass {function}")

    @classmethod
    def out_of_range(cls, name: str, where: Any, got: Any, expected: str) -> Self:
        """A number of the wrong type, or outside its range."""
        return cls(f"{name} is out of range.", where, got, expected=expected, fix=f"correct {name}")

    @classmethod
    def not_finite(cls, subject: str, where: Any, got: Any) -> Self:
        """NaN or infinity where numbers must be finite."""
        look = "look for its cause, such as a division by zero, an overflow or a logarithm of 0"
        return cls(f"{subject} contains NaN or infinity.", where, got, expected="finite numbers", fix=look)

    @classmethod
    def wrong_shape(cls, subject: str, where: Any, got: Any, expected: Any) -> Self:
        """An array of the wrong shape; the subject includes its verb: "The actions have"."""
        return cls(f"{subject} the wrong shape.", where, got, expected=expected, fix="correct the shape of the array")

    @classmethod
    def wrong_keys(cls, what: str, where: Any, got: Iterable[Any], expected: Iterable[Any]) -> Self:
        """Dicts or columns whose keys differ from the expected keys."""
        keys = sorted(map(str, expected))
        return cls(what, where, sorted(map(str, got)), expected=keys, fix="give one value for each of these keys")

    # Spaces, agents and policies

    @classmethod
    def not_in_space(cls, subject: str, where: Any, got: Any, space: Any) -> Self:
        """An action that does not belong to its space."""
        return cls(f"{subject} is not in the action space.", where, got, expected=space, fix="correct the action")

    @classmethod
    def no_space(cls, kind: str, where: Any) -> Self:
        """An agent without a space."""
        expected = f"{kind}, or {kind}s with a space for this agent"
        return cls("An agent has no space.", where, None, expected=expected, fix=f"set {kind} or {kind}s in the env")

    @classmethod
    def no_valid_action(cls, where: Any, got: Any) -> Self:
        """An action mask that allows no action."""
        return cls("The action mask allows no action.", where, got).expected(
            "at least one 1 for each discrete action",
            "leave one action valid, or end the episode instead of requesting an action",
        )

    @classmethod
    def not_waiting(cls, who: str, where: Any, got: Any, expected: str = "one action for each row that acts") -> Self:
        """An action for an agent or sub-environment `who` that is not waiting for an action."""
        what = f"An action was sent for {who} that is not waiting for one."
        return cls(what, where, got, expected=expected, fix=f"send {expected}")

    @classmethod
    def one_policy_only(cls, where: Any, policies: Collection[Any]) -> Self:
        """Several policies for an algorithm that trains one."""
        return cls("The algorithm trains only one policy, but several are given.", where, list(policies)).expected(
            "one agent with one policy", "leave multiagent out, or use PPO, IMPALA or DQN"
        )

    # Code of the user

    @classmethod
    def raised(cls, subject: str, error: BaseException, where: Any, expected: str) -> Self:
        """An exception in the user's code, which is the cause of this error: "{subject} raised ValueError: ..."."""
        what = f"{subject} raised {type(error).__name__}: {text_of(error)}"
        return cls(what, where, "the traceback above", expected=expected, fix="correct what the traceback shows")

    @classmethod
    def not_returned(cls, call: str, thing: str, where: Any, got: Any) -> Self:
        """A result of the user's code that is not the required thing."""
        return cls(f"{call} did not return {thing}.", where, got, expected=thing, fix=f"return {thing}")

    # Files, memory and processes

    @classmethod
    def not_written(cls, thing: str, where: Any, error: object) -> Self:
        """A file or folder that cannot be written."""
        return cls(f"{thing} was not written.", where, str(error)).expected(
            "a file that can be written",
            "check that the folder is writable and that the disk has space, or choose another folder",
        )

    @classmethod
    def damaged(cls, where: Any, got: Any, expected: Any, what: str = "The file is damaged.") -> Self:
        """A saved file whose content is not what rollax writes."""
        return cls(what, where, got, expected=expected, fix="use another copy, or an older checkpoint")

    @classmethod
    def untrusted(cls, what: str, where: Any, got: Any, expected: str, fix: str) -> Self:
        """Something in an untrusted file that would run code, or read or contact something outside of the file."""
        return cls(f"{what} without trust in the file.", where, got).expected(
            f"{expected}, or trust_code=True",
            f"{fix}; or trust_code=True (--trust-code) if you trust where the file comes from",
        )

    @classmethod
    def too_large(cls, what: str, where: Any, got: str, memory: str) -> Self:
        """Something that does not fit into the memory of this machine; `memory` is a text such as `8.0 GiB`."""
        expected = f"less than {memory}, the memory of this machine for all processes"
        return cls(
            f"{what} more memory than this machine has.", where, got, expected=expected, fix="use a machine with more"
        )
