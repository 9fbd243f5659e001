"""DQN for several agents: buffers, target networks and γ by policy, shared variables, counting of steps."""

import gymnasium as gym
import numpy as np
import pytest

from rollax import DQNTrainer, MultiAgentEnv, PolicySpec
from tests.algorithms.envs import TwoAgents

LENGTH = 4


class DifferentAgents(MultiAgentEnv):
    """Agents with different spaces. In step k = 0, 1, 2, 3 `small` observes k and earns k + 1; `large` observes
    [k, k], earns ten times as much and acts only in every second step."""

    observation_spaces = {
        "small": gym.spaces.Discrete(LENGTH + 1),
        "large": gym.spaces.Box(0, LENGTH, (2,), np.float32),
    }
    action_spaces = {
        "small": gym.spaces.Discrete(2),
        "large": gym.spaces.Discrete(3, start=-1),
    }
    possible_agents = ("small", "large")

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self._obs(), {}

    def step(self, actions):
        assert all(self.action_spaces[agent].contains(action) for agent, action in actions.items())
        rewards = {agent: {"small": 1.0, "large": 10.0}[agent] * (self.count + 1) for agent in actions}
        self.count += 1
        over = self.count == LENGTH
        return self._obs(), rewards, {"__all__": over}, {"__all__": False}, {}

    def _obs(self):
        obs = {"small": self.count}
        if self.count % 2 == 0:
            obs["large"] = np.full(2, self.count, np.float32)
        return obs


SMALL = {"learning_starts": 8, "timesteps_per_iteration": 40, "train_batch_size": 8, "training_intensity": 0.5}
SMALL |= {"model": {"fcnet_hiddens": (8,)}, "seed": 0}


def config_of_both():
    """A config with a policy for each agent: `small` has n = 3 and γ = 0.1, `large` has n = 2 and γ = 0.5."""
    policies = {
        "small": PolicySpec(config={"gamma": 0.1, "n_step": 3}),
        "large": PolicySpec(config={"gamma": 0.5, "n_step": 2, "num_atoms": 5}),
    }
    multiagent = {"policies": policies, "policy_mapping_fn": lambda agent: agent}
    return {**SMALL, "multiagent": multiagent}


def returns_by_observation(trainer, policy_id):
    """First number observed -> all (return, discount) in the policy's buffer."""
    drawn = trainer.optimizer.buffers[policy_id].sample(400, np.random.default_rng(0))
    found: dict[int, set] = {}
    for obs, *pair in zip(drawn["obs"], drawn["rewards"].astype(float), drawn["discounts"].astype(float), strict=True):
        found.setdefault(int(np.ravel(obs)[0]), set()).add(tuple(np.round(pair, 4).tolist()))
    return found


class TestPolicies:
    @pytest.mark.long
    def test_each_has_its_own_spaces_and_gamma(self):
        with DQNTrainer(DifferentAgents, config_of_both()) as trainer:
            stats = trainer.train()["info"]["learner"]
            # γ = 0.1: rewards are digits. 1.23, 2.34, then the trajectory ends: 3.4 and 4.
            expected = {0: (1.23, 0.001), 1: (2.34, 0.0), 2: (3.4, 0.0), 3: (4.0, 0.0)}
            assert returns_by_observation(trainer, "small") == {k: {pair} for k, pair in expected.items()}
            # It acts in steps 0 and 2 only: 10 + 30 / 2 = 25, and 30. Other steps earn 0.
            assert returns_by_observation(trainer, "large") == {0: {(25.0, 0.0)}, 2: {(30.0, 0.0)}}
        assert np.isfinite([stats[policy_id]["q_loss"] for policy_id in ("small", "large")]).all()


class TestSharedVariables:
    shared = {"shared_variables": {"body": {"parts": ["trunk"]}}}
    policies = {"policies": {"left": None, "right": None}, "policy_mapping_fn": lambda agent: agent}

    @pytest.mark.long
    def test_both_policies_train_them_and_each_has_a_target_network(self):
        config = {**SMALL, "multiagent": {**self.policies, **self.shared}, "target_network_update_freq": 1}
        with DQNTrainer(TwoAgents, config) as trainer:
            trainer.train()
            left, right = (trainer.get_policy(name) for name in ("left", "right"))
            shared = [name for name in left.params if name.startswith("trunk.")]
            own = [name for name in left.params if name not in shared]
            assert shared
            assert own
            assert all(left.params[name] is right.params[name] for name in shared)
            assert any(not np.array_equal(left.params[name], right.params[name]) for name in own)
            # Copied after every update of its own policy. `right` learns after `left` and changes the shared variables.
            assert same(right.targets, right.params)
            assert same({n: left.targets[n] for n in own}, {n: left.params[n] for n in own})
            assert any(not np.array_equal(left.targets[name], left.params[name]) for name in shared)


class TestCounting:
    @pytest.mark.long
    @pytest.mark.parametrize(("count_steps_by", "steps_at_once"), [("env_steps", 4), ("agent_steps", 8)])
    def test_updates_are_due_by_counted_steps(self, count_steps_by, steps_at_once):
        policies = {"policies": {"left": None, "right": None}, "policy_mapping_fn": lambda agent: agent}
        config = {**SMALL, "multiagent": policies, "count_steps_by": count_steps_by, "timesteps_per_iteration": 0}
        with DQNTrainer(TwoAgents, {**config, "learning_starts": 10, "training_intensity": 0.75}) as trainer:
            for iteration in range(1, 8):
                result = trainer.train()  # a fragment of four env steps of two agents
                assert result["timesteps_total"] == iteration * steps_at_once
                assert result["agent_timesteps_total"] == iteration * 8
                due = max(int((iteration * steps_at_once - 10) * 0.75), 0)
                for policy_id in ("left", "right"):
                    assert trainer.get_policy(policy_id).learner.num_updates == due


def same(some, other):
    """Whether the arrays of these names are equal."""
    return some.keys() == other.keys() and all(np.array_equal(some[name], other[name]) for name in some)
