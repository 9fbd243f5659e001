"""The table of environment kinds, and kinds that users add."""

import pickle

import gymnasium as gym
import numpy as np
import pytest

from rollax import ConfigError, EnvError, check_env, register_env_adapter, to_base_env
from rollax.env import adapters
from rollax.env.registrations import register_all, registrations
from tests.env.refused import refused
from tests.env.worlds import Clock, Party
from tests.python_process import output_of


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch):
    monkeypatch.setattr(adapters, "_registered", {})


class Machine:
    """An environment with an unknown interface: `begin() -> obs`, `turn(action) -> (obs, reward, over)`."""

    def begin(self):
        self.left = 3
        return 0

    def turn(self, action):
        self.left -= 1
        return 0, float(action), self.left == 0


class FastMachine(Machine):
    """A subclass, which is recognized by its base class."""


class MachineEnv(gym.Env):
    observation_space, action_space = gym.spaces.Discrete(1), gym.spaces.Discrete(2)

    def __init__(self, machine):
        self.machine = self.as_written = machine

    def reset(self, *, seed=None, options=None):
        return self.machine.begin(), {}

    def step(self, action):
        obs, reward, over = self.machine.turn(action)
        return obs, reward, over, False, {}


KIND = f"{Machine.__module__}.Machine"


@pytest.mark.parametrize("adapter", [MachineEnv, f"{Machine.__module__}:MachineEnv"])
def test_a_kind_that_a_user_adds(adapter):
    refused(EnvError, to_base_env, Machine(), says="This is not an environment...register_env_adapter")
    register_env_adapter(KIND, adapter)
    base = to_base_env(FastMachine(), lambda index: FastMachine(), 3)
    assert base.num_envs == 3
    assert [type(env) for env in base.get_sub_environments()] == [FastMachine] * 3
    base.send_rows(base.reset_rows(np.arange(3)), None, np.array([0, 1, 1]))
    assert base.poll_rows().rewards.tolist() == [0, 1, 1]
    report = check_env(lambda context: Machine(), episodes=1)
    assert (report.kind, report.name, report.findings) == ("tests.Machine", "Machine", ())


def test_a_kind_recognized_by_its_methods_comes_before_the_built_in_ones():
    register_env_adapter("a clock", lambda env: Party(), recognizes=lambda env: isinstance(env, Clock))
    assert set(to_base_env(Clock()).try_reset()[0][0]) <= set("abcd")
    register_env_adapter("a clock", MachineEnv, recognizes=lambda env: isinstance(env, Machine))  # replaces it
    assert "agent0" in to_base_env(Clock()).try_reset()[0][0]


def test_an_adapter_that_returns_its_own_kind_or_nothing():
    register_env_adapter(KIND, lambda env: env)
    refused(EnvError, to_base_env, Machine(), says=f"form a cycle...{KIND} -> {KIND}...built-in kind")
    register_env_adapter(KIND, lambda env: None)
    refused(EnvError, to_base_env, Machine(), says="This is not an environment...None")


@pytest.mark.parametrize("adapter", [None, "no_path", 3])
def test_invalid_adapters(adapter):
    refused(ConfigError, register_env_adapter, KIND, adapter, says="The adapter is not callable...register_env_adapter")


def test_an_adapter_that_does_not_import():
    register_env_adapter(KIND, "no_such_module:adapt")
    says = f"cannot be imported...the adapter of {KIND}...no_such_module:adapt"
    refused(ConfigError, to_base_env, Machine(), says=says)


def test_adapters_are_registered_in_other_processes():
    register_env_adapter(KIND, MachineEnv)
    register_env_adapter("stays here", MachineEnv, recognizes=lambda env: False)
    registered = registrations(lambda entry: pickle.dumps(entry) if entry.kind == KIND else 1 / 0)
    adapters._registered.clear()
    register_all(registered)
    assert list(adapters.registered_adapters()) == [KIND]
    assert to_base_env(Machine()).num_envs == 1


def test_training_loads_only_the_kinds_in_use():
    """A process that samples CartPole loads no module of another kind of environment, nor PettingZoo, nor Ray."""
    code = """
import sys
from rollax import RolloutWorker
from tests.env.always_zero import AlwaysZero
import rollax.env.recording
RolloutWorker("CartPole-v1", AlwaysZero, config={"rollout_fragment_length": 9}).sample()
print(*sys.modules)
"""
    loaded = set(output_of("-c", code).split())
    assert "rollax.env.vector.vector_base_env" in loaded
    kinds = ("external", "multi_agent", "remote", "legacy", "native", "sb3", "dm_environment", "dict_rows", "atari")
    of_kinds = [name for name in loaded if name.startswith("rollax.env.") and any(kind in name for kind in kinds)]
    assert (of_kinds, loaded & {"pettingzoo", "ray"}) == ([], set())


def test_copies_need_an_adapter_where_the_first_does_not():
    register_env_adapter(KIND, MachineEnv)
    assert to_base_env(MachineEnv(Machine()), lambda index: Machine(), 2).num_envs == 2
