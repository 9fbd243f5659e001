"""`load_policy` and `load_policies`: policies for raw observations from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollax.algorithms import checkpoint
from rollax.algorithms.checkpoint_config import config_of
from rollax.algorithms.trainer import Trainer
from rollax.batch import DEFAULT_POLICY
from rollax.config import TrainerConfig
from rollax.config.json_form import GIVEN, POLICY
from rollax.core.frozen import fields_by_key
from rollax.core.importing import StoredCode, named_by_file, path_of
from rollax.core.space_json import space_from_json
from rollax.errors import CheckpointError, ConfigError
from rollax.policy.base_algorithm import BaseAlgorithm
from rollax.policy.policy import Policy
from rollax.policy.policy_spec import PolicyClass
from rollax.policy.size_checks import models_as_large_as, weights_in
from rollax.rollout.filters import make_filter
from rollax.rollout.policy_runner import PolicyRunner


def load_policy(
    path: str | Path,
    policy_id: str = DEFAULT_POLICY,
    *,
    trainer_class: type[Trainer] | None = None,
    policy_class: PolicyClass | None = None,
    custom_model: type | None = None,
    trust_code: bool = False,
) -> PolicyRunner:
    """Returns a policy for raw observations: `compute_single_action(obs)` for one, `compute_actions([...])` for many.

    Observation filter and action mapping are applied as in training. The attribute `policy` is the `Policy` without
    them: `load_policy(path).policy.get_weights()` is name -> NumPy array. A PyTorch policy that learned on a GPU uses a
    GPU if this machine has one, else the CPU.

    Args:
        path: a checkpoint; or a folder of checkpoints or a run folder, whose newest checkpoint is read.
        policy_id: the policy, in a checkpoint with several.
        trainer_class: your own trainer class that saved the checkpoint; it names the policy and config classes.
        policy_class: your own policy class.
        custom_model: your own model class.
        trust_code: import these classes by the names in the checkpoint; only if you trust its origin.
    Raises:
        CheckpointError: `path` is not a path; or the checkpoint is damaged, of another format, without this policy, or
            requires code that is neither given nor trusted.
        PolicyError: `custom_model`, or the model of `policy_class`, does not fit the saved weights.
    """
    path = checkpoint.checkpoint_at(path, "load_policy")
    stored = checkpoint.read(path)
    if policy_id not in stored["policies"]:
        raise CheckpointError("The checkpoint does not contain this policy.", str(path), policy_id).expected(
            f"one of {sorted(stored['policies'])}", "pass one of those as policy_id"
        )
    code = _GivenCode(path, trainer_class, policy_class, custom_model, trust_code)
    return _runner(stored, policy_id, *_made_by(stored, policy_id, code), path)


def load_policies(
    path: str | Path,
    *,
    trainer_class: type[Trainer] | None = None,
    custom_model: type | None = None,
    trust_code: bool = False,
    stored: Mapping[str, Any] | None = None,
) -> dict[str, PolicyRunner]:
    """All policies of a checkpoint, by id; see `load_policy`.

    Args:
        custom_model: your own model class, for the policies that have one.
        stored: the content of the checkpoint, where `checkpoint.read` has returned it already.
    Raises:
        ConfigError: no policy has a model of its own, and `custom_model` is given.
    """
    stored = checkpoint.read(checkpoint.checkpoint_at(path, "load_policies")) if stored is None else stored
    code = _GivenCode(path, trainer_class, None, custom_model, trust_code, for_all=True)
    made_by = {policy_id: _made_by(stored, policy_id, code) for policy_id in stored["policies"]}
    if custom_model is not None and all(config.model.custom_model is None for _, config in made_by.values()):
        raise ConfigError.no_effect("custom_model", "no policy has a model of its own", str(path), custom_model)
    return {policy_id: _runner(stored, policy_id, *parts, path) for policy_id, parts in made_by.items()}


@dataclass(frozen=True, slots=True)
class _GivenCode:
    """The code that the caller gives or trusts, for one policy of the checkpoint at `path`, or for all."""

    path: str | Path
    trainer_class: type[Trainer] | None
    policy_class: PolicyClass | None
    custom_model: type | None
    trust_code: bool
    for_all: bool = False


def _made_by(stored: Mapping[str, Any], policy_id: str, code: _GivenCode) -> tuple[PolicyClass, TrainerConfig]:
    """The class and the config that make a policy."""
    description = stored["policies"][policy_id]
    policy_class = _policy_class(description["class"], code)
    return policy_class, _config(stored, description["config"], policy_class, code)


def _runner(
    stored: Mapping[str, Any], policy_id: str, policy_class: PolicyClass, config: TrainerConfig, path: str | Path
) -> PolicyRunner:
    description = stored["policies"][policy_id]
    observation_space = space_from_json(description["observation_space"], f"{path}: observation_space")
    action_space = space_from_json(description["action_space"], f"{path}: action_space")
    state = stored["state"]["workers"]
    with checkpoint.errors_as_damaged(path):
        with models_as_large_as([weights_in(state["policies"][policy_id])]):
            policy = policy_class.make_policy(observation_space, action_space, config)
        policy.name = policy_id
        policy.set_state(state["policies"][policy_id])
        observation_filter = make_filter(config.observation_filter, policy.observation_space)
        runner = PolicyRunner.of(policy, config, observation_filter)
        runner.running_statistics.set_state(state["filters"][policy_id])
    return runner


def _policy_class(saved: str, code: _GivenCode) -> PolicyClass:
    if code.policy_class is not None:
        return code.policy_class
    trainer_class = code.trainer_class
    if trainer_class is not None and saved == path_of(trainer_class.policy_class):
        return trainer_class.policy_class
    found = named_by_file(saved, "policy_class", base=POLICY, trusted=code.trust_code)
    if isinstance(found, StoredCode):
        fix = "load this policy by load_policy(path, policy_id, policy_class=...)"
        raise checkpoint.untrusted(code.path, found, fix if code.for_all else "pass policy_class=YourPolicy")
    if not (isinstance(found, type) and issubclass(found, Policy | BaseAlgorithm)):
        raise CheckpointError(
            "The class that the checkpoint names is not a policy class.", str(code.path), saved
        ).expected("a Policy class", "use a checkpoint that a trainer has saved")
    return found


def _config(
    stored: Mapping[str, Any], data: Mapping[str, Any], policy_class: PolicyClass, code: _GivenCode
) -> TrainerConfig:
    config_class = policy_class.config_class
    # A policy may have the config of its trainer, which may have more keys than the policy's class.
    if config_class is None or not data.keys() <= {*fields_by_key(config_class), GIVEN}:
        config_class = (
            code.trainer_class or checkpoint.trainer_class_of(stored, code.path, trust_code=code.trust_code)
        ).config_class
    config = config_of(config_class, data, stored, code.path, trust_code=code.trust_code)
    if getattr(config, "device", "cpu") not in ("auto", "cpu"):
        config = config.changed(device="auto")  # this machine may not have the device of the training
    model = config.model.custom_model
    if code.custom_model is not None and (model is not None or not code.for_all):
        return config.changed(model=config.model.model_copy(update={"custom_model": code.custom_model}))
    if isinstance(model, StoredCode):
        raise checkpoint.untrusted(code.path, model, "pass custom_model=YourModel")
    return config
