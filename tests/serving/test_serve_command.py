"""`rollax serve` as a process: its output, answers, errors and exit status."""

import http.client
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from rollax import PGTrainer
from rollax.errors import ConfigError
from rollax.serving.security import read_token
from tests.cli.command_line import invoke
from tests.python_process import output_of
from tests.serving.serve_process import serving


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    config = {"train_batch_size": 16, "model": {"fcnet_hiddens": [4]}, "seed": 0}
    with PGTrainer(env="CartPole-v1", config=config) as trainer:
        return Path(trainer.save(folder))


def ask(address: str, verb: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", f"/v1/{verb}".rstrip("/"), sent, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.long)]
)
def test_a_checkpoint_is_served_until_a_signal(checkpoint, tmp_path, number, code):
    (tmp_path / "token").write_text("secret\n")
    arguments = (checkpoint, f"--token-file={tmp_path / 'token'}", "--max-episodes=1", "--idle-timeout=60")
    with serving(*arguments) as (process, address, _):
        assert ask(address, "")[0] == 401
        token = {"Authorization": "Bearer secret"}
        status, hello = ask(address, "", **token)
        assert (status, hello["limits"]["max_episodes"], hello["limits"]["idle_timeout_s"]) == (200, 1, 60)
        _, started = ask(address, "start_episode", {}, **token)
        status, error = ask(address, "start_episode", {}, **token)
        assert (status, error["error"]["where"]) == (429, "max_episodes")
        status, action = ask(address, "get_action", {**started, "obs": [0.0, 0.0, 0.0, 0.0]}, **token)
        assert status == 200
        assert action["action"] in (0, 1)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert (out, err) == ("", "")


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "The checkpoint does not exist."),
        (["{checkpoint}", "--host=0.0.0.0"], "token"),
        (["{checkpoint}", "--token-file=nowhere"], "The token cannot be read."),
        (["{checkpoint}", "--policy-mapping={"], "The option is not valid JSON"),
        (
            ["{checkpoint}", '--policy-mapping={"a": 1}'],
            "The policy mapping is not a JSON object with policy ids as values",
        ),
        (["{checkpoint}", '--policy-mapping={"a": "another"}'], "The policy mapping contains unknown policies"),
        (["{checkpoint}", "--policy-mapping=rollax.errors:Nothing"], "cannot be imported"),
        (["{checkpoint}", "--certificate=nowhere"], "certificate"),
        (["{checkpoint}", "--port=1", "--port=2"], "more than once"),
    ],
)
def test_a_policy_that_cannot_be_served_is_a_readable_error(checkpoint, arguments, message):
    given = [argument.replace("{checkpoint}", str(checkpoint)) for argument in arguments]
    assert message in invoke("serve", *given, code=2).output


def test_a_token_file_has_one_line(tmp_path):
    file = tmp_path / "token"
    file.write_text("  abc-123\n")
    assert read_token(file) == "abc-123"
    for content in (b"", b" \n", b"two words", b"two\nlines", b"x" * 5000, b"\x00", "ä".encode()):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="token"):
            read_token(file)


WITHOUT_MSGSPEC = (
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
    """In a process that has loaded none of its packages."""
    output_of("-c", WITHOUT_MSGSPEC, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
