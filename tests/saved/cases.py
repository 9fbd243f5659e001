"""The runs whose checkpoints are kept, and what a policy answers to recorded observations."""

from pathlib import Path
from typing import Any

import numpy as np

from rollax import load_policy
from tests.algorithms.envs import TwoAgents

FOLDER = Path(__file__).parent
"""The folder with one folder of checkpoints for each version."""

_SMALL: dict[str, Any] = {"num_envs_per_worker": 2, "train_batch_size": 16, "seed": 3, "model": {"fcnet_hiddens": (4,)}}
_REPLAY: dict[str, Any] = {
    **_SMALL,
    "train_batch_size": 8,
    "buffer_size": 32,
    "learning_starts": 8,
    "timesteps_per_iteration": 16,
}
_EPOCHS: dict[str, Any] = {**_SMALL, "sgd_minibatch_size": 8, "num_sgd_iter": 2}
_MEMORY: dict[str, Any] = {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": (4,), "max_seq_len": 4}


def own_id(agent_id: str) -> str:
    """The policy of an agent: that with its id. Checkpoints contain the path of this function."""
    return agent_id


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("PPO", {**_EPOCHS, "env": "Pendulum-v1", "observation_filter": "MeanStdFilter"}),
    "ppo_lstm": ("PPO", {**_EPOCHS, "env": "CartPole-v1", "model": _MEMORY}),
    "ppo_two_policies": (
        "PPO",
        {
            **_EPOCHS,
            "env": TwoAgents,
            "multiagent": {"policies": {"left": None, "right": None}, "policy_mapping_fn": own_id},
        },
    ),
    "impala": ("IMPALA", {**_SMALL, "timesteps_per_iteration": 0, "env": "CartPole-v1"}),
    "dqn": ("DQN", {**_REPLAY, "env": "CartPole-v1"}),
    "sac": ("SAC", {**_REPLAY, "env": "Pendulum-v1"}),
    "tqc": ("TQC", {**_REPLAY, "env": "Pendulum-v1", "num_quantiles": 3}),
    "crossq": (
        "CrossQ",
        {
            **_REPLAY,
            "env": "Pendulum-v1",
            "model": {"fcnet_hiddens": (4,), "normalization": "batch_renorm"},
            "critic_model": {"fcnet_hiddens": (6,), "normalization": "batch_renorm"},
        },
    ),
    "flash_sac": ("FlashSAC", {**_REPLAY, "env": "Pendulum-v1", "actor_hiddens": (3,), "num_atoms": 5}),
    "pqn": ("PQN", {**_EPOCHS, "env": "CartPole-v1"}),
    "ppo_bonuses": ("PPO", {**_EPOCHS, "env": "CartPole-v1", "exploration_bonus": "rnd", "bonus_hiddens": (4,)}),
    "td3": ("TD3", {**_REPLAY, "env": "Pendulum-v1"}),
    "td7": ("TD7", {**_REPLAY, "env": "Pendulum-v1", "embedding_dim": 3}),
    "marwil": ("MARWIL", {**_REPLAY, "buffer_size": 128, "timesteps_per_iteration": 80, "env": "CartPole-v1"}),
    "ars": ("ARS", {"env": "CartPole-v1", "seed": 3, "num_directions": 2, "directions_used": 1}),
}
"""Name -> algorithm and config."""


def answers(path: Path, observations: dict[str, list[Any]]) -> dict[str, Any]:
    """What each policy of a checkpoint answers greedily to its observations, as JSON values.

    Args:
        path: the checkpoint.
        observations: policy id -> N raw observations.
    Returns:
        Policy id -> `observations`, `actions` and `states` [N, ...], and `fetches`, name -> [N, ...].
    """
    found = {}
    for policy_id, raw in observations.items():
        runner = load_policy(path, policy_id)
        columns = [np.asarray(obs, runner.policy.observation_space.dtype) for obs in raw]
        actions, states, fetches = runner.compute_actions(columns)
        found[policy_id] = {
            "observations": [obs.tolist() for obs in columns],
            "actions": np.asarray(actions).tolist(),
            "states": [np.asarray(state).tolist() for state in states],
            "fetches": {name: np.asarray(value).tolist() for name, value in fetches.items()},
        }
    return found
