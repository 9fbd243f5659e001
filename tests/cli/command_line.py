"""The command line, called in this process."""

from typing import Any

from typer.testing import CliRunner, Result

from rollax.cli import app


def invoke(*arguments: Any, code: int = 0) -> Result:
    """Runs a command line; its exit code must be `code`."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done
