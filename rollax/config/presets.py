"""Presets: defaults of other libraries, as dicts of config keys.

A preset has the keys that affect learning, where the default of the other library differs: losses, networks,
optimizers, exploration, batches. Keys of processes (`num_workers`, `num_gpus`), of failures and of the length of
iterations stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from rollax.errors import ConfigError

_LAYERS = {"fcnet_hiddens": (256, 256)}
_SHARED_LAYERS = {**_LAYERS, "vf_share_layers": True}

_RLLIB: dict[str, Mapping[str, Any]] = {
    "A2C": {"lr": 1e-4, "grad_clip": 40 / 200, "vf_loss_coeff": 0.25, "model": _SHARED_LAYERS},
    "A3C": {"lr": 1e-4, "grad_clip": 40 / 10, "vf_loss_coeff": 0.25, "model": _SHARED_LAYERS},
    "APEX": {
        "lr": 5e-4,
        "adam_epsilon": 1e-8,
        "target_network_update_freq": 977,
        "hiddens": (256,),
        "model": _LAYERS,
    },
    "APEX_DDPG": {"noise_scale": 0.2},
    "APPO": {"vf_loss_coeff": 0.25, "learner_queue_size": 16, "model": _SHARED_LAYERS},
    "ARS": {"lr": 0.01, "noise_stdev": 0.02, "shared_starts": False, "model": _LAYERS},
    "BC": {"model": _LAYERS},
    "CQL": {"actor_lr": 3e-4},
    "DDPG": {"noise_scale": 0.2, "prioritized_replay": True, "rollout_fragment_length": 1},
    "DQN": {
        "grad_clip": 40.0,
        "target_network_update_freq": 125,
        "prioritized_replay": True,
        "hiddens": (256,),
        "model": _LAYERS,
    },
    "ES": {"num_directions": 500, "shared_starts": False, "model": _LAYERS},
    "IMPALA": {"grad_clip": 40 / 500, "vf_loss_coeff": 0.25, "learner_queue_size": 16, "model": _SHARED_LAYERS},
    "MARWIL": {"model": _SHARED_LAYERS},
    "PG": {
        "lr": 4e-4,
        "train_batch_size": 200,
        "rollout_fragment_length": 200,
        "batch_mode": "truncate_episodes",
        "model": _LAYERS,
    },
    "PPO": {
        "lr": 5e-5,
        "lambda": 1.0,
        "num_sgd_iter": 30,
        "sgd_minibatch_size": 128,
        "train_batch_size": 4000,
        "rollout_fragment_length": 200,
        "clip_param": 0.3,
        "vf_loss_coeff": 1.0,
        "vf_clip_param": 10.0,
        "kl_coeff": 0.2,
        "grad_clip": None,
        "model": _LAYERS,
    },
    "SAC": {"rollout_fragment_length": 1, "random_steps": 0},
    "TD3": {"rollout_fragment_length": 1},
}
"""Algorithm -> the defaults of classic RLlib (`rllib/agents` of Ray 1.x), in the units of rollax.

Source: the files of ray-project/ray, such as rllib/agents/ppo/ppo.py, and MODEL_DEFAULTS of rllib/models/catalog.py.
Converted, because RLlib has other units:
- losses of A2C, A3C and IMPALA are sums over the train batch, so a bound on the gradient is divided by the rows of a
  batch;
- value losses of A2C, A3C, IMPALA and APPO have a factor 1/2;
- target networks are copied every 500 sampled steps (DQN, 4 steps per update) or 500,000 trained rows (APEX, 512 rows
  per update);
- noise is in units of an action's whole range (DDPG).
"""

PRESETS: dict[str, dict[str, Mapping[str, Any]]] = {"rllib": _RLLIB}
"""Name -> algorithm -> config keys."""


def preset(name: str, algorithm: str) -> dict[str, Any]:
    """Returns the config keys of a preset: `PPOTrainer(env, {**preset("rllib", "PPO"), "num_workers": 4})`.

    Args:
        name: `rllib`, the defaults of classic RLlib.
        algorithm: the name of the algorithm, in upper or lower case.
    Raises:
        ConfigError: the preset does not exist, or has nothing for this algorithm.
    """
    algorithms = _entry(PRESETS, name, "preset", "name")
    return deepcopy(dict(_entry(algorithms, algorithm, f"algorithm of the preset {name!r}", "algorithm")))


def _entry(table: Mapping[str, Any], name: str, what: str, argument: str) -> Any:
    found = {known.casefold(): value for known, value in table.items()}.get(str(name).casefold())
    if found is None:
        raise ConfigError.unknown(what, name, table, f"preset({argument}=...)")
    return found
