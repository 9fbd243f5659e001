"""The tables of docs/api.md: public names with the first sentences of their docstrings.

A table stands between a mark and `<!-- end -->`. The marks are

- `<!-- algorithms -->`: the trainer, config and class of each algorithm;
- `<!-- names: rollax.env, rollax.env.jax -->`: the other names of `rollax` that these packages or modules define;
- `<!-- rules: rollax.doctor.played_rules:PLAYED_RULES -->`: rules of the doctor, with their docstrings;
- `<!-- contents: rollax.ops.values, rollax.models.recurrent:LSTM -->`: the functions and classes of a module, or one.

The mark `<!-- zoo -->`, in docs/zoo.md, is that of the entries of the zoo.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import rollax
from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from rollax.runs.rules.finding import name_of
from rollax.zoo import entries
from rollax.zoo.tables import COLUMNS, row

_SENTENCE = re.compile(r"(.+?\.)(?: (?=[A-Z])|$)")


def with_names(content: str) -> str:
    """A page with new tables of names between its marks."""
    tables: dict[str, Callable[[str], Iterator[str]]] = {
        "algorithms": lambda _: _algorithms(),
        "names": _names,
        "contents": _contents,
        "zoo": lambda _: _entries(),
        "rules": _rules,
    }

    def written(match: re.Match) -> str:
        return "\n".join([match[1], *tables[match[2]](match[3] or ""), "<!-- end -->"])

    mark = rf"(<!-- ({'|'.join(tables)})(?:: (.*?))? -->)\n.*?<!-- end -->"
    return re.sub(mark, written, content, flags=re.DOTALL)


def _entries() -> Iterator[str]:
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for entry in entries():
        env, *cells = row(entry)
        yield f"| [{env}](../rollax/zoo/entries/{entry.path.name}) | {' | '.join(cells)} |"


def _algorithms() -> Iterator[str]:
    yield "| name | trainer | config | algorithm |"
    yield "|---|---|---|---|"
    for name in ALGORITHMS:
        trainer, *others = _classes_of(name)
        classes = " | ".join(f"`{part.__name__}`" for part in (trainer, *others))
        yield f"| [{name}]({_source(trainer)}) | {classes} |"


def _names(packages: str) -> Iterator[str]:
    starts = tuple(f"{package}." for package in re.split(r",\s+", packages))
    of_algorithms = [part for name in ALGORITHMS for part in _classes_of(name)]
    named = {
        name: getattr(rollax, name)
        for name, module in vars(rollax)["_MODULE_OF"].items()
        if f"{module}.".startswith(starts)
    }
    return _table({name: value for name, value in named.items() if value not in of_algorithms})


def _contents(places: str) -> Iterator[str]:
    found: dict[str, Any] = {}
    for place in re.split(r",\s+", places):
        name, _, only = place.partition(":")
        module = importlib.import_module(name)
        own = {key: value for key, value in vars(module).items() if getattr(value, "__module__", None) == name}
        public = {key: value for key, value in own.items() if _is_code(value) and not key.startswith("_")}
        found |= {only: own[only]} if only else public
    return _table(found)


def _rules(place: str) -> Iterator[str]:
    yield "| rule | finds | source of its limit |"
    yield "|---|---|---|"
    module, _, name = place.partition(":")
    for rule in getattr(importlib.import_module(module), name):
        finds, _, source = inspect.cleandoc(rule.__doc__ or "").partition("Source: ")
        cells = (" ".join(part.split()).replace("|", "\\|") for part in (finds, source))
        yield f"| {' | '.join((f'`{name_of(rule)}`', *cells))} |"


def _is_code(value: Any) -> bool:
    return inspect.isfunction(value) or inspect.isclass(value)


def _table(named: dict[str, Any]) -> Iterator[str]:
    yield "| name | description |"
    yield "|---|---|"
    for name, value in named.items():
        yield f"| [`{name}`]({_source(value)}) | {_first_sentence(value, name)} |"


def _classes_of(algorithm: str) -> tuple[type, type, type]:
    trainer = get_trainer_class(algorithm)
    return trainer, trainer.config_class, trainer.policy_class


def _source(value: Any) -> str:
    file = "/__init__.py" if hasattr(sys.modules[value.__module__], "__path__") else ".py"
    return f"../{value.__module__.replace('.', '/')}{file}"


def _first_sentence(value: Any, name: str) -> str:
    if value.__name__ != name:
        return f"The same as `{value.__name__}`."
    paragraph = inspect.cleandoc(value.__doc__).partition("\n\n")[0].replace("\n", " ")
    match = _SENTENCE.match(paragraph)
    return (match[1] if match else paragraph).replace("|", "\\|")
