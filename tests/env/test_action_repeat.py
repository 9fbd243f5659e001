"""Repeated actions in environments of every kind, against a bare loop."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rollax import BaseEnv, EnvContext, Rows
from rollax.env.action_repeat import ActionRepeat, RepeatedSteps
from rollax.env.making import EnvSettings, make_base_env
from rollax.env.registry import env_creator
from rollax.env.rows import DEFAULT_AGENT
from tests.env.drive import clock_trace, drive, party_trace, trace_of
from tests.env.kinds import KINDS
from tests.env.test_contract import seeds_for
from tests.env.worlds import ALL, AsAgents, Clock, Party

WORLDS = {clock_trace: lambda: AsAgents(Clock(), DEFAULT_AGENT), party_trace: Party}
REPEATABLE = [name for name, kind in KINDS.items() if kind.trace in WORLDS]


class Repeated:
    """Repeats actions in a bare loop; a step has the entries of agents that need an action or have ended."""

    def __init__(self, env: Any, times: int) -> None:
        self.env, self.times = env, times

    def reset(self, *, seed=None):
        obs, infos = self.env.reset(seed=seed)
        self.actions, self.left, self.paid = {}, dict.fromkeys(obs, 0), dict.fromkeys(obs, 0.0)
        self.acting = set(obs)
        return obs, infos

    def step(self, actions):
        self.actions |= actions
        self.left |= dict.fromkeys(actions, self.times)
        while True:
            for agent in self.acting:
                self.left[agent] -= 1
            parts = self.env.step({agent: self.actions[agent] for agent in self.acting})
            obs, rewards, terms, truncs, _ = parts
            over = terms[ALL] or truncs[ALL]
            ended = {agent for agent in {*self.left, *obs} if over or terms.get(agent) or truncs.get(agent)}
            hidden = {agent for agent, left in self.left.items() if left > 0} - ended
            self.acting = obs.keys() - ended
            for agent, reward in rewards.items():
                self.paid[agent] += reward
            told = [{agent: value for agent, value in part.items() if agent not in hidden} for part in parts]
            for agent in (ended | told[0].keys() | told[1].keys()) & self.paid.keys():
                told[1][agent], self.paid[agent] = self.paid[agent], 0.0
            for agent in ended:
                self.left.pop(agent, None)
                self.paid.pop(agent, None)
            for agent in self.acting - self.left.keys():
                self.left[agent], self.paid[agent] = 0, 0.0
            if over or ended or told[0] or told[1]:
                return told


def test_a_single_environment_repeats_actions_by_itself():
    """So that its copies step together; the episodes are the same."""
    seeds = seeds_for(3)
    env = make_base_env(env_creator(Clock), EnvContext(), 3, EnvSettings(action_repeat=3))
    assert env.in_lockstep
    assert [type(one) for one in env.get_sub_environments()] == [Clock] * 3
    for trace, seed in zip(drive(env, "rows", 20, seeds), seeds, strict=True):
        assert trace == trace_of(Repeated(WORLDS[clock_trace](), 3), seed, len(trace))
    env.stop()


@pytest.mark.parametrize("paid", [np.int8(100), np.bool_(True), np.array(1.0)])
def test_rewards_of_any_dtype_are_summed(paid):
    """The sum is neither one of int8 nor of booleans, and is not written into the environment's array."""

    class Pays(gym.Env):
        def step(self, action):
            return None, paid, False, False, {}

    amount = float(paid)
    assert RepeatedSteps(Pays(), 3).step(0)[1] == 3 * amount
    assert paid == amount


def test_an_environment_may_write_into_its_action():
    class Scales(gym.Env):
        def step(self, action):
            action["force"] *= 2
            return None, float(action["force"][0]), False, False, {}

    assert RepeatedSteps(Scales(), 3).step({"force": np.ones(1), "gear": 1})[1] == 2 + 2 + 2


def test_rows_of_repeated_actions_may_be_written_into():
    sent = []

    class Scales(BaseEnv):
        def reset_rows(self, env_index, seeds=None):
            return Rows.starting(env_index, env_index, np.zeros((1, 1)))

        def send_rows(self, rows, selection, actions):
            actions *= 2
            sent.append(actions.item())

        def poll_rows(self):
            no, zero = np.zeros(1, bool), np.zeros(1, int)
            return Rows(zero, zero, np.zeros((1, 1)), np.zeros(1), no, no, no, ~no, zero[:0])

    env = ActionRepeat(Scales(), 3)
    env.send_rows(env.reset_rows(np.zeros(1, int)), None, np.ones((1, 1)))
    env.poll_rows()
    assert sent == [2, 2, 2]


@pytest.mark.short(every=3)
@pytest.mark.parametrize("name", REPEATABLE)
@pytest.mark.parametrize("view", ["rows", "dicts"])
def test_actions_of_every_kind_are_repeated(name, view):
    """Rewards are summed. The end of an episode ends a repetition, and the other sub-environments go on."""
    kind, seeds = KINDS[name], seeds_for(3)
    env = ActionRepeat(kind.make(3), 3)
    for trace, seed in zip(drive(env, view, 60, seeds), seeds, strict=True):
        assert sum(moment.ended for moment in trace) > 3
        assert trace == trace_of(Repeated(WORLDS[kind.trace](), 3), seed, len(trace))
    env.stop()
