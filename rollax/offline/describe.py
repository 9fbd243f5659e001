"""Contents and errors of a data set: `rollax data info` and `rollax data check`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box

from rollax.batch import SampleBatch
from rollax.core import spaces
from rollax.core.space_codec import outside
from rollax.core.spaces import at, in_dtypes, leaves, path_text, space_text
from rollax.errors import DatasetError
from rollax.offline.dataset import ENV_ACTIONS, Continuations, DatasetReader, RecordedTrajectory
from rollax.offline.value_rules import Problem, ValueRules, not_finite

_SHOWN = 20
_BINS = 10
_MOST_COUNTS = 1000


@dataclass
class PolicySummary:
    """The trajectories of one policy.

    Attributes:
        returns: returns of complete trajectories.
        lengths: lengths of all trajectories.
        cut: number of trajectories without their end.
        continued: number of trajectories without their beginning, mostly because they continue an earlier one.
        shortened: number of truncated trajectories without their last step.
        without_logp: number of trajectories that lack `action_logp`, or have NaN in it.
        low, high: minimum and maximum of each element of the observations, by path.
        actions: counts of each discrete action, or of each tenth of a bounded range, by path. More than 1000 discrete
            actions are counted in ranges of equal length.
    """

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    terminated: int = 0
    truncated: int = 0
    cut: int = 0
    continued: int = 0
    shortened: int = 0
    without_logp: int = 0
    columns: dict[str, str] = field(default_factory=dict)
    low: dict[str, np.ndarray] = field(default_factory=dict)
    high: dict[str, np.ndarray] = field(default_factory=dict)
    actions: dict[str, np.ndarray] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "trajectories": len(self.lengths),
            "steps": sum(self.lengths),
            **{name: getattr(self, name) for name in ("terminated", "truncated", "cut", "continued", "shortened")},
            "return": _statistics(self.returns),
            "length": _statistics(self.lengths),
            "columns": self.columns,
            "obs_low": {name: values.min().item() for name, values in self.low.items()},
            "obs_high": {name: values.max().item() for name, values in self.high.items()},
            "constant_obs_elements": {
                name: int(np.count_nonzero(values == self.high[name])) for name, values in self.low.items()
            },
            "action_counts": {name: counts.tolist() for name, counts in self.actions.items()},
        }


@dataclass
class DatasetReport:
    """The numbers of a data set, the first errors in it (with file and line), and warnings about limited uses."""

    reader: DatasetReader
    policies: dict[str, PolicySummary]
    episodes: int
    agents: list[Any]
    errors: list[str]
    warnings: list[str]
    more_errors: int = 0

    def note(self, message: str) -> None:
        """Adds an error, or counts it if there are many."""
        if len(self.errors) < _SHOWN:
            self.errors.append(message)
        else:
            self.more_errors += 1

    def as_json(self) -> dict[str, Any]:
        """All numbers as JSON values, with NaN and infinities unchanged."""
        reader = self.reader
        return {
            "header": {key: value for key, value in reader.header.items() if key not in ("policies", "filters")},
            "episodes": self.episodes,
            "agents": [str(agent) for agent in self.agents],
            "policies": {
                policy_id: {
                    "observation_space": _text(reader.observation_spaces.get(policy_id)),
                    "action_space": _text(reader.action_spaces.get(policy_id)),
                    **summary.as_json(),
                }
                for policy_id, summary in self.policies.items()
            },
            "errors": self.errors,
            "more_errors": self.more_errors,
            "warnings": self.warnings,
        }

    def __str__(self) -> str:
        data = self.as_json()
        behaviour = data["header"].get("behaviour") or {}
        lines = [f"env        {data['header'].get('env') or 'not known'}"]
        if wrappers := data["header"].get("env_wrappers"):
            lines.append(f"wrappers   {json.dumps(wrappers)}")
        if behaviour:
            lines.append("behaviour  " + ", ".join(f"{key} {value}" for key, value in behaviour.items()))
        lines.append(f"episodes   {self.episodes}, agents {', '.join(data['agents'][:_SHOWN])}")
        for policy_id, numbers in data["policies"].items():
            lines += _policy_lines(policy_id, numbers)
        lines += [f"warning    {message}" for message in self.warnings]
        lines += [f"error      {message}" for message in self.errors]
        if self.more_errors:
            lines.append(f"           and {self.more_errors} more errors")
        return "\n".join(lines)


def describe(reader: DatasetReader, *, check: bool = False) -> DatasetReport:
    """The contents and problems of a data set, which is read once.

    `check` compares every value with the spaces, and adds an error to the report if a file cannot be read. Without
    `check`, such a file raises DatasetError.
    """
    report = DatasetReport(reader, {}, 0, [], [], [])
    episodes: set[str] = set()
    rules: dict[str, ValueRules] = {}
    continues = Continuations()
    try:
        for trajectory in reader.trajectories():
            episodes.add(trajectory.episode_id)
            if trajectory.agent_id not in report.agents:
                report.agents.append(trajectory.agent_id)
            summary = report.policies.setdefault(trajectory.policy_id, PolicySummary())
            if other := other_shapes(summary, trajectory):
                report.note(other)
                continue
            _add(summary, trajectory, reader, continues=continues(trajectory))
            if check:
                if (policy_id := trajectory.policy_id) not in rules:
                    ours = reader.observation_spaces.get(policy_id), reader.action_spaces.get(policy_id)
                    rules[policy_id] = ValueRules(*ours)
                for message in problems(trajectory, reader, rules[policy_id]):
                    report.note(message)
    except DatasetError as error:
        if not check:
            raise
        report.note(f"{error}\n  Nothing after this part was read; set max_broken to skip the part.")
    report.episodes = len(episodes)
    for message in reader.broken:
        report.note(message)
    report.warnings += _limits(report)
    if not report.policies:
        report.note("no trajectory could be read")
    return report


def _limits(report: DatasetReport) -> Iterator[str]:
    """Warnings about limited uses of the data."""
    for policy_id, summary in report.policies.items():
        if summary.cut or summary.continued:
            yield (
                f"policy {policy_id!r}: {summary.cut} trajectories were cut, and {summary.continued} go on after a "
                "missing beginning: their returns are not known"
            )
        if summary.shortened:
            yield (
                f"policy {policy_id!r}: {summary.shortened} truncated trajectories lack their last step, because the "
                "observation after it is not known; the returns here contain its reward, estimates do not"
            )
        if summary.without_logp:
            yield (
                f"policy {policy_id!r}: {summary.without_logp} trajectories without action_logp, which importance "
                "sampling estimates require"
            )


def problems(trajectory: RecordedTrajectory, reader: DatasetReader, rules: ValueRules) -> list[str]:
    """The problems of a trajectory, one message per array.

    Learning refuses values that break the rules, but accepts numbers beyond the bounds of a Box and steps out of order.
    """
    columns, policy_id = trajectory.columns, trajectory.policy_id
    observation_space, action_space = reader.observation_spaces.get(policy_id), reader.action_spaces.get(policy_id)
    found = list(rules.columns(trajectory, actions_of=reader.actions_of))
    if not found:  # otherwise a cast may fail
        obs, actions = columns[SampleBatch.OBS], columns[SampleBatch.ACTIONS]
        if observation_space is not None:
            obs = in_dtypes(observation_space, obs)
        lengths = np.array([len(trajectory)])
        found += rules.values(obs, actions, np.asarray(columns[SampleBatch.REWARDS]), lengths)
        found += _beyond_bounds(SampleBatch.OBS, observation_space, obs)
        if reader.actions_of == "environment":
            found += _beyond_bounds(SampleBatch.ACTIONS, action_space, actions)
        if ENV_ACTIONS in columns:
            found += rules.in_space(ENV_ACTIONS, columns[ENV_ACTIONS])
            found += _beyond_bounds(ENV_ACTIONS, action_space, columns[ENV_ACTIONS])
    if SampleBatch.ACTION_DIST_INPUTS in columns:
        found += not_finite(SampleBatch.ACTION_DIST_INPUTS, columns[SampleBatch.ACTION_DIST_INPUTS])
    messages = [f"{trajectory.where}, {_problem_text(problem)}" for problem in found]
    t = columns.get(SampleBatch.T)
    if t is not None and len(t) > 1 and (np.diff(t) <= 0).any():
        messages.append(f"{trajectory.where}, column 't': the steps are not in order")
    return messages


def _problem_text(problem: Problem) -> str:
    expected = problem.expected
    place = f"column {problem.column!r}{path_text(problem.path)}"
    if problem.kind == "shape":
        return f"{place}: shape {problem.got}, expected {expected}"
    if problem.kind == "forbidden":
        return f"{place}: the action of step {problem.row} is not allowed by the action mask {problem.got}"
    rule = f", expected {expected}" if isinstance(expected, str) else f" is not in {expected}"
    return f"{place}: {problem.got} in step {problem.row}{rule}"


def _has_logp(trajectory: RecordedTrajectory) -> bool:
    logp = trajectory.columns.get(SampleBatch.ACTION_LOGP)
    return logp is not None and not np.isnan(logp).any()  # NaN: the environment logged the action


def _beyond_bounds(name: str, space: Space | None, column: Any) -> Iterator[Problem]:
    """Finite numbers outside a Box. Learning accepts them, because some environments return them."""
    for path, leaf in [] if space is None else leaves(space):
        if not isinstance(leaf, Box):
            continue
        part = np.asarray(at(column, path))
        wrong = np.isfinite(part) & outside(leaf, part)
        if wrong.any():
            place = tuple(np.argwhere(wrong)[0].tolist())
            yield Problem("outside", name, path, place[0], part[place], leaf)


def other_shapes(summary: PolicySummary, trajectory: RecordedTrajectory) -> str:
    """An error message if observations have other shapes than in earlier trajectories; otherwise an empty string."""
    shapes = {path: leaf.shape[1:] for path, leaf in named_leaves(trajectory.columns[SampleBatch.OBS])}
    before = {path: values.shape for path, values in summary.low.items()}
    if all(shapes.get(path) == shape for path, shape in before.items()):
        return ""
    return f"{trajectory.where}, column 'obs': rows of shapes {shapes}, before it {before}"


def _add(summary: PolicySummary, trajectory: RecordedTrajectory, reader: DatasetReader, *, continues: bool) -> None:
    columns = trajectory.columns
    summary.lengths.append(len(trajectory))
    summary.terminated += trajectory.terminated
    summary.truncated += trajectory.truncated and not trajectory.terminated
    summary.cut += not trajectory.ended
    summary.continued += continues
    summary.shortened += trajectory.shortened
    summary.without_logp += not _has_logp(trajectory)
    if not trajectory.cut and not continues:
        summary.returns.append(trajectory.total_reward)
    if not summary.columns:
        summary.columns = {name: _shape_text(column) for name, column in columns.items()}
    for path, leaf in named_leaves(columns[SampleBatch.OBS]):
        if leaf.dtype.kind == "O" or not len(leaf):
            continue
        low, high = leaf.min(axis=0), leaf.max(axis=0)
        summary.low[path] = np.minimum(summary.low[path], low) if path in summary.low else low
        summary.high[path] = np.maximum(summary.high[path], high) if path in summary.high else high
    space = reader.action_spaces.get(trajectory.policy_id)
    if space is not None:
        of_policy = reader.actions_of == "policy" and ENV_ACTIONS not in columns
        scaled = reader.header.get("normalize_actions", True) if of_policy else False
        _count_actions(summary, space, columns.get(ENV_ACTIONS, columns[SampleBatch.ACTIONS]), scaled=scaled)


def _count_actions(summary: PolicySummary, space: Any, actions: Any, *, scaled: bool | None) -> None:
    """Counts actions; `scaled`: whether [-1, 1] in the data stands for the range of a bounded Box; None: unknown."""
    for path, leaf in leaves(space):
        low, high = spaces.bounds(leaf)
        low, high = np.asarray(low, np.float64).min(), np.asarray(high, np.float64).max()
        try:
            part = np.asarray(at(actions, path), np.float64).ravel()
        except (KeyError, IndexError, TypeError, ValueError):
            continue
        if not (np.isfinite([low, high]).all() and np.isfinite(part).all()):
            continue
        if isinstance(leaf, Box):
            if scaled is None:
                continue
            low, high = (-1.0, 1.0) if scaled else (low, high)
            part = np.clip(part, low, high)
            bins, top = _BINS, max(high, low + 1e-9)
        else:
            choices = int(high - low) + 1
            width = -(-choices // _MOST_COUNTS)
            bins = -(-choices // width)
            top = low + bins * width
        counts, _ = np.histogram(part, bins=bins, range=(low, top))
        name = "/".join(map(str, path)) or "actions"
        summary.actions[name] = summary.actions.get(name, np.zeros(bins, np.int64)) + counts


def named_leaves(tree: Any, name: str = "obs") -> list[tuple[str, np.ndarray]]:
    """The arrays of a column, each with its path, such as `obs/position`."""
    if isinstance(tree, Mapping):
        return [leaf for key, part in tree.items() for leaf in named_leaves(part, f"{name}/{key}")]
    if isinstance(tree, tuple | list):
        return [leaf for key, part in enumerate(tree) for leaf in named_leaves(part, f"{name}/{key}")]
    return [(name, np.asarray(tree))]


def _shape_text(column: Any) -> str:
    return ", ".join(f"{leaf.dtype}{list(leaf.shape[1:])}" for _, leaf in named_leaves(column))


def _statistics(values: list[Any]) -> dict[str, float] | None:
    if not values:
        return None
    array = np.array(values, np.float64)
    with np.errstate(invalid="ignore"):  # the deviation of infinite numbers is NaN
        return {name: float(getattr(array, name)()) for name in ("mean", "std", "min", "max")}


def _text(space: Space | None) -> str:
    return "not known" if space is None else space_text(space)


def _policy_lines(policy_id: str, numbers: Mapping[str, Any]) -> list[str]:
    ends = ", ".join(f"{numbers[end]} {end}" for end in ("terminated", "truncated", "cut"))
    lines = [
        f"policy     {policy_id}",
        f"  spaces   {numbers['observation_space']} -> {numbers['action_space']}",
        f"  steps    {numbers['steps']} in {numbers['trajectories']} trajectories: {ends}",
    ]
    for name in ("return", "length"):
        found = numbers[name]
        if found is not None:
            span = f"{found['min']:.2f} to {found['max']:.2f}"
            lines.append(f"  {name:<8} mean {found['mean']:.2f}, deviation {found['std']:.2f}, {span}")
    lines.append("  columns  " + ", ".join(f"{name} {kind}" for name, kind in numbers["columns"].items()))
    for name, low in numbers["obs_low"].items():
        still = numbers["constant_obs_elements"][name]
        note = f", {still} elements never change" if still else ""
        lines.append(f"  {name:<8} {low:.4g} to {numbers['obs_high'][name]:.4g}{note}")
    for name, counts in numbers["action_counts"].items():
        total = max(sum(counts), 1)
        shares = ", ".join(f"{100 * count / total:.0f}" for count in counts[:_SHOWN])
        lines.append(f"  {name:<8} coverage in %: {shares}{' …' if len(counts) > _SHOWN else ''}")
    return lines
