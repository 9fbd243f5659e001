"""Turns pydantic's ValidationError into a ConfigError that names the key and its meaning."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from rollax.config.field_group import SCHEDULE
from rollax.config.hooks import FINDERS_OF_ALGORITHMS
from rollax.config.synonyms import ADVICE, counterpart, counterparts
from rollax.core.frozen import fields_by_key, union_members
from rollax.errors import ConfigError, corrected, nearest, page, repr_of

_MOST_OWNERS = 8
_MOST_SIMILAR = 6
_MOST_LISTED = 30
_MOST_MISTAKES = 1000  # a stored list may have millions of wrong entries
_MOST_NAMED = 20


def config_error(config_class: type[BaseModel], error: ValidationError) -> ConfigError:
    """An error that explains the first mistake and lists the keys of the others, with what replaces unknown keys."""
    mistakes: dict[str, list[_Mistake]] = {}
    for details in error.errors()[:_MOST_MISTAKES]:
        mistake = _located(config_class, details)
        mistakes.setdefault(mistake.key, []).append(mistake)
    # An unknown key is often the cause of the other mistakes.
    keys = sorted(mistakes, key=lambda key: mistakes[key][0].field is not None)
    first = mistakes[keys[0]]
    others = [_with_counterpart(mistakes[key][0]) for key in keys[1 : 1 + _MOST_NAMED]]
    more = f" and {len(keys) - 1 - len(others)} more" if len(keys) - 1 > len(others) else ""
    also = f"; also wrong: {', '.join(others)}{more}" if others else ""
    where = f"config key '{keys[0]}' ({config_class.__name__})"
    if first[0].field is None:
        fix = _meant(config_class, first[0].owner, first[0].name) + also
        return ConfigError(f"Unknown config key '{first[0].name}'.", where=where, got=first[0].value, fix=fix)
    field, value = first[0].field, first[0].value
    scheduled = first[0].name + SCHEDULE
    if scheduled in first[0].owner.model_fields and (callable(value) or isinstance(value, list | tuple)):
        also = f"; a schedule is given as {scheduled}: [[timestep, value], ...]{also}"
    expected = " or ".join(dict.fromkeys(mistake.expected for mistake in first))
    if NoneType in union_members(field.annotation) and not keys[0].endswith("]"):
        expected += " or None"
    left_out = "" if field.is_required() else ", or leave it out"
    return ConfigError(
        "A config value has the wrong type or is out of range.", where, f"{repr_of(value)} ({type(value).__name__})"
    ).expected(
        expected, f"correct it{left_out}. {first[0].name}: {field.description or 'see its docs'}{_default(field)}{also}"
    )


class _Mistake(NamedTuple):
    key: str
    name: str
    field: FieldInfo | None  # None: there is no such field
    owner: type[BaseModel]
    value: Any
    expected: str


def _located(config_class: type[BaseModel], details: Any) -> _Mistake:
    """The mistake at pydantic's location, with its key; names of union members are left out."""
    owner, field, name, key = config_class, None, "", ""
    inside: type[BaseModel] | None = config_class
    entries: type[BaseModel] | None = None  # the values of a dict with arbitrary keys
    for part in details["loc"]:
        if inside is not None:
            owner = inside
            name, field = _field(owner, str(part))
            key = f"{key}.{name}" if key else name
            inside, entries = (None, None) if field is None else nested_models(field.annotation)
        elif entries is not None:
            key, inside, entries = f"{key}.{part}", entries, None
        elif isinstance(part, int):
            key = f"{key}[{part}]"
    message = details["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    expected = message.split(", unable to")[0].replace("valid tuple", "list")
    if field is not None and expected.startswith(("greater", "less")):
        expected = range_text(field, name) or expected
    return _Mistake(key, name, field, owner, details["input"], expected)


def _meant(config_class: type[BaseModel], owner: type[BaseModel], name: str) -> str:
    """A hint about an unknown key `name` of `owner`, which is the config or one of its parts."""
    for part, field in owner.model_fields.items():
        inside = nested_models(field.annotation)[0]
        if inside is not None and _field(inside, name)[1] is not None:
            return f"it is a key of '{part}': {{'{part}': {{'{name}': ...}}}}"
    if _field(config_class, name)[1] is not None:
        return "it is a key of the config itself, not of this part"
    ours = counterpart(name, keys_with_parts(owner), getattr(owner, "part", ""))
    if ours is None:
        if owner is config_class:
            return belonging(config_class, name)
        return ADVICE.get(name) or nearest(name, fields_by_key(owner))
    named = " and ".join(f"'{key}'" for key in ours.keys)
    field = _field(owner, ours.keys[0])[1] if len(ours.keys) == 1 else None
    about = ours.note or (field.description if field is not None else "")
    return f"in rollax it is {named}: {about}" if about else f"in rollax it is {named}"


def _with_counterpart(mistake: _Mistake) -> str:
    """The wrong key, and in brackets the keys that replace an unknown key."""
    ours = None
    if mistake.field is None:
        ours = counterpart(mistake.name, keys_with_parts(mistake.owner), getattr(mistake.owner, "part", ""))
    return mistake.key if ours is None else f"{mistake.key} (here {' and '.join(ours.keys)})"


def belonging(config_class: type[BaseModel], name: str) -> str:
    """A hint about an unknown key of a whole config: the algorithms that have the key, or similar keys.

    A key of another library counts as the keys that replace it here.
    """
    advice = ADVICE.get(name)
    for key in (name, *(key for found, _ in counterparts(name) for key in found.keys)):
        owners = {owner for names in FINDERS_OF_ALGORITHMS for owner in names(key)}
        if owners:
            few = sorted(owners, key=lambda owner: (len(owner), owner))[:_MOST_OWNERS]  # short names: best known
            others = f" and {len(owners) - len(few)} others" if len(owners) > len(few) else ""
            belongs = "it is" if key == name else f"{key!r} is"
            return f"{advice or 'leave it out'}; {belongs} a key of {', '.join(few)}{others}"
    known = sorted(fields_by_key(config_class))
    if advice or corrected(name, known) is not None or len(known) <= _MOST_LISTED:
        return advice or nearest(name, known)
    similar = similar_keys(name, known)
    listed = f"sorted({config_class.__name__}.model_fields) lists all keys, and {page('algorithms')} explains them"
    return f"similar keys: {', '.join(similar)}; {listed}" if similar else listed


def similar_keys(name: str, known: Iterable[str]) -> list[str]:
    """The keys of `known` that share a word with `name`, the most similar first; else keys with similar letters."""
    known, name = list(known), name.lower()
    words = set(name.split("_")) - {"num", "max", "min", "of"}
    sharing = [key for key in known if words & set(key.split("_"))]
    return get_close_matches(name, sharing, _MOST_SIMILAR, 0.0) or get_close_matches(name, known)


def keys_with_parts(owner: type[BaseModel]) -> set[str]:
    """The keys of a config, and the keys of its parts as `part.key`."""
    keys = set(fields_by_key(owner))
    for part, field in owner.model_fields.items():
        inside = nested_models(field.annotation)[0]
        keys |= {f"{part}.{name}" for name in (inside.model_fields if inside is not None else ())}
    return keys


def _field(model: type[BaseModel], written: str) -> tuple[str, FieldInfo | None]:
    for key, name in fields_by_key(model).items():
        if written in (key, name):
            return key, model.model_fields[name]
    return written, None


def nested_models(annotation: Any) -> tuple[type[BaseModel] | None, type[BaseModel] | None]:
    """The config class of a field, and the config class of the values if the field is a dict."""
    entries = get_args(annotation)[1] if get_origin(annotation) is dict else None
    found = [
        next((m for m in union_members(kind) if isinstance(m, type) and issubclass(m, BaseModel)), None)
        for kind in (annotation, entries)
    ]
    return found[0], found[1]


def range_text(field: FieldInfo, name: str) -> str:
    """The range of a field, such as "0 <= gamma <= 1"; empty for a field without bounds."""
    signs = {"gt": "<", "ge": "<=", "lt": "<", "le": "<="}
    bounds = {rule: getattr(limit, rule) for limit in field.metadata for rule in signs if hasattr(limit, rule)}
    low = [f"{bounds[rule]} {signs[rule]} " for rule in ("gt", "ge") if rule in bounds]
    high = [f" {signs[rule]} {bounds[rule]}" for rule in ("lt", "le") if rule in bounds]
    return "".join([*low, name, *high]) if bounds else ""


def _default(field: FieldInfo) -> str:
    return "" if field.is_required() or isinstance(field.default, BaseModel) else f" (default {field.default!r})"
