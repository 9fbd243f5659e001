"""What a shared run needs beyond its files: code of its author, and packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

from rollax.algorithms.checkpoint import read, trainer_class_of
from rollax.algorithms.load_policy import load_policy
from rollax.algorithms.trainer import Trainer
from rollax.batch import DEFAULT_POLICY
from rollax.config.json_form import decode_config, missing_code
from rollax.core.importing import path_of
from rollax.errors import CheckpointError, ConfigError
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.model_policy import ModelPolicy
from rollax.sharing.hub import PREFIX

TRAINER, ENV = "trainer_class", "env"
_OPTIONS = {TRAINER: "--run", ENV: "--env"}
_EXAMPLES = {TRAINER: "my_module:MyTrainer", ENV: "my_module:MyEnv"}
_EXTRAS_OF_NAMES = {
    "ALE/": "atari",
    "minigrid:": "minigrid",
    "pettingzoo/": "pettingzoo",
    "jax:brax/": "jaxenvs",
    "jax:pgx/": "jaxenvs",
}
_EXTRAS_OF_MODULES = {"gymnasium.envs.box2d": "box2d", "gymnasium_robotics": "robotics", "minigrid": "minigrid"}


@dataclass(frozen=True)
class NeededCode:
    """The code that a checkpoint names and that is not part of rollax.

    Args:
        paths: `trainer_class` or the config key -> the import path; None for code without one, such as a lambda.
    """

    paths: Mapping[str, str | None]

    def __bool__(self) -> bool:
        return bool(self.paths)

    @property
    def is_named_by_options(self) -> bool:
        """Whether the options of `rollax play` name all of this code, so that the files need no trust."""
        return self.paths.keys() <= _OPTIONS.keys()

    @property
    def options(self) -> list[str]:
        """The options of `rollax play` and `rollax train` that name this code, or else trust the files."""
        if not self.is_named_by_options:
            return ["--trust-code"]
        return [f"{_OPTIONS[key]}={path or _EXAMPLES[key]}" for key, path in self.paths.items()]

    def without(self, *keys: str) -> NeededCode:
        """The code of all other keys; the caller passes the code of `keys` itself."""
        return NeededCode({key: path for key, path in self.paths.items() if key not in keys})

    def with_paths(self, paths: Mapping[str, str]) -> NeededCode:
        """The same code with the import paths in `paths`; None for local code, which cannot be imported."""
        named = {key: None if "<" in path else path for key, path in paths.items() if key in self.paths}
        return NeededCode({**self.paths, **named})


def code_in(checkpoint: Path) -> NeededCode:
    """Returns the code that a checkpoint names; nothing of it is imported.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    stored = read(checkpoint)
    paths = {code.key: code.path for code in missing_code(decode_config(stored["config"], trust="nothing"))}
    try:
        trainer_class_of(stored, checkpoint, trust_code=False)
    except CheckpointError:
        named = stored.get("trainer_class")
        paths[TRAINER] = named if isinstance(named, str) else None
    return NeededCode(paths)


def arguments_of_load_policy(trainer: Trainer, checkpoint: Path) -> str:
    """Returns the arguments of `load_policy` after the path: a policy id and `trust_code=True`, each if required."""
    policies = sorted(trainer.worker.policies)
    learning = trainer.config.multiagent.policies_to_train or policies
    policy_id = DEFAULT_POLICY if DEFAULT_POLICY in policies else learning[0]
    arguments = [] if policy_id == DEFAULT_POLICY else [repr(policy_id)]
    try:
        load_policy(checkpoint, policy_id)
    except (CheckpointError, ConfigError):
        arguments.append("trust_code=True")
    return "".join(f", {argument}" for argument in arguments)


def packages_for(trainer: Trainer, source: str) -> list[str]:
    """Returns what pip must install to play, record and continue a run: rollax with extras, and other packages.

    Args:
        trainer: the trainer of the run.
        source: the argument of `rollax play`.
    """
    env = trainer.config.env
    extras, others = {"video"}, []
    if source.startswith(PREFIX):
        extras.add("hub")
    if trainer.config.num_workers or trainer.config.remote_worker_envs:
        extras.add("ray")
    policies = [runner.policy for runner in trainer.workers.local.runners.values()]
    if any(isinstance(policy, ModelPolicy) and not isinstance(policy, JaxPolicy) for policy in policies):
        extras.add("torch")
    module = _module_of(env)
    extras |= {extra for name, extra in _EXTRAS_OF_NAMES.items() if isinstance(env, str) and env.startswith(name)}
    extras |= {extra for name, extra in _EXTRAS_OF_MODULES.items() if module.startswith(name)}
    if module.startswith("gymnasium.envs.mujoco"):
        others.append("gymnasium[mujoco]")
    return [f"rollax[{','.join(sorted(extras))}]", *others]


def _module_of(env: Any) -> str:
    """Returns the module of an environment, "" if it is not known."""
    if not isinstance(env, str):
        return path_of(env) if isinstance(env, type) else ""
    spec = gym.registry.get(env)
    found: Any = None if spec is None else spec.entry_point
    return found if isinstance(found, str) else _module_of(found)
