"""The config of a checkpoint, perhaps from another version of rollax, and changes to this config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rollax import __version__
from rollax.config import TrainerConfig
from rollax.config.field_group import inherited, refuse_ignored_initial_values, refuse_out_of_place
from rollax.config.json_form import decode_config
from rollax.config.trainer import by_name
from rollax.core.importing import StoredCode, path_of
from rollax.errors import CheckpointError, ConfigError
from rollax.policy.policy import Policy

SECTIONS = ("model", "multiagent")
"""Config keys whose values are dicts of further keys."""
# Keys of evaluation itself, and `ray_address`, which callers must pass because the stored address is not trusted.
_WITHOUT_LEARNING = ("evaluation_config", "evaluation_num_episodes", "evaluation_num_workers", "ray_address")


def config_of(
    config_class: type[TrainerConfig],
    data: Mapping[str, Any],
    stored: Mapping[str, Any],
    path: str | Path,
    *,
    trust_code: bool,
    **changes: Any,
) -> TrainerConfig:
    """Returns the config `data` of the checkpoint `stored`, with some keys replaced.

    Raises:
        CheckpointError: this version of rollax refuses the config that was saved.
        ConfigError: this version refuses only the changes.
    """
    try:
        return config_class.from_json(data, trust_code=trust_code, **changes)
    except ConfigError:
        decode_config(data, trust="everything" if trust_code else "nothing")  # raises again if the error is about code
        refused = _refused(config_class, data, trust_code)
        if refused is None:
            raise
    saved_by = stored["rollax_version"]
    raise CheckpointError(
        f"The checkpoint was saved by rollax {saved_by} with a config that rollax {__version__} refuses: "
        f"{refused.parts['what']}",
        where=f"{path}: {refused.parts.get('where', 'config')}",
        **{part: refused.parts[part] for part in ("got", "expected") if part in refused.parts},
        fix="open it with the trainer class, and the commit of rollax, that saved it"
        if saved_by == __version__
        else f"install the version that saved it, rollax=={saved_by}; or, if the trainer, policy or config class is "
        "your own, pass the class as it was then",
    ) from refused


def in_sections(changes: Mapping[str, Any], stored: Mapping[str, Any], *, trust_code: bool) -> dict[str, Any]:
    """Returns the changes, where a dict for a section also has the stored keys of the section."""
    sections = [name for name in SECTIONS if isinstance(changes.get(name), Mapping)]
    data = {name: stored[name] for name in sections if isinstance(stored.get(name), Mapping)}
    values = decode_config(data, trust="everything" if trust_code else "nothing")
    return {**changes, **{name: {**values[name], **changes[name]} for name in data}}


def refuse_learning_only_changes(
    config_class: type[TrainerConfig],
    stored: Mapping[str, Any],
    path: str | Path,
    changes: Mapping[str, Any],
    *,
    trust_code: bool,
) -> None:
    """Refuses changes of a stored config that have no effect in a trainer which is opened to evaluate."""
    changes, places = by_name(config_class, changes), inherited(config_class, "places")
    passed_again = {key for base in config_class.__mro__ for key in vars(base).get("passed_again", ())}
    learning = {key for key in changes if "evaluation" not in places.get(key, ("evaluation",))}
    learning -= {*_WITHOUT_LEARNING, *passed_again}
    others = {key: value for key, value in changes.items() if key not in {*learning, "explore"}}
    config = config_of(config_class, stored["config"], stored, path, trust_code=trust_code, **others)
    where, fix = "from_checkpoint(..., learn=False)", "leave it out, or open the checkpoint without learn=False"
    refuse_out_of_place(config, "evaluation", {key: changes[key] for key in learning}, where, fix)
    if (explore := changes.get("explore", config.explore)) != config.explore:
        what = "explore has no effect here: evaluation_config sets it for evaluate(), and record() has an argument."
        raise ConfigError(what, f"{where}, config key 'explore'", explore).expected(
            f"{config.explore!r}, as in the checkpoint, or no such key",
            "pass evaluation_config={'explore': True} to explore",
        )


def refuse_ignored_initial_values_in_specs(
    policies: Mapping[str, Policy], stored: Mapping[str, Any], path: str | Path
) -> None:
    """As `refuse_ignored_initial_values`, for the specs of policies; `stored` are the policies of the checkpoint."""
    for policy_id, policy in policies.items():
        description = stored.get(policy_id)
        if description and isinstance(policy.config, TrainerConfig) and description["class"] == path_of(policy.made_by):
            given = policy.config.model_fields_set
            refuse_ignored_initial_values(
                policy.config, given, description["config"], f"policy {policy_id!r} of {path}"
            )


def arguments_for(missing: Iterable[StoredCode]) -> str:
    """Returns the arguments that pass this code to `from_checkpoint`: `env=... (--env), multiagent={'...': ...}`."""
    inside: dict[str, dict[str, None]] = {}
    for code in missing:
        key, _, rest = code.key.partition(".")
        keys = inside.setdefault(key.split("[")[0], {})
        if key in SECTIONS:
            keys[f"{rest.split('.')[0].split('[')[0]!r}: ..."] = None
    given = {key: f"{{{', '.join(keys)}}}" if keys else "..." for key, keys in inside.items()}
    return ", ".join(f"{key}={value}{' (--env)' if key == 'env' else ''}" for key, value in given.items())


def _refused(config_class: type[TrainerConfig], data: Mapping[str, Any], trust_code: bool) -> ConfigError | None:
    """Returns the error that the saved config raises without changes; None if it is valid."""
    try:
        config_class.from_json(data, trust_code=trust_code)
    except ConfigError as error:
        return error
    return None
