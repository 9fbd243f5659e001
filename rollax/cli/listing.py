"""`rollax list`."""

from __future__ import annotations

import ast
import collections
import contextlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rollax.errors import ConfigError


def algorithm_lines() -> list[str]:
    """Returns a line for each algorithm: its name and the first line of its trainer's docstring."""
    from rollax.algorithms.registry import ALGORITHMS

    width = max(map(len, ALGORITHMS))
    return [f"{name:<{width}}  {_first_line(path)}" for name, path in sorted(ALGORITHMS.items())]


def env_ids() -> dict[str, list[str]]:
    """Returns source -> environment ids: those of the user first, then Gymnasium's by family."""
    import gymnasium

    from rollax.env.multi_agent.pettingzoo_names import pettingzoo_ids
    from rollax.env.registry import import_atari_if_named, registered_envs

    with contextlib.suppress(ConfigError):
        import_atari_if_named("ALE/")
    families: dict[str, list[str]] = collections.defaultdict(list)
    if registered := registered_envs():
        families["registered"] = list(registered)
    for spec in gymnasium.registry.values():
        families[spec.namespace or _family(spec.entry_point)].append(spec.id)
    with contextlib.suppress(ConfigError):
        families["pettingzoo"] = pettingzoo_ids()
    return {family: sorted(ids) for family, ids in families.items()}


def count_lines(families: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns a line for each family: the number of environments and the first few."""
    width = max(map(len, families))
    return [f"{family:<{width}}  {len(ids):>4}  {_few(ids)}" for family, ids in families.items()]


def matching(families: Mapping[str, Sequence[str]], text: str) -> list[str]:
    """Returns all ids that contain `text`, ignoring case."""
    return [name for ids in families.values() for name in ids if text.casefold() in name.casefold()]


def _few(ids: Iterable[str], count: int = 3) -> str:
    ids = list(ids)
    return ", ".join(ids[:count]) + (", …" if len(ids) > count else "")


def _family(entry_point: object) -> str:
    # "gymnasium.envs.classic_control.cartpole:CartPoleEnv" -> "classic_control"; others by their package.
    parts = entry_point.partition(":")[0].split(".") if isinstance(entry_point, str) else ["other"]
    return parts[2] if parts[:2] == ["gymnasium", "envs"] and len(parts) > 2 else parts[0]


def _first_line(path: str) -> str:
    # Read, not imported, because importing an algorithm imports JAX, which takes seconds.
    module, _, name = path.partition(":")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    found = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == name)
    return (ast.get_docstring(found) or "").partition("\n")[0]
