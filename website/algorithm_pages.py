"""The overview of algorithms and a page for each, from `docs/algorithms.md`, the registry, configs and results."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from html import escape
from typing import Any

import gymnasium as gym
import numpy as np
from pydantic import BaseModel

from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from rollax.errors import ConfigError, SpaceError
from website.pages import Page
from website.repository import REPOSITORY, headings, read, section, slug

_SOURCE = "docs/algorithms.md"
_BOX = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
_DISCRETE = gym.spaces.Discrete(3)
_MASKED = gym.spaces.Dict(action_mask=gym.spaces.Box(0, 1, (3,), np.int8), observations=_BOX)
_ACTIONS = {
    "Discrete": _DISCRETE,
    "Box": _BOX,
    "MultiDiscrete": gym.spaces.MultiDiscrete([2, 3]),
    "MultiBinary": gym.spaces.MultiBinary(2),
    "Tuple, Dict": gym.spaces.Tuple([_DISCRETE, _BOX]),
}
YES, NO = "yes", "–"


def section_names() -> list[str]:
    """The headings `##` of docs/algorithms.md, each of which becomes a page, or a page for each of its algorithms."""
    return re.findall(r"^## (.*)$", read(_SOURCE), re.MULTILINE)


def pages_of_section(heading: str) -> dict[str, str]:
    """Name of a page -> its title; the title is an algorithm's name where the section is about algorithms."""
    algorithms = heading.split(" and ")
    titles = algorithms if set(algorithms) <= set(ALGORITHMS) else [heading]
    return {f"algorithms/{slug(title)}": title for title in titles}


def places() -> dict[str, str]:
    """Each anchor of docs/algorithms.md below a `##` -> the page that has it, and its anchor on this page."""
    found: dict[str, str] = {}
    content = read(_SOURCE)
    for heading in section_names():
        pages = pages_of_section(heading)
        found |= {slug(title): f"{name}.md" for name, title in pages.items()}
        first = next(iter(pages))
        found.setdefault(slug(heading), f"{first}.md")
        found |= {slug(each): f"{first}.md#{slug(each)}" for each in headings(section(content, heading))}
    return found


def algorithm_pages() -> Iterator[Page]:
    """The overview, and the page of each section or algorithm."""
    content = read(_SOURCE)
    names = [name for heading in section_names() for name in pages_of_section(heading)]
    toctree = "\n".join(["```{toctree}", ":hidden:", "", *names, "```"])
    yield Page("algorithms", _SOURCE, f"{_with_links(content.partition(chr(10) + '## ')[0])}\n\n{toctree}\n")
    for heading in section_names():
        text = re.sub(r"^<!-- .*? -->\n", "", section(content, heading), flags=re.DOTALL | re.MULTILINE)
        for name, title in pages_of_section(heading).items():
            yield Page(name, _SOURCE, _page(title, text) if title in ALGORITHMS else f"# {title}\n\n{text}")


def _with_links(overview: str) -> str:
    """The overview, with links in the first cells of its table of features."""

    def linked(match: re.Match[str]) -> str:
        return f"| [{match[1]}](#{slug(match[1])}) |"

    return re.sub(r"^\| (\w+) \|(?= (?:yes|–) \|)", linked, overview, flags=re.MULTILINE)


def _page(name: str, text: str) -> str:
    trainer = get_trainer_class(name)
    module = sys.modules[trainer.__module__]
    file = f"../{trainer.__module__.replace('.', '/')}.py"
    names = trainer.__name__, trainer.config_class.__name__, trainer.policy_class.__name__
    parts = [
        f"# {name}",
        f"Source: [{file[3:]}]({file})",
        _support_table(name),
        "## Description",
        text,
        *_measurements(name),
        "## Method in the code",
        "From the docstring of the file, with what differs from the papers:",
        _rst(f".. automodule:: {module.__name__}\n   :noindex:\n   :no-members:"),
        *_losses(module),
        "## All settings",
        f"The {len(trainer.config_class.model_fields)} keys of the config, as `{names[1]}(...)` or as a dict.",
        ":::{dropdown} Keys, defaults and meanings\n" + _settings(trainer.config_class) + "\n:::",
        "## Classes",
        _rst("\n\n".join(f".. autoclass:: rollax.{each}" for each in names)),
    ]
    return "\n\n".join(parts) + "\n"


def _rst(text: str) -> str:
    return f"```{{eval-rst}}\n{text}\n```"


def support(name: str) -> dict[str, str]:
    """What the algorithm accepts: for each feature YES or NO, or a word or link that says how.

    Spaces, masks and memory are what its class accepts; the other features follow from its config and the examples.
    """
    trainer = get_trainer_class(name)
    row = _overview()[name]
    groups = row["multi-agent"] == "groups"
    found = {f"{kind} actions": YES if _accepts(name, _BOX, space, groups) else NO for kind, space in _ACTIONS.items()}
    found["action masks"] = YES if _accepts(name, _MASKED, _DISCRETE, groups) else NO
    found["available actions described by embeddings"] = row["parametric"]
    memory = {"model": {"use_lstm": True}}
    kinds = [space for kind, space in _ACTIONS.items() if found[f"{kind} actions"] == YES]
    found["memory (LSTM, GRU, transformer)"] = YES if _accepts(name, _BOX, kinds[0], groups, memory) else NO
    found["several agents and policies"] = (
        "a [group](multi-agent.md#groups-of-agents)" if groups else row["multi-agent"]
    )
    found["centralized critic"] = YES if "centralized_critic" in trainer.config_class.model_fields else NO
    found["workers in other processes"] = YES
    found["compiled environments"] = YES
    found["recorded data"] = YES if "input" in trainer.config_class.model_fields else NO
    example = f"examples/torch_{slug(name)}.py"
    found["PyTorch"] = f"[an example](../{example})" if (REPOSITORY / example).exists() else NO
    return found


