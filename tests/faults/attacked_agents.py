"""Environments with several agents, and of PettingZoo, that return one wrong value; see `attacked.py`."""

from typing import Any

from rollax import BaseEnv, ExternalMultiAgentEnv, MultiAgentEnv
from tests.faults.attacked import ACTIONS, EPISODE, Core, Fault, play

ALL = "__all__"


class AttackedAgents(MultiAgentEnv):
    """Agent "a" has the fault, "b" has none, and "c" is declared but never appears."""

    action_space, possible_agents = ACTIONS, ("a", "b", "c")

    def __init__(self, fault: Fault, broken: bool = True) -> None:
        self.core, self.other, self.observation_space = Core(fault, broken), Core(fault, False), fault.space
        self.stuck = False

    def reset(self, *, seed=None, options=None):
        return self.changed(self.core.reset(), self.other.reset())

    def step(self, actions):
        return self.changed(self.core.step(), self.other.step())

    def changed(self, one: Any, other: Any) -> Any:
        fault = self.core.fault
        if self.core.at_fault and fault.place == "whole":
            return one
        dicts = [{"a": mine, "b": its} for mine, its in zip(one, other, strict=True)]
        if len(dicts) == 5:
            for flags, up in ((dicts[2], self.core.count == EPISODE), (dicts[3], False)):
                flags[ALL] = up
        if self.core.at_fault and fault.place == "agents":
            return fault.value(tuple(dicts))
        return tuple(dicts)


class AttackedParallel:
    """PettingZoo's parallel API."""

    possible_agents = ["a", "b", "c"]

    def __init__(self, fault: Fault, broken: bool = True) -> None:
        self.env, self.metadata = AttackedAgents(fault, broken), {"name": "attacked_v0"}

    def observation_space(self, agent):
        return self.env.observation_space

    def action_space(self, agent):
        return ACTIONS

    def reset(self, seed=None, options=None):
        self.agents = ["a", "b"]
        return self.env.reset()

    def step(self, actions):
        result = self.env.step(actions)
        if isinstance(result, tuple) and len(result) == 5:
            for flags in result[2:4]:
                if isinstance(flags, dict):
                    flags.pop(ALL, None)
        if self.env.core.count == EPISODE:
            self.agents = []
        return result

    def close(self):
        pass


class AttackedTurns(AttackedParallel):
    """PettingZoo's AEC API, with one agent."""

    possible_agents = ["a"]

    def reset(self, seed=None, options=None):
        self.agents, self.agent_selection, self.core = ["a"], "a", self.env.core
        result = self.core.reset()
        self.now = (
            result
            if self.core.at_fault and self.core.fault.place == "whole"
            else (*(result[:1]), 0.0, False, False, result[1])
        )

    def observe(self, agent):
        return self.now[0]

    def last(self, observe=True):
        return self.now

    def step(self, action):
        if action is None:
            self.agents = []
        else:
            self.now = self.core.step()


class AttackedExternalAgents(ExternalMultiAgentEnv):
    """An external environment with several agents."""

    possible_agents = ("a", "b")

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.space, ACTIONS)
        self.core = Core(fault)

    def run(self):
        play(self, True)


class AttackedDicts(BaseEnv):
    """The dict view."""

    num_envs, action_space, possible_agents = 2, ACTIONS, ("a", "b", "c")

    def __init__(self, fault: Fault) -> None:
        self.observation_space = fault.space
        self.envs = [AttackedAgents(fault, False), AttackedAgents(fault)]

    def poll(self):
        results = [env.step({}) for env in self.envs]
        if not (isinstance(results[1], tuple) and len(results[1]) == 5):
            return results[1]
        return *(dict(enumerate(part)) for part in zip(*results, strict=True)), {}

    def send_actions(self, actions):
        pass

    def try_reset(self, env_id=None):
        result = self.envs[env_id].reset()
        if not (isinstance(result, tuple) and len(result) == 2):
            return result if result is not None else 3
        return {env_id: result[0]}, {env_id: result[1]}
