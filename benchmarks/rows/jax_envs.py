"""Environments in JAX, compiled with the policy, compared with the same trainer on other environments."""

from __future__ import annotations

from typing import Any

from benchmarks.measure import Against, Row
from benchmarks.rows.commands import own

_SIDES = {"jax:CartPole-v1": "rollax", "CartPole-v1": "Gymnasium, copies"}


def jax_env_rows() -> tuple[Row, ...]:
    """Returns the benchmarks of sampling and training in compiled environments."""
    return (_sampling(64, 128), _sampling(2048, 32), _agents(1), _agents(2), _training(), _replay(), _search())


def _sampling(num_envs: int, fragment: int) -> Row:
    settings = {"num_envs": num_envs, "fragment": fragment}
    return _compiled_sampling(
        f"sampling_jax_{num_envs}",
        f"sampling CartPole-v1 in JAX, {num_envs} sub-envs, 64×64 tanh actor and critic, one process",
        "rollax_sampling.copies",
        {**settings, "env": "jax:CartPole-v1"},
        ("Gymnasium's vector environment", {**settings, "env": "CartPole-v1", "native": True}),
        notes="rollax plays a fragment in one compiled call. Step by step, the environment and the policy are two "
        "compiled calls for each step. The third side steps Gymnasium's native vector CartPole. Values and advantages "
        "are computed on all sides.",
    )


def _agents(num_policies: int) -> Row:
    settings = {"num_envs": 64, "fragment": 128, "num_policies": num_policies}
    policies = "one shared 64×64 tanh policy" if num_policies == 1 else "two 64×64 tanh policies"
    return _compiled_sampling(
        f"sampling_jax_agents_{num_policies}",
        f"sampling a game of two agents in JAX, 64 sub-envs, {policies}, one process",
        "rollax_sampling.meeting",
        settings,
        ("in NumPy, copies", {**settings, "numpy": True}),
        notes="Two walkers on a line meet after about 13 steps. The third side steps copies of the same game as a "
        "`MultiAgentEnv` in NumPy.",
    )


def _compiled_sampling(
    name: str, work: str, function: str, settings: dict[str, Any], other: tuple[str, dict[str, Any]], *, notes: str
) -> Row:
    """Returns the rate of sampling in compiled calls, step by step, and in an environment outside of JAX."""
    return Row(
        name=name,
        work=work,
        unit="env steps/s",
        better="more",
        sides=(
            own("rollax", function, settings),
            own("step by step", function, {**settings, "stepwise": True}),
            own(other[0], function, other[1]),
        ),
        targets=(Against("step by step"), Against(other[0], 2.0)),
        notes=notes,
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
    return _beside_copies(
        "training_jax_64",
        "PPO on CartPole-v1 in JAX, 64 sub-envs × 128 steps, 4 epochs × 4 minibatches, whole iterations",
        "rollax_training.iterations",
        {"measure": "rate", "config": config},
        notes="The same trainer on both sides, with copies of `gym.make` on the other one.",
    )


def _replay() -> Row:
    config = {
        "num_envs_per_worker": 10,
        "rollout_fragment_length": 32,
        "train_batch_size": 128,
        "training_intensity": 0.1,
        "learning_starts": 1000,
        "timesteps_per_iteration": 5000,
        "model": {"fcnet_hiddens": [64, 64]},
    }
    return _beside_copies(
        "training_jax_dqn",
        "DQN on CartPole-v1 in JAX, 10 sub-envs × 32 steps, an update of 128 rows for every 10 steps",
        "rollax_training.iterations",
        {"measure": "rate", "algorithm": "DQN", "config": config},
        notes="The same trainer on both sides, with its replay buffer on the host.",
    )


def _search() -> Row:
    return _beside_copies(
        "ars_jax_cartpole",
        "ARS V2 on CartPole-v1 in JAX, linear policy, 32 directions, whole iterations, one process",
        "rollax_search.iterations",
        {"directions": 32, "warm_up": 25, "num_envs": 64},
        rounds=5,
        seconds=5.0,
        notes="As `ars_cartpole`: after 25 iterations most episodes have 500 steps on both sides.",
    )


def _beside_copies(name: str, work: str, function: str, settings: dict[str, Any], **row: Any) -> Row:
    """Returns the rate of a function with the environment in JAX, and with copies of Gymnasium's."""
    return Row(
        name=name,
        work=work,
        unit="env steps/s",
        better="more",
        sides=tuple(own(side, function, {**settings, "env": env}) for env, side in _SIDES.items()),
        targets=(Against("Gymnasium, copies", 2.0),),
        **row,
    )
