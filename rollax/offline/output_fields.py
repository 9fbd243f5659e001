"""The config fields for recording experience, which every algorithm has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field

from rollax.config.field_group import ENABLED
from rollax.config.hooks import ConfigHooks
from rollax.errors import ConfigError

if TYPE_CHECKING:
    from rollax.offline.recorder import Recorder
    from rollax.rollout.sampler import Sampler


class OutputFields(ConfigHooks):
    """Whether the experience of training is written to files, and how."""

    requires = {("output_max_file_size", "output_compress", "output_infos"): {"output": ENABLED}}
    places = {("output", "output_max_file_size", "output_compress", "output_infos"): ()}

    in_evaluation = {"output": None}
    folders = {"output": "None to write no experience"}

    output: str | None = Field(
        default=None,
        min_length=1,
        description="folder into which the experience of training is written, as Parquet files; see "
        "[offline.md](offline.md); None: nothing is written",
    )
    output_max_file_size: int = Field(
        default=64 << 20,
        ge=1,
        description="size in bytes at which a file is completed and the next one begins",
    )
    output_compress: Literal["zstd", "snappy", "gzip", "none"] = Field(
        default="zstd", description="compression of these files"
    )
    output_infos: bool = Field(default=False, description="whether info dicts are written too, as JSON")

    @property
    def recording_key(self) -> str | None:
        return None if self.output is None else "output"

    def make_recorder(self, sampler: Sampler, worker_index: int) -> Recorder | None:
        if self.output is None:
            return None
        from rollax.offline.recorder import make_recorder

        config: Any = self
        return make_recorder(config, sampler, worker_index)

    def for_recording(self, folder: Path, *, infos: bool) -> Self:
        config: Any = self
        return config.changed(output=str(folder), output_infos=infos)

    def for_workers(self) -> Self:
        config: Any = self
        if config.output is None:
            return config
        from rollax.core.atomic_files import absolute  # loaded only where it is used

        return config.changed(output=str(absolute(config.output, ConfigError)))
