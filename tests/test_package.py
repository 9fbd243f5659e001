"""The package as a whole: its public names, its imports, and its pinned versions."""

import ast
import importlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

import rollax
from tests.pages import REPOSITORY
from tests.python_process import output_of

OF_DEVELOPERS = ("test", "learning", "lint", "bench", "docs")


FOR_ENVIRONMENTS = "BaseEnv, EnvContext, EnvError, MultiAgentEnv, SampleBatch, VectorEnv, register_env, to_base_env"


@pytest.mark.parametrize("imports", ["import rollax, rollax.env", f"from rollax import {FOR_ENVIRONMENTS}"])
def test_importing_loads_nothing_heavy(imports):
    heavy = ("jax", "flax", "ray", "torch", "matplotlib")
    script = f"import sys; {imports}; print([name for name in {heavy} if name in sys.modules])"
    assert output_of("-c", script).strip() == "[]"


def test_policy_evaluator_is_the_rollout_worker():
    assert rollax.PolicyEvaluator is rollax.RolloutWorker


@pytest.mark.parametrize("name", rollax.__all__)
def test_every_public_name_exists(name):
    assert getattr(rollax, name) is getattr(rollax, name)
    assert name in dir(rollax)


def test_type_checkers_see_every_public_name():
    stub = ast.parse(Path(rollax.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    # To them a name is public only if it is imported as itself.
    assert {(alias.name, alias.asname) for node in imports for alias in node.names} == {(n, n) for n in rollax.__all__}


@pytest.mark.long
def test_a_star_import_without_the_extras():
    """Names of missing extras are left out; using one raises an error with the command that installs the extra."""
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = [name for extra, names in extras.items() if extra not in OF_DEVELOPERS for name in names]
    packages = {re.split(r"[\[>=<!~; ]", requirement)[0].replace("-", "_") for requirement in wanted}
    script = f"""
import sys
sys.modules.update(dict.fromkeys({sorted(packages - {"rollax", "gymnasium"})}))
import rollax
from rollax import *
left_out = sorted(set(rollax._MODULE_OF) - set(globals()))
print(left_out)
for name in left_out:
    try:
        getattr(rollax, name)
    except ConfigError as error:
        assert ("pip install 'rollax[torch]'" if "orch" in name else "pip install 'rollax[") in error.parts["fix"]
    else:
        raise AssertionError(name)
"""
    of_torch = ["TorchAlgorithm", "TorchConfig", "TorchFields", "TorchPolicy", "torch_algorithm"]
    of_serving = ["MultiAgentPolicyServerEnv", "PolicyBackend", "PolicyServer", "PolicyServerEnv"]
    expected = sorted(["DatasetWriter", "to_pettingzoo", *of_serving, *of_torch])
    assert output_of("-c", script).strip() == str(expected)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        rollax.no_such_name  # noqa: B018


def test_a_package_in_an_unsuitable_version_is_named(monkeypatch):
    monkeypatch.setitem(rollax._MODULE_OF, "Newer", "tests.newer")

    def import_module(name):
        raise AttributeError(f"module 'pydantic' has no attribute 'Newest', read by {name}")

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(ImportError, match=r"rollax\.Newer .*'pydantic' has no attribute 'Newest'"):
        from rollax import Newer  # noqa: F401


def test_type_checkers_find_an_editable_install():
    """They read .pth files that contain a path, but no import hooks."""
    found = importlib.metadata.distributions(name="rollax")
    editable = [one for one in found if '"editable": true' in (one.read_text("direct_url.json") or "")]
    assert editable  # installed as by `make test`
    for distribution in editable:
        lines = [Path(str(file.locate())).read_text() for file in distribution.files or () if file.suffix == ".pth"]
        assert [(Path(line.strip()) / "rollax" / "py.typed").exists() for line in lines] == [True]


def test_constraints_are_plain_pins():
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line) for line in pins)
    pinned = {re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in pins}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = sum(project["optional-dependencies"].values(), project["dependencies"])
    names = {re.sub(r"[-_.]+", "-", re.split(r"[\[>=<!~; ]", requirement)[0]).lower() for requirement in wanted}
    assert names - {"rollax"} <= pinned
    assert rollax.__version__ == project["version"]


def test_the_source_archive_has_all_that_its_tests_read(tmp_path):
    folders = ("rollax", "tests", "docs", "examples", "benchmarks", "website", ".ci")
    ignored, copy = shutil.ignore_patterns("*cache*", "*.py[co]", "build", "dist", "runs"), tmp_path / "copy"
    for folder in folders:
        shutil.copytree(REPOSITORY / folder, copy / folder, symlinks=True, ignore=ignored)
    for path in REPOSITORY.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    script = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", script], cwd=copy, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        path.relative_to(copy).as_posix()
        for folder in folders
        for path in (copy / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(needed) > 1000
    assert needed | {"Makefile", "constraints.txt", "BENCHMARKS.md"} <= packed
