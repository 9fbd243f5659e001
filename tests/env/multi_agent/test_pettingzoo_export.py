"""rollax's multi-agent environments as PettingZoo's parallel environments."""

import warnings

import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces

from rollax import EnvError, MultiAgentEnv, MultiAgentError, SpaceError, to_base_env
from rollax.env.multi_agent.pettingzoo_export import to_pettingzoo
from tests.env.multi_agent.pettingzoo_worlds import Dance
from tests.env.refused import refused
from tests.env.worlds import ACTION_SPACE, ALL, OBS_SPACE
from tests.python_process import output_of


class Together(MultiAgentEnv):
    """Agents that all act at once; with `leaving`, one of them ends every three steps."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE
    possible_agents = ("a", "b", "c")

    def __init__(self, leaving: bool) -> None:
        self.leaving = leaving

    def reset(self, *, seed=None, options=None):
        self.count, self.alive = 0, list(self.possible_agents)
        self.seen = [(seed, options)]
        return self._obs(), {}

    def step(self, actions):
        assert set(actions) == set(self.alive)
        self.count += 1
        obs, rewards = self._obs(), dict.fromkeys(self.alive, 1.0)
        ended = self.alive[0] if self.leaving and self.count % 3 == 0 else None
        self.alive = [agent for agent in self.alive if agent != ended]
        terminateds = {ALL: not self.alive, **({ended: True} if ended else {})}
        return obs, rewards, terminateds, {ALL: self.count == 60}, {}

    def _obs(self):
        return {agent: np.full(3, self.count, np.float32) for agent in self.alive}


class Turns(Together):
    """One agent acts at a time, and the previous one is rewarded for its action."""

    def step(self, actions):
        (actor,) = actions
        self.count += 1
        following = self.possible_agents[self.count % 3]
        obs = {following: np.full(3, self.count, np.float32)}
        return obs, {actor: float(self.count)}, {ALL: self.count == 10}, {ALL: False}, {following: {"turn": self.count}}

    def _obs(self):
        return {"a": np.zeros(3, np.float32)}


def pettingzoos_own_test(env) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it imports environments in a deprecated way
        from pettingzoo.test import parallel_api_test
    parallel_api_test(env, num_cycles=200)


class TestExport:
    @pytest.mark.parametrize("env", [Together(False), Together(True)], ids=["at once", "leaving"])
    def test_pettingzoos_own_test(self, env):
        pettingzoos_own_test(to_pettingzoo(env))

    def test_pettingzoos_own_test_of_an_adapted_environment(self):
        with warnings.catch_warnings():
            # Not every agent of a dance appears in every episode: the test may warn of it.
            warnings.filterwarnings("ignore", "No agents present")
            warnings.filterwarnings("ignore", "(?s).*Live agent was not given|Agent was given")
            pettingzoos_own_test(to_pettingzoo(to_base_env(Dance()).envs[0]))

    def test_infos_show_which_agents_act_in_turns(self):
        env = to_pettingzoo(Turns(False))
        assert isinstance(env, pettingzoo.ParallelEnv)
        obs, infos = env.reset(seed=4, options={"x": 2})
        assert env.env.seen == [(4, {"x": 2})]
        assert (env.agents, infos) == (["a"], {"a": {"acts": True}})
        obs, rewards, terminateds, truncateds, infos = env.step({"a": 0})
        assert env.agents == ["a", "b"]
        assert {agent: value[0] for agent, value in obs.items()} == {"a": 0, "b": 1}
        assert rewards == {"a": 1.0, "b": 0.0}
        assert infos == {"a": {"acts": False}, "b": {"acts": True, "turn": 1}}
        obs, rewards, *_ = env.step({"a": 4, "b": 1})
        assert {agent: value[0] for agent, value in obs.items()} == {"a": 0, "b": 1, "c": 2}
        assert rewards == {"a": 0.0, "b": 2.0, "c": 0.0}
        for _ in range(8):
            assert terminateds == dict.fromkeys(terminateds, False)
            obs, rewards, terminateds, truncateds, infos = env.step(dict.fromkeys(env.agents, 0))
        assert env.agents == []
        assert terminateds == dict.fromkeys("abc", True)
        assert truncateds == dict.fromkeys("abc", False)
        assert {agent: value[0] for agent, value in obs.items()} == {"a": 9, "b": 10, "c": 8}

    def test_an_agents_own_flag_wins(self):
        class Cut(Together):
            def step(self, actions):
                obs, rewards, *_ = super().step(actions)
                return obs, rewards, {ALL: True}, {"b": True, ALL: False}, {}

        env = to_pettingzoo(Cut(False))
        env.reset()
        _, _, terminateds, truncateds, _ = env.step(dict.fromkeys("abc", 0))
        assert terminateds == {"a": True, "b": False, "c": True}
        assert truncateds == {"a": False, "b": True, "c": False}

    def test_a_reward_beside_a_first_observation_is_not_counted(self):
        class FirstRewards(Turns):
            def step(self, actions):
                obs, _, *rest = super().step(actions)
                return obs, dict.fromkeys((*actions, *obs), 5.0), *rest

        env = to_pettingzoo(FirstRewards(False))
        env.reset()
        assert env.step({"a": 0})[1] == {"a": 5.0, "b": 0.0}

    def test_an_agent_that_ends_as_it_appears_is_left_out(self):
        class EndsAtOnce(Turns):
            def step(self, actions):
                obs, rewards, terminateds, *rest = super().step(actions)
                return obs | {"c": np.zeros(3, np.float32)}, rewards, terminateds | {"c": True}, *rest

        env = to_pettingzoo(EndsAtOnce(False))
        env.reset()
        for part in env.step({"a": 0}):
            assert set(part) == {"a", "b"}

    def test_a_step_without_a_reset(self):
        env = to_pettingzoo(Together(False))
        refused(EnvError, env.step, {"a": 0}, says="before the reset...Together, exported to PettingZoo")

    @pytest.mark.parametrize("actions", [{"a": 0, "b": 0}, {"a": 0, "b": 0, "c": 0, "z": 0}])
    def test_actions_of_other_agents(self, actions):
        env = to_pettingzoo(Together(False))
        env.reset()
        says = "The actions are not for the agents...Together...['a', 'b', 'c']"
        refused(MultiAgentError, env.step, actions, says=says)

    def test_no_spaces(self):
        class Bare(Together):
            observation_space = None
            action_spaces = {"a": spaces.Discrete(3)}

        env = to_pettingzoo(Bare(False))
        assert env.action_space("a") == spaces.Discrete(3)
        assert env.action_space("b") == ACTION_SPACE
        refused(SpaceError, env.observation_space, "b", says="has no space...Bare...agent 'b'")

    def test_other_values_than_a_multi_agent_env(self):
        refused(EnvError, to_pettingzoo, Dance(), says="This is not a multi-agent environment...Dance")

    def test_without_pettingzoo(self):
        code = (
            "import sys; sys.modules['pettingzoo'] = None\n"
            "import rollax\n"
            "try: rollax.to_pettingzoo\n"
            "except rollax.ConfigError as error: assert \"pip install 'rollax[pettingzoo]'\" in str(error)\n"
            "else: raise AssertionError"
        )
        output_of("-c", code)
