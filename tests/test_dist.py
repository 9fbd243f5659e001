"""The packages of `make dist`, installed into an environment of their own and used from an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

import rollax
from tests.pages import REPOSITORY

CLIENTS = REPOSITORY / "rollax" / "serving" / "clients"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of packages; the script fails if the source archive builds another wheel."""
    folder = tmp_path_factory.mktemp("dist") / "out"
    subprocess.run([sys.executable, REPOSITORY / ".ci" / "dist", folder], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel, which finds the dependencies where this process does."""
    root = tmp_path_factory.mktemp("installed")
    venv.create(root, symlinks=True)
    wheel = next(dist.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", root / "bin" / "python"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", wheel], check=True, capture_output=True)
    # The .pth file of an editable install is not read there, because this folder is only a further path.
    packages = next(root.glob("lib/python*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return root / "bin"


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Callable[..., str]:
    """Runs a program of the environment in an empty folder, outside of the checkout."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*words: str) -> str:
        command = [installed / words[0], *words[1:]]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.long
def test_the_wheel_has_its_data(run):
    script = """
import rollax, pathlib, sys
assert "site-packages" in rollax.__file__, rollax.__file__
root = pathlib.Path(rollax.__file__).parent
print(*sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()), sep="\\n")
"""
    found = set(run("python", "-c", script).split())
    there = {path.relative_to(REPOSITORY / "rollax").as_posix() for path in (REPOSITORY / "rollax").rglob("*.*")}
    there |= {f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md")}
    expected = {name for name in there if not re.search(r"__pycache__|^docs/.*/|\.py[co]$|/\.", name)}
    files = {name for name in expected if (REPOSITORY / "rollax" / name).is_file()}
    assert {"__init__.pyi", "py.typed", "serving/page.html", "serving/clients/rollax.js"} <= files <= found


@pytest.mark.long
def test_the_wheel_trains_and_plays(run, tmp_path):
    assert run("rollax", "--version") == f"rollax {rollax.__version__}\n"
    run("rollax", "train", "--run=PPO", "--env=CartPole-v1", "--stop-iterations=1", "--out=run")
    assert (tmp_path / "run" / "curve.png").exists()
    run("rollax", "evaluate", "run", "--episodes=2")
    assert run("rollax", "docs", "training#checkpoints").startswith("## Checkpoints")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("npm") is None or shutil.which("node") is None, reason="npm is not installed")
def test_the_package_for_npm_has_the_client(dist, tmp_path):
    with tarfile.open(next(dist.glob("*.tgz"))) as packed:
        packed.extractall(tmp_path, filter="data")
    package = tmp_path / "node_modules" / "rollax-client"
    package.parent.mkdir()
    shutil.move(tmp_path / "package", package)
    assert (package / "rollax.js").read_bytes() == (CLIENTS / "rollax.js").read_bytes()
    (tmp_path / "use.mjs").write_text('import { PolicyClient } from "rollax-client"; console.log(PolicyClient.name);\n')
    done = subprocess.run(["node", "use.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "PolicyClient\n"


def test_the_packages_have_one_version():
    versions = {tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]}
    versions |= set(re.findall(r'"version": "(.*)"', (CLIENTS / "package.json").read_text()))
    versions |= set(re.findall(r"<Version>(.*)</Version>", (CLIENTS / "Rollax.Client.csproj").read_text()))
    assert versions == {rollax.__version__}
