"""Programs in other languages; a test is skipped if their runtime is missing."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.pages import REPOSITORY

CLIENTS = REPOSITORY / "rollax" / "serving" / "clients"
HERE = Path(__file__).parent


def required(*programs: str, install: str) -> None:
    """Skips the test if a program is missing; the reason has the command that installs it."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: {install}")


def output_of(*command: str | Path) -> str:
    """The output of a program; if the program fails, the test fails with the whole output."""
    done = subprocess.run([*map(str, command)], text=True, capture_output=True, timeout=500, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def node(program: Path, *arguments: str | Path) -> str:
    """The output of a Node program. Node 22 has WebSockets without the option, but still accepts it."""
    required("node", install="apt-get install nodejs")
    return output_of("node", "--no-warnings", "--experimental-websocket", program, *arguments)
