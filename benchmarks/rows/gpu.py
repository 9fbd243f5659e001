"""Learning on a GPU, beside the same trainer on the CPU, or beside Stable-Baselines3 on the same GPU."""

from __future__ import annotations

from typing import Any

from benchmarks.measure import Against, Row
from benchmarks.rows.commands import own
from benchmarks.rows.frames import dqn_updates

_PONG = {
    "rollout_fragment_length": 128,
    "train_batch_size": 2048,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 4,
    "model": {"vf_share_layers": True},
}
_MANY_JAX_ENVS = {
    "num_envs_per_worker": 2048,
    "rollout_fragment_length": 32,
    "train_batch_size": 65_536,
    "sgd_minibatch_size": 16_384,
    "num_sgd_iter": 4,
    "model": {"fcnet_hiddens": [256, 256], "fcnet_activation": "tanh"},
}
_SMALL = {
    "num_envs_per_worker": 8,
    "rollout_fragment_length": 128,
    "train_batch_size": 1024,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 10,
}


def gpu_rows() -> tuple[Row, ...]:
    """Returns the benchmarks that need a GPU."""
    return (
        dqn_updates(gpu=True),
        _beside_cpu(
            "gpu_ppo_pong",
            "PPO on ALE/Pong-v5 (84×84×4, ale-py's native vector env), 16 copies: sampling and learning",
            {"env": "ALE/Pong-v5", "config": _PONG, "native_envs": 16},
            "Train batch 2048, minibatch 256, 4 epochs, actor and critic share their convolutions. An env step is four "
            "frames of the game.",
        ),
        _beside_cpu(
            "gpu_ppo_jax_2048",
            "PPO on CartPole-v1 in JAX, 2048 sub-envs × 32 steps, 4 epochs × 4 minibatches, 256×256 tanh",
            {"env": "jax:CartPole-v1", "config": _MANY_JAX_ENVS},
        ),
        _beside_cpu(
            "gpu_ppo_cartpole",
            "PPO on CartPole-v1, 8 sub-envs, train batch 1024, minibatch 256, 10 epochs, 64×64 tanh",
            {"env": "CartPole-v1", "config": _SMALL},
            "Small networks and few sub-environments: what a GPU is not for.",
        ),
    )


def _beside_cpu(name: str, work: str, training: dict[str, Any], notes: str = "") -> Row:
    settings = {"measure": "rate", **training}
    return Row(
        name=name,
        work=work,
        unit="env steps/s",
        better="more",
        sides=(
            own("rollax on the GPU", "rollax_training.iterations", settings, gpu=True),
            own("rollax on the CPU", "rollax_training.iterations", settings),
        ),
        targets=(Against("rollax on the CPU"),),
        rounds=3,
        notes=notes,
    )
