"""The algorithms of the library by name, each imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rollax.config import TrainerConfig
from rollax.config.hooks import FINDERS_OF_ALGORITHMS
from rollax.core.extensions import contributed
from rollax.core.frozen import fields_by_key
from rollax.core.importing import path_of
from rollax.errors import ConfigError, corrected

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer

_OF_THE_CORE = {
    "A2C": "rollax.algorithms.a3c:A2CTrainer",
    "A3C": "rollax.algorithms.a3c:A3CTrainer",
    "APEX": "rollax.algorithms.apex:ApexDQNTrainer",
    "APEX_DDPG": "rollax.algorithms.apex:ApexDDPGTrainer",
    "APPO": "rollax.algorithms.appo:APPOTrainer",
    "CrossQ": "rollax.algorithms.crossq:CrossQTrainer",
    "DDPG": "rollax.algorithms.ddpg:DDPGTrainer",
    "DQN": "rollax.algorithms.dqn:DQNTrainer",
    "FlashSAC": "rollax.algorithms.flash_sac:FlashSACTrainer",
    "IMPALA": "rollax.algorithms.impala:IMPALATrainer",
    "PG": "rollax.algorithms.pg:PGTrainer",
    "PPO": "rollax.algorithms.ppo:PPOTrainer",
    "PQN": "rollax.algorithms.pqn:PQNTrainer",
    "QMIX": "rollax.algorithms.qmix:QMIXTrainer",
    "Rainbow": "rollax.algorithms.dqn:RainbowTrainer",
    "SAC": "rollax.algorithms.sac:SACTrainer",
    "TD3": "rollax.algorithms.ddpg:TD3Trainer",
    "TD7": "rollax.algorithms.td7:TD7Trainer",
    "TQC": "rollax.algorithms.tqc:TQCTrainer",
    "VDN": "rollax.algorithms.qmix:VDNTrainer",
}
ALGORITHMS: dict[str, str] = dict(sorted({**_OF_THE_CORE, **contributed("ALGORITHMS")}.items()))

_POLICIES_OF_SB3 = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy", "MlpLstmPolicy")


def get_trainer_class(name: str, where: str = "run") -> type[Trainer]:
    """Returns the trainer class of the algorithm `name`, case-insensitively, or raises ConfigError."""
    path = {known.casefold(): path for known, path in ALGORITHMS.items()}.get(name.casefold())
    if path is None:
        near = corrected(name, ALGORITHMS)
        own = "use one of these, or your own trainer's class itself (on the command line --run=module:Class)"
        raise ConfigError("Unknown algorithm.", where, name).expected(
            f"one of {', '.join(ALGORITHMS)}", own if near is None else f"did you mean '{near}'?"
        )
    module_name, _, class_name = path.partition(":")
    return getattr(importlib.import_module(module_name), class_name)


def algorithms_with(key: str) -> list[str]:
    """Returns the names of the algorithms whose configs have this key."""
    configs = {name: getattr(get_trainer_class(name), "config_class", TrainerConfig) for name in ALGORITHMS}
    return [name for name, config in configs.items() if key in fields_by_key(config)]


FINDERS_OF_ALGORITHMS.append(algorithms_with)


def run_name(trainer_class: type) -> str:
    """Returns the `--run` argument of a trainer class: the algorithm's name, or `module:Class`."""
    path = path_of(trainer_class)
    return next((name for name, known in ALGORITHMS.items() if known == path), path)


def refuse_incomplete(trainer_class: type[Trainer]) -> None:
    """Raises ConfigError for a trainer class with a missing class attribute, or an invalid config class or name."""
    needed = ("config_class", "policy_class", "optimizer_class")
    if missing := [name for name in needed if not hasattr(trainer_class, name)]:
        raise ConfigError(
            "The trainer class is abstract: it lacks class attributes.",
            f"class {trainer_class.__name__}",
            f"no {', no '.join(missing)}",
        ).expected(
            f"{', '.join(needed[:-1])} and {needed[-1]}",
            "set them, or inherit from a similar trainer, such as PPOTrainer",
        )
    config_class: Any = trainer_class.config_class
    if not (isinstance(config_class, type) and issubclass(config_class, TrainerConfig)):
        raise ConfigError(
            "The config class of the trainer lacks the common keys.", f"class {trainer_class.__name__}", config_class
        ).expected(
            "a subclass of TrainerConfig",
            "derive it from TrainerConfig too: class OwnConfig(StateValueFields, TrainerConfig)",
        )
    if not isinstance(trainer_class.name, str):
        raise ConfigError(
            "The name of the trainer class is not a string.",
            f"class {trainer_class.__name__}: name",
            trainer_class.name,
        ).expected("the name of the algorithm", "set a string, or leave it out: its default is the name of the class")


def refuse_misplaced(trainer_class: type[Trainer], env: Any, keys: Mapping[str, Any]) -> None:
    """Raises ConfigError for arguments as in other libraries: config keys, a policy's name, or the config as `env`."""
    name = trainer_class.__name__
    call = f"{name}(env=..., config={{...}})"
    if keys:
        what, where, got = "A trainer takes its settings in one config.", f"{name}(...)", f"arguments {', '.join(keys)}"
        fix = f"{name}(env=..., config={{{_as_settings(trainer_class.config_class, keys)}}})"
    elif isinstance(env, str) and env in _POLICIES_OF_SB3:
        what, where, got = "The first argument is the environment.", f"{name}(env=...)", env
        fix = f"{call}; the network follows from the observation space, and from the config key 'model'"
    elif isinstance(env, Mapping | TrainerConfig):
        what, where, got = "The first argument is the environment.", f"{name}(env=...)", env
        fix = f"{call}; {name}(config={{...}}) for a config with the key 'env'"
    else:
        return
    raise ConfigError(what, where=where, got=got, expected="an environment, and one config with all settings", fix=fix)


def _as_settings(config_class: type[TrainerConfig], keys: Iterable[str]) -> str:
    """Returns the text of config items with these keys; names of other libraries are replaced by keys of rollax."""
    from rollax.config.synonyms import counterpart  # loaded for errors only
    from rollax.config.validation_errors import keys_with_parts

    known = keys_with_parts(config_class)
    sections: dict[str, list[str]] = {}
    for key in keys:
        found = [one for one in known if key in (one, one.rpartition(".")[2])]
        if not found and (ours := counterpart(key, known)) is not None:
            found = [*ours.keys]
        for section, _, name in (one.rpartition(".") for one in found):
            sections.setdefault(section, []).append(f"{name!r}: ...")
    own = sections.pop("", [])
    return ", ".join([*own, *(f"{key!r}: {{{', '.join(inner)}}}" for key, inner in sections.items())]) or "..."


def refuse_config_of_another(config: Any, trainer_class: type[Trainer]) -> None:
    """Raises ConfigError for a config object of another algorithm's class, whose defaults differ."""
    if not isinstance(config, TrainerConfig) or type(config) is trainer_class.config_class:
        return
    trainers = (get_trainer_class(name) for name in ALGORITHMS)
    own = next((found.__name__ for found in trainers if found.config_class is type(config)), None)
    given, taken = type(config).__name__, trainer_class.config_class.__name__
    raise ConfigError(
        "The config belongs to a different algorithm.", f"{trainer_class.__name__}(config=...)", given
    ).expected(
        f"a {taken}, or a dict of its keys",
        f"use {own or f'a trainer whose config_class is {given}'}, or pass a {taken}",
    )
