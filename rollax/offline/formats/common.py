"""The common part of formats: reading with limits, skipped parts, spaces as settings, and columns from values."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, AnyStr, Literal, TypeVar

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Dict

from rollax.batch import DEFAULT_POLICY
from rollax.core import spaces
from rollax.core.memory import gib
from rollax.core.numbers import is_number, is_whole, numeric_array
from rollax.core.space_json import space_from_json
from rollax.core.spaces import same_space, space_text
from rollax.core.trees import Tree
from rollax.env.registry import id_without_module
from rollax.errors import ConfigError, DatasetError, RollaxError, SpaceError, page
from rollax.offline.dataset import DatasetReader, RecordedTrajectory

log = logging.getLogger("rollax.offline")

ANOTHER_FILE = "use another copy, or skip broken parts with max_broken"
"""The fix in the error of a part that cannot be read."""
MAX_DECODED_GB = 4.0
"""Default of `max_decoded_gb`: the maximum GiB of a decoded row group, episode, array or file."""
LONGEST_LINE = 1 << 30
"""The maximum length of a line in a text file."""
Ids = tuple[str, Hashable, str]
"""Episode, agent, policy."""
GivenSpace = Space | Mapping[str, Any] | None
"""A space, its JSON, or a mapping from policy id to one of these."""
Opened = TypeVar("Opened")


class FormatReader(DatasetReader):
    """A reader of files, parts of which may be broken; a subclass implements `_read`.

    Args:
        paths: the files.
        observation_space: the space of one agent's observations, or its JSON; for data of several policies, or of a
            policy that is not "default_policy", a mapping policy id -> space; None: unknown.
        action_space: the action space of the environment, in the same forms.
        env: id of a Gymnasium environment, whose spaces are used for a space that is None.
        actions_of: "policy" or "environment", the scale of `actions`, see `DatasetReader`; None: the format's default.
        max_broken: maximum number of broken lines or files that are skipped; one more raises DatasetError.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        observation_space: GivenSpace = None,
        action_space: GivenSpace = None,
        env: str | None = None,
        actions_of: Literal["policy", "environment"] | None = None,
        max_broken: int = 0,
    ) -> None:
        if actions_of not in (None, "policy", "environment"):
            raise ConfigError.unknown("scale of actions", actions_of, ("policy", "environment"), "actions_of")
        check_setting("max_broken", max_broken, is_whole(max_broken) and max_broken >= 0, "a whole number, 0 or more")
        self.paths = list(paths)
        self.actions_of = actions_of or type(self).actions_of
        self.broken: list[str] = []
        self._max_broken = max_broken
        self._unopened = 0  # number of messages in `broken` from opening the files
        self._warned = False
        self.left_out = 0  # number of trajectories whose only step is left out
        self.header: Mapping[str, Any] = {} if env is None else {"env": env}
        self.observation_spaces: dict[str, Space] = _by_policy(observation_space, "observation_space", env)
        self.action_spaces: dict[str, Space] = _by_policy(action_space, "action_space", env)

    def trajectories(self) -> Iterator[RecordedTrajectory]:
        """As `DatasetReader.trajectories`; the first call logs how many last steps are left out."""
        del self.broken[self._unopened :]
        self.left_out = 0
        rewards: list[float] = []
        for trajectory in self._read():
            if trajectory.shortened:
                rewards.append(trajectory.reward_left_out or 0.0)
            yield trajectory
        if self._warned:
            return
        self._warned = bool(rewards or self.left_out)
        if self.left_out:
            log.warning(
                "%d trajectories of one step are left out, because neither a termination nor the observation after the "
                "step is known. If each step is an episode, mark it as terminated: in CSV by "
                "ends='terminated' or a column terminated.",
                self.left_out,
            )
        if rewards:
            log.warning(
                "%d truncated trajectories are read without their last step, because the observation after it is not "
                "known. Their rewards, %g on average, count in returns, but not in estimates and learning.",
                *(len(rewards), sum(rewards) / len(rewards)),
            )

    @abstractmethod
    def _read(self) -> Iterator[RecordedTrajectory]:
        """All trajectories once; errors of broken parts are passed to `skip`."""

    def skip(self, error: DatasetError) -> None:
        """Records a broken line or file in `broken`; raises the error if there are more than `max_broken`."""
        if not self._max_broken:
            raise error
        if len(self.broken) >= self._max_broken:
            what = f"More than max_broken={self._max_broken} broken lines or files. The last one: {error}"
            raise DatasetError(what, fix="correct or remove them, or raise max_broken") from error
        self.broken.append(str(error))
        log.warning("A part of the data is skipped: %s", error)

    def _open_all(self, opened: Callable[[Path], Opened]) -> list[Opened]:
        """The opened files, without broken ones; DatasetError if none can be read."""
        found = []
        for path in self.paths:
            try:
                found.append(opened(path))
            except DatasetError as error:
                self.skip(error)
        self._unopened = len(self.broken)
        if not found:
            raise DatasetError("None of the files can be read.", ", ".join(map(str, self.paths)), self.broken)
        return found

    def spaces_of(self, policy_id: str, where: str) -> tuple[Space | None, Space | None]:
        """The observation and action space of a policy; None if no policy has one.

        Raises:
            ConfigError: only other policies have one.
        """
        known = {"observation_space": self.observation_spaces, "action_space": self.action_spaces}
        for name, by_policy in known.items():
            if by_policy and policy_id not in by_policy:
                got = f"{name} of {', '.join(map(repr, by_policy))}"
                raise ConfigError("A policy has no space.", f"{where}, policy {policy_id!r}", got).expected(
                    "a space for each policy of the data", f"pass the setting {name} as {{policy id: space}}"
                )
        return self.observation_spaces.get(policy_id), self.action_spaces.get(policy_id)

    def _take_space(self, policy_id: str, space: Space, kind: str, where: Any) -> None:
        """Adds the space of a policy from a file; DatasetError if an earlier file has another space."""
        known: Space = getattr(self, f"{kind}s").setdefault(policy_id, space)
        if not same_space(known, space):
            what = f"The files have different {kind.replace('_', ' ')}s."
            raise DatasetError(what, f"{where}, policy {policy_id!r}", space_text(space)).expected(
                f"{space_text(known)}, as in the first file", "read data of one environment at a time"
            )


