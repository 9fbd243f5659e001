"""d3rlpy: mean returns of greedy evaluations while it learns from a D4RL file, as a JSON list.

The actions of the file are those of rollax's policies, scaled to [-1, 1].
"""

import argparse
import json
import sys

import d3rlpy
import gymnasium as gym
import h5py
import numpy as np

BATCH = 256
RATES = {"actor_learning_rate": "actor_lr", "critic_learning_rate": "critic_lr"}


def config_of(algorithm: str, settings: dict, hiddens: list[int]):
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


def score(algorithm, env: gym.Env, episodes: int, seed: int) -> float:
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--algorithm", choices=["BC", "CQL", "IQL", "TD3BC"], required=True)
    parser.add_argument("--settings", type=json.loads, required=True, help="rollax's config keys")
    parser.add_argument("--hiddens", type=json.loads, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--evaluations", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    answers, sys.stdout = sys.stdout, sys.stderr  # d3rlpy logs to standard output
    d3rlpy.seed(args.seed)
    with h5py.File(args.data) as file:
        columns = {name: np.asarray(file[name]) for name in file}
    dataset = d3rlpy.dataset.MDPDataset(
        columns["observations"],
        columns["actions"],
        columns["rewards"],
        columns["terminals"].astype(np.float32),
        timeouts=columns["timeouts"].astype(np.float32),
    )
    env = gym.wrappers.RescaleAction(gym.make(args.env), -1.0, 1.0)
    algorithm = config_of(args.algorithm, args.settings, args.hiddens).create(device="cpu:0")
    algorithm.build_with_dataset(dataset)
    scores = []
    for _ in range(args.evaluations):
        for _ in range(args.updates // args.evaluations):
            algorithm.update(dataset.sample_transition_batch(BATCH))
        scores.append(score(algorithm, env, 10, 1000 * (args.seed + 1)))
    print(json.dumps(scores), file=answers)


if __name__ == "__main__":
    main()
