"""Training in environments in JAX beside rejax, whose training is compiled as a whole too, on a CPU or on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import Against, Row
from benchmarks.processes import Side
from benchmarks.rows.commands import own, peer

_FINISHED = r'"event": "finished"'
_GYMNAX = (
    "The environment of rejax, gymnax's, resets in every step, and ends at time limits as at other ends. Neither side "
    "evaluates."
)


@dataclass(frozen=True)
class Task:
    """Training of one algorithm, with the same settings in the words of both libraries.

    Args:
        name: short name of the task.
        algorithm: its name in both libraries.
        env: the environment's name in Gymnasium.
        work: description of the work.
        config: rollax's config; a call makes `timesteps_per_iteration` steps.
        settings: arguments of rejax's algorithm.
        differs: what differs between both sides besides the environment.
    """

    name: str
    algorithm: str
    env: str
    work: str
    config: Mapping[str, Any]
    settings: Mapping[str, Any]
    differs: str

    @property
    def of_rollax(self) -> dict[str, Any]:
        """Settings of the functions of `rollax_training`."""
        return {"algorithm": self.algorithm, "env": f"jax:{self.env}", "config": dict(self.config)}

    @property
    def of_rejax(self) -> dict[str, Any]:
        """Settings of the functions of rejax's script."""
        steps = self.config["timesteps_per_iteration"]
        return {"algorithm": self.algorithm, "env": self.env, "settings": dict(self.settings), "steps": steps}

    @property
    def notes(self) -> str:
        """What differs, for the notes of a row."""
        return f"{self.config['timesteps_per_iteration']:,} steps in each call. {self.differs} {_GYMNAX}"


def compiled_rows() -> tuple[Row, ...]:
    """Returns the benchmarks of compiled training on the CPU: rates, and first calls of new processes."""
    tasks = (ppo(64, 128), ppo(2048, 32), dqn(), pqn(), sac())
    return (*map(_rate, tasks), *(first_call(task) for task in (ppo(64, 128), dqn(), pqn(), sac())))


