"""What `rollax explain` prints about a config key, or about the name of a setting in another library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rollax.config.field_group import condition_text, rules_of
from rollax.config.names_of_libraries import OF_LIBRARY
from rollax.config.synonyms import ADVICE, SYNONYMS, counterpart, counterparts
from rollax.config.trainer import TrainerConfig
from rollax.config.validation_errors import belonging, keys_with_parts, nested_models, range_text, similar_keys
from rollax.core.frozen import fields_by_key, union_members
from rollax.errors import ConfigError, corrected, nearest, page, without_links
from rollax.tune.distributions import Space
from rollax.tune.space import SEARCHED_BY_DEFAULT, default_space

_MOST_NAMED = 8

Configs = Mapping[str, type[TrainerConfig]]
"""Name of an algorithm -> its config class."""


def explanation(key: str, configs: Configs) -> list[str]:
    """Returns the lines about a key in these algorithms, or about the keys that another library's name stands for.

    Raises:
        ConfigError: the algorithms have neither the key nor a counterpart of it.
    """
    fields = {algorithm: found for algorithm, config in configs.items() if (found := _field_of(config, key))}
    lines = _of_key(fields, configs) if fields else []
    if _canonical(key) in SYNONYMS or _canonical(key) in ADVICE:
        others = {algorithm: config for algorithm, config in configs.items() if algorithm not in fields}
        lines += _of_other_name(_canonical(key), others)
    if lines:
        return lines
    (name, config), *more = configs.items()
    where = "rollax explain" if more else f"rollax explain --algo={name}"
    if _canonical(key) in SYNONYMS:
        what, fix = "The key has no counterpart here.", belonging(config, _canonical(key))
    else:
        keys = sorted({known for config in configs.values() for known in keys_with_parts(config)})
        short = (known.rpartition(".")[2] for known in keys)
        what, fix = "Unknown config key.", _similar(_canonical(key), list(dict.fromkeys((*keys, *short, *SYNONYMS))))
    raise ConfigError(what, where, key).fix(fix)


def _similar(key: str, known: list[str]) -> str:
    """Returns a hint: the name that `key` misspells, or else similar names."""
    if corrected(key, known) is not None:
        return nearest(key, known)
    similar = similar_keys(key, known)
    pages = f"{page('algorithms')} explains the keys"
    return f"similar names: {', '.join(similar)}; {pages}" if similar else pages


class _Field:
    """A key of one config: `key` as a user writes it, the field, and the conditions under which it has an effect."""

    def __init__(self, config: type[TrainerConfig], key: str, field: FieldInfo) -> None:
        self.key, self.field = key, field
        self.rules = [rule for name, rule in rules_of(config) if name in (key, _field_name(config, key))]

    @property
    def why_never(self) -> str | None:
        """The reason why the algorithm refuses the key; None if it has no such rule."""
        return next((rule for rule in self.rules if isinstance(rule, str)), None)


def _canonical(key: str) -> str:
    return key.strip().removeprefix("--").replace("-", "_")


def _field_name(config: type[BaseModel], key: str) -> str:
    return fields_by_key(config).get(key, key)


def _field_of(config: type[TrainerConfig], key: str) -> _Field | None:
    """Returns the field of a key; the name of its section, such as `model` of `fcnet_hiddens`, may be left out."""
    key = _canonical(key)
    for known, name in fields_by_key(config).items():
        if key in (known, name):
            return _Field(config, known, config.model_fields[name])
    for part, outer in config.model_fields.items():
        inside = nested_models(outer.annotation)[0]
        for known, name in ({} if inside is None else fields_by_key(inside)).items():
            if inside is not None and key in (known, f"{part}.{known}"):
                return _Field(config, f"{part}.{known}", inside.model_fields[name])
    return None


def _of_key(fields: Mapping[str, _Field], configs: Configs) -> list[str]:
    used = {algorithm: found for algorithm, found in fields.items() if found.why_never is None}
    shown = used or fields
    key = next(iter(shown.values())).key
    lines = []
    for meaning, algorithms in _grouped({name: _meaning(found.field) for name, found in shown.items()}):
        lines.append(f"{key}{_in(algorithms, shown)}: {meaning}")
    for default, algorithms in _grouped({name: _default_text(found.field) for name, found in shown.items()}):
        lines.append(f"  default    {default}{_in(algorithms, shown)}")
    for values, _ in _grouped({name: _values(found.field, key) for name, found in shown.items()}):
        lines.append(f"  values     {values}")
    conditions = {name: _conditions(configs[name], found) for name, found in used.items()}
    for condition, algorithms in _grouped(conditions):
        if condition:
            lines.append(f"  only with  {condition}{_in(algorithms, shown)}")
    if len(configs) > 1:
        lines.append(f"  in         {'all algorithms' if len(used) == len(configs) else ', '.join(used) or 'none'}")
    for why, algorithms in _grouped({name: found.why_never or "" for name, found in fields.items()}):
        if why:
            lines.append(f"  not in     {', '.join(algorithms)}: {why}")
    spaces = {name: _searched(configs[name]) for name in used if key in SEARCHED_BY_DEFAULT}
    searched = {name: str(space[key].in_words()) for name, space in spaces.items() if key in space}
    for distribution, algorithms in _grouped(searched):
        lines.append(f"  searched   {distribution} by `rollax tune`{_in(algorithms, shown)}")
    lines += [f"  elsewhere  {names}" for names in _names_elsewhere(key)]
    return lines


def _of_other_name(name: str, configs: Configs) -> list[str]:
    """Returns lines that say what a name of other libraries is called in each algorithm."""
    libraries = [library for library, names in OF_LIBRARY.items() if name in names]
    ours: dict[str, str] = {}
    for algorithm, config in configs.items():
        found = counterpart(name, keys_with_parts(config))
        field = None if found is None else _field_of(config, found.keys[0])
        if found is not None and (field is None or field.why_never is None):
            text = " and ".join(found.keys)
            about = found.note or (_meaning(field.field) if field and len(found.keys) == 1 else None)
            ours[algorithm] = f"{text}: {about}" if about else text
    lines = [f"  {text}{_in(algorithms, configs)}" for text, algorithms in _grouped(ours)]
    rest = [algorithm for algorithm in configs if algorithm not in ours]
    if rest and name in ADVICE:
        lines.append(f"  {ADVICE[name]}{_in(rest, configs)}")
    return [f"{name} ({', '.join(libraries) or 'other libraries'}) is in rollax:", *lines] if lines else []


@cache
def _searched(config_class: type[TrainerConfig]) -> Space:
    return default_space(config_class, {})


def _names_elsewhere(key: str) -> Iterator[str]:
    """Yields the names of a key in other libraries: a text for each library of `OF_LIBRARY`, and one for the rest."""
    names = [name for name in SYNONYMS if any(found.keys == (key,) for found, _ in counterparts(name)) and name != key]
    for library, of_library in OF_LIBRARY.items():
        if own := [name for name in names if name in of_library]:
            yield f"{', '.join(own)} ({library})"
    known = frozenset().union(*OF_LIBRARY.values())
    if others := [name for name in names if name not in known]:
        yield f"{', '.join(others)} (others)"


def _grouped(texts: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Returns each text with its algorithms, the most frequent first."""
    groups: dict[str, list[str]] = {}
    for algorithm, text in texts.items():
        groups.setdefault(text, []).append(algorithm)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def _in(algorithms: list[str], of: Iterable[str]) -> str:
    """Returns the algorithms in brackets; "" if these are all algorithms of `of`."""
    if len(algorithms) == len(list(of)):
        return ""
    more = len(algorithms) - _MOST_NAMED
    return f" ({', '.join(algorithms[:_MOST_NAMED])}{f' and {more} more' if more > 0 else ''})"


