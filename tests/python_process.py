"""Python programs in processes of their own, with the `rollax` of this checkout."""

import os
import subprocess
import sys
from typing import Any

from tests.pages import REPOSITORY


def started(*arguments: Any, env: dict[str, str] | None = None, **settings: Any) -> subprocess.Popen[str]:
    """Starts Python with these arguments; `settings` are those of `Popen`, and `env` has further variables."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **(env or {})}
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


def on_cpus(count: int, *arguments: Any) -> str:
    """As `output_of`, in a process where JAX has this number of devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return output_of(*arguments, env={"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags})
