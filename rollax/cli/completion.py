"""Completions for shells: names of algorithms and environments, run folders and checkpoints.

Each function takes the word as typed so far. It runs at each press of the Tab key, in a process of its own.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path

_MOST_FOLDERS = 200
_WITH_CONFIGS = ("algorithms/*.py", "config/*.py", "models/config.py", "offline/*.py", "search/*.py")
_WORDS, _LINE = "COMP_WORDS", "_TYPER_COMPLETE_ARGS"
"""Environment variables with the words, or the line, that bash and zsh are completing; Typer's scripts set them."""


def prepare(environment: MutableMapping[str, str]) -> None:
    """Makes `--run=PP` complete like `--run PP`, if a shell asks for completions.

    bash splits this word into three. zsh replaces the whole word, unless `compset` separates the value from the option.
    """
    shell = environment.get("_ROLLAX_COMPLETE")
    if shell == "complete_bash":
        _join_options(environment)
    elif shell == "complete_zsh" and re.search(r"\s--[\w-]+=\S*$", environment.get(_LINE, "")):
        print("compset -P '--*=';")


def _join_options(environment: MutableMapping[str, str]) -> None:
    separator = "\n" if "\n" in environment[_WORDS] else " "
    words, number = environment[_WORDS].split(separator), int(environment["COMP_CWORD"])
    for i in range(min(number, len(words)) - 1, 0, -1):
        if words[i] == "=":
            del words[i]
            number -= 1
    environment.update({_WORDS: separator.join(words), "COMP_CWORD": str(number)})


def complete_algorithm(incomplete: str) -> list[str]:
    """The algorithms whose names begin with `incomplete`."""
    from rollax.algorithms.registry import ALGORITHMS

    return [name for name in ALGORITHMS if name.startswith(incomplete)]


def complete_key(incomplete: str) -> list[str]:
    """The config keys and the names of other libraries that begin with `incomplete`.

    The keys are read from the sources, because importing all algorithms imports JAX, which takes seconds.
    """
    import rollax
    from rollax.config.synonyms import ADVICE, SYNONYMS, counterparts

    package = Path(rollax.__file__).parent
    sources = (file.read_text(encoding="utf-8") for folder in _WITH_CONFIGS for file in package.glob(folder))
    keys = {key for source in sources if "Field(" in source for key in _fields_in(source)}
    keys |= {key for name in SYNONYMS for found, _ in counterparts(name) for key in found.keys}  # lambda, and parts
    return sorted(key for key in {*keys, *SYNONYMS, *ADVICE} if key.startswith(incomplete))


def _fields_in(source: str) -> Iterator[str]:
    """Yields the keys of the fields `name: type = Field(...)` in a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            function = getattr(node.value, "func", None)
            if isinstance(function, ast.Name) and function.id == "Field":
                yield node.target.id


def complete_env(incomplete: str) -> list[str]:
    """The ids in Gymnasium's registry, also of Atari, that begin with `incomplete`; no other package is imported."""
    import gymnasium

    from rollax.env.registry import import_atari_if_named
    from rollax.errors import ConfigError

    if incomplete.startswith("A"):
        with suppress(ConfigError):
            import_atari_if_named("ALE/")
    # Names with a colon, such as jax:CartPole-v1, are left out, because bash splits words at a colon.
    return sorted(name for name in gymnasium.registry if name.startswith(incomplete))


def complete_run(incomplete: str) -> list[str]:
    """The folders whose paths begin with `incomplete`; run folders and checkpoints come first.

    If there is only one such folder, and it is neither a run folder nor a checkpoint, the result is the folders in it,
    so that a shell adds no space after a folder that contains runs.
    """
    folders = [incomplete]
    while len(folders) == 1:
        begun = folders[0] if folders[0] == incomplete else f"{folders[0]}/"
        inside = _folders(begun)
        if not inside:
            return [] if begun == incomplete else folders
        folders = inside
        if len(folders) == 1 and _is_run(folders[0]):
            break
    return sorted(folders, key=lambda folder: not _is_run(folder))


def _folders(begun: str) -> list[str]:
    """Returns the folders whose paths begin with `begun`, sorted; hidden folders only if a dot is typed."""
    parent, slash, name = begun.rpartition("/")
    try:
        with os.scandir(os.path.expanduser(parent + slash) or ".") as entries:
            found = sorted(entry.name for entry in entries if entry.name.startswith(name) and entry.is_dir())
    except OSError:
        return []
    return [parent + slash + each for each in found if name or not each.startswith(".")][:_MOST_FOLDERS]


def _is_run(folder: str) -> bool:
    from rollax.core.storage import MANIFEST
    from rollax.runs.results import RESULTS_NAME

    path = Path(os.path.expanduser(folder))
    return any((path / file).exists() for file in (RESULTS_NAME, MANIFEST))
