"""Sampling and learning with replay, in one process, at RL Zoo's settings."""

from __future__ import annotations

from typing import Any

from benchmarks.measure import Against, Row
from benchmarks.rows.commands import own, peer

_STARTS = 128  # steps before the first update; the first call of each side exceeds them
_STEPS = 256  # steps of one call
_FRAGMENT = 16  # steps that rollax samples at a time; the other libraries sample one


def off_policy_rows() -> tuple[Row, ...]:
    """Returns the benchmarks of SAC, TQC, CrossQ, TD3 and DDPG (one update per step) and of DQN (one per two steps)."""
    noisy = {"noise_scale": 0.1, "exploration": "GaussianNoise"}
    contrib = "sb3-contrib"
    return (
        _row("SAC", "Pendulum-v1", _actor_critic(256, [256, 256], 0.99), 0.0, {}, (2.5, 1.3)),
        _row("TQC", "Pendulum-v1", _actor_critic(256, [256, 256], 0.99), 0.0, {}, (1.3, 1.3), torch=contrib),
        _row("CrossQ", "Pendulum-v1", _crossq(), 0.0, {"random_steps": _STARTS}, (1.3, 1.3), torch=contrib),
        _row("TD3", "Pendulum-v1", _actor_critic(256, [400, 300], 0.98), 0.1, noisy, (2.5, 1.3)),
        _row("DDPG", "Pendulum-v1", _actor_critic(256, [400, 300], 0.98), 0.1, noisy, (2.5, 1.3)),
        _row("DQN", "CartPole-v1", _dqn(), 0.0, {"double_q": False, "dueling": False}, (3.0, 1.5)),
    )


def _actor_critic(batch: int, hiddens: list[int], gamma: float) -> dict[str, Any]:
    """Returns the settings common to all, by their Stable-Baselines3 names."""
    return {
        "learning_rate": 1e-3,
        "batch_size": batch,
        "gamma": gamma,
        "tau": 0.005,
        "buffer_size": 200_000,
        "train_freq": 1,
        "gradient_steps": 1,
        "learning_starts": _STARTS,
        "policy_kwargs": {"net_arch": hiddens},
    }


def _crossq() -> dict[str, Any]:
    """Without target networks; critics as wide as the defaults of all sides."""
    settings = _actor_critic(256, [256, 256], 0.99) | {
        "policy_kwargs": {"net_arch": {"pi": [256, 256], "qf": [1024] * 2}}
    }
    del settings["tau"]
    return settings


def _dqn() -> dict[str, Any]:
    return {
        "learning_rate": 2.3e-3,
        "batch_size": 64,
        "gamma": 0.99,
        "buffer_size": 100_000,
        "train_freq": 256,
        "gradient_steps": 128,
        "learning_starts": _STARTS,
        "target_update_interval": 10,
        "policy_kwargs": {"net_arch": [256, 256]},
    }


def _row(
    algorithm: str,
    env: str,
    settings: dict[str, Any],
    noise: float,
    further: dict[str, Any],
    at_least: tuple[float, float],
    torch: str = "Stable-Baselines3",
) -> Row:
    frequency, layers = settings["train_freq"], settings["policy_kwargs"]["net_arch"]
    # The layers of an algorithm whose networks differ are its defaults.
    model = {} if isinstance(layers, dict) else {"model": {"fcnet_hiddens": layers, "fcnet_activation": "relu"}}
    config = {
        "lr": settings["learning_rate"],
        "train_batch_size": settings["batch_size"],
        "gamma": settings["gamma"],
        "buffer_size": settings["buffer_size"],
        "learning_starts": _STARTS,
        "training_intensity": settings["gradient_steps"] / frequency,
        "rollout_fragment_length": max(frequency, _FRAGMENT),
        "timesteps_per_iteration": _STEPS,
        **model,
        **({"tau": settings["tau"], "random_steps": _STARTS} if "tau" in settings else {}),
        **({"target_network_update_freq": 10} if algorithm == "DQN" else {}),
        **further,
    }
    common = {"algorithm": algorithm, "env": env}
    theirs = {**common, "settings": settings, "noise": noise, "steps": _STEPS}
    updates = "an update for every step" if frequency == 1 else "an update for every other step"
    widths = "×".join(map(str, layers["qf"] if isinstance(layers, dict) else layers))
    return Row(
        name=f"{algorithm.lower()}_{env.split('-')[0].lower()}",
        work=f"{algorithm} on {env} at RL Zoo's settings, {updates}: batch {settings['batch_size']}, {widths} relu",
        unit="env steps/s",
        better="more",
        sides=(
            own("rollax", "rollax_training.iterations", {**common, "measure": "rate", "config": config}),
            peer(torch, "sb3.off_policy", {**theirs, "library": torch}),
            peer("SBX", "sb3.off_policy", {**theirs, "library": "SBX"}),
        ),
        targets=(Against(torch, at_least[0]), Against("SBX", at_least[1])),
        rounds=5,
        seconds=8.0,
        notes=f"One sub-environment on all sides. rollax samples {config['rollout_fragment_length']} steps at a time "
        "and makes the updates that are due by then in one call; the others take "
        + ("one step, then make one update." if frequency == 1 else f"{frequency} steps, then make their updates."),
    )
