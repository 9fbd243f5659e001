"""Learning from clients in other processes; afterwards the greedy policy solves the real environment."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from examples.stateless_cartpole import CONFIG as LSTM_CONFIG
from examples.stateless_cartpole import StatelessCartPole
from rollax import DQNTrainer, MultiAgentPolicyServerEnv, PolicyServerEnv, PPOTrainer, Trainer
from rollax.serving.client import PolicyClient
from tests.waiting import LONG

pytestmark = pytest.mark.learning
SEEDS = (0, 1, 2)
CLIENTS = 8
PPO = {
    "train_batch_size": 2000,  # with the other rows it fills 2048
    "sgd_minibatch_size": 128,
    "num_sgd_iter": 8,
    "lr": 7e-4,
    "gamma": 0.99,
    "lambda": 0.95,
    "model": {"fcnet_hiddens": [64, 64]},
}
DQN = {
    "lr": 5e-4,
    "gamma": 0.98,
    "n_step": 3,
    "dueling": False,
    "learning_starts": 1000,
    "buffer_size": 100_000,
    "train_batch_size": 64,
    "training_intensity": 0.5,
    "target_network_update_freq": 500,
    "timesteps_per_iteration": 2000,
    "model": {"fcnet_hiddens": [64, 64]},
}


class MaskedCartPole(gym.Wrapper):
    """CartPole with four actions, of which a mask allows two others at every step."""

    def __init__(self, env_config: Any = None) -> None:
        super().__init__(gym.make("CartPole-v1"))
        mask = gym.spaces.Box(0, 1, (4,), np.int8)
        self.observation_space = gym.spaces.Dict({"action_mask": mask, "seen": self.env.observation_space})
        self.action_space = gym.spaces.Discrete(4)
        self._steps = 0

    def _shown(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        self._mask = np.array([1, 1, 0, 0] if self._steps % 2 else [0, 0, 1, 1], np.int8)
        return {"action_mask": self._mask, "seen": obs}

    def reset(self, **kwargs: Any) -> Any:
        self._steps = 0
        obs, info = self.env.reset(**kwargs)
        return self._shown(obs), info

    def step(self, action: Any) -> Any:
        assert self._mask[action], "an action that the mask forbids"
        self._steps += 1
        obs, *rest = self.env.step(int(action) % 2)
        return self._shown(obs), *rest


ENVS: dict[str, Callable[[], gym.Env]] = {
    "cartpole": lambda: gym.make("CartPole-v1"),
    "stateless": lambda: StatelessCartPole({}),
    "masked": lambda: MaskedCartPole({}),
}


def plays(address: str, env_name: str, seed: int, stop: Any, mode: str) -> None:
    """A client that plays one episode after another."""
    env = ENVS[env_name]()
    fresh_weights = {"update_interval": 0.5} if mode == "local" else {}
    with PolicyClient(address, inference_mode=mode, **fresh_weights) as client:  # type: ignore[arg-type]
        while not stop.is_set():
            seed += CLIENTS
            (obs, _), episode, over = env.reset(seed=seed), client.start_episode(), False
            while not over:
                obs, reward, terminated, truncated, _ = env.step(client.get_action(episode, obs))
                client.log_returns(episode, reward)
                over = terminated or truncated
            client.end_episode(episode, obs, truncated=truncated)


def logs(address: str, env_name: str, seed: int, stop: Any, mode: str) -> None:
    """A client that steers to a different place in each episode, and logs its actions; it never requests one.

    Values can be learned only for tried actions, so it visits every place and also takes wrong actions.
    """
    env, random = ENVS[env_name](), np.random.default_rng(seed)
    with PolicyClient(address) as client:
        while not stop.is_set():
            (obs, _), episode, over = env.reset(seed=int(random.integers(2**31))), client.start_episode(), False
            place, noise = random.uniform(-2.2, 2.2), random.uniform(0.2, 1.0)
            while not over:
                x, speed, angle, spin = obs
                lean = np.clip(0.1 * (place - x) - 0.15 * speed, -0.2, 0.2)
                action = int(angle - lean + 0.3 * spin > 0)
                if random.random() < noise:
                    action = int(random.integers(2))
                client.log_action(episode, obs, action)
                obs, reward, terminated, truncated, _ = env.step(action)
                client.log_returns(episode, reward)
                over = terminated or truncated
            client.end_episode(episode, obs, truncated=truncated)


def plays_pairs(address: str, env_name: str, seed: int, stop: Any, mode: str) -> None:
    """A client with two agents, each with its own pole; the episode ends with the last of them."""
    envs = {agent: ENVS[env_name]() for agent in ("left", "right")}
    with PolicyClient(address) as client:
        while not stop.is_set():
            seed += CLIENTS
            episode = client.start_episode()
            seen = {agent: env.reset(seed=seed)[0] for agent, env in envs.items()}
            while seen:
                stepped = {agent: envs[agent].step(a) for agent, a in client.get_action(episode, seen).items()}
                client.log_returns(episode, {agent: float(result[1]) for agent, result in stepped.items()})
                seen = {agent: result[0] for agent, result in stepped.items()}
                for truncated in (False, True):
                    ended = {
                        a: seen[a] for a, r in stepped.items() if (r[2] or r[3]) and (r[3] and not r[2]) == truncated
                    }
                    last = ended.keys() == seen.keys()
                    if ended:
                        (client.end_episode if last else client.end_agents)(episode, ended, truncated=truncated)
                    seen = {agent: obs for agent, obs in seen.items() if agent not in ended}


@contextmanager
def clients(trainer: Trainer, play: Callable[..., None], env_name: str, seed: int, scheme: str, mode: str) -> Iterator:
    """Client processes, spread over the servers of all workers."""
    found = trainer.workers.foreach_worker(_Addresses())
    addresses = [address.replace("http", scheme) for of_worker in found for address in of_worker]
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    processes = [
        context.Process(
            target=play, args=(addresses[number % len(addresses)], env_name, 1000 * seed + number, stop, mode)
        )
        for number in range(CLIENTS)
    ]
    for process in processes:
        process.start()
    try:
        yield
        assert all(process.is_alive() for process in processes), "a client has failed"
    finally:
        stop.set()
        for process in processes:
            process.join(LONG)
            process.kill()
            process.join()


class _Addresses:
    def __call__(self, worker: Any) -> list[str]:
        return worker.foreach_env(lambda env: env.address)


def learned(
    trainer_class: type[Trainer],
    config: dict[str, Any],
    seed: int,
    *,
    play: Callable[..., None] = plays,
    env_name: str = "cartpole",
    bar: float = 475.0,
    most_steps: int = 600_000,
    scheme: str = "http",
    mode: str = "remote",
    policy_ids: tuple[str, ...] = ("default_policy",),
) -> list[float]:
    """The greedy reward of each policy in the real environment; training stops when all reach the bar."""
    made = ENVS[env_name]()
    spaces = {"observation_space": made.observation_space, "action_space": made.action_space}
    settings = {"port": 0, **spaces, **config.pop("env_config", {})}
    server = MultiAgentPolicyServerEnv if len(policy_ids) > 1 else PolicyServerEnv
    rewards = [0.0]
    with (
        trainer_class(env=server, config={**config, "env_config": settings, "seed": seed}) as trainer,
        clients(trainer, play, env_name, seed, scheme, mode),
    ):
        while min(rewards) < bar and trainer.optimizer.env_steps < most_steps:
            result = trainer.train()
            reward = result["episode_reward_mean"] or 0.0
            if play is logs or reward / len(policy_ids) > 0.4 * bar:
                rewards = [greedy(trainer, policy_id, env_name) for policy_id in policy_ids]
            print(f"{trainer.optimizer.env_steps:7} steps  training {reward:6.1f}  greedy {rewards}", flush=True)
    return rewards


def greedy(trainer: Trainer, policy_id: str, env_name: str, episodes: int = 10) -> float:
    """The mean reward of greedy episodes of one policy."""
    env, runner, total = ENVS[env_name](), trainer.worker.runners[policy_id], 0.0
    initial = runner.policy.memory_of(1, None, None, None)["state_batches"]
    recurrent = bool(initial)
    for number in range(episodes):
        (obs, _), over, state, action, reward = env.reset(seed=10_000 + number), False, None, None, 0.0
        while not over:
            acted = runner.compute_single_action(obs, state, False, action, reward)
            action, state = (acted[0], acted[1]) if recurrent else (acted, None)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
    return total / episodes


PAIR = {"policies": {"left": None, "right": None}, "policy_mapping_fn": {"left": "left", "right": "right"}.__getitem__}
STATELESS = {name: value for name, value in LSTM_CONFIG.items() if name != "num_envs_per_worker"}
CASES: dict[str, tuple[type[Trainer], dict[str, Any], dict[str, Any]]] = {
    "PPO over HTTP": (PPOTrainer, PPO, {}),
    "PPO over WebSockets": (PPOTrainer, PPO, {"scheme": "ws"}),
    "DQN by logged actions alone": (DQNTrainer, DQN, {"play": logs, "scheme": "ws"}),
    "local inference with PPO": (PPOTrainer, PPO, {"mode": "local"}),
    "local inference with DQN": (DQNTrainer, DQN, {"mode": "local"}),
    "two agents with two policies": (
        PPOTrainer,
        {**PPO, "multiagent": PAIR},
        {"play": plays_pairs, "scheme": "ws", "policy_ids": ("left", "right")},
    ),
    "LSTM on stateless CartPole": (PPOTrainer, STATELESS, {"env_name": "stateless", "scheme": "ws", "bar": 450.0}),
    "a masked game": (PPOTrainer, PPO, {"env_name": "masked", "scheme": "ws"}),
    "two workers with two ports": (PPOTrainer, {**PPO, "num_workers": 2, "num_cpus_per_worker": 0.5}, {"scheme": "ws"}),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_a_run_learns(name, seed):
    trainer_class, config, settings = CASES[name]
    assert min(learned(trainer_class, {**config}, seed, **settings)) >= settings.get("bar", 475.0)
