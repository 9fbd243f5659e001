"""Learning with a centralized critic; `make learning` runs these tests."""

import jax
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax import JaxPolicy, MultiAgentEnv, PPOTrainer
from rollax.algorithms.ppo import PPO
from rollax.models.outputs import Outputs
from tests.algorithms.test_centralized_critic import COIN, SMALL, OwnCritic

pytestmark = pytest.mark.learning


class TwoStep(MultiAgentEnv):
    """The first action of `one` leads to a state that pays 7, or to one that pays 8 if both choose 1, else 1 or 0."""

    observation_space, action_space = spaces.Discrete(3), COIN
    possible_agents = ("one", "two")

    def __init__(self, env_config: dict) -> None:
        self.state = 0

    def reset(self, *, seed=None, options=None):
        self.state = 0
        return {"one": 0, "two": 0}, {}

    def step(self, actions):
        over, paid = self.state > 0, 0.0
        if self.state == 0:
            self.state = 1 + int(actions["one"])
        else:
            paid = 7.0 if self.state == 1 else (0.0, 1.0, 8.0)[int(actions["one"] + actions["two"])]
        obs = dict.fromkeys(self.possible_agents, self.state)
        return obs, dict.fromkeys(obs, paid / 2), {"__all__": over}, {"__all__": False}, {}


class StateCritic(OwnCritic):
    """The same for three states, one-hot."""

    def __init__(self, observation_space, num_outputs, *, rngs):
        super().__init__(observation_space, num_outputs, rngs=rngs)
        self.actor = nnx.Linear(3, num_outputs, rngs=rngs)
        self.hidden = nnx.Linear(8, 32, rngs=rngs)

    def __call__(self, obs):
        return Outputs(self.actor(jax.nn.one_hot(obs, 3)))


class StateByHandPolicy(JaxPolicy):
    def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
        ((_, other),) = other_agent_batches.values()
        columns = [np.eye(3)[sample_batch["obs"]], np.eye(3)[other["obs"]], np.eye(2)[other["actions"]]]
        sample_batch["critic_obs"] = np.concatenate(columns, axis=1).astype(np.float32)
        return super().postprocess_trajectory(sample_batch)


class StateByHand(PPO):
    policy_class = StateByHandPolicy


@pytest.mark.parametrize("way", ["by key", "by key, one policy", "by hand"])
def test_two_step_game(learning_run, way):
    """Reaches RLlib's target for a centralized critic, at best and at the end; the maximum is 8."""
    policy = StateByHand if way == "by hand" else None
    several = {"policies": {"one": policy, "two": policy}, "policy_mapping_fn": lambda agent_id: agent_id}
    config = {
        **SMALL,
        "num_envs_per_worker": 16,
        "train_batch_size": 512,
        "sgd_minibatch_size": 128,
        "entropy_coeff": 0.02,
        "centralized_critic": way != "by hand",
        "model": {"custom_model": StateCritic} if way == "by hand" else {},
        "multiagent": {} if way == "by key, one policy" else several,
    }
    assert learning_run(PPOTrainer, TwoStep, 7.2, 40 * 512, config).last >= 7.2
