"""Stable-Baselines3, sb3-contrib and SBX, and a bare search loop in PyTorch, which runs in the same environment.

Libraries are imported by the functions, because the time of a whole run begins with the start of the process.
"""

import importlib
import itertools
import sys
import time

import gymnasium as gym
import numpy as np

from benchmarks.data import ACTIONS, EPISODE, SIDE, STACK, stacks
from benchmarks.protocol import Link, run, versions

_MODULES = {"Stable-Baselines3": "stable_baselines3", "sb3-contrib": "sb3_contrib", "SBX": "sbx"}


def sampling(link: Link, env: str, num_envs: int, fragment: int) -> None:
    """`collect_rollouts` with PPO's default actor and critic (64x64 tanh) on a `DummyVecEnv`."""
    from stable_baselines3 import PPO

    steps = num_envs * fragment
    model = PPO("MlpPolicy", _envs(env, num_envs), n_steps=fragment, batch_size=steps, device="cpu", seed=0)
    _, callback = model._setup_learn(total_timesteps=10**9)

    def collect() -> int:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rollout_steps=fragment)
        return steps

    link.serve_rates(collect, **_facts("sb3"))


def ppo_iteration(
    link: Link, env: str, num_envs: int, train_batch: int, minibatch: int, epochs: int, width: int
) -> None:
    """One training iteration of PPO: sampling and learning from one batch."""
    from stable_baselines3 import PPO

    model = PPO(
        "MlpPolicy",
        _envs(env, num_envs),
        n_steps=train_batch // num_envs,
        batch_size=minibatch,
        n_epochs=epochs,
        learning_rate=5e-5,
        gae_lambda=1.0,
        clip_range=0.3,
        vf_coef=1.0,
        policy_kwargs={"net_arch": [width, width]},
        device="cpu",
        seed=0,
    )
    link.serve_durations(
        lambda: model.learn(total_timesteps=train_batch, reset_num_timesteps=False), warm_up=1, **_facts("sb3")
    )


def ppo_run(link: Link, library: str, env: str, steps: int, seed: int = 0) -> None:
    """A whole PPO run at RL Zoo's CartPole settings, with Stable-Baselines3 ("sb3") or SBX, of the same interface."""
    if library == "sbx":
        from sbx import PPO
    else:
        from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy

    model = PPO(
        "MlpPolicy",
        _envs(env, 8, seed),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        ent_coef=0.0,
        learning_rate=_linear(1e-3),
        clip_range=_linear(0.2),
        device="cpu",
        seed=seed,
    )
    model.learn(total_timesteps=steps)
    link.send(event="finished")
    reward, _ = evaluate_policy(model, _envs(env, 8, seed + 1000), n_eval_episodes=24)
    link.send(event="facts", facts={"greedy_reward": float(reward), **_facts(library)})


def off_policy(
    link: Link, library: str, algorithm: str, env: str, settings: dict, steps: int, noise: float = 0.0
) -> None:
    """Environment steps and their updates at RL Zoo's settings, with Stable-Baselines3, sb3-contrib or SBX.

    Args:
        settings: keyword arguments of the algorithm.
        steps: environment steps of one call of `learn`.
        noise: deviation of the noise that is added to actions.
    """
    module = importlib.import_module(_MODULES[library])
    from stable_baselines3.common.noise import NormalActionNoise

    envs, settings = _envs(env, 1), dict(settings)
    if noise:
        width = envs.action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(np.zeros(width), np.full(width, noise))
    model = getattr(module, algorithm)("MlpPolicy", envs, device="cpu", seed=0, **settings)

    def collect() -> int:
        model.learn(total_timesteps=steps, reset_num_timesteps=False)
        return steps

    link.serve_rates(collect, **_facts(library))


class Blank(gym.Env):
    """Defines the spaces and a first observation; it is never stepped."""

    observation_space = gym.spaces.Box(0, 255, (STACK, SIDE, SIDE), np.uint8)
    action_space = gym.spaces.Discrete(ACTIONS)

    def reset(self, *, seed=None, options=None):
        return np.zeros((STACK, SIDE, SIDE), np.uint8), {}


def frames(link: Link, transitions: int, batch: int = 32) -> None:
    """DQN on synthetic Atari transitions: updates, replay sampling included."""
    from stable_baselines3 import DQN

    model = DQN(
        "CnnPolicy",
        Blank(),
        buffer_size=transitions,
        batch_size=batch,
        optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False},
        device="auto",
        seed=0,
    )
    model._setup_learn(total_timesteps=10**9)
    obs = stacks(EPISODE + 1, channels_first=True)
    for step in range(transitions):
        t = step % EPISODE
        done = np.array([t == EPISODE - 1])
        action, reward = np.array([[t % ACTIONS]]), np.ones(1, np.float32)
        model.replay_buffer.add(obs[None, t], obs[None, t + 1], action, reward, done, [{}])

    def update() -> int:
        model.train(gradient_steps=1, batch_size=batch)
        return 1

    link.serve_rates(update, **_facts("sb3"))


