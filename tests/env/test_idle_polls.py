"""An environment in which no agent can act for many polls is refused, as sampling would never end."""

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from pettingzoo import AECEnv

from rollax import BaseEnv, EnvError
from rollax.env import agent_checks
from rollax.env.multi_agent import pettingzoo_env
from rollax.env.rows import NO_ENVS, Rows
from rollax.rollout import row_sampler
from rollax.rollout.worker import RolloutWorker
from tests.env.always_zero import AlwaysZero
from tests.env.multi_agent.pettingzoo_worlds import Declared
from tests.env.refused import refused
from tests.env.worlds import ALL, Counting, FixedSteps

OBS, ACTIONS = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
ZERO = np.zeros(2, np.float32)
MOST = 100
CONTINUES = {ALL: False}
BEGUN = {"a": np.zeros(3, np.float32)}, {}


def step(reward, terminateds):
    """A step of an environment with one agent."""
    return BEGUN[0], {"a": reward}, terminateds, CONTINUES, {}


def one_agent(*steps):
    """An environment with one agent and these steps, of which the last one is repeated."""
    return FixedSteps(*steps, first=BEGUN)


ENDED = step(0.0, {"a": True, ALL: False})


@pytest.fixture(autouse=True)
def fewer_polls(monkeypatch):
    """MOST polls without an action are refused, instead of 1000."""
    for module in (agent_checks, pettingzoo_env, row_sampler):
        monkeypatch.setattr(module, "MOST_IDLE_POLLS", MOST)


class Rewards(BaseEnv):
    """Sub-environment 1 only rewards an agent that never acts; the other one is correct."""

    num_envs, observation_space, action_space = 2, OBS, ACTIONS

    def poll(self):
        flags = {0: CONTINUES, 1: CONTINUES}
        return {0: {"a": ZERO}, 1: {}}, {0: {"a": 0.0}, 1: {"a": 0.0}}, flags, flags, {}, {}

    def send_actions(self, actions):
        pass

    def try_reset(self, env_id=None):
        return {env_id: {"a": ZERO}}, {env_id: {}}


class Silent(Rewards):
    """Its polls are empty."""

    def poll(self):
        return {}, {}, {}, {}, {}, {}


class Columns(BaseEnv):
    """Sub-environment 1 has rows of a running trajectory that never acts."""

    num_envs, observation_space, action_space = 2, OBS, ACTIONS

    def rows(self, starts, acts):
        both, no = np.arange(2), np.zeros(2, bool)
        return Rows(both, both, np.zeros((2, 2), np.float32), np.zeros(2), no, no, no | starts, acts, NO_ENVS)

    def poll_rows(self):
        return self.rows(False, np.array([True, False]))

    def send_rows(self, rows, selection, actions):
        pass

    def reset_rows(self, env_index, seeds=None):
        return self.rows(True, np.array([True, True]))


class StuckVector(SyncVectorEnv):
    """Its second sub-environment ends at every step, including those of resets."""

    def __init__(self):
        super().__init__([Counting] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)

    def step(self, actions):
        return np.zeros((2, 3), np.float32), np.zeros(2), np.array([False, True]), np.zeros(2, bool), {}


class InTurn(Declared, AECEnv):
    """An agent that has ended is always selected."""

    metadata, agent_selection, over = {"name": "aec_v0"}, "a", False

    def reset(self, seed=None, options=None):
        self.agents, self.over = ["a"], False

    def last(self, observe=True):
        return np.zeros(3, np.float32), 0.0, self.over, False, {}

    def step(self, action):
        self.over = True


@pytest.mark.parametrize(
    ("env", "where"),
    [
        # its only agent ends at the first step, and every later step reports it again
        (lambda: one_agent(ENDED), "FixedSteps, sub-environment 0...rows of agents ['a']; alive: []"),
        (Rewards, "Rewards, sub-environment 1...rows of agents ['a']; alive: ['a']"),
        (Silent, "Silent...rows of agents []"),
        (Columns, "Columns, sub-environment 1...rows of agents ['agent0']"),
        (StuckVector, "StuckVector, sub-environment 1"),
        (InTurn, "aec_v0...rows of agents ['a']; alive: ['a']"),
    ],
)
@pytest.mark.parametrize("call", [lambda worker: worker.evaluate(4), lambda worker: worker.sample()])
def test_polls_without_an_acting_agent(env, where, call):
    config = {"rollout_fragment_length": 3, "batch_mode": "complete_episodes"}
    worker = RolloutWorker(lambda context: env(), AlwaysZero, config=config)
    refused(EnvError, call, worker, says=f"No agent could act for {MOST} polls in a row...where:    {where}")


def test_shorter_pauses_are_accepted():
    """No agent can act for a little less than MOST steps, repeatedly."""
    env = one_agent(*[*[ENDED] * (MOST - 10), step(0.0, CONTINUES)] * 5)
    worker = RolloutWorker(lambda context: env, AlwaysZero, config={"rollout_fragment_length": 4})
    assert worker.sample().env_steps == 4


class OneStepColumns(Columns):
    num_envs = 1

    def poll_rows(self):
        one, no, yes = np.arange(1), np.zeros(1, bool), np.ones(1, bool)
        return Rows(one, one, np.zeros((1, 2), np.float32), np.zeros(1), yes, no, no, no, one)

    def reset_rows(self, env_index, seeds=None):
        return Rows.starting(env_index, env_index, np.zeros((len(env_index), 2), np.float32))


@pytest.mark.parametrize("env", [lambda: one_agent(step(1.0, {ALL: True})), OneStepColumns])
def test_episodes_of_one_step_are_accepted(env):
    worker = RolloutWorker(lambda context: env(), AlwaysZero, config={"rollout_fragment_length": MOST + 10})
    assert worker.sample().env_steps == MOST + 10