# Limits and damage


def lines_of(file: IO[AnyStr], where: str | Path) -> Iterator[AnyStr]:
    """The lines of an open file; DatasetError if a line is too long, as in a file without line breaks."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise DatasetError("A line is too long.", where, f"more than {gib(LONGEST_LINE)}").expected(
                "a line of text for each episode, batch or step", f"divide it; {ANOTHER_FILE}"
            )
        yield line


def check_decoded(size: float, max_gb: float, where: str | Path) -> None:
    """Raises DatasetError if `size` bytes exceed the limit of a part of a file."""
    if size > max_gb * 2**30:
        raise DatasetError("The decoded data needs too much memory.", where, f"at least {gib(int(size))}").expected(
            f"at most {gib(int(max_gb * 2**30))}, the setting max_decoded_gb",
            "if you trust the source of the file, raise the setting max_decoded_gb",
        )


@contextmanager
def decoding(expected: str, where: Any, what: str = "The data is damaged, or cannot be read.") -> Iterator[None]:
    """Turns the errors of a block that decodes a part of a file into DatasetError."""
    try:
        yield
    except RollaxError:
        raise
    except Exception as error:  # of many types, from the libraries that decode
        raise DatasetError.damaged(where, f"{type(error).__name__}: {error}", expected, what).fix(
            ANOTHER_FILE
        ) from error


# Settings


def check_setting(name: str, value: Any, fits: bool, expected: str) -> None:
    """Raises ConfigError for a wrong setting of a format."""
    if not fits:
        raise ConfigError("The setting has the wrong type or value.", f"setting {name!r}", value, expected=expected)


def checked_max_gb(max_decoded_gb: Any) -> float:
    """A limit in GiB; ConfigError if it is invalid."""
    fits = is_number(max_decoded_gb) and max_decoded_gb > 0
    check_setting("max_decoded_gb", max_decoded_gb, fits, "a number of GiB above 0")
    return max_decoded_gb


def _by_policy(given: Any, name: str, env: str | None) -> dict[str, Space]:
    if isinstance(given, Mapping) and not isinstance(given, Space):
        parts = given.values()
        if given and all(isinstance(part, Space | Mapping) for part in parts):  # in a space's JSON, `type` is a string
            return {policy_id: _space(part, f"{name} of {policy_id!r}", None) for policy_id, part in given.items()}
    space = _space(given, name, env)
    return {} if space is None else {DEFAULT_POLICY: space}


def _space(given: Any, name: str, env: str | None) -> Any:
    if isinstance(given, Mapping) and not isinstance(given, Space):
        try:
            return space_from_json(given, name)
        except SpaceError as error:
            got = error.parts["got"]
            raise ConfigError("The setting does not describe a space.", f"setting {name!r}", got).expected(
                'such as {"type": "Box", "low": -1, "high": 1, "shape": [3]} or {"type": "Discrete", "n": 2}',
                f"see {page('offline', 'formats')} for the JSON of spaces",
            ) from error
    if given is None and env is not None:
        import gymnasium

        try:
            made = gymnasium.make(id_without_module(env, "setting 'env'"))
        except gymnasium.error.Error as error:
            raise ConfigError("Unknown environment.", "setting 'env'", f"{env} ({error})").expected(
                "a Gymnasium id", "register it, or pass observation_space and action_space"
            ) from error
        try:
            return getattr(made, name)
        finally:
            made.close()
    if not isinstance(given, Space | None):
        raise ConfigError.is_not("The setting", "a space, its JSON, or {policy id: space}", name, given)
    return given


def check_spaces_known(reader: DatasetReader, where: Any) -> None:
    """Raises DatasetError if a policy has no space, for formats that store spaces."""
    observed, acted = reader.observation_spaces.keys(), reader.action_spaces.keys()
    if not observed or observed != acted:
        got = f"observation spaces of the policies {sorted(observed)}, action spaces of {sorted(acted)}"
        raise DatasetError("The spaces of the data are not known.", where, got).expected(
            "both spaces of each policy",
            'pass them as settings: {"env": "CartPole-v1"}, or observation_space and action_space, each a space or '
            "{policy id: space}",
        )


def warn_of_logp(path: Path, count: int) -> None:
    """Warns that the log-probabilities of `count` trajectories were left out of a file, if there are any."""
    if count:
        log.warning(
            "%s: the log-probabilities of %d trajectories are left out: the format cannot store them, or they do "
            "not belong to the actions that the environment received. Importance sampling reads them; rollax's own "
            "format keeps them.",
            *(path, count),
        )


# Columns


def columns_of(space: Space | None, values: Any, name: str, where: str) -> Tree:
    """Columns from a list of values; without a space, floats become float32 and integers int64.

    Keys of a Dict space may be strings in the values, as in JSON.

    Raises:
        DatasetError: values that are not an array of numbers, or not in the space.
    """
    if isinstance(values, Mapping):  # one column per key
        parts: dict[Any, Space] = {**space.spaces} if isinstance(space, Dict) else {}
        keys: dict[Any, Any] = {str(key): key for key in parts}
        return {
            keys.get(key, key): columns_of(parts.get(keys.get(key, key)), part, f"{name}[{key!r}]", where)
            for key, part in values.items()
        }
    if space is None:
        with decoding("numbers, in rows of equal shape", f"{where}, {name}"):
            return _plain_columns(values)
    with decoding(str(space), f"{where}, {name}", "The values do not belong to the space."):
        column = spaces.walk(
            lambda leaf, _, parts: spaces.in_dtype(leaf, numeric_array(parts)), space, values, part=_part_of_each
        )
        for path, leaf in spaces.leaves(space):
            shape, expected = spaces.at(column, path).shape, (len(values), *(leaf.shape or ()))
            if shape != expected:
                raise ValueError(f"an array of shape {shape}, for {len(values)} values of {leaf}")
        return column


def one_per_step(values: Any, name: str, where: str, dtype: Any = np.float64) -> np.ndarray:
    """[T] numbers or flags from [T] or [T, 1]; DatasetError for another shape."""
    try:
        array = numeric_array(values)
        if array.dtype.kind in "US" or (array.ndim != 1 and array.shape[1:] != (1,)):
            raise TypeError(f"{array.dtype} of shape {array.shape}")
    except TypeError as error:
        raise DatasetError("The values are not one number for each step.", f"{where}, {name}", str(error)).expected(
            "numbers of shape [T] or [T, 1]", "choose one of the values, or add them up, before the data is read"
        ) from None
    return array.astype(dtype).reshape(-1)


def _part_of_each(values: list[Any], key: Any) -> list[Any]:
    return [value[str(key) if isinstance(value, Mapping) and key not in value else key] for value in values]


def _plain_columns(values: Any) -> Tree:
    if len(values) and isinstance(values[0], Mapping):
        return {key: _plain_columns([value[key] for value in values]) for key in values[0]}
    array = numeric_array(values)
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    if array.dtype.kind not in "biu":
        raise ValueError(f"values of type {array.dtype}")
    return array
