"""The built-in algorithms by name, each imported only when it is asked for."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING

from rollax.errors import ConfigError

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer

ALGORITHMS: dict[str, str] = {
    "A2C": "rollax.algorithms.a2c:A2CTrainer",
    "A3C": "rollax.algorithms.a3c:A3CTrainer",
    "APEX": "rollax.algorithms.apex:ApexDQNTrainer",
    "APEX_DDPG": "rollax.algorithms.apex_ddpg:ApexDDPGTrainer",
    "APPO": "rollax.algorithms.appo:APPOTrainer",
    "DDPG": "rollax.algorithms.ddpg:DDPGTrainer",
    "DQN": "rollax.algorithms.dqn:DQNTrainer",
    "IMPALA": "rollax.algorithms.impala:IMPALATrainer",
    "PG": "rollax.algorithms.pg:PGTrainer",
    "PPO": "rollax.algorithms.ppo:PPOTrainer",
    "QMIX": "rollax.algorithms.qmix:QMIXTrainer",
    "Rainbow": "rollax.algorithms.rainbow:RainbowTrainer",
    "SAC": "rollax.algorithms.sac:SACTrainer",
    "TD3": "rollax.algorithms.td3:TD3Trainer",
    "VDN": "rollax.algorithms.qmix:VDNTrainer",
}


def get_trainer_class(name: str) -> type[Trainer]:
    """The trainer class of the algorithm called `name`; upper and lower case are the same.

    Raises:
        ConfigError: no algorithm has that name; the message names the nearest one.
    """
    by_folded_name = {known.casefold(): path for known, path in ALGORITHMS.items()}
    path = by_folded_name.get(name.casefold())
    if path is None:
        nearest = difflib.get_close_matches(name.casefold(), by_folded_name, n=1, cutoff=0.5)
        names = [known for known in ALGORITHMS if known.casefold() in nearest]
        raise ConfigError(
            "An unknown algorithm.",
            where="run",
            got=name,
            expected=f"one of {', '.join(ALGORITHMS)}",
            fix=f"did you mean {names[0]}?" if names else "`rollax list` shows the algorithms",
        )
    module_name, _, class_name = path.partition(":")
    return getattr(importlib.import_module(module_name), class_name)
