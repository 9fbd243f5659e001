"""Environments of jaxmarl: a stand-in with its interface, and itself where it is installed: it pulls in gymnax."""

import sys
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, PPOConfig, RolloutWorker, to_base_env
from rollax.algorithms.ppo import PPO
from rollax.env.registry import env_creator
from rollax.rollout.compiled_sampler import CompiledSampler
from tests.env.jax.named import MODEL, end_of, the_env


class Actions:
    """As `jaxmarl.environments.spaces.Discrete`."""

    def __init__(self, n):
        self.n = n


class MultiAgentEnv:
    """As that of jaxmarl: counts up to 3 by actions, and ends by time too; "world_state" is no agent."""

    def __init__(self, max_steps=4, masked=False):
        self.agents, self.max_steps, self.masked = ["one", "two"], max_steps, masked

    def action_space(self, agent):
        return Actions({"one": 2, "two": 3}[agent])

    def reset(self, key):
        return self._obs(jnp.zeros(2, jnp.int8)), {"counts": jnp.zeros(2, jnp.int8), "step": 0}

    def step_env(self, key, state, actions):
        counts = state["counts"] + jnp.stack([actions["one"], actions["two"]]).astype(jnp.int8)
        done = (counts >= 3).all() | (state["step"] >= self.max_steps)  # one step too late, as in its MPE
        state = {"counts": counts, "step": state["step"] + 1}
        dones = {"one": counts[0] >= 3, "two": counts[1] >= 3, "__all__": done}
        return self._obs(counts), state, {"one": 1, "two": counts[1], "__all__": 3}, dones, {}

    def _obs(self, counts):
        return {"two": counts, "one": counts[:1], "world_state": counts}

    def get_avail_actions(self, state):
        if not self.masked:
            raise NotImplementedError
        return {"one": jnp.ones(2), "two": jnp.array([1, 0, 1])}


class WithEnemies(MultiAgentEnv):
    """Has another one inside, as its SMAX."""

    def __init__(self):
        self._env = MultiAgentEnv(3, masked=True)

    def __getattr__(self, name):
        return getattr(self._env, name)

    def step_env(self, key, state, actions):
        return self._env.step_env(key, state, actions)

    action_space, reset = (lambda self, agent: self._env.action_space(agent)), (lambda self, key: self._env.reset(key))

    def get_avail_actions(self, state):
        return self._env.get_avail_actions(state)


class AnyKeyword(MultiAgentEnv):
    """Takes any keyword, as its MPE, of which some become attributes."""

    __module__ = "jaxmarl.environments.mpe.simple"

    def __init__(self, num_agents=2, **kwargs):
        super().__init__(kwargs.get("max_steps", 4))
        self.damping = kwargs.get("damping", 0.25)


@pytest.fixture
def jaxmarl(monkeypatch):
    known: Any = {"counts": MultiAgentEnv, "enemies": WithEnemies, "mpe": AnyKeyword}
    library: Any = ModuleType("jaxmarl")
    library.registered_envs = list(known)
    library.make = lambda name, **settings: known[name](**settings)
    monkeypatch.setitem(sys.modules, "jaxmarl", library)
    monkeypatch.setattr(MultiAgentEnv, "__module__", "jaxmarl.environments.multi_agent_env")