_PAGES = {
    "action masks": "policies-and-models.md",
    "available actions described by embeddings": "policies-and-models.md",
    "memory (LSTM, GRU, transformer)": "recurrent.md",
    "several agents and policies": "multi-agent.md",
    "centralized critic": "centralized-critic.md",
    "workers in other processes": "workers-and-clusters.md",
    "compiled environments": "jax-environments.md",
    "recorded data": "offline.md",
    "PyTorch": "torch.md",
}


def _support_table(name: str) -> str:
    rows = [(f"[{key}]({_PAGES[key]})" if key in _PAGES else key, value) for key, value in support(name).items()]
    half = -(-len(rows) // 2)
    lines = ["## Can I use it with …?", "", "| | | | |", "|---|---|---|---|"]
    for left, right in zip(rows[:half], [*rows[half:], ("", "")], strict=False):
        lines.append(f"| {left[0]} | {left[1]} | {right[0]} | {right[1]} |")
    return "\n".join(lines)


def _accepts(name: str, observations: Any, actions: Any, group: bool, config: Any = None) -> bool:
    """Whether the algorithm accepts the spaces and the config; `group`: the spaces of each of two agents of a group."""
    trainer = get_trainer_class(name)
    if group:
        observations, actions = gym.spaces.Tuple([observations] * 2), gym.spaces.Tuple([actions] * 2)
    try:
        trainer.policy_class(observations, actions, trainer.config_class(**config or {}))
    except (SpaceError, ConfigError):
        return False
    return True


@cache
def _overview() -> dict[str, dict[str, str]]:
    """The table of features in docs/algorithms.md: algorithm -> column -> cell."""
    lines = read(_SOURCE).partition("| algorithm | discrete |")[2].splitlines()
    columns = ["discrete", *(cell.strip() for cell in lines[0].strip(" |").split("|"))]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2 : 2 + len(ALGORITHMS)]]
    return {row[0]: dict(zip(columns, row[1:], strict=True)) for row in rows}


def _measurements(name: str) -> list[str]:
    """The results of the learning runs with this algorithm, and the command that repeats each."""
    runs = [json.loads(line) for line in read("benchmarks/results/learning.jsonl").splitlines()]
    own = [run for run in runs if run["algorithm"] == name]
    if not own:
        return []
    lines = ["| environment | steps | must reach | best | last | minutes | date | command |", "|" + "---|" * 8]
    for run in own:
        chosen = " and ".join(re.findall(r"\w+", run["name"]))
        command = (
            f"make learning PYTEST_ARGS='-k \"{chosen}\"'"
            if " " in chosen
            else (f"make learning PYTEST_ARGS='-k {chosen}'")
        )
        minutes = np.mean(run["seconds"]) / 60
        cells = (run["env"], f"{run['budget']:,}", f"{run['target']:g}", f"{run['best']:.4g}", f"{run['last']:.4g}")
        lines.append(f"| {' | '.join(cells)} | {minutes:.2g} | {run['date']} | `{command}` |")
    about = (
        "Greedy evaluations of 20 episodes, means over the seeds: the best one and the last one within the steps. "
        "Minutes are those of one seed on the machine of [BENCHMARKS.md](../BENCHMARKS.md#learning), evaluations "
        "included."
    )
    return ["## Measured", about, "\n".join(lines)]


def _losses(module: Any) -> list[str]:
    """Links to the functions of `rollax.ops` that the file uses, each with its equation and source."""
    used = [value for value in vars(module).values() if inspect.isfunction(value)]
    ops = sorted(
        {f"{value.__module__}.{value.__name__}" for value in used if value.__module__.startswith("rollax.ops.")}
    )
    if not ops:
        return []
    roles = ", ".join(f"{{py:obj}}`{each.rpartition('.')[2]} <{each}>`" for each in ops)
    return [f"Its equations as pure functions, each with its source: {roles}."]


def _settings(config: type[BaseModel]) -> str:
    """A table of all keys, as HTML: Sphinx neither parses nor indexes it, which would take long for all algorithms."""
    rows = ["<thead><tr><th>key</th><th>default</th><th>meaning</th></tr></thead>"]
    for name, field in config.model_fields.items():
        key = field.validation_alias if isinstance(field.validation_alias, str) else name
        default = (
            field.default.model_dump(exclude_unset=True) if isinstance(field.default, BaseModel) else field.default
        )
        cells = (f"<code>{key}</code>", f"<code>{escape(repr(default))}</code>", escape(field.description or ""))
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return "\n".join(['<div class="table-wrapper docutils"><table class="docutils keys">', *rows, "</table></div>"])
