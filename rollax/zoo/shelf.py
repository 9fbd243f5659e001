"""The entries that are installed with rollax, by environment and algorithm."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rollax.errors import ConfigError, nearest
from rollax.zoo.entry import Entry, read_entry

FOLDER = Path(__file__).parent / "entries"


@cache
def entries(folder: Path = FOLDER) -> tuple[Entry, ...]:
    """Returns all entries, by environment and algorithm."""
    found = map(read_entry, folder.glob("*.yaml"))
    return tuple(sorted(found, key=lambda entry: (entry.env, entry.algorithm)))


def load(env: str, algorithm: str | None = None) -> Entry:
    """Returns the entry for an environment and an algorithm, which may be left out if there is one only.

    Capital letters do not matter.

    Raises:
        ConfigError: there is no such entry, or there are several.
    """
    of_env = [entry for entry in entries() if entry.env.casefold() == env.casefold()]
    if not of_env:
        names = sorted({entry.env for entry in entries()})
        raise ConfigError("The zoo has no entry for the environment.", "rollax zoo", env).expected(
            "an environment that `rollax zoo list` shows", nearest(env, names)
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
