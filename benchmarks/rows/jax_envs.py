"""Environments in JAX, compiled with the policy, beside the same trainer on other environments."""

from __future__ import annotations

import json

from benchmarks.measure import Against, Row
from benchmarks.processes import Side
from benchmarks.rows.commands import flags, own

_NAMES = {"CartPole-v1": "Gymnasium, copies", "jax:CartPole-v1": "rollax"}


def jax_env_rows() -> tuple[Row, ...]:
    """Returns the benchmarks of sampling and training in compiled environments."""
    return (_sampling(64, 128), _sampling(2048, 32), _training())


def _sampling(num_envs: int, fragment: int) -> Row:
    settings = flags(num_envs=num_envs, fragment=fragment)
    jax = own("rollax_sampling", *settings, *flags(env="jax:CartPole-v1"))
    native = own("rollax_sampling", *settings, *flags(env="CartPole-v1"), "--native")
    return Row(
        name=f"sampling_jax_{num_envs}",
        work=f"sampling CartPole-v1 in JAX, {num_envs} sub-envs, 64×64 tanh actor and critic, one process",
        unit="env steps/s",
        better="more",
        sides=(
            Side("rollax", jax),
            Side("step by step", (*jax, "--stepwise")),
            Side("Gymnasium's vector environment", native),
        ),
        targets=(Against("step by step"), Against("Gymnasium's vector environment", 2.0)),
        notes="rollax plays a fragment in one compiled call. Step by step, the environment and the policy are two "
        "compiled calls for each step. The third side steps Gymnasium's native vector CartPole. Values and advantages "
        "are computed on all sides.",
    )


def _training() -> Row:
    config = {
        "num_envs_per_worker": 64,
        "rollout_fragment_length": 128,
        "train_batch_size": 8192,
        "sgd_minibatch_size": 2048,
        "num_sgd_iter": 4,
        "model": {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"},
    }

    def side(env: str) -> Side:
        return Side(_NAMES[env], own("rollax_training", "rate", *flags(env=env, config=json.dumps(config))))

    return Row(
        name="training_jax_64",
        work="PPO on CartPole-v1 in JAX, 64 sub-envs × 128 steps, 4 epochs × 4 minibatches, whole iterations",
        unit="env steps/s",
        better="more",
        sides=(side("jax:CartPole-v1"), side("CartPole-v1")),
        targets=(Against("Gymnasium, copies", 2.0),),
        notes="The same trainer on both sides, with copies of `gym.make` on the other one.",
    )