def ars(link: Link, env: str, directions: int, warm_up: int, hiddens: tuple = ()) -> None:
    """Iterations of sb3-contrib's ARS, which evaluates one candidate after another, on standardized observations."""
    import torch
    from sb3_contrib import ARS
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)  # several threads do not help for a single row
    envs = VecNormalize(_envs(env, 1), norm_reward=False)
    policy, settings = ("MlpPolicy", {"net_arch": hiddens}) if hiddens else ("LinearPolicy", {})
    model = ARS(policy, envs, n_delta=directions, delta_std=0.05, learning_rate=0.02, policy_kwargs=settings, seed=0)

    def iteration() -> int:
        before = model.num_timesteps
        model.learn(1, reset_num_timesteps=False)  # at least one step: one iteration
        return model.num_timesteps - before

    for _ in range(warm_up):
        iteration()
    link.serve_rates(iteration, threads=1, versions=versions("sb3-contrib", "torch", "gymnasium", "mujoco", "numpy"))


def ars_curve(link: Link, env: str, settings: dict, budget: int, evaluations: int, episodes: int, seed: int) -> None:
    """ARS: greedy evaluations of so many episodes at equal intervals during the search, as a list of (steps, score).

    Args:
        settings: by rollax's config keys.
    """
    import torch
    from sb3_contrib import ARS
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization

    torch.set_num_threads(1)  # several threads do not help for a single row
    envs, evaluated = _envs(env, 1, seed), _envs(env, 1, 1000 * (seed + 1))
    if settings["observation_filter"] == "MeanStdFilter":
        envs = VecNormalize(envs, norm_reward=False)
        evaluated = VecNormalize(evaluated, norm_reward=False, training=False)
    model = ARS(
        "LinearPolicy",
        envs,
        n_delta=settings["num_directions"],
        n_top=settings["directions_used"],
        learning_rate=settings["lr"],
        delta_std=settings["noise_stdev"],
        seed=seed,
    )
    curve = []
    for number in range(1, evaluations + 1):
        steps = budget * number // evaluations - model.num_timesteps
        model.learn(max(steps, 1), reset_num_timesteps=number == 1)  # whole iterations, at least one
        if isinstance(envs, VecNormalize):
            sync_envs_normalization(envs, evaluated)
        returns, _ = evaluate_policy(model, evaluated, episodes, return_episode_rewards=True, warn=False)
        curve.append((model.num_timesteps, float(np.mean(returns))))
        print(f"{env} seed {seed}: {curve[-1]}", file=sys.stderr, flush=True)
    link.send(answer=curve)


def greedy_curve(
    link: Link,
    library: str,
    algorithm: str,
    settings: dict,
    normalized: bool,
    env: str,
    budget: int,
    evaluations: int,
    episodes: int,
    seed: int,
) -> None:
    """Greedy evaluations at equal intervals of a run, as a list of (steps, score).

    They are made between a training phase and the next rollout of one call of `learn`, because several calls would
    shorten DQN's exploration, a share of the steps of a call.

    Args:
        library: the module of the algorithm.
        normalized: whether observations and rewards are.
    """
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization

    envs, evaluated = _envs(env, 1, seed), _envs(env, 1, 1000 * (seed + 1))
    if normalized:
        envs = VecNormalize(envs)
        evaluated = VecNormalize(evaluated, training=False, norm_reward=False)
    settings = dict(settings)
    if algorithm == "TD3":
        width = envs.action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(np.zeros(width), np.full(width, 0.1))
    model = getattr(importlib.import_module(library), algorithm)("MlpPolicy", envs, device="cpu", seed=seed, **settings)
    curve, evaluating = [], 0.0

    def evaluate_if_due() -> None:
        nonlocal evaluating
        start = time.perf_counter()
        while len(curve) < evaluations and model.num_timesteps >= budget * (len(curve) + 1) // evaluations:
            if normalized:
                sync_envs_normalization(envs, evaluated)
            returns, _ = evaluate_policy(model, evaluated, episodes, return_episode_rewards=True, warn=False)
            curve.append((model.num_timesteps, float(np.mean(returns))))
            print(f"{algorithm} of {library}, {env}, seed {seed}: {curve[-1]}", file=sys.stderr, flush=True)
        evaluating += time.perf_counter() - start

    class BeforeRollouts(BaseCallback):
        def _on_rollout_start(self) -> None:
            evaluate_if_due()

        def _on_step(self) -> bool:
            return True

    start = time.perf_counter()
    model.learn(budget, BeforeRollouts())
    evaluate_if_due()
    seconds = time.perf_counter() - start - evaluating
    installed = versions("stable-baselines3", "sb3-contrib", "sbx-rl", "torch", "jax", "gymnasium", "mujoco", "numpy")
    link.send(answer={"curve": curve, "seconds": seconds, "peer_versions": installed})


