"""`rollax serve` without the extra `serving`, in a process that has loaded none of its packages."""

import os
import subprocess
import sys

from tests.pages import REPOSITORY

SCRIPT = (
    "import sys\n"
    "sys.modules['msgspec'] = None\n"  # so its import raises ModuleNotFoundError
    "from typer.testing import CliRunner\n"
    "from rollax.cli import app\n"
    "for arguments in (['a_checkpoint'], ['--run=DQN']):\n"
    "    done = CliRunner().invoke(app, ['serve', *arguments])\n"
    "    assert done.exit_code == 2, done.output\n"
    "    assert 'rollax[serving]' in done.stderr, done.stderr\n"
)


def test_the_extra_is_named(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
