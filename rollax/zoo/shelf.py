"""The entries that are installed with rollax; `load` finds one by environment and algorithm."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rollax.errors import ConfigError, nearest
from rollax.zoo.entry import INSTALLED, SUFFIXES, Entry, read_entry


def entries() -> tuple[Entry, ...]:
    """Returns all entries, sorted by environment and algorithm."""
    return _entries_in(INSTALLED)


@cache
def _entries_in(folder: Path) -> tuple[Entry, ...]:
    found = map(read_entry, folder.glob("*.yaml"))
    return tuple(sorted(found, key=lambda entry: (entry.env, entry.algorithm)))


def load(env: str | Path, algorithm: str | None = None, *, trust_code: bool = False) -> Entry:
    """Returns the entry for an environment and an algorithm, or the entry in a file of your own.

    Args:
        env: id of the environment, or the path of a YAML file. Capital letters of an id do not matter.
        algorithm: name of the algorithm; may be left out if the environment has one entry.
        trust_code: whether a trainer may import code that a file of your own names.
    Raises:
        ConfigError: there is no such entry, there are several, or the file is not valid.
    """
    if str(env).endswith(SUFFIXES):
        return read_entry(env, trust_code=trust_code)
    name = str(env).casefold()
    of_env = [entry for entry in entries() if entry.env.casefold() == name]
    if not of_env:
        known = sorted({entry.env for entry in entries()})
        raise ConfigError("The zoo has no entry for the environment.", "rollax zoo", env).expected(
            "an environment that `rollax zoo list` shows, or a YAML file", nearest(str(env), known)
        )
    names = [entry.algorithm for entry in of_env]
    if algorithm is None:
        if len(of_env) > 1:
            raise ConfigError.missing("algorithm", "rollax zoo --algo", f"one of {', '.join(names)}").fix(
                f"as in --algo {names[0]}"
            )
        return of_env[0]
    found = [entry for entry in of_env if entry.algorithm.casefold() == algorithm.casefold()]
    if not found:
        raise ConfigError.unknown(f"algorithm for {of_env[0].env}", algorithm, names, "rollax zoo --algo")
    return found[0]
