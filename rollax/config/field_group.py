"""Declarations of a group of fields: defaults of inherited fields, and conditions under which keys have an effect."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from inspect import cleandoc, get_annotations
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from rollax.errors import ConfigError, nearest, without_links


class NotIn(tuple[Any, ...]):
    """All values except these."""

    def __new__(cls, *values: Any) -> NotIn:
        return super().__new__(cls, values)


ENABLED = NotIn(None, False, 0)
"""All values that switch something on."""


class Predicate(NamedTuple):
    """All values that a function accepts, and what they are called in errors."""

    accepts: Callable[[Any], bool]
    name: str


Condition = Mapping[str, Any]
"""Key -> what its value must be: this value, one of a tuple, none of a `NotIn`, or one that a `Predicate` accepts.
`model.x` is a key of the model's part."""

Requires = Mapping[str | tuple[str, ...], Condition | Sequence[Condition] | str]
"""Key, or keys, -> the condition under which they have an effect, or several conditions one of which must hold; a
string: why they never have an effect."""

Place = Literal["policy", "evaluation"]
"""Where a key may differ from the trainer's config: in the spec of a policy, or in `evaluation_config`."""

SCHEDULE = "_schedule"


class FieldGroup(BaseModel):
    """Fields of a config, and tables about them. A subclass inherits the tables, entry by entry."""

    model_config = ConfigDict(defer_build=True)  # groups are bases only

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Inherited field -> its default here."""
    requires: ClassVar[Requires] = {}
    """What a key needs to have an effect; each `x` also needs `x_schedule=None`. A key without effect is refused."""
    further_requires: ClassVar[Requires] = {}
    """Conditions in addition to `requires`, for keys of any config that the group is added to."""
    places: ClassVar[Mapping[str | tuple[str, ...], tuple[Place, ...]]] = {}
    """Key, or keys, -> the places where they have an effect; keys that are not listed have an effect in both."""
    initial_values: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Key of the initial value of a number that training changes -> keys. If the value of one of these keys changes at
    a restore, the number starts again from its initial value."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        fields = cls.__pydantic_fields__
        known = inherited(cls, "defaults")
        unknown = [name for name in known if name not in fields]
        if unknown and "env" in fields:  # groups may name fields of the configs that they are added to
            raise ConfigError(
                "A default is given for a field that does not exist.", f"{cls.__name__}.defaults", unknown[0]
            ).fix(nearest(unknown[0], fields))
        # pydantic takes an inherited field from the first base that has it. Here the first class in the method
        # resolution order that declares the field, or a default of it, decides.
        changed = {name: _inherited_field(cls, name) for name in fields}
        if any(
            (field.default, field.description) != (fields[name].default, fields[name].description)
            for name, field in changed.items()
        ):
            fields.update(changed)
        if "env" in fields:  # only whole configs, because most classes are groups
            cls.model_rebuild(force=True, raise_errors=False)  # so that mistakes raise where the class is defined
            described = {name: without_links(field.description or "") for name, field in fields.items()}
            keys = "\n".join(f"    {name}: {text}" for name, text in described.items() if text)
            cls.__doc__ = f"{cleandoc(cls.__doc__ or 'A config.')}\n\nKeys:\n{keys}"


def _inherited_field(config_class: type[FieldGroup], name: str) -> FieldInfo:
    defaults: list[Any] = []
    for base in config_class.__mro__:
        own = vars(base).get("defaults", {})
        defaults += [own[name]] if name in own else []
        if name in get_annotations(base) and issubclass(base, BaseModel):
            field = copy(base.__pydantic_fields__[name])
            field.default = [*defaults, field.default][0]
            return field
    raise AttributeError(name)


def refuse_without_effect(config: BaseModel, given: Collection[str], before: Mapping[str, Any]) -> None:
    """Refuses a `given` key without effect whose value differs from its value in `before`, or else from its default."""
    for key, conditions in rules_of(type(config)):
        field, _, inner = key.partition(".")
        if field not in given or field not in type(config).model_fields:
            continue
        value = _value(config, key)
        if inner:
            default = type(_value(config, field)).model_fields[inner].default
        else:
            default = before.get(field, type(config).model_fields[field].default)
        if value is None or value == default:
            continue
        if isinstance(conditions, str):
            raise _without_effect(config, key, conditions, None)
        alternatives = [conditions] if isinstance(conditions, Mapping) else conditions
        failing = [_failing(config, condition) for condition in alternatives]
        if all(failing):
            names = dict.fromkeys(name for condition in failing for name in condition)
            reason = " and ".join(f"{name} is {_value(config, name)!r}" for name in names)
            wanted = " or ".join(
                " and ".join(condition_text(config, name, values) for name, values in condition.items())
                for condition in failing
            )
            raise _without_effect(config, key, reason, wanted)


def refuse_out_of_place(
    config: BaseModel, place: Place, changes: Mapping[str, Any], where: str, fix: str | None = None
) -> None:
    """Refuses a key of `changes` that has no effect in this place, unless it has the value that `config` has."""
    places = inherited(type(config), "places")
    for key, value in changes.items():
        if place not in places.get(key, (place,)) and value != getattr(config, key):
            fix = fix or f"set {key} in the trainer's config"
            if place == "policy" and key in ("observation_space", "action_space"):
                fix = f"set it in the spec itself, PolicySpec({key}=...)"
            raise ConfigError(f"{key} has no effect here.", f"{where}, config key '{key}'", value).expected(
                f"{getattr(config, key)!r}, as in the trainer's config, or no such key", fix
            )


def refuse_ignored_initial_values(
    config: BaseModel, given: Collection[str], stored: Mapping[str, Any], path: Any
) -> None:
    """Refuses a new initial value that a restore would ignore, because the checkpoint has the current number.

    The new value is accepted if the new or the stored value is 0, or if one of the keys that `initial_values` lists for
    the key changes too.
    """
    for name, switches in inherited(type(config), "initial_values").items():
        missing = [key for key in (name, *switches) if key not in stored]
        if missing:
            fix = "use another copy of the checkpoint"
            raise ConfigError("A stored config lacks a key.", where=f"config of {path}", expected=missing, fix=fix)
        new, old = getattr(config, name), stored[name]
        starts_over = not (new and old) or any(getattr(config, switch) != stored[switch] for switch in switches)
        if name in given and new != old and not starts_over:
            raise ConfigError.no_effect(
                name,
                "it is an initial value, and the checkpoint has the current one",
                f"config key '{name}' ({type(config).__name__}), for {path}",
                new,
            ).expected(f"{old!r}, the value of the saved run", f"leave {name} out, or start a new run with it")


def refuse_two_envs(env: Any, config: Any, where: str) -> None:
    """Raises ConfigError if `env` is given and the dict `config` names another environment."""
    inner = config.get("env") if isinstance(config, Mapping) else None
    if env is None or inner is None or inner is env or inner == env:
        return
    raise ConfigError(
        "Two different environments are given.", where, f"env={env!r}, and 'env': {inner!r} in the config"
    ).expected("one environment", "leave one of the two out")


def inherited(config_class: type, table: str) -> dict[str, Any]:
    """The entries of a table of a class and of its bases, by single key; the entry of the nearest class counts."""
    return {
        key: value
        for base in reversed(config_class.__mro__)
        for keys, value in vars(base).get(table, {}).items()
        for key in (keys if isinstance(keys, tuple) else (keys,))
    }


def rules_of(config_class: type[BaseModel]) -> Iterator[tuple[str, Condition | Sequence[Condition] | str]]:
    for name in config_class.model_fields:
        if name.endswith(SCHEDULE):
            yield name.removesuffix(SCHEDULE), {name: None}
    for table in ("requires", "further_requires"):
        yield from inherited(config_class, table).items()


def _value(config: BaseModel, key: str) -> Any:
    """The value of a key; None if the config does not have the key."""
    outer, _, inner = key.partition(".")
    value = getattr(config, outer, None)
    return getattr(value, inner) if inner and value is not None else value


def _failing(config: BaseModel, condition: Condition) -> Condition:
    return {name: values for name, values in condition.items() if not _is_one_of(_value(config, name), values)}


def _is_one_of(value: Any, values: Any) -> bool:
    if isinstance(values, Predicate):
        return values.accepts(value)
    if isinstance(values, NotIn):
        return value not in values
    return value in values if isinstance(values, tuple) else value == values


def condition_text(config: BaseModel, name: str, values: Any) -> str:
    if values is ENABLED:
        return f"{name}=True" if isinstance(_value(config, name), bool) else name
    if isinstance(values, Predicate):
        return f"{name} to {values.name}"
    if isinstance(values, NotIn):
        return f"{name} to anything but {' or '.join(map(repr, values))}"
    return f"{name}={' or '.join(map(repr, values)) if isinstance(values, tuple) else repr(values)}"


def _without_effect(config: BaseModel, key: str, reason: str, wanted: str | None) -> ConfigError:
    return ConfigError(
        f"{key} has no effect: {reason}.", f"config key '{key}' ({type(config).__name__})", _value(config, key)
    ).fix(f"set {wanted} as well, or leave {key} out" if wanted else f"leave {key} out")
