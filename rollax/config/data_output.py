"""The fields about writing experience to files."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollax.config.rules import ENABLED, FieldGroup


class OutputFields(FieldGroup):
    """Whether the experience of training is written to files, and how."""

    requires = {("output_max_file_size", "output_compress", "output_infos"): {"output": ENABLED}}
    places = {("output", "output_max_file_size", "output_compress", "output_infos"): ()}

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
