"""Hindsight experience replay (HER): DQN flips 20 bits until they equal a goal, in at least 0.9 of greedy episodes.

Source: Andrychowicz et al. (2017), arXiv:1707.01495, section 3.3, strategy `future`: k of k + 1 drawn rows get another
goal, a state that their trajectory reached in this row or a later one; with it their reward and end are computed again.
Without such goals the agent never sees a reward: 20 bits have a million states. This is an own draw from replay; the
config key `hindsight_goals` has the same for all algorithms with replay (docs/goals.md).
"""

from dataclasses import dataclass

import gymnasium as gym
import numpy as np

from rollax import DQN, DQNTrainer
from rollax.policy.replayed import Draw

BITS = 20


class FlipBits(gym.Env):
    """Each action flips one bit. The bits of `desired_goal` earn 1 and end the episode; else it ends after 20 steps."""

    def __init__(self, env_config: dict) -> None:
        self.action_space = gym.spaces.Discrete(BITS)
        bits = gym.spaces.MultiBinary(BITS)
        self.observation_space = gym.spaces.Dict({"achieved_goal": bits, "desired_goal": bits})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(2, size=(2, BITS), dtype=np.int8)
        self.steps = 0
        return self._observation(), {}

    def step(self, action):
        self.bits[action] ^= 1
        self.steps += 1
        reached = bool((self.bits == self.goal).all())
        return self._observation(), float(reached), reached, self.steps == BITS, {}

    def _observation(self):
        return {"achieved_goal": self.bits.copy(), "desired_goal": self.goal.copy()}


@dataclass(frozen=True)
class Hindsight(Draw):
    """Transitions with goals of the same trajectory, for one step."""

    columns: tuple[str, ...] = ("next_goal",)
    k: int = 4

    def draw(self, replay, count, rng, beta):
        slots = replay.draw_slots(count, rng)
        batch = replay.transitions(slots, beta)
        later = replay.slots_ahead(slots, rng.integers(replay.rows_ahead(slots) + 1))
        relabelled = rng.random(count) < self.k / (self.k + 1)
        goals = np.where(relabelled[:, None], replay.read("next_goal", later), batch["obs"]["desired_goal"])
        reached = (batch["next_goal"] == goals).all(axis=1)
        batch["obs"]["desired_goal"] = batch["new_obs"]["desired_goal"] = goals
        batch["rewards"] = reached.astype(np.float32)
        batch["discounts"] = np.where(reached, np.float32(0), batch["discounts"])
        return batch


class HER(DQN):
    def postprocess(self, fragment, values):
        fragment["next_goal"] = fragment.following("obs")["achieved_goal"]
        return fragment

    def replayed(self, memory):
        return Hindsight()


class HERTrainer(DQNTrainer):
    name, policy_class = "HER", HER


SAMPLING = {"num_envs_per_worker": 16, "rollout_fragment_length": 20, "timesteps_per_iteration": 3200}
REPLAY = {"buffer_size": 200_000, "learning_starts": 1000, "train_batch_size": 256, "training_intensity": 1 / 8}
LEARNING = {"lr": 2e-3, "gamma": 0.95, "target_network_update_freq": 25, "epsilon_timesteps": 30_000}
MODEL = {"fcnet_hiddens": (256,), "fcnet_activation": "relu"}
CONFIG = {**SAMPLING, **REPLAY, **LEARNING, "model": MODEL}


def main(iterations: int = 22, seed: int = 0) -> float:
    """Trains and returns the fraction of 200 greedy episodes that reach their goal; with plain DQN it is 0."""
    with HERTrainer(env=FlipBits, config={**CONFIG, "seed": seed}) as trainer:
        trainer.fit({"training_iteration": iterations})
        return trainer.evaluate(num_episodes=200)["episode_reward_mean"]


if __name__ == "__main__":
    assert main() >= 0.9
