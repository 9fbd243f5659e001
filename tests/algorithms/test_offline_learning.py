"""What offline algorithms reach with recorded data alone; `make learning` runs these.

The data is made in the run, by policies that are trained with a seed of their own; the mean return of its episodes is
printed beside the scores. A run ends when its greedy evaluation has reached the bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from examples.multi_agent_cartpole import MultiAgentCartPole, even_or_odd
from examples.stateless_cartpole import StatelessCartPole
from rollax import (
    BCTrainer,
    CQLTrainer,
    DiscreteCQLTrainer,
    DQNTrainer,
    IQLTrainer,
    MARWILTrainer,
    PPOTrainer,
    SACTrainer,
    TD3BCTrainer,
)
from rollax.data import RecordedTrajectory
from tests.algorithms.recorded_data import Recordings, at_random, mixed_with, of, played, trained_on
from tests.optimizers.recorded import ListReader

pytestmark = pytest.mark.learning

PPO = {
    "num_envs_per_worker": 8,
    "train_batch_size": 1024,
    "lr": 1e-3,
    "gamma": 0.98,
    "lambda": 0.9,
    "seed": 0,
}
SMALL: dict[str, Any] = {
    "lr": 1e-3,
    "train_batch_size": 256,
    "timesteps_per_iteration": 0,
    "updates_per_step": 1000,
    "evaluation_num_episodes": 20,
}
RELU = {"fcnet_hiddens": (64, 64), "fcnet_activation": "relu"}
SAC = {"lr": 1e-3, "learning_starts": 500, "random_steps": 500, "model": RELU, "seed": 0}
PENDULUM = {**SMALL, "gamma": 0.98, "model": RELU}
MARWIL = {**SMALL, "max_weight": 100.0}
each_seed = pytest.mark.parametrize("seed", [0, 1, 2])


def cart_pole() -> gym.Env:
    return gym.make("CartPole-v1")


@pytest.fixture
def learned(capsys, request):
    """The best greedy evaluation within so many iterations, each of `updates_per_step` updates."""

    def run(trainer_class, env, config, iterations, bar, behaviour) -> float:
        scores: list[float] = []
        with trainer_class(env, config) as trainer:
            while len(scores) < iterations and max(scores, default=-np.inf) < bar:
                trainer.train()
                scores.append(trainer.evaluate()["episode_reward_mean"])
            updates = trainer.optimizer.num_updates
        shown = " ".join(f"{score:.5g}" for score in scores)
        with capsys.disabled():
            print(f"\n{request.node.name}: {shown} after {updates} updates; the data has {behaviour:.5g}")
        return max(scores)

    return run


@pytest.fixture(scope="module")
def ppo():
    """A policy that balances the pole."""
    trainer, _ = trained_on(PPOTrainer, cart_pole, 40_000, PPO)
    yield trainer
    trainer.stop()


@pytest.fixture(scope="module")
def half_trained():
    """All that SAC experienced in the first 5000 steps, in half of which it could not swing the pendulum up."""
    trainer, data = trained_on(SACTrainer, lambda: gym.make("Pendulum-v1"), 5000, SAC)
    trainer.stop()
    return data


def opposite(trainer):
    """Does the opposite of a trainer's policy in CartPole."""
    chooses = of(trainer)
    return lambda obs: 1 - chooses(obs)


def good_and_bad(ppo, shares: Sequence[float], sees=None) -> Recordings:
    """As many rows of a policy that does the opposite in a small share of the steps as of one with a large share."""
    first, second = (
        played(cart_pole, mixed_with(of(ppo), opposite(ppo), share, 1), 20_000, seed, sees)
        for share, seed in zip(shares, (100, 200), strict=True)
    )
    return first + second


@each_seed
def test_bc_cartpole(ppo, learned, seed):
    data = played(cart_pole, of(ppo), 20_000, 100)
    assert learned(BCTrainer, "CartPole-v1", {**SMALL, "input": data, "seed": seed}, 5, 350, data.score) >= 350


@each_seed
def test_marwil_cartpole_where_bc_does_not(ppo, learned, seed):
    data = good_and_bad(ppo, (0.0, 0.8))
    assert learned(MARWILTrainer, "CartPole-v1", {**MARWIL, "input": data, "seed": seed}, 8, 250, data.score) >= 250
    assert learned(BCTrainer, "CartPole-v1", {**SMALL, "input": data, "seed": seed}, 4, 250, data.score) < 250


@each_seed
def test_bc_of_two_agents(ppo, learned, seed):
    policies = {"even": None, "odd": None}
    pairs: list[RecordedTrajectory] = []
    for agent, policy_id in enumerate(policies):
        data = played(cart_pole, of(ppo), 10_000, 300 + agent)
        for number, found in enumerate(data.found):
            ends = (found.terminated, found.truncated, str(number))
            pairs.append(RecordedTrajectory(found.columns, *ends, agent, policy_id))
    reader = ListReader(pairs, data.env.observation_space, data.env.action_space)
    config = {
        **SMALL,
        "input": reader,
        "seed": seed,
        "env_config": {"num_agents": 2},
        "multiagent": {"policies": policies, "policy_mapping_fn": even_or_odd},
    }
    assert learned(BCTrainer, MultiAgentCartPole, config, 5, 800, 2 * data.score) >= 800  # of both together


