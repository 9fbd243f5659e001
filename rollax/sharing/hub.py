"""A shared run as a model repository of the Hugging Face Hub.

The package huggingface_hub determines addresses, tokens, proxies and the cache: by `hf auth login`, `HF_TOKEN`,
`HF_ENDPOINT` and `HF_HOME`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollax.errors import CheckpointError, ConfigError, RollaxError, not_installed, text_of
from rollax.sharing.contents import PATTERNS, limit_of, refuse_large

PREFIX = "hub:"
_REPOSITORY = re.compile(r"(\w[\w.-]*/\w[\w.-]*)(?:@([\w./-]+))?", re.ASCII)


def repository_in(place: str, where: str) -> tuple[str, str | None]:
    """Returns the repository and the revision of `hub:ORG/NAME` or `hub:ORG/NAME@REVISION`; ConfigError for others."""
    named = _REPOSITORY.fullmatch(place.removeprefix(PREFIX))
    if named is None:
        raise ConfigError("This is not a repository of the hub.", where, place).expected(
            "hub:ORG/NAME, as in hub:me/ppo-cartpole", "write the name of a user or an organization, and of a model"
        )
    return named[1], named[2]


def upload(run: Path, place: str, *, private: bool) -> str:
    """Uploads a shared run as one commit, and returns the address of the repository.

    The files of an earlier shared run are replaced; other files of the repository stay.

    Raises:
        ConfigError: the extra `hub` is not installed, or `place` names no repository, or names a revision.
        RollaxError: the hub refused, or cannot be reached.
    """
    repository, revision = repository_in(place, "--to")
    if revision is not None:
        raise ConfigError.no_effect("The revision", "a shared run is a new commit", "--to", place, "hub:ORG/NAME")
    api = client(place)
    with _readable(place, "log in by `hf auth login`, or set HF_TOKEN to a token that may write"):
        address = api.create_repo(repository, private=private or None, exist_ok=True)
        api.upload_folder(
            repo_id=repository, folder_path=run, commit_message="Share a run of rollax", delete_patterns=list(PATTERNS)
        )
    return str(address)


def download(place: str, folder: Path) -> None:
    """Downloads the files of a shared run in a repository into a folder; other files of the repository are left out.

    Raises:
        ConfigError: the extra `hub` is not installed, or no repository is named.
        CheckpointError: the repository is not a shared run, or files are too large.
        RollaxError: the hub refused, or cannot be reached.
    """
    repository, revision = repository_in(place, "source")
    api = client(place)
    with _readable(place, "check the name; for a private repository log in by `hf auth login`, or set HF_TOKEN"):
        info = api.model_info(repository, revision=revision, files_metadata=True)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or () if limit_of(file.rfilename) is not None}
        refuse_large(sizes, place, folder)
        for name in sizes:
            fetched = Path(api.hf_hub_download(repository, name, revision=info.sha))
            refuse_large({name: fetched.stat().st_size}, place, folder)
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(fetched, target)
    if not sizes:
        raise CheckpointError("The repository is no shared run of rollax.", place).expected(
            "files of `rollax share`", "check the name"
        )


def client(place: str) -> Any:
    """Returns the client of huggingface_hub; ConfigError if the extra `hub` is not installed."""
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise not_installed("The hub", error, where=place, package="huggingface_hub", extra="hub") from error
    return HfApi(library_name="rollax")


@contextmanager
def _readable(place: str, fix: str) -> Iterator[None]:
    """Converts errors of huggingface_hub, and of the libraries that it uses, to a RollaxError with a fix."""
    try:
        yield
    except RollaxError:
        raise
    except Exception as error:
        got = text_of(error).strip() or type(error).__name__
        raise RollaxError("The hub did not do what was asked.", place, got).expected(
            "a repository that this user may use, and a connection to the hub", fix
        ) from error
