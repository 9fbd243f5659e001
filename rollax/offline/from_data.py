"""The optimizer, the spaces and the estimates of a trainer that learns from recorded data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollax.core.spaces import same_space
from rollax.errors import ConfigError
from rollax.policy.policy_spec import PolicySpec
from rollax.rollout.policy_mapping import policy_mapping

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer
    from rollax.offline.estimators.in_training import TrainingEstimates
    from rollax.offline.fields import DataInputFields
    from rollax.optimizers.optimizer import Optimizer

_UNKNOWN = "The spaces are not known: there is no environment"


def optimizer_class_of(trainer_class: type[Trainer], config: DataInputFields) -> type[Optimizer]:
    """The optimizer class of an algorithm; if the config has recorded data, the class that learns from such data.

    Raises:
        ConfigError: the algorithm requires recorded data and has none, or cannot learn from its data.
    """
    own, has_data = trainer_class.optimizer_class, config.input is not None
    needs_data = getattr(own, "needs_recorded_data", False)
    if not needs_data and not has_data:
        return own
    from rollax.offline.batch_replay import BatchReplayOptimizer, missing_input

    if not has_data:
        raise missing_input(trainer_class.name)
    if needs_data:
        return own
    from rollax.optimizers.async_replay import AsyncReplayOptimizer
    from rollax.optimizers.sync_replay import SyncReplayOptimizer

    # Subclasses are excluded, because they may draw in another way.
    if own is SyncReplayOptimizer or (own is AsyncReplayOptimizer and not config.steps_the_env):
        return BatchReplayOptimizer
    what = f"{trainer_class.name} cannot learn from recorded data with these settings."
    got = f"{own.__name__}, with {'fresh experience beside the data' if config.steps_the_env else 'data alone'}"
    raise ConfigError(what, "config key 'input'", got).expected(
        "an algorithm with one replay buffer, such as DQN, SAC or TD3; Ape-X on data alone; or a BatchReplayOptimizer",
        "use DQN in place of Ape-X, or learn from the data alone (without 'sampler' in input, then_online=False)",
    )


def estimates_of(trainer: Trainer) -> TrainingEstimates | None:
    """The estimates of a trainer's policies at each evaluation, with their data in memory; None if no method is set."""
    config: Any = trainer.config
    methods = config.off_policy_estimation_methods
    if not methods:
        return None
    from rollax.offline.estimators.in_training import TrainingEstimates
    from rollax.offline.reader import reading

    source, worker = config.off_policy_estimation_input, trainer.worker
    if source is None:
        recorded = [one for one, _ in config.weights_of_sources()[0]]
        source = recorded[0] if len(recorded) == 1 else recorded
    with reading(source, **config.input_config) as reader:
        runners = {policy_id: worker.runners[policy_id] for policy_id in trainer.optimizer.policies}
        policy_of = policy_mapping(config.multiagent.policy_mapping_fn, list(worker.policies))
        return TrainingEstimates(reader, runners, methods, policy_of)


def with_spaces_of_data(config: Any) -> Any:
    """The config of a trainer without an environment, with the spaces of its first source of recorded data.

    Raises:
        ConfigError: evaluation requires an environment, or the data has no spaces, or different spaces, for a policy.
    """
    if config.evaluation_interval is not None and not getattr(config, "off_policy_estimation_methods", ()):
        what, where = "There is no environment to evaluate in.", "config keys 'evaluation_interval' and 'env'"
        fix = "set env, or off_policy_estimation_methods, or no evaluation_interval"
        raise ConfigError(what, where, "env=None", expected="an environment, or estimates from recorded data", fix=fix)
    missing = [kind for kind in ("observation_space", "action_space") if getattr(config, kind) is None]
    specs = {policy_id: PolicySpec.of(spec, policy_id) for policy_id, spec in config.multiagent.policies.items()}
    unset = {policy_id: [kind for kind in missing if getattr(spec, kind) is None] for policy_id, spec in specs.items()}
    if not missing or (specs and not any(unset.values())):
        return config
    from rollax.offline.reader import reading

    source = config.weights_of_sources()[0][0][0]
    with reading(source, **config.input_config) as reader:
        recorded = {kind: dict(getattr(reader, f"{kind}s")) for kind in missing}
    if not specs:
        known = [one for one in recorded[missing[0]] if all(one in recorded[kind] for kind in missing)]
        if not known:
            where, names = f"config keys {', '.join(map(repr, ['env', *missing]))}", " and ".join(missing)
            raise ConfigError(f"{_UNKNOWN}, and the data has none.", where, f"data without {names}").expected(
                names, f"set env, or {names}"
            )
        spaces = {kind: recorded[kind][known[0]] for kind in missing}
        if any(not same_space(recorded[kind][one], spaces[kind]) for one in known for kind in missing):
            what = "One policy would learn from data of several policies with different spaces."
            fix = f"set policies and policy_mapping_fn in multiagent, or set {' and '.join(missing)}"
            raise ConfigError(what, "config key 'multiagent'", f"data from the policies {known}", fix=fix)
        return config.changed(**spaces)
    policies = {}
    for policy_id, spec in specs.items():
        unknown = [kind for kind in unset[policy_id] if policy_id not in recorded[kind]]
        if unknown:
            what, where = f"{_UNKNOWN}, and the policy is not in the data.", f"multiagent.policies[{policy_id!r}]"
            got = f"data from the policies {sorted(recorded[unknown[0]])}"
            fix = "set env, or the policy's PolicySpec(observation_space=..., action_space=...)"
            raise ConfigError(what, where, got, expected=" and ".join(unknown), fix=fix)
        policies[policy_id] = spec._replace(**{kind: recorded[kind][policy_id] for kind in unset[policy_id]})
    return config.changed(multiagent=config.multiagent.model_copy(update={"policies": policies}))
