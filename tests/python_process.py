"""Python programs in processes of their own, with the `rollax` of this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from tests.pages import REPOSITORY


def started(*arguments: Any, **settings: Any) -> subprocess.Popen[str]:
    """Starts Python with these arguments; `settings` are those of `Popen`."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen([sys.executable, *map(str, arguments)], env=environment, text=True, **settings)


def output_of(*arguments: Any, **settings: Any) -> str:
    """The output of Python with these arguments; if the program fails, the test fails with its errors."""
    with started(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings) as process:
        try:
            output, errors = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 0, errors
    return output