class RunningStat:
    """Welford's update of mean and deviation by one row, and the standardized row."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.n, self.mean, self.squares = 0, np.zeros(shape), np.zeros(shape)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, np.float64)
        self.n += 1
        apart = x - self.mean
        self.mean = self.mean + apart / self.n
        self.squares = self.squares + apart * (x - self.mean)
        std = np.sqrt(self.squares / max(self.n - 1, 1))
        return np.clip((x - self.mean) / (std + 1e-8), -10.0, 10.0)


def bare_search(link: Link, env: str, directions: int, warm_up: int, hiddens: tuple = ()) -> None:
    """The design of early RLlib's ARS as a bare loop: one environment, and for each step a filter and a forward pass.

    Same as in the design: a shared table of noise, weights set from one flat vector, a filter for every observation,
    actions from a distribution. Left out: Ray, and all communication between processes.
    """
    import torch

    torch.set_num_threads(1)  # several threads do not help for a single row
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(2_000_000).astype(np.float32)
    copy = gym.make(env)
    discrete = isinstance(copy.action_space, gym.spaces.Discrete)
    outputs = int(copy.action_space.n) if discrete else copy.action_space.shape[0]
    widths = [copy.observation_space.shape[0], *hiddens, outputs]
    layers: list[torch.nn.Module] = []
    for inputs, width in itertools.pairwise(widths):
        layers += [torch.nn.Linear(inputs, width), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers[:-1])
    theta = np.zeros(sum(p.numel() for p in model.parameters()), np.float32)
    observed = RunningStat(copy.observation_space.shape)

    def set_weights(vector: np.ndarray) -> None:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(vector), model.parameters())

    def act(obs: np.ndarray) -> object:
        with torch.no_grad():
            logits = model(torch.from_numpy(observed(obs)[None].astype(np.float32)))
            if discrete:
                return int(torch.distributions.Categorical(logits=logits).probs.argmax(dim=1).numpy()[0])
            return np.clip(logits.numpy()[0], copy.action_space.low, copy.action_space.high)

    def rollout(vector: np.ndarray) -> tuple[float, int]:
        set_weights(vector)
        obs, _ = copy.reset()
        total, steps, over = 0.0, 0, False
        while not over:
            obs, reward, terminated, truncated, _ = copy.step(act(obs))
            total, steps, over = total + reward, steps + 1, terminated or truncated
        return total, steps

    def iteration() -> int:
        nonlocal theta
        starts = rng.integers(0, len(noise) - len(theta), directions)
        drawn = [noise[start : start + len(theta)] for start in starts]
        played = [[rollout(theta + sign * 0.05 * epsilon) for sign in (1, -1)] for epsilon in drawn]
        returns = np.array([[total for total, _ in both] for both in played])
        weights = (returns[:, 0] - returns[:, 1]) / (returns.std() + 1e-8) / directions
        theta = theta + np.float32(0.02) * (weights.astype(np.float32) @ np.stack(drawn))
        return sum(steps for both in played for _, steps in both)

    for _ in range(warm_up):
        iteration()
    link.serve_rates(iteration, threads=1, versions=versions("torch", "gymnasium", "mujoco", "numpy"))


def _envs(env: str, num_envs: int, seed: int = 0):
    from stable_baselines3.common.env_util import make_vec_env

    return make_vec_env(env, n_envs=num_envs, seed=seed)


def _linear(initial: float):
    """RL Zoo's `lin_<initial>`: a value that falls to 0 with the remaining progress."""
    return lambda progress_remaining: progress_remaining * initial


def _facts(library: str) -> dict:
    """The versions of a library's side, and the number of PyTorch's threads."""
    if library in ("sbx", "SBX"):
        return {"versions": versions("sbx-rl", "stable-baselines3", "jax", "gymnasium", "numpy")}
    import torch

    installed = versions("stable-baselines3", "torch", "gymnasium", "numpy")
    return {"threads": torch.get_num_threads(), "versions": installed}


if __name__ == "__main__":
    run(sampling, ppo_iteration, ppo_run, off_policy, frames, ars, ars_curve, greedy_curve, bare_search)
