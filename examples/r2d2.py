"""R2D2 on CartPole without velocities: 150 of 500 after at most 41,000 steps. It is DQN with an LSTM.

Source: Kapturowski et al. (2019), "Recurrent experience replay in distributed reinforcement learning", section 2.3.
Sequences of m + T steps begin with the stored recurrent state; the first m steps recompute it (burn-in), the next
sequence overlaps. A sequence has the priority η max |δ| + (1 - η) mean |δ|. Targets are of double Q-learning with n
steps, and of values on another scale:

    y = h(Σ_k γ^k r_{t+k} + γ^n h⁻¹(Q⁻(s_{t+n}, argmax_a Q(s_{t+n}, a)))),  h(x) = sign(x) (√(|x| + 1) - 1) + ε x.

The DQN of the library has all of this as options: `burn_in`, `overlap`, `priority_eta` and `use_h_function`. This file
shows how an algorithm of one's own changes what is drawn from the replay buffer, and the targets.
"""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from rollax import DQN, DQNConfig, DQNTrainer
from rollax.ops.q_learning import chosen
from rollax.policy.sequence_draw import SequenceDraw

EPSILON = 1e-3


class StatelessCartPole(gym.ObservationWrapper):
    """CartPole-v1 whose observation has the cart's position and the pole's angle, but no velocities."""

    def __init__(self, env_config: dict) -> None:
        super().__init__(gym.make("CartPole-v1"))
        space = self.env.observation_space
        assert isinstance(space, gym.spaces.Box)
        self.observation_space = gym.spaces.Box(space.low[[0, 2]], space.high[[0, 2]], dtype=np.float32)

    def observation(self, observation):
        return observation[[0, 2]]


class R2D2Config(DQNConfig):
    defaults = {"overlap": 10}


class R2D2(DQN):
    config_class = R2D2Config

    def replayed(self, memory):
        return SequenceDraw(memory.max_seq_len, self.config.burn_in, self.config.overlap, columns=memory.columns)

    def targets(self, model, target_model, batch, mask, coefficients):
        best = self.next_outputs(model, batch).policy.argmax(axis=-1)
        values = chosen(self.next_outputs(target_model, batch).policy, best)
        return {"target": rescaled(batch["rewards"] + batch["discounts"] * unscaled(values))}


class R2D2Trainer(DQNTrainer):
    name, config_class, policy_class = "R2D2", R2D2Config, R2D2


def rescaled(x: jax.Array) -> jax.Array:
    """h(x)."""
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1) - 1) + EPSILON * x


def unscaled(x: jax.Array) -> jax.Array:
    """h⁻¹(x)."""
    root = jnp.sqrt(1 + 4 * EPSILON * (jnp.abs(x) + 1 + EPSILON))
    return jnp.sign(x) * (((root - 1) / (2 * EPSILON)) ** 2 - 1)


SAMPLING = {"num_envs_per_worker": 16, "rollout_fragment_length": 16, "timesteps_per_iteration": 5120}
REPLAY = {"prioritized_replay": True, "prioritized_replay_alpha": 0.9, "prioritized_replay_beta": 0.6, "n_step": 5}
UPDATES = {"learning_starts": 1000, "train_batch_size": 320, "training_intensity": 1 / 16, "burn_in": 10}
LEARNING = {"lr": 1e-3, "target_network_update_freq": 100, "epsilon_timesteps": 10_000}
MODEL = {
    "use_lstm": True,
    "lstm_cell_size": 32,
    "fcnet_hiddens": (32,),
    "lstm_use_prev_action": True,
    "max_seq_len": 20,
}
CONFIG = {**SAMPLING, **REPLAY, **UPDATES, **LEARNING, "observation_filter": "MeanStdFilter", "model": MODEL}


def main(iterations: int = 8, seed: int = 0) -> float:
    """Trains and returns the mean reward of 20 greedy episodes: at most 500."""
    with R2D2Trainer(env=StatelessCartPole, config={**CONFIG, "seed": seed}) as trainer:
        trainer.fit({"training_iteration": iterations})
        return trainer.evaluate(num_episodes=20)["episode_reward_mean"]


if __name__ == "__main__":
    assert main() >= 150
