"""`rollax serve` without the extra `serving`, in a process that has loaded none of its packages."""

from tests.python_process import output_of

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
    output_of("-c", SCRIPT, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
