"""The blocks of docs/serving.md that are not Python: curl, JavaScript and C#, against a server."""

import re
import shlex
import shutil

import gymnasium as gym
import pytest
import typer

from rollax.cli import app
from rollax.serving.limits import Limits
from rollax.serving.server import PolicyServer
from tests.pages import REPOSITORY, blocks
from tests.serving.programs import CLIENTS, node, output_of, required
from tests.serving.served_policies import RecordingBackend, runner

PAGE = REPOSITORY / "docs" / "serving.md"


def commands(program: str) -> list[list[str]]:
    """The commands of the page that begin with the name of a program."""
    lines = [line for block in blocks(PAGE, "console") for line in block.text.splitlines()]
    found = [shlex.split(line[2:]) for line in lines if line.startswith("$ ")]
    return [words[1:] for words in found if words[0] == program]


def test_the_commands_exist():
    group = typer.main.get_command(app)
    assert len(commands("rollax")) == 3
    for words in commands("rollax"):
        group.commands[words[0]].make_context(words[0], words[1:])


def test_the_table_of_limits_is_complete():
    content = PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \| .*\|$", content[content.index("## Limits") :], re.MULTILINE))
    units = {"KiB": 2**10, "MiB": 2**20}
    for name, default in Limits().as_numbers().items():
        number, _, unit = rows.pop(name).replace(",", "").partition(" ")
        assert float(number) * units.get(unit, 1) == default, name
    assert not set(rows) - {"largest_number"}


@pytest.fixture(scope="module")
def address():
    env = gym.make("CartPole-v1")
    policy = runner(action_space=env.action_space, observation_space=env.observation_space)
    with PolicyServer(RecordingBackend({"default_policy": policy})) as server:
        yield server.address


@pytest.mark.long
def test_curl(address):
    required("curl", install="apt-get install curl")
    calls = [[word.replace("http://127.0.0.1:9900", address) for word in words] for words in commands("curl")]
    done = [output_of("curl", "-sf", *words) for words in calls]
    assert len(done) == 5
    assert "action" in done[2]


@pytest.mark.long
def test_javascript(address, tmp_path):
    [block] = blocks(PAGE, "js")
    shutil.copy(CLIENTS / "rollax.js", tmp_path / "rollax.mjs")
    program = tmp_path / "program.mjs"
    text = block.text.replace("ws://127.0.0.1:9900", address.replace("http", "ws")).replace("rollax.js", "rollax.mjs")
    program.write_text(text)
    assert node(program).strip() in ("0", "1")


@pytest.mark.long
def test_csharp(address, tmp_path):
    required("mcs", "mono", install="apt-get install mono-mcs mono-runtime libmono-system-net-http4.0-cil")
    [block] = blocks(PAGE, "csharp")
    program = tmp_path / "Program.cs"
    program.write_text(block.text.replace("ws://127.0.0.1:9900", address.replace("http", "ws")))
    compiled = tmp_path / "Program.exe"
    command = ("mcs", "-langversion:6", "-r:System.Net.Http.dll", f"-out:{compiled}")
    output_of(*command, CLIENTS / "RollaxClient.cs", program)
    assert output_of("mono", compiled).strip() in ("0", "1")
