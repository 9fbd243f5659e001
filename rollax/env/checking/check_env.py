"""`check_env`: checks an environment before training."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict

from rollax.core.importing import named_by_caller
from rollax.core.introspection import overrides
from rollax.core.spaces import ACHIEVED, DESIRED, Path, leaves, path_text, stack
from rollax.core.wrapper_list import checked_wrappers, wrappers_by_caller
from rollax.env import checks
from rollax.env.adapters import adapter_of
from rollax.env.base_env import BaseEnv
from rollax.env.checking.random_play import Moment, RandomPlayer, SpacesOf, moments_of, same_moment, same_obs
from rollax.env.checks import env_name
from rollax.env.env_wrapper import EnvWrapper
from rollax.env.external.external_env import ExternalEnv, ExternalMultiAgentEnv
from rollax.env.goals import GoalFunctions, computes_rewards
from rollax.env.making import EnvSettings, make_base_env
from rollax.env.recording import drawing, is_frame, quiet_without_screen
from rollax.env.registry import EnvContext, EnvCreator, env_creator
from rollax.env.to_base_env import to_base_env
from rollax.env.vector import SteppedInTurn
from rollax.errors import ConfigError, RollaxError, repr_of

_COMPARED_POLLS = 50
_COMPARED_RESETS = 6
_LEAST_DISTINCT = 5
"""Fewer distinct first observations do not show that the seed is ignored: in a deterministic game, two players may take
turns to begin, which gives two first observations."""
_EPISODES, _LENGTH = 3, 20
"""The least number of episodes, and the least length, for the suspicion that a time limit terminates them."""
_RGB = "rgb_array"


def check_env(
    env: Any,
    env_config: Mapping[str, Any] | None = None,
    *,
    env_wrappers: Sequence[Any] = (),
    episodes: int = 2,
    num_envs: int = 2,
    max_steps: int = 1000,
    seed: int = 0,
    spaces_of: SpacesOf | None = None,
) -> EnvReport:
    """Plays some episodes with random valid actions and raises the errors that training would raise.

    It also reports what training does not detect: episodes that are not reproducible with a seed, copies that share
    state, episodes that do not end or all terminate at the same step, a `compute_reward` that does not return the
    rewards of steps, and a `render` that returns no image.

    Args:
        env: as for a trainer: an id, a registered name, `module:Class`, a class, a creator function; or an instance of
            any kind. Environments created here are closed, and an external environment is stopped; other instances
            stay open.
        env_config: config of the creator.
        env_wrappers: wrappers of each sub-environment, as in the config of a trainer.
        episodes: number of episodes per sub-environment.
        num_envs: number of sub-environments; ignored for an instance and for vector environments.
        max_steps: maximum number of polls.
        seed: seed of the environment and the actions.
        spaces_of: agent -> `(observation space, action space)`, if the policies define the spaces.
    Raises:
        ConfigError: there is no such environment or wrapper, or an instance comes with wrappers.
        EnvError, SpaceError, MultiAgentError: the environment is broken.
    """
    quiet_without_screen()
    creator = env_creator(named_by_caller(env)) if isinstance(env, str) or callable(env) else None
    wrappers = _wrappers(env_wrappers, of_instance=creator is None)
    check = _Check(env, creator, EnvContext(env_config), EnvSettings(wrappers=wrappers), seed, spaces_of)
    with checks.collect_warnings() as logged:
        report = check.play(num_envs, episodes, max_steps)
        check.compare()
        check.compare_goals()
        if "seed" not in {topic for topic, _ in logged}:  # this note reports a `reset` that accepts no seed
            check.compare_seeds()
        check.look()
    return EnvReport(**report, findings=(*findings_of(logged), *check.findings))


def _wrappers(given: Sequence[Any], *, of_instance: bool) -> tuple[Any, ...]:
    where = "check_env(env, env_wrappers=...)"
    if of_instance and given:
        raise ConfigError.no_effect(
            "env_wrappers", "an instance is checked as it is", where, given, "wrappers of an environment created here"
        ).fix("pass the instance in its wrappers, or what creates it, such as its class")
    try:
        return checked_wrappers(wrappers_by_caller(given))
    except ValueError as error:
        raise ConfigError.is_not("env_wrappers", str(error), where, given) from None


class _Check:
    def __init__(
        self,
        env: Any,
        creator: EnvCreator | None,
        context: EnvContext,
        settings: EnvSettings,
        seed: int,
        spaces_of: SpacesOf | None,
    ) -> None:
        self.findings: list[Finding] = []
        self._env, self._creator, self._context, self._settings = env, creator, context, settings
        self._seed, self._spaces_of = seed, spaces_of
        self._comparable = True
        self._draws = False

    def play(self, num_envs: int, episodes: int, max_steps: int) -> dict[str, Any]:
        """Plays and returns the report; raises the errors of the environment."""
        with self._made(num_envs) as base:
            player = RandomPlayer(base, self._seed, self._spaces_of)
            player.begin(self._seeds(base))
            self._look_at_pictures(base)
            self._look_at_actions(base)
            polls = 0
            while polls < max_steps and not all(player.ended[index] >= episodes for index in range(base.num_envs)):
                player.step()
                polls += 1
            if not player.ended:
                self._find("no end", f"no episode has ended within {polls} steps; is there a time limit?")
            self._look_at_lengths(player)
            # Episodes can be repeated only with a seed.
            self._comparable = not player.starts_by_itself and _takes_seeds(base)
            return {
                "name": self._env if isinstance(self._env, str) else name_of(base),
                "kind": kind_of(base),
                "observation_space": base.observation_space,
                "action_space": base.action_space,
                "agents": tuple(player.agents),
                "num_envs": base.num_envs,
                "episodes": player.ended.total(),
                "steps": player.steps,
            }

    def _look_at_lengths(self, player: RandomPlayer) -> None:
        """Checks that a time limit is not returned as the end of the task, as `rollax doctor` does after training."""
        lengths = player.lengths
        if len(lengths) < _EPISODES or player.truncates or len(set(lengths)) > 1 or lengths[0] < _LENGTH:
            return
        self._find(
            "time limit",
            f"all {len(lengths)} episodes terminated after exactly {lengths[0]} steps. If a time limit ends them, "
            "return terminated=False and truncated=True there, so that the value after it counts. Ignore this if the "
            "task does end there.",
        )

    def _look_at_actions(self, base: BaseEnv) -> None:
        spaces = [base.action_space, *(getattr(base, "action_spaces", None) or {}).values()]
        parts = [(space, leaf) for space in spaces if space is not None for _, leaf in leaves(space)]
        whole = [space for space, leaf in parts if isinstance(leaf, Box) and leaf.dtype.kind != "f"]
        if whole:
            self._find(
                "integer actions",
                f"{whole[0]}: rollax's policies do not choose integers of a Box. Declare MultiDiscrete(high - low + 1, "
                "start=low), or a Box of floats that the environment rounds.",
            )

    def compare(self) -> None:
        """Checks that the first sub-environment is reproducible, alone and together with another one."""
        if not self._comparable:
            return
        (trace, begun, num_envs), (again, begun_again, _) = self._trace(1), self._trace(1)
        where = f"sub-environment 0, seed {self._seed}"
        difference = _first_difference(trace, again)
        if not difference and len(trace) == len(again) and (later := _first_difference(begun, begun_again)):
            difference = f"after a reset without a seed, {later}"
        if difference:
            self._find(
                "not repeatable",
                f"{where}: the same seed and actions gave different results the second time, {difference}. Draw random "
                "numbers from self.np_random, which reset(seed=seed) seeds and reset(seed=None) leaves as it is.",
            )
            self._comparable = False
        elif num_envs == 1 and self._creator is not None:
            beside, _, count = self._trace(2)
            if count == 2 and (difference := _first_difference(trace, beside)):
                self._find(
                    "shared state",
                    f"{where}: a second copy changes what the first one does, {difference}. Keep state in the "
                    "instance: not in the class, in the module, or in a default argument.",
                )

    def compare_seeds(self) -> None:
        """Checks that random episodes of two copies, which have different seeds, differ."""
        if not self._comparable or self._creator is None:
            return
        distinct: list[list[Moment]] = []
        with self._made(2) as base:
            if base.num_envs < 2:
                return
            player = RandomPlayer(base, self._seed, self._spaces_of)
            for seeds in (self._seeds(base), *[None] * _COMPARED_RESETS):
                rows = player.begin(seeds)
                one, other = moments_of(rows, 0), moments_of(rows, 1)
                if _first_difference(one, other):
                    return
                if all(_first_difference(one, old) for old in distinct):
                    distinct.append(one)
        if len(distinct) >= _LEAST_DISTINCT:
            self._find(
                "ignored seed",
                f"sub-environments 0 and 1, seeds {self._seed} and {self._seed + 1}: each new episode begins "
                "differently, but alike in both, so all copies play the same episodes. Draw random numbers from "
                "self.np_random, which reset(seed=seed) seeds.",
            )

    def compare_goals(self) -> None:
        """Checks that `compute_reward` returns the same rewards as `step`, as hindsight goals require."""
        if self._creator is None or self._settings.wrappers:  # hindsight goals refuse wrappers
            return
        with self._made(1) as base:
            space = base.observation_space
            if not (isinstance(space, Dict) and {ACHIEVED, DESIRED} <= set(space.spaces) and computes_rewards(base)):
                return
            player = RandomPlayer(base, self._seed, self._spaces_of)
            player.begin(self._seeds(base))
            moments = [moment for _ in range(_COMPARED_POLLS) for moment in moments_of(player.step(), 0)]
        moments = [moment for moment in moments if moment.reward is not None]
        goals = [stack(space[name], [moment.obs[name] for moment in moments]) for name in (ACHIEVED, DESIRED)]
        try:
            computed = GoalFunctions(self._creator, self._context, space[DESIRED]).rewards(*goals)
        except RollaxError as error:
            self._find("goal rewards", f"hindsight_goals would fail: {' '.join(str(error).split())}")
            return
        rewards = np.array([moment.reward for moment in moments], np.float32)
        for step in np.flatnonzero(~np.isclose(computed, rewards, rtol=1e-4, atol=1e-6))[:1].tolist():
            self._find(
                "goal rewards",
                f"step {step + 1} with seed {self._seed}: step() returned the reward {rewards[step]:g}, compute_reward "
                f"{computed[step]:g} for the same goals and the info {{}}, so hindsight_goals would mix two kinds of "
                "rewards. Let step() call compute_reward with the achieved goal of its observation.",
            )

    def look(self) -> None:
        """Checks that the environment renders images, if its metadata lists "rgb_array"."""
        if self._creator is None or not self._draws or "render_mode" in self._context:
            return
        context = drawing(self._creator, self._context)
        if "render_mode" not in context:
            return  # the creator accepts no config
        but = f"metadata lists {_RGB!r}, but with render_mode={_RGB!r} in env_config"
        try:
            with self._made(1, context) as base:
                base.reset_rows(np.arange(base.num_envs), self._seeds(base))
                if not is_frame(base.try_render(0)):
                    self.findings.append(Finding("note", "no pictures", f"{but} nothing is drawn"))
        except Exception as error:
            self._find("no pictures", f"{but} it raises {repr_of(error)}")

    def _look_at_pictures(self, base: BaseEnv) -> None:
        """Checks that an environment with the render mode "rgb_array" returns frames."""
        first = next(iter(base.get_sub_environments()), None)
        self._draws = _RGB in ((getattr(first, "metadata", None) or {}).get("render_modes") or ())
        if getattr(first, "render_mode", None) != _RGB:
            return
        but = f"render_mode is {_RGB!r}, but render()"
        try:
            if not is_frame(frame := base.try_render(0)):
                self._find("no pictures", f"{but} does not return an image: {checks.outline(frame)}")
        except Exception as error:
            self._find("no pictures", f"{but} raises {repr_of(error)}")

    def _trace(self, num_envs: int) -> tuple[list[Moment], list[Moment], int]:
        """History of sub-environment 0, its first moments after a reset without a seed, and the number of copies."""
        with self._made(num_envs) as base:
            player = RandomPlayer(base, self._seed, self._spaces_of)
            trace = moments_of(player.begin(self._seeds(base)), 0)
            for _ in range(_COMPARED_POLLS):
                trace += moments_of(player.step(), 0)
            return trace, moments_of(player.begin(None), 0), base.num_envs

    @contextmanager
    def _made(self, num_envs: int, context: EnvContext | None = None) -> Iterator[BaseEnv]:
        if self._creator is None:
            base, created = to_base_env(self._env), isinstance(self._env, ExternalEnv | ExternalMultiAgentEnv)
        else:
            context = self._context if context is None else context
            base, created = make_base_env(self._creator, context, num_envs, self._settings), True
        try:
            yield base
        finally:
            if created:
                base.stop()

    def _seeds(self, base: BaseEnv) -> list[int]:
        return [self._seed + index for index in range(base.num_envs)]

    def _find(self, name: str, message: str) -> None:
        self.findings.append(Finding("warning", name, message))


def _takes_seeds(env: BaseEnv) -> bool:
    """Returns whether a reset accepts a seed; the `try_reset` of a custom dict view may not."""
    return overrides(type(env), BaseEnv, "reset_rows") or "seeds" in inspect.signature(env.try_reset).parameters


def _first_difference(one: list[Moment], other: list[Moment]) -> str:
    """Returns where two histories differ; empty if they are equal."""
    # One history may be longer, because polls may depend on timing.
    for number, (first, second) in enumerate(zip(one, other, strict=False)):
        if not same_moment(first, second):
            when = "in its first observation" if number == 0 else f"after {number} observations"
            whole = (), first.obs, second.obs
            path, *seen = _first_part(*whole) if first.agent == second.agent else whole
            shown, again = (_shown(moment, path, part) for moment, part in zip((first, second), seen, strict=True))
            return f"{when}: {shown}, then {again}"
    return ""


def _first_part(path: Path, one: Any, other: Any) -> tuple[Path, Any, Any]:
    """The path to the first differing parts of two observations, and these parts; the observations if none differs."""
    for key in one if isinstance(one, dict) else range(len(one)) if isinstance(one, tuple) else ():
        if not same_obs(one[key], other[key]):
            return _first_part((*path, key), one[key], other[key])
    return path, one, other


def _shown(moment: Moment, path: Path, part: Any) -> str:
    text = " ".join(np.array2string(part, threshold=8).split()) if isinstance(part, np.ndarray) else repr(part)
    over = ", the end" if moment.over else ""
    return f"agent {moment.agent!r} saw {text[:200]}{path_text(path)} with reward {moment.reward}{over}"


Severity = Literal["warning", "note"]

_SAID: dict[str, tuple[Severity, str]] = {
    "bounds": ("warning", "out of bounds"),
    "first reward": ("warning", "first reward"),
    "unread mask": ("warning", "unread mask"),
    "own statistics": ("warning", "own statistics"),
    "dtype": ("note", "cast"),
    "legacy": ("note", "old interface"),
    "autoreset": ("note", "autoreset"),
    "seed": ("note", "seed"),
}


@dataclass(frozen=True)
class Finding:
    """A finding of `check_env`: a "warning" for a probable mistake, a "note" for information."""

    severity: Severity
    name: str
    message: str


@dataclass(frozen=True)
class EnvReport:
    """The report of `check_env`; `str` gives a summary.

    Spaces are None if agents differ or the policies define them. `episodes` counts the ended episodes, `steps` the
    steps of all sub-environments together.
    """

    name: str
    kind: str
    observation_space: Space | None
    action_space: Space | None
    agents: tuple[Hashable, ...]
    num_envs: int
    episodes: int
    steps: int
    findings: tuple[Finding, ...]

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings with severity "warning"."""
        return tuple(finding for finding in self.findings if finding.severity == "warning")

    def __str__(self) -> str:
        verdict = f", with {_count(len(self.warnings), 'warning')}" if self.warnings else ""
        shown = ", ".join(map(str, self.agents[:8])) + (f", … ({len(self.agents)})" if len(self.agents) > 8 else "")
        by_agent = "different for each agent"
        lines = [
            f"{self.name}: fit for training{verdict}",
            f"  kind:         {self.kind}",
            f"  observations: {self.observation_space or by_agent}",
            f"  actions:      {self.action_space or by_agent}",
            f"  agents:       {shown}",
            f"  played:       {_count(self.episodes, 'episode')}, {_count(self.steps, 'step')}, in "
            f"{_count(self.num_envs, 'sub-environment')}",
        ]
        return "\n".join([*lines, *(f"  {f.severity}: {f.name}: {f.message}" for f in self.findings)])


def findings_of(said: Mapping[tuple[str, str], str]) -> list[Finding]:
    """Returns the findings that training would log once."""
    return [
        Finding(*_SAID.get(topic, ("note", topic)), message.removesuffix(" Logged once."))
        for (topic, _), message in said.items()
    ]


def kind_of(base: BaseEnv) -> str:
    """Returns the interface of an environment, such as "gymnasium.Env"."""
    package, dot, name = adapter_of(_given(base)).kind.rpartition(".")
    return f"{package.partition('.')[0]}{dot}{name}"


def name_of(base: BaseEnv) -> str:
    """Returns the name in the metadata of an environment, or else its name in error messages."""
    given = _given(base)
    return (getattr(given, "metadata", None) or {}).get("name") or env_name(given)


def _given(base: BaseEnv) -> Any:
    """Returns the environment that the user passed, or the first copy that its creator made."""
    if isinstance(base, EnvWrapper):
        return _given(base.env)
    if not base.adapts:
        return base
    inner = getattr(base, "env", None)
    if inner is None or isinstance(inner, SteppedInTurn):
        return next(iter(base.get_sub_environments()), inner)
    return getattr(inner, "as_written", inner)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