def ppo(num_envs: int, length: int, width: int = 64) -> Task:
    """PPO on CartPole with 4 epochs of 4 minibatches; a call makes about 65,536 steps, at most 8 iterations."""
    rows = num_envs * length
    return Task(
        name=f"ppo_{num_envs}",
        algorithm="PPO",
        env="CartPole-v1",
        work=f"PPO on CartPole-v1 in JAX, {num_envs} sub-envs × {length} steps, 4 epochs × 4 minibatches, "
        f"{width}×{width} tanh",
        config={
            "num_envs_per_worker": num_envs,
            "rollout_fragment_length": length,
            "train_batch_size": rows,
            "sgd_minibatch_size": rows // 4,
            "num_sgd_iter": 4,
            "timesteps_per_iteration": rows * min(max(65_536 // rows, 1), 8),
            "lr": 3e-4,
            "gamma": 0.99,
            "lambda": 0.95,
            "clip_param": 0.2,
            "vf_loss_coeff": 0.5,
            "entropy_coeff": 0.01,
            "grad_clip": 0.5,
            "model": {"fcnet_hiddens": [width, width], "fcnet_activation": "tanh"},
        },
        settings={
            "num_envs": num_envs,
            "num_steps": length,
            "num_minibatches": 4,
            "num_epochs": 4,
            "learning_rate": 3e-4,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "clip_eps": 0.2,
            "vf_coef": 0.5,
            "ent_coef": 0.01,
            "max_grad_norm": 0.5,
            "agent_kwargs": {"hidden_layer_sizes": [width, width], "activation": "tanh"},
        },
        differs="rejax bounds the change of values, standardizes advantages in each minibatch, clips single elements "
        "of gradients, and reports no statistics.",
    )


def dqn() -> Task:
    """DQN on CartPole: an update of 128 rows for each step of 10 sub-environments."""
    return Task(
        name="dqn",
        algorithm="DQN",
        env="CartPole-v1",
        work="DQN on CartPole-v1 in JAX, 10 sub-envs, an update of 128 rows for every 10 steps, 64×64 relu",
        config={
            "num_envs_per_worker": 10,
            "rollout_fragment_length": 1,
            "train_batch_size": 128,
            "training_intensity": 0.1,
            "learning_starts": 1000,
            "buffer_size": 10_000,
            "target_network_update_freq": 50,
            "timesteps_per_iteration": 10_000,
            "lr": 2.5e-4,
            "grad_clip": None,
            "dueling": False,
            "model": {"fcnet_hiddens": [64, 64], "fcnet_activation": "relu"},
        },
        settings={
            "num_envs": 10,
            "batch_size": 128,
            "num_epochs": 1,
            "fill_buffer": 1000,
            "buffer_size": 10_000,
            "target_update_freq": 500,
            "polyak": 0.0,
            "learning_rate": 2.5e-4,
            "agent_kwargs": {"activation": "relu"},
        },
        differs="Double Q-learning, a copy of the network after 50 updates. rejax has a squared error, rollax Huber's.",
    )


def pqn() -> Task:
    """PQN on CartPole, with the number of sub-environments and epochs of its paper's script."""
    return Task(
        name="pqn",
        algorithm="PQN",
        env="CartPole-v1",
        work="PQN on CartPole-v1 in JAX, 32 sub-envs × 64 steps, 4 epochs × 16 minibatches, 64×64 relu with layer "
        "normalization",
        config={
            "num_envs_per_worker": 32,
            "rollout_fragment_length": 64,
            "train_batch_size": 2048,
            "sgd_minibatch_size": 128,
            "num_sgd_iter": 4,
            "timesteps_per_iteration": 16_384,
            "lr": 2.5e-4,
            "lambda": 0.95,
            "grad_clip": 10.0,
            "model": {
                "fcnet_hiddens": [64, 64],
                "fcnet_activation": "relu",
                "normalization": "layer",
                "normalize_before_activation": True,
            },
        },
        settings={
            "num_envs": 32,
            "num_steps": 64,
            "num_minibatches": 16,
            "num_epochs": 4,
            "learning_rate": 2.5e-4,
            "td_lambda": 0.95,
            "max_grad_norm": 10.0,
        },
        differs="rollax optimizes with RAdam, rejax with Adam, and rejax clips single elements of gradients.",
    )


def sac() -> Task:
    """SAC on Pendulum: an update for each step."""
    return Task(
        name="sac",
        algorithm="SAC",
        env="Pendulum-v1",
        work="SAC on Pendulum-v1 in JAX, 16 sub-envs, 16 updates of 256 rows for every 16 steps, 64×64 relu",
        config={
            "num_envs_per_worker": 16,
            "rollout_fragment_length": 1,
            "train_batch_size": 256,
            "training_intensity": 1.0,
            "learning_starts": 1000,
            "buffer_size": 100_000,
            "timesteps_per_iteration": 2048,
            "lr": 1e-3,
            "tau": 0.005,
            "grad_clip": None,
            "model": {"fcnet_hiddens": [64, 64], "fcnet_activation": "relu"},
        },
        settings={
            "num_envs": 16,
            "batch_size": 256,
            "num_epochs": 16,
            "fill_buffer": 1000,
            "buffer_size": 100_000,
            "polyak": 0.995,
            "learning_rate": 1e-3,
            "hidden_layer_sizes": [64, 64],
        },
        differs="rejax averages the target networks once for 16 updates, rollax after each.",
    )


def rollax_rate(task: Task, name: str = "rollax", gpus: int = 0) -> Side:
    """Returns the side that trains with rollax."""
    return own(name, "rollax_training.iterations", {"measure": "rate", **task.of_rollax}, gpus=gpus)


def rejax_rate(task: Task, name: str = "rejax", gpus: int = 0) -> Side:
    """Returns the side that trains with rejax."""
    return peer(name, "rejax.training", task.of_rejax, gpus=gpus)


def _rate(task: Task) -> Row:
    return Row(
        name=f"compiled_{task.name}",
        work=f"{task.work}, whole iterations",
        unit="env steps/s",
        better="more",
        sides=(rollax_rate(task), rejax_rate(task)),
        targets=(Against("rejax"),),
        rounds=5,
        seconds=4.0,
        notes=task.notes,
    )


def first_call(task: Task, gpus: int = 0, rounds: int = 3) -> Row:
    """Returns the benchmark of the first iteration of a new process, most of which is compilation."""
    how = {"until": _FINISHED, "gpus": gpus}
    return Row(
        name=f"{'gpu' if gpus else 'compiled'}_first_{task.name.partition('_')[0]}",
        work=f"the first iteration of a new process: {task.work}" + (", on a GPU" if gpus else ""),
        unit="s",
        better="less",
        sides=(
            own("rollax", "rollax_training.first_iteration", task.of_rollax, **how),
            peer("rejax", "rejax.first_iteration", task.of_rejax, **how),
            own("rollax, warm cache", "rollax_training.first_iteration", task.of_rollax, cache="warm", **how),
            peer("rejax, warm cache", "rejax.first_iteration", task.of_rejax, cache="warm", **how),
        ),
        targets=(Against("rejax"),),
        rounds=rounds,
        notes=f"{task.notes} Every round is a new process with an empty compilation cache, or one that an earlier run "
        "has filled.",
    )
