"""Sampling and learning on a GPU, beside other libraries on the same GPU and the same work on the CPU.

The rows are in the order of their value, because `run_all --gpu --minutes M` may not come to all of them.
"""

from __future__ import annotations

from typing import Any

from benchmarks.measure import Against, Row
from benchmarks.processes import Side
from benchmarks.rows.commands import own, peer
from benchmarks.rows.compiled import Task, dqn, first_call, ppo, pqn, rejax_rate, rollax_rate, sac
from benchmarks.rows.frames import dqn_updates

_GPU, _CPU, _REJAX = "rollax on the GPU", "rollax on the CPU", "rejax on the GPU"
_SEEDS = 64
_PONG = {
    "rollout_fragment_length": 128,
    "train_batch_size": 2048,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 4,
    "model": {"vf_share_layers": True},
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
        _training(ppo(2048, 32, width=256)),
        _training(dqn()),
        _seeds(ppo(8, 128)),
        _training(sac()),
        _training(pqn()),
        _sampling(4096, 32),
        _training(ppo(64, 128)),
        _training(ppo(4096, 32)),
        _sampling(64, 128),
        _devices(ppo(4096, 32, width=256)),
        _training(ppo(512, 32)),
        _sampling(512, 32),
        first_call(ppo(64, 128), gpus=1, rounds=1),
        dqn_updates(gpus=1),
        _beside_cpu(
            "gpu_ppo_pong",
            "PPO on ALE/Pong-v5 (84×84×4, ale-py's native vector env), 16 copies: sampling and learning",
            {"env": "ALE/Pong-v5", "config": _PONG, "native_envs": 16},
            "Train batch 2048, minibatch 256, 4 epochs, actor and critic share their convolutions. An env step is four "
            "frames of the game.",
        ),
        _beside_cpu(
            "gpu_ppo_cartpole",
            "PPO on CartPole-v1, 8 sub-envs, train batch 1024, minibatch 256, 10 epochs, 64×64 tanh",
            {"env": "CartPole-v1", "config": _SMALL},
            "Small networks and few sub-environments: what a GPU is not for.",
        ),
    )


def _training(task: Task) -> Row:
    """Returns the rate of compiled training beside rejax on the same GPU, and beside rollax on the CPU."""
    sides = (rollax_rate(task, _GPU, gpus=1), rejax_rate(task, _REJAX, gpus=1), rollax_rate(task, _CPU))
    return _rates(f"gpu_{task.name.replace('ppo', 'ppo_jax')}", f"{task.work}, whole iterations", sides, task.notes)


def _sampling(num_envs: int, fragment: int) -> Row:
    """Returns the rate of sampling in compiled calls."""
    settings = {"env": "CartPole-v1", "num_envs": num_envs, "fragment": fragment}
    ours = {**settings, "env": "jax:CartPole-v1"}
    return _rates(
        f"gpu_sampling_jax_{num_envs}",
        f"sampling CartPole-v1 in JAX, {num_envs} sub-envs × {fragment} steps, 64×64 tanh actor and critic",
        (
            own(_GPU, "rollax_sampling.copies", ours, gpus=1),
            peer(_REJAX, "rejax.sampling", settings, gpus=1),
            own(_CPU, "rollax_sampling.copies", ours),
        ),
        "A fragment in each call. rollax computes advantages too, and returns the rows in NumPy; those of rejax stay "
        "on the GPU.",
    )


def _seeds(task: Task) -> Row:
    """Returns the rate of many seeds that train in the same compiled calls."""
    return _rates(
        f"gpu_seeds_{_SEEDS}",
        f"{_SEEDS} seeds at once: {task.work}, whole iterations",
        (
            own(_GPU, "rollax_training.seeds_together", {**task.of_rollax, "seeds": _SEEDS}, gpus=1),
            peer(_REJAX, "rejax.training", {**task.of_rejax, "seeds": _SEEDS}, gpus=1),
            rollax_rate(task, "one seed", gpus=1),
        ),
        f"Steps of all seeds. `train_together`, as in `rollax train --seeds={_SEEDS}`, beside `jax.vmap` of rejax's "
        f"`train`. {task.notes}",
    )


def _devices(task: Task) -> Row:
    """Returns the rate of training on two GPUs."""
    sides = (rollax_rate(task, "two GPUs", gpus=2), rollax_rate(task, "one GPU", gpus=1))
    return _rates("gpu_devices_2", f"{task.work}, whole iterations, on two GPUs", sides, "")


def _beside_cpu(name: str, work: str, training: dict[str, Any], notes: str) -> Row:
    """Returns the rate of training in an environment outside of JAX, beside the same on the CPU."""
    settings = {"measure": "rate", **training}
    sides = (
        own(_GPU, "rollax_training.iterations", settings, gpus=1),
        own(_CPU, "rollax_training.iterations", settings),
    )
    return _rates(name, work, sides, notes)


def _rates(name: str, work: str, sides: tuple[Side, ...], notes: str) -> Row:
    return Row(
        name=name,
        work=work,
        unit="env steps/s",
        better="more",
        sides=sides,
        targets=tuple(Against(side.name) for side in sides[1:]),
        rounds=3,
        seconds=2.0,
        notes=notes,
    )
