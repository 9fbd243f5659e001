"""The config of a checkpoint, which another version of rollax may have saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollax import __version__
from rollax.config import TrainerConfig
from rollax.config.stored import decode_config
from rollax.errors import CheckpointError, ConfigError


def config_of(
    config_class: type[TrainerConfig],
    data: Mapping[str, Any],
    stored: Mapping[str, Any],
    path: str | Path,
    *,
    trust_code: bool,
    **changes: Any,
) -> TrainerConfig:
    """The config `data` of the checkpoint `stored`, with some keys replaced.

    Raises:
        CheckpointError: this version refuses the config that was saved. ConfigError: it refuses only the changes.
    """
    try:
        return config_class.from_json(data, trust_code=trust_code, **changes)
    except ConfigError:
        decode_config(data, trust="everything" if trust_code else "nothing")  # raises again if it is about code
        refused = _refused(config_class, data, trust_code)
        if refused is None:
            raise
    saved_by = stored["rollax_version"]
    raise CheckpointError(
        f"The checkpoint was saved by rollax {saved_by} with a config that rollax {__version__} refuses: "
        f"{refused.parts['what']}",
        where=f"{path}: {refused.parts.get('where', 'config')}",
        **{part: refused.parts[part] for part in ("got", "expected") if part in refused.parts},
        fix="open it with the trainer class, and the state of rollax, that saved it"
        if saved_by == __version__
        else f"install the version that saved it, rollax=={saved_by}; or, of your own trainer, policy or config class, "
        "give the one that saved it",
    ) from refused


def _refused(config_class: type[TrainerConfig], data: Mapping[str, Any], trust_code: bool) -> ConfigError | None:
    """The error of the config that was saved, if it has one without changes too."""
    try:
        config_class.from_json(data, trust_code=trust_code)
    except ConfigError as error:
        return error
    return None
