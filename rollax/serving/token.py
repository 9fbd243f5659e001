"""The token of a policy server."""

from __future__ import annotations

from pathlib import Path

from rollax.errors import ConfigError

_MAX_TOKEN = 4096


def read_token(file: Path, where: str = "--token-file") -> str:
    """Returns the token in a file: its only line.

    Raises:
        ConfigError: the file cannot be read, or is not one line of printable ASCII.
    """
    try:
        with file.open("rb") as opened:
            text = opened.read(_MAX_TOKEN + 1).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        fix = "check the path and the permissions of the file"
        raise ConfigError("The token cannot be read.", where=where, got=f"{file} ({error})", fix=fix) from error
    if not text or len(text) > _MAX_TOKEN or not text.isprintable() or " " in text:
        raise ConfigError(
            "The file does not contain a valid token.",
            where=f"{where} {file}",
            got=f"{len(text)} characters",
            expected=f"one line of 1 to {_MAX_TOKEN} printable ASCII characters without spaces",
            fix=f"create one: python -c 'import secrets; print(secrets.token_urlsafe(32))' > {file}",
        )
    return text
