"""d3rlpy: updates from a D4RL file, reading it, and scores while it learns."""

import d3rlpy
import gymnasium as gym
import h5py
import numpy as np
import torch

from benchmarks.data import d4rl_file
from benchmarks.protocol import Link, run, versions

BATCH = 256
UPDATES = 20
CONFIGS = {
    "BC": d3rlpy.algos.BCConfig,
    "CQL": d3rlpy.algos.CQLConfig,
    "IQL": d3rlpy.algos.IQLConfig,
    "TD3BC": d3rlpy.algos.TD3PlusBCConfig,
}
RATES = {"actor_learning_rate": "actor_lr", "critic_learning_rate": "critic_lr"}


def recorded_updates(link: Link, algorithm: str, rows: int) -> None:
    """Updates from a D4RL file."""
    dataset = _read(d4rl_file(rows))
    learner = CONFIGS[algorithm](batch_size=BATCH).create(device="cpu:0")
    learner.build_with_dataset(dataset)

    def update() -> int:
        for _ in range(UPDATES):
            learner.update(dataset.sample_transition_batch(BATCH))
        return UPDATES

    link.serve_rates(update, **_facts())


def reading(link: Link, rows: int) -> None:
    """Reads a D4RL file."""
    path = d4rl_file(rows)
    link.serve_rates(lambda: _read(path).transition_count, **_facts())


def scores(
    link: Link,
    env: str,
    data: str,
    algorithm: str,
    settings: dict,
    hiddens: list,
    updates: int,
    evaluations: int,
    seed: int,
) -> None:
    """Mean returns of greedy evaluations while it learns from a D4RL file, as a list.

    Args:
        data: a file whose actions are those of rollax's policies, scaled to [-1, 1].
        settings: by rollax's config keys.
    """
    d3rlpy.seed(seed)
    dataset = _read(data)
    copy = gym.wrappers.RescaleAction(gym.make(env), -1.0, 1.0)
    learner = _config_of(algorithm, settings, hiddens).create(device="cpu:0")
    learner.build_with_dataset(dataset)
    found = []
    for _ in range(evaluations):
        for _ in range(updates // evaluations):
            learner.update(dataset.sample_transition_batch(BATCH))
        found.append(_score(learner, copy, 10, 1000 * (seed + 1)))
    link.send(answer=found)


def _read(path):
    """Returns the data set of a D4RL file, read as d3rlpy's own `get_d4rl` does."""
    with h5py.File(path) as file:
        columns = {name: np.asarray(file[name]) for name in file}
    return d3rlpy.dataset.MDPDataset(
        columns["observations"],
        columns["actions"],
        columns["rewards"],
        columns["terminals"].astype(np.float32),
        timeouts=columns["timeouts"].astype(np.float32),
    )


def _config_of(algorithm: str, settings: dict, hiddens: list[int]):
    """Returns d3rlpy's config with rollax's settings, and d3rlpy's defaults for the others."""
    encoder = d3rlpy.models.VectorEncoderFactory(hiddens, activation="relu")
    common = {"batch_size": BATCH}
    if algorithm == "BC":
        return d3rlpy.algos.BCConfig(**common, learning_rate=settings["lr"], encoder_factory=encoder)
    common |= {"gamma": settings["gamma"], "actor_encoder_factory": encoder, "critic_encoder_factory": encoder}
    rates = {name: settings[own] or settings["lr"] for name, own in RATES.items()}
    if algorithm == "CQL":
        # A constant weight instead of an adaptive one. d3rlpy's critic losses have no factor 1/2.
        weight = {"conservative_weight": settings["min_q_weight"], "alpha_learning_rate": 0.0}
        return d3rlpy.algos.CQLConfig(**common, **rates, **weight, n_action_samples=settings["num_actions"])
    if algorithm == "IQL":
        value = {"value_encoder_factory": encoder, "expectile": settings["expectile"], "weight_temp": settings["beta"]}
        return d3rlpy.algos.IQLConfig(**common, **rates, **value)
    return d3rlpy.algos.TD3PlusBCConfig(**common, **rates, alpha=settings["alpha"])


def _score(algorithm, env: gym.Env, episodes: int, seed: int) -> float:
    returns = []
    for number in range(episodes):
        obs, _ = env.reset(seed=seed + number)
        total, over = 0.0, False
        while not over:
            action = algorithm.predict(np.asarray(obs, np.float32)[None])[0]
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def _facts() -> dict:
    return {"versions": versions("d3rlpy", "torch", "numpy", "h5py"), "threads": torch.get_num_threads()}


if __name__ == "__main__":
    run(recorded_updates, reading, scores)