@each_seed
def test_marwil_with_lstm_stateless_cartpole(ppo, learned, seed):
    data = good_and_bad(ppo, (0.2, 0.6), [0, 2])
    space = StatelessCartPole({}).observation_space
    config = {
        **MARWIL,
        "input": ListReader(data.found, space, data.env.action_space),
        "seed": seed,
        "lr": 2e-3,
        "train_batch_size": 1024,
        "updates_per_step": 200,
        "observation_filter": "MeanStdFilter",  # angles are a few hundredths
        "model": {"fcnet_hiddens": (32,), "use_lstm": True, "lstm_cell_size": 32, "max_seq_len": 40},
    }
    assert learned(MARWILTrainer, StatelessCartPole, config, 8, 250, data.score) >= 250


@each_seed
def test_discrete_cql_cartpole(ppo, learned, seed):
    # ε = ½: every other action is random.
    actions = gym.spaces.Discrete(2)
    data = played(cart_pole, mixed_with(of(ppo, explore=False), at_random(actions, 3), 0.5, 4), 50_000, 300)
    config = {**SMALL, "input": data, "seed": seed, "model": RELU, "target_network_update_freq": 200, "n_step": 3}
    assert learned(DiscreteCQLTrainer, "CartPole-v1", config, 8, 450, data.score) >= 450


@each_seed
def test_iql_pendulum(half_trained, learned, seed):
    config = {**PENDULUM, "input": half_trained, "expectile": 0.9, "seed": seed}
    assert learned(IQLTrainer, "Pendulum-v1", config, 10, -200, half_trained.score) >= -200


@each_seed
def test_cql_pendulum(half_trained, learned, seed):
    conservative = {"num_actions": 4, "min_q_weight": 1.0, "actor_lr": 3e-4, "critic_lr": 1e-3}
    config = {**PENDULUM, **conservative, "input": half_trained, "seed": seed}
    del config["lr"]
    assert learned(CQLTrainer, "Pendulum-v1", config, 10, -200, half_trained.score) >= -200


@each_seed
def test_td3_bc_pendulum(half_trained, learned, seed):
    # Most of the data is of a poor policy: α is far above the 2.5 of the paper. The distance from a recorded action is
    # the mean over its elements, of which there is one here.
    config = {**PENDULUM, "input": half_trained, "alpha": 40.0, "seed": seed}
    assert learned(TD3BCTrainer, "Pendulum-v1", config, 12, -200, half_trained.score) >= -200


@pytest.fixture(scope="module")
def broad(ppo):
    """Steps with 30 to 100 % random actions, so that good states and bad ones are among them."""
    greedy, actions = of(ppo, explore=False), gym.spaces.Discrete(2)
    one, two, three, four = (
        played(cart_pole, mixed_with(greedy, at_random(actions, 3), share, 4), 5000, 300 + number)
        for number, share in enumerate((0.3, 0.6, 0.8, 1.0))
    )
    return one + two + three + four


@each_seed
def test_dqn_learns_sooner_in_the_environment_after_data(broad, capsys, request, seed):
    """5000 updates from data, then 8000 steps: far better on the way than these steps alone.

    As many updates from this data alone are better still, and are printed beside.
    """
    online: dict[str, Any] = {
        "lr": 5e-4,
        "gamma": 0.99,
        "n_step": 3,
        "train_batch_size": 256,
        "training_intensity": 0.5,
        "target_network_update_freq": 200,
        "dueling": False,
        "model": RELU,
        "timesteps_per_iteration": 2000,
        "evaluation_num_episodes": 20,
        "evaluation_config": {"num_envs_per_worker": 20},
        "seed": seed,
    }
    offline = {**online, "timesteps_per_iteration": 0, "input": broad, "updates_per_step": 1000}
    both = {**online, "input": broad, "updates_per_step": 5000, "offline_timesteps": 5000 * 256, "then_online": True}

    def scores(config: dict[str, Any], before: int) -> list[float]:
        """Four evaluations, one every 2000 steps or 1000 updates, after some iterations that have none."""
        with DQNTrainer("CartPole-v1", config) as trainer:
            for _ in range(before):
                trainer.train()
            return [trainer.train() and trainer.evaluate()["episode_reward_mean"] for _ in range(4)]

    curves = {"both": scores(both, 1), "online": scores(online, 0), "offline": scores(offline, 5)}
    with capsys.disabled():
        print(f"\n{request.node.name}: {curves}; the data has {broad.score:.5g}")
    means = {name: np.mean(curve) for name, curve in curves.items()}
    assert means["both"] > 1.2 * means["online"]