@pytest.mark.usefixtures("jaxmarl")
class TestJaxMarl:
    def ends(self, env, one, two):
        """After how many steps of the same actions it ends, and how."""
        return end_of(env, {"one": jnp.int32(one), "two": jnp.int32(two)})

    def test_ends_are_terminations_and_the_limit_truncates(self):
        env = the_env("jax:jaxmarl/counts")
        assert env.max_episode_steps == 4
        assert self.ends(env, 1, 1) == (3, True, False)
        assert self.ends(env, 0, 2) == (4, False, True)
        assert self.ends(the_env("jax:jaxmarl/counts", max_steps=6), 0, 2) == (6, False, True)
        assert self.ends(the_env("jax:jaxmarl/counts", max_steps=6, max_episode_steps=2), 1, 1) == (2, False, True)
        assert self.ends(the_env("jax:jaxmarl/counts", max_episode_steps=None), 0, 2) == (9, False, False)
        assert self.ends(the_env("jax:jaxmarl/enemies"), 0, 2) == (3, False, True)

    @pytest.mark.long
    def test_spaces_and_fragments(self):
        env = the_env("jax:jaxmarl/counts")
        assert env.agents == ("one", "two")
        assert env.observation_spaces["two"] == spaces.Box(-np.inf, np.inf, (2,), np.float32)
        assert env.action_spaces == {"one": spaces.Discrete(2), "two": spaces.Discrete(3)}
        assert the_env("jax:jaxmarl/enemies").observation_spaces["two"]["action_mask"] == spaces.MultiBinary(3)
        settings = {"num_envs_per_worker": 4, "rollout_fragment_length": 40, "seed": 0, "model": MODEL}
        policies = dict.fromkeys(env.agents, PPO)
        config = PPOConfig(**settings)
        worker = RolloutWorker("jax:jaxmarl/enemies", policies, policy_mapping_fn=lambda agent: agent, config=config)
        assert type(worker.sampler) is CompiledSampler
        batch = worker.sample()
        assert set(batch["two"]["actions"]) == {0, 2}
        assert set(batch["one"]["rewards"]) == {1}

    def test_an_environment_itself(self):
        given = MultiAgentEnv(7)
        for _ in range(2):  # a creator may return the same one for training and for evaluation
            (env,) = to_base_env(given).get_sub_environments()
            assert env.max_episode_steps == 7
        assert given.max_steps == 7

    def test_settings_that_the_environment_would_ignore(self):
        settings = {"num_agents": 2, "damping": 0.5, "max_steps": 6}
        assert self.ends(the_env("jax:jaxmarl/mpe", **settings), 0, 2) == (6, False, True)
        with pytest.raises(ConfigError, match=r"Unknown setting 'num_agent'[\s\S]*did you mean 'num_agents'"):
            the_env("jax:jaxmarl/mpe", num_agent=3)

    def test_an_unknown_name(self):
        with pytest.raises(ConfigError, match=r"Unknown environment of jaxmarl[\s\S]*did you mean 'counts'"):
            env_creator("jax:jaxmarl/count")


@pytest.mark.learning
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["MPE_simple_spread_v3", "HeuristicEnemySMAX", "overcooked"])
def test_episodes_of_jaxmarl_itself(name):
    jaxmarl: Any = pytest.importorskip("jaxmarl")
    theirs, env = jaxmarl.make(name), the_env(f"jax:jaxmarl/{name}")
    state, (_, their_state) = env.reset(jax.random.key(0))[0], theirs.reset(jax.random.key(0))
    step, ended = jax.jit(env.step), False
    for number in range(30):
        key = jax.random.key(number)
        keys = dict(zip(env.agents, jax.random.split(key, len(env.agents)), strict=True))
        actions = {agent: theirs.action_space(agent).sample(keys[agent]) for agent in env.agents}
        outcome = step(state, actions, key)
        state = outcome.state
        obs, their_state, rewards, dones, _ = theirs.step_env(key, their_state, actions)
        ended = bool(outcome.terminated | outcome.truncated)
        assert outcome.terminated == (dones["__all__"] and number + 1 < env.max_episode_steps)
        for agent in env.agents:
            seen = outcome.obs[agent]
            np.testing.assert_allclose(seen["observation"] if isinstance(seen, dict) else seen, obs[agent], atol=1e-4)
            np.testing.assert_allclose(outcome.reward[agent], rewards[agent], rtol=1e-3, atol=1e-4)
        if ended:
            break
    assert ended == (name != "overcooked")
