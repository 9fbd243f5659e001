"""Scores of offline algorithms with recorded data alone; `make learning` runs these.

Each run records its data with policies that are trained with a separate seed, and prints the mean return of the data
beside the scores. A run ends when its greedy evaluation reaches the target.
"""

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
from rollax.offline.dataset import RecordedTrajectory
from tests.offline.recorded import ListReader
from tests.offline.recorded_data import (
    Recordings,
    actions_of,
    mixed_actions,
    random_actions,
    record_episodes,
    train_and_record,
)

pytestmark = pytest.mark.learning

PPO = {"num_envs_per_worker": 8, "train_batch_size": 1024, "lr": 1e-3, "gamma": 0.98, "lambda": 0.9, "seed": 0}
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
    trainer, _ = train_and_record(PPOTrainer, cart_pole, 40_000, PPO)
    yield trainer
    trainer.stop()


@pytest.fixture(scope="module")
def half_trained():
    """All experience of SAC in the first 5000 steps, in half of which it could not swing the pendulum up."""
    trainer, data = train_and_record(SACTrainer, lambda: gym.make("Pendulum-v1"), 5000, SAC)
    trainer.stop()
    return data


def opposite(trainer):
    """The opposite actions of a trainer's policy in CartPole."""
    act = actions_of(trainer)
    return lambda obs: 1 - act(obs)


def good_and_bad(ppo, shares: Sequence[float], seen_part=None) -> Recordings:
    """As many rows of a policy with a small share of opposite actions as of one with a large share."""
    first, second = (
        record_episodes(cart_pole, mixed_actions(actions_of(ppo), opposite(ppo), share, 1), 20_000, seed, seen_part)
        for share, seed in zip(shares, (100, 200), strict=True)
    )
    return first + second


@each_seed
def test_bc_cartpole(ppo, learned, seed):
    data = record_episodes(cart_pole, actions_of(ppo), 20_000, 100)
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
        data = record_episodes(cart_pole, actions_of(ppo), 10_000, 300 + agent)
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
    data = record_episodes(
        cart_pole, mixed_actions(actions_of(ppo, explore=False), random_actions(actions, 3), 0.5, 4), 50_000, 300
    )
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


def taxi() -> gym.Env:
    return gym.make("Taxi-v4")


def shortest_way(discount: float = 0.99) -> np.ndarray:
    """The best action in each state of the taxi, by value iteration over its transition table."""
    table: Any = taxi().unwrapped
    value = np.zeros(len(table.P))
    while True:
        q = np.array(
            [
                [
                    sum(p * (r + discount * value[to] * (not over)) for p, to, r, over in outcomes)
                    for outcomes in row.values()
                ]
                for row in table.P.values()
            ]
        )
        if np.allclose(q.max(1), value, atol=1e-6):
            return q.argmax(1)
        value = q.max(1)


@each_seed
def test_dqn_offline_then_online_taxi(capsys, request, seed):
    """2000 updates from data, then 16,000 steps: better than these steps alone, or as many updates from data alone."""
    best, actions = shortest_way(), gym.spaces.Discrete(6)
    data = record_episodes(taxi, mixed_actions(lambda obs: best[obs], random_actions(actions, 3), 0.7, 4), 6000, 300)
    online: dict[str, Any] = {
        "lr": 1e-3,
        "train_batch_size": 128,
        "training_intensity": 0.5,
        "learning_starts": 500,
        "target_network_update_freq": 100,
        "dueling": False,
        "model": RELU,
        "timesteps_per_iteration": 2000,
        "evaluation_num_episodes": 50,
        "evaluation_config": {"num_envs_per_worker": 50},
        "seed": seed,
    }
    both = {**online, "input": data, "updates_per_step": 2000, "offline_timesteps": 2000 * 128, "then_online": True}
    updates = 2000 + 16_000 // 2
    offline = {**online, "timesteps_per_iteration": 0, "input": data, "updates_per_step": updates // 8}

    def scores(config: dict[str, Any], without: int) -> list[float]:
        """Eight evaluations, one every 2000 steps or 1250 updates, after some iterations without evaluation."""
        with DQNTrainer("Taxi-v4", config) as trainer:
            for _ in range(without):
                trainer.train()
            return [trainer.train() and trainer.evaluate()["episode_reward_mean"] for _ in range(8)]

    curves = {"both": scores(both, 1), "online": scores(online, 0), "offline": scores(offline, 0)}
    with capsys.disabled():
        print(f"\n{request.node.name}: {curves}; the data has {data.score:.5g}")
    ends = {name: np.mean(curve[-3:]) for name, curve in curves.items()}
    assert ends["both"] > max(ends["online"], ends["offline"], data.score) + 50
