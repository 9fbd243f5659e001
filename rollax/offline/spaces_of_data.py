"""The spaces of a trainer that learns from recorded data without an environment."""

from __future__ import annotations

from typing import Any

from rollax.core.spaces import same_space
from rollax.errors import ConfigError
from rollax.policy.policy_spec import PolicySpec

_UNKNOWN = "The spaces are not known: there is no environment"


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