def _meaning(field: FieldInfo) -> str:
    return without_links(field.description or "")


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "none: the key is required"
    default: Any = field.default
    return repr(default.model_dump(exclude_unset=True) if isinstance(default, BaseModel) else default)


def _values(field: FieldInfo, key: str) -> str:
    """Returns the range of a number, the choices, or the type."""
    bounds = range_text(field, key)
    if bounds and type(None) in union_members(field.annotation):
        return f"{bounds}, or None"
    return bounds or _type_text(field.annotation)


def _type_text(annotation: Any) -> str:
    members = union_members(annotation)
    return " or ".join(dict.fromkeys(_one_type(member) for member in members))


def _one_type(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if kind is type(None):
        return "None"
    kind = get_origin(kind) or kind
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "a dict of keys"
    name = getattr(kind, "__name__", "any value")
    return {"tuple": "a list", "dict": "a dict", "Any": "any value", "str": "a string", "bool": "True or False"}.get(
        name, {"int": "a whole number", "float": "a number", "type": "a class", "list": "a list"}.get(name, name)
    )


def _conditions(config_class: type[TrainerConfig], found: _Field) -> str:
    """Returns under which conditions a key has an effect; empty for always."""
    config = config_class()
    texts = []
    for rule in found.rules:
        if isinstance(rule, str):
            continue
        alternatives = [rule] if isinstance(rule, Mapping) else rule
        texts.append(
            " or ".join(
                # `condition_text` is written for errors, "set x to a number"; here it becomes "x: a number".
                " and ".join(
                    condition_text(config, name, values).replace(" to ", ": ") for name, values in condition.items()
                )
                for condition in alternatives
            )
        )
    return "; ".join(texts)
