"""Completions for shells: names of algorithms and environments, config keys, run folders and checkpoints.

Each function takes the word as typed so far, and runs at each press of the Tab key, in a process of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollax.cli.config_sources import Section, algorithm_names, config_section

_MOST_FOLDERS = 200
_SETTING = re.compile(r"(\s--set[ =])([\w.]+=)(\S*)$")
_WORDS, _LINE = "COMP_WORDS", "_TYPER_COMPLETE_ARGS"
"""Environment variables with the words, or the line, that bash and zsh are completing; Typer's scripts set them."""


def prepare(environment: MutableMapping[str, str]) -> None:
    """Makes `--run=PP` complete like `--run PP`, and `--set lr=1` like `--set lr= --set 1`, if bash or zsh asks.

    bash splits these words at `=`. zsh replaces the whole word, unless `compset` separates the value.
    """
    shell = environment.get("_ROLLAX_COMPLETE")
    if shell == "complete_bash":
        separator = "\n" if "\n" in environment[_WORDS] else " "
        words = _joined(environment[_WORDS].split(separator)[: int(environment["COMP_CWORD"]) + 1])
        environment.update({_WORDS: separator.join(words), "COMP_CWORD": str(len(words) - 1)})
    elif shell == "complete_zsh":
        line = environment.get(_LINE, "")
        if _SETTING.search(line):
            print("compset -P '*=';")
            environment[_LINE] = _SETTING.sub(r"\1\2 --set \3", line)
        elif re.search(r"\s--[\w-]+=\S*$", line):
            print("compset -P '--*=';")


def _joined(parts: list[str]) -> list[str]:
    """Joins words that bash split at `=`: `--run = PP` to `--run PP`, and `--set lr = 1` to `--set lr= --set 1`."""
    words: list[str] = []
    inside = False
    for part in parts:
        if part == "=" and words:
            inside = True
            if words[-1].startswith("--"):
                words.append("")
            else:
                words[-1] += "="
        elif inside:
            words[-1] += part
            inside = False
        else:
            words.append(part)
    if words[-2:-1] == ["--set"] and "=" in words[-1]:
        key, _, value = words.pop().partition("=")
        words += [f"{key}=", "--set", value]
    return words


def complete_algorithm(incomplete: str) -> list[str]:
    """The algorithms whose names begin with `incomplete`."""
    return [name for name in algorithm_names() if name.startswith(incomplete)]


def complete_key(incomplete: str) -> list[str]:
    """The config keys and the names of other libraries that begin with `incomplete`."""
    from rollax.config.synonyms import ADVICE, SYNONYMS, counterparts

    keys = set(config_section().all_keys())
    keys |= {key for name in SYNONYMS for found, _ in counterparts(name) for key in found.keys}  # such as model.x
    return sorted(key for key in {*keys, *SYNONYMS, *ADVICE} if key.startswith(incomplete))


def complete_setting(ctx: Any, incomplete: str) -> list[str]:
    """Returns completions of `--set KEY=VALUE`: the config keys that begin with `incomplete`, or values of a key.

    Values are the choices of the key, or its default. A key that has values is never the only result, so that a shell
    adds no space after the key.

    Args:
        ctx: the command, with the settings so far as the parameter `settings`. If the last setting is `KEY=`,
            `incomplete` is the beginning of its value.
    """
    values = dict(_settings(config_section()))
    earlier = (ctx.params.get("settings") or [""])[-1]
    if earlier.endswith("="):
        return [value for value in values.get(earlier[:-1], ()) if value.startswith(incomplete)]
    key, equals, begun = incomplete.partition("=")
    keys = [key] if equals else [name for name in values if name.startswith(key)]
    if len(keys) > 1:
        return [f"{name}=" for name in keys]
    shown = [value for name in keys for value in values.get(name, ()) if value.startswith(begun)]
    alone = [f"{keys[0]}="] if keys and not equals and len(shown) < 2 else []
    return alone + [f"{keys[0]}={value}" for value in shown]


def _settings(section: Section, prefix: str = "") -> list[tuple[str, list[str]]]:
    """Returns the keys of a section with their values; keys of a part are written as `part.key`."""
    found = []
    for key, values in sorted(section.values.items()):
        part = section.parts.get(key)
        found += [(f"{prefix}{key}", values)] if part is None else _settings(part, f"{prefix}{key}.")
    return found


def complete_env(incomplete: str) -> list[str]:
    """The ids in Gymnasium's registry that begin with `incomplete`; ids of Atari only if it begins with A."""
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

    If only one folder matches, and it is neither a run folder nor a checkpoint, the folders inside it are returned, so
    that a shell adds no space after a folder that contains runs.
    """
    folders = _folders(incomplete)
    while len(folders) == 1 and not _is_run(folders[0]):
        inside = _folders(f"{folders[0]}/")
        if not inside:
            break
        folders = inside
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
