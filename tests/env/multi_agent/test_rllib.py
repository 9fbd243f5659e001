"""RLlib's multi-agent environments, with a stand-in for their base class under its import path."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from rollax import check_env, to_base_env
from rollax.env.rllib_env import RLlibEnv


class MultiAgentEnv(gym.Env):
    """What `ray.rllib.env.multi_agent_env.MultiAgentEnv` of Ray 2.60 defines."""

    observation_spaces: Any = None
    action_spaces: Any = None
    observation_space: Any = None
    action_space: Any = None
    agents, possible_agents = [], []

    def __init__(self):
        super().__init__()
        if not hasattr(self, "_agent_ids"):
            self._agent_ids = set()
        if not self.agents:
            self.agents = list(self._agent_ids)
        if not self.possible_agents:
            self.possible_agents = self.agents.copy()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)

    def render(self):
        pass

    def get_observation_space(self, agent_id):
        return self._space(self.observation_spaces, self.observation_space, agent_id)

    def get_action_space(self, agent_id):
        return self._space(self.action_spaces, self.action_space, agent_id)

    @staticmethod
    def _space(by_agent, shared, agent_id):
        if by_agent is not None:
            return by_agent[agent_id]
        if isinstance(shared, Dict) and agent_id in shared.spaces:
            return shared[agent_id]
        return shared


MultiAgentEnv.__module__ = "ray.rllib.env.multi_agent_env"


class Moves(MultiAgentEnv):
    """As RLlib's RockPaperScissors: two players move at once; `truncateds` and infos stay empty."""

    def __init__(self, config=None):
        super().__init__()
        self.agents = self.possible_agents = ["player1", "player2"]
        self.observation_spaces = self.action_spaces = {"player1": Discrete(3), "player2": Discrete(3)}

    def reset(self, *, seed=None, options=None):
        self.moves = 0
        return {"player1": 0, "player2": 0}, {}

    def step(self, action_dict):
        self.moves += 1
        one, two = action_dict["player1"], action_dict["player2"]
        won = {"player1": float(one > two), "player2": float(two > one)}
        return {"player1": two, "player2": one}, won, {"__all__": self.moves >= 4}, {}, {}


class Corridor(MultiAgentEnv):
    """As RLlib's DoubleRowCorridorEnv: methods give the spaces; agents leave, and their flags stay set."""

    def __init__(self, config=None):
        super().__init__()
        self.agents = self.possible_agents = ["agent_0", "agent_1"]

    def get_observation_space(self, agent_id):
        return Box(0, 9, (1,), np.int32)

    def get_action_space(self, agent_id):
        return Discrete(4)

    def reset(self, *, seed=None, options=None):
        self.left = {"agent_0": 2, "agent_1": 5}
        return self._obs(), {}

    def _obs(self):
        return {agent: np.array([left], np.int32) for agent, left in self.left.items() if left}

    def step(self, action_dict):
        rewards = dict.fromkeys(action_dict, -0.1)
        for agent in action_dict:
            self.left[agent] -= 1
        terminateds = {agent: not left for agent, left in self.left.items()}
        return self._obs(), rewards, terminateds | {"__all__": all(terminateds.values())}, {}, {}


class OldSpaces(Moves):
    """A Dict space by agent, and agents named by `_agent_ids` alone."""

    def __init__(self, config=None):
        MultiAgentEnv.__init__(self)
        self._agent_ids = {"player1", "player2"}
        self.observation_space = Dict({"player1": Discrete(3), "player2": Discrete(3)})
        self.action_space = Dict({"player1": Discrete(3), "player2": Discrete(3)})


class OneSpace(Moves):
    """As RLlib's TwoStepGame: one space for all, agents that are numbers."""

    def __init__(self, config=None):
        MultiAgentEnv.__init__(self)
        self._agent_ids = {0, 1}
        self.observation_space = self.action_space = Discrete(3)

    def reset(self, *, seed=None, options=None):
        self.moves = 0
        return {0: 0, 1: 0}, {}

    def step(self, action_dict):
        obs, rewards, *flags, infos = super().step({"player1": action_dict[0], "player2": action_dict[1]})
        return {0: obs["player1"], 1: obs["player2"]}, {0: rewards["player1"], 1: rewards["player2"]}, *flags, infos


class Grouped(Moves):
    """As RLlib's TwoStepGameWithGroupedAgents: a group whose observations are lists."""

    def __init__(self, config=None):
        self._agent_ids = {"both"}
        MultiAgentEnv.__init__(self)
        self.observation_space = self.action_space = Dict({"both": Tuple([Discrete(3), Discrete(3)])})

    def reset(self, *, seed=None, options=None):
        self.moves = 0
        return {"both": [0, 0]}, {}

    def step(self, action_dict):
        one, two = action_dict["both"]
        obs, rewards, *flags, _ = super().step({"player1": one, "player2": two})
        infos = {"both": {"_group_rewards": [*rewards.values()]}}
        return {"both": [*obs.values()]}, {"both": sum(rewards.values())}, *flags, infos


class Old(Moves):
    """Of the old Gym interface, as environments written for RLlib before 2.3."""

    def reset(self):
        return super().reset()[0]

    def step(self, action_dict):
        obs, rewards, over, _, _ = super().step(action_dict)
        return obs, rewards, over, {"player1": {"TimeLimit.truncated": over["__all__"]}}


@pytest.mark.parametrize(
    ("env", "agents", "space", "steps"),
    [
        (Moves, ("player1", "player2"), Discrete(3), 4),
        (Corridor, ("agent_0", "agent_1"), Box(0, 9, (1,), np.int32), 5),
        (OldSpaces, ("player1", "player2"), Discrete(3), 4),
        (OneSpace, (0, 1), Discrete(3), 4),
        (Grouped, ("both",), Tuple([Discrete(3), Discrete(3)]), 4),
        (Old, ("player1", "player2"), Discrete(3), 4),
    ],
)
def test_check_env(env, agents, space, steps):
    report = check_env(env)
    assert (report.kind, report.name, report.agents) == ("ray.MultiAgentEnv", env.__name__, agents)
    assert report.warnings == ()
    assert report.observation_space == space
    assert report.steps == steps * report.episodes


def test_missing_flags_are_false():
    env = RLlibEnv(Moves())
    env.reset()
    _, _, terminateds, truncateds, _ = env.step({"player1": 1, "player2": 2})
    assert (terminateds, truncateds) == ({"__all__": False}, {"__all__": False})


def test_a_time_limit_of_the_old_interface_truncates():
    base = to_base_env(Old())
    base.try_reset()
    for _ in range(4):
        base.send_actions({0: {"player1": 0, "player2": 1}})
        _, _, terminateds, truncateds, _, _ = base.poll()
    assert (terminateds[0]["__all__"], truncateds[0]["__all__"]) == (False, True)


def test_agents_whose_spaces_differ():
    class Unlike(Moves):
        def __init__(self, config=None):
            super().__init__()
            self.observation_spaces = {"player1": Discrete(3), "player2": Discrete(4)}

    base = to_base_env(Unlike())
    assert base.observation_space is None
    assert base.observation_spaces == {"player1": Discrete(3), "player2": Discrete(4)}
    assert base.action_space == Discrete(3)
