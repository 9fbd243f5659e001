"""`load_policy`: a checkpoint alone is enough to act on raw observations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollax.algorithms import checkpoint
from rollax.algorithms.registry import get_trainer_class
from rollax.algorithms.trainer import Trainer
from rollax.config import TrainerConfig
from rollax.config.stored import POLICY
from rollax.errors import CheckpointError
from rollax.evaluation.action_clipping import ActionMap
from rollax.evaluation.filters import make_filter
from rollax.evaluation.policy_runner import PolicyRunner
from rollax.importing import StoredCode, named_by_file
from rollax.policy.policy import Policy
from rollax.spaces import space_from_json


def load_policy(
    path: str | Path,
    policy_id: str = "default_policy",
    *,
    trainer_class: type[Trainer] | None = None,
    policy_class: type[Policy] | None = None,
    custom_model: type | None = None,
    trust_code: bool = False,
) -> PolicyRunner:
    """A policy whose `compute_single_action(obs, state=None, explore=False)` takes raw observations.

    Observation filter and action mapping are applied as in training. The `Policy` itself, without them, is its
    attribute `policy`: `load_policy(path).policy.get_weights()` is name -> NumPy array.

    Args:
        path: the checkpoint folder.
        policy_id: which of its policies.
        trainer_class: of an algorithm of your own, which is not among the registered ones.
        policy_class: the class of a custom policy.
        custom_model: the class of a custom model.
        trust_code: import the classes that the checkpoint names; only for checkpoints whose origin you trust.
    Raises:
        CheckpointError: damaged, newer, without this policy, or of code that was neither given nor trusted.
    """
    stored = checkpoint.read(Path(path))
    if policy_id not in stored["policies"]:
        raise CheckpointError(
            "The checkpoint has no such policy.",
            where=str(path),
            got=policy_id,
            expected=f"one of {sorted(stored['policies'])}",
            fix="pass one of those as policy_id",
        )
    description = stored["policies"][policy_id]
    trainer_class = trainer_class or get_trainer_class(stored["algorithm"])
    policy_class = _class_of(path, description["class"], policy_class, trust_code)
    config_class = policy_class.config_class or trainer_class.config_class
    config = _config_of(path, description["config"], config_class, custom_model, trust_code)
    policy = policy_class(
        space_from_json(description["observation_space"]), space_from_json(description["action_space"]), config
    )
    policy.name = policy_id
    policy.set_state(stored["state"]["workers"]["policies"][policy_id])
    observation_filter = make_filter(stored["observation_filter"], policy.observation_space)
    observation_filter.set_state(stored["state"]["workers"]["filters"][policy_id])
    actions = ActionMap(
        policy.action_space, clip_actions=config.clip_actions, normalize_actions=config.normalize_actions
    )
    return PolicyRunner(policy, observation_filter, actions, clip_rewards=config.clip_rewards)


def _config_of(
    path: str | Path,
    data: Mapping[str, Any],
    config_class: type[TrainerConfig],
    given: type | None,
    trust_code: bool,
) -> TrainerConfig:
    config = config_class.from_json(data, trust_code=trust_code)
    if given is None and isinstance(code := config.model.custom_model, StoredCode):
        raise checkpoint.untrusted(path, code, "custom_model=YourModel")
    return config if given is None else config.changed(model=config.model.model_copy(update={"custom_model": given}))


def _class_of(path: str | Path, name: str, given: type[Policy] | None, trust_code: bool) -> type[Policy]:
    if given is not None:
        return given
    found = named_by_file(name, "policy_class", base=POLICY, trusted=trust_code)
    if isinstance(found, StoredCode):
        raise checkpoint.untrusted(path, found, "policy_class=YourPolicy")
    return found
