"""What `input` may name: sources of recorded data, and fresh experience."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rollax.errors import ConfigError

SAMPLER = "sampler"
"""The name of fresh experience among the sources of `input`."""


OF_FRESH_EXPERIENCE = frozenset(
    (
        *("rollout_fragment_length", "batch_mode", "sample_async", "num_workers"),
        *("buffer_size", "learning_starts", "training_intensity", "output"),
    )
)
"""Keys without effect where the environment is never stepped; not refused: `input` may be added to any run."""


def takes_settings(source: Any) -> bool:
    """Whether a source has a path or a function; a reader takes no settings."""
    if isinstance(source, list | tuple):
        return any(map(takes_settings, source))
    return source is not None and not hasattr(source, "trajectories")


def is_recorded_alone(source: Any) -> bool:
    """Whether there is recorded data and no fresh experience."""
    return source is not None and not (isinstance(source, Mapping) and SAMPLER in source)


def paths_as_text(sources: Any) -> Any:
    """Sources with each `Path` as a string, as which checkpoints store it."""
    if isinstance(sources, os.PathLike):
        return os.fspath(sources)
    if isinstance(sources, Mapping):
        return {paths_as_text(source): weight for source, weight in sources.items()}
    return type(sources)(map(paths_as_text, sources)) if type(sources) in (list, tuple) else sources


def wrong_input(got: Any, fix: str) -> ConfigError:
    """The error for a value that is no source."""
    return ConfigError(
        "The value is not a source of recorded data.",
        where="config key 'input'",
        got=got,
        expected="a path, a list of paths, {source: weight, ...}, a DatasetReader, or a function that returns one",
        fix=fix,
    )


def missing_input(algorithm: str) -> ConfigError:
    """The error of an algorithm that requires recorded data, without any."""
    return ConfigError(
        f"{algorithm} learns from recorded data, but none is given.",
        where="config key 'input'",
        got=None,
        expected="a folder of recorded data, a pattern such as 'runs/*', a DatasetReader, ...",
        fix="record some: `rollax record CHECKPOINT --episodes 100 --out DIR`, or output=DIR while another algorithm "
        "trains; then set input='DIR'",
    )
