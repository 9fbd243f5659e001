"""Random schedules of agents through groups and through PettingZoo, there and back: no reward is lost or counted twice,
trajectories are neither split nor merged, each observation is answered once, and each row's next observation is
correct.

`tests/rollout/test_sampler_properties.py` has the same for a plain `MultiAgentEnv` and for the dict view.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollax import PolicySpec
from rollax.batch import Fragment
from rollax.env.multi_agent.pettingzoo_export import to_pettingzoo
from tests.rollout.test_sampler_properties import AGENTS, PARAMETERS, run, scripts
from tests.rollout.worlds import ALL, Encode, Scripted, action_for


class Declared(Scripted):
    possible_agents = tuple(AGENTS)


class Play(Encode):
    """Acts by `action_for` on each part of the observation."""

    def compute_actions(self, obs_batch):  # type: ignore[override]
        if isinstance(obs_batch, tuple):
            return tuple(map(action_for, obs_batch)), [], {}
        return action_for(obs_batch), [], {}


def flat(fragment: Fragment) -> Fragment:
    """Tuples as single columns: observations side by side, actions as one number."""
    columns, after = fragment.to_dict(), fragment.after
    for name in ("actions", "prev_actions"):
        columns[name] = one_number(columns[name]) if isinstance(columns[name], tuple) else columns[name]
    if isinstance(columns["obs"], tuple):
        columns["obs"] = np.concatenate(columns["obs"], axis=1)
        after = {**after, "obs": np.concatenate(after["obs"], axis=1)}
    return Fragment(columns, fragment.ends, after)


def one_number(parts: Sequence[Any]) -> Any:
    return sum(part * 11**position for position, part in enumerate(parts))


class Regrouped:
    """The log of an environment by groups, computed in the simplest way.

    Args:
        env: records the log by agent.
        groups: group id -> members.
    """

    def __init__(self, env: Scripted, groups: Mapping[Hashable, Sequence[Hashable]]) -> None:
        self.env = env
        singles = [agent for agent in AGENTS if not any(agent in members for members in groups.values())]
        self.units = {**groups, **{agent: [agent] for agent in singles}}
        self.grouped = set(groups)

    @property
    def log(self) -> list[tuple]:
        events: list[tuple] = []
        for kind, *event in self.env.log:
            if kind == "reset":
                self.alive: set = set()
                self.seen: dict = {}
                events.append(("reset", self._step({}, *event, {}, {}, {})[1]))
            else:
                events.append(("step", *self._step(*event)))
        return events

    def _step(self, actions: dict, obs: dict, rewards: dict, terms: dict, truncs: dict) -> tuple:
        parts: tuple[dict, ...] = ({}, {}, {}, {}, {})
        for flags, out in ((terms, parts[3]), (truncs, parts[4])):
            out[ALL] = flags.get(ALL, False)
        alive_before = set(self.alive)
        for unit, members in self.units.items():
            if any(member in actions for member in members):
                parts[0][unit] = self._action(unit, members)
        self.seen.update(obs)
        over = parts[3][ALL] or parts[4][ALL]
        for agent in AGENTS:
            if over or terms.get(agent) or truncs.get(agent):
                self.alive.discard(agent)
            elif agent in obs:
                self.alive.add(agent)
        for unit, members in self.units.items():
            was, is_ = alive_before.intersection(members), self.alive.intersection(members)
            paid = [rewards[member] for member in members if member in was and member in rewards]
            if paid:
                parts[2][unit] = sum(paid)
            shown = is_ if is_ else was
            seen = any(member in obs for member in shown)
            if was and not is_:
                own = {m: (terms.get(m, False), truncs.get(m, False)) for m in was}
                ends = {m: flags if any(flags) else (parts[3][ALL], parts[4][ALL]) for m, flags in own.items()}
                parts[3][unit] = (False, True) not in ends.values()
                parts[4][unit] = not {(False, True), (True, True)}.isdisjoint(ends.values())
                shown = {m for m, flags in ends.items() if flags == (False, True)} or was
            if seen:
                parts[1][unit] = self._see(members, shown)
        return parts

    def _see(self, members: Sequence[Hashable], shown: set) -> np.ndarray:
        nothing = np.zeros(4, np.float32)
        return np.concatenate([self.seen[member] if member in shown else nothing for member in members])

    def _action(self, unit: Hashable, members: Sequence[Hashable]) -> int:
        """The action of `Play` for the unit's observation before this step."""
        obs = self._see(members, self.alive.intersection(members))
        return int(one_number([action_for(part) for part in obs.reshape(-1, 4)]))


GROUPINGS = [
    {group: [agent] for group, agent in zip("wxyz", AGENTS, strict=True)},
    {"ba": ["b", "a"], "cd": ["c", "d"]},
    {"ac": ["a", "c"]},
    {"all but d": ["c", "a", "b"], "only d": ["d"]},
]


@pytest.mark.filterwarnings("default")
class TestRandomSchedules:
    @pytest.mark.long
    @given(episodes=st.lists(scripts(), min_size=1, max_size=3), groups=st.sampled_from(GROUPINGS), **PARAMETERS)
    def test_groups(self, episodes, groups, mode, fragment, num_envs):
        def make(context):
            return Declared(episodes, context.vector_index).with_agent_groups(groups)

        some = Declared(episodes).with_agent_groups(groups)
        specs = {
            agent: PolicySpec(Play, some.observation_spaces[agent], some.action_spaces[agent])
            for agent in (*groups, *AGENTS)
            if agent in some.observation_spaces
        }
        run(make, specs, lambda agent: agent, mode, fragment, num_envs, lambda env: Regrouped(env, groups), flat)

    @pytest.mark.long
    @given(episodes=st.lists(scripts(all_act=True), min_size=1, max_size=3), two_policies=st.booleans(), **PARAMETERS)
    def test_pettingzoo_there_and_back(self, episodes, two_policies, mode, fragment, num_envs):
        specs = {"x": Play, "y": Play} if two_policies else Play
        mapping = (lambda agent: "x" if agent in "ac" else "y") if two_policies else None
        run(
            lambda context: to_pettingzoo(Declared(episodes, context.vector_index)),
            *(specs, mapping, mode, fragment, num_envs),
            log_of=lambda exported: exported.env,
        )
