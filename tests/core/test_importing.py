import ast
import copy
import importlib
import json
import pickle
import sys
from collections import OrderedDict
from pathlib import Path

import pytest

import rollax
from rollax import ConfigError
from rollax.config.json_form import POLICY
from rollax.core.importing import ImportPath, StoredCode, import_object, named_by_caller, named_by_file
from tests.env.refused import refused


def test_nested_names():
    assert import_object(ImportPath("collections:OrderedDict.fromkeys"), "here") == OrderedDict.fromkeys


def test_no_module_is_imported_for_a_name_of_a_file_that_can_be_no_class_of_rollax(monkeypatch):
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(f"{name} was imported"))
    for base, path in (((), "rollax.ray_tune:TunedTrainer"), (POLICY, "rollax:TunedTrainer"), (POLICY, "json:Policy")):
        assert isinstance(named_by_file(path, "env", base=base, trusted=False), StoredCode)


def test_current_folder_comes_last(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("dumps = None\n")
    (tmp_path / "only_here_of_all.py").write_text("class Thing:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    assert import_object(ImportPath("only_here_of_all:Thing"), "here").__name__ == "Thing"
    assert sys.path[-1] == str(tmp_path)
    assert import_object(ImportPath("json:dumps"), "here") is not None


@pytest.mark.parametrize("text", ["import no_such_thing_at_all", "1 / 0", "this is no Python", "raise SystemExit(3)"])
def test_module_that_fails_on_import(text, tmp_path, monkeypatch):
    (tmp_path / "fails_on_import.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    says = "cannot be imported...callbacks...fails_on_import:X...module:Class"
    error = refused(ConfigError, import_object, ImportPath("fails_on_import:X"), "config key 'callbacks'", says=says)
    assert error.__cause__ is not None


def test_module_whose_extra_is_not_installed(tmp_path, monkeypatch):
    raised = (
        """not_installed("PyTorch", ModuleNotFoundError(name="torch"), where="here", package="torch", extra="torch")"""
    )
    (tmp_path / "without_extra.py").write_text(f"from rollax.errors import not_installed\nraise {raised}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"without_extra:P \(ConfigError: PyTorch requires a package") as error:
        import_object(ImportPath("without_extra:P"), "config key 'policy_class'")
    assert error.value.parts["fix"] == "pip install 'rollax[torch]'"


@pytest.mark.parametrize("path", ["", ":", "json", "json:", ":dumps", "json:dumps:x", "..json:dumps"])
def test_invalid_paths_are_refused(path):
    refused(ConfigError, import_object, ImportPath(path), "here", says="cannot be imported")


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("tests.env.worlds:Missing", r"define Missing in tests.env.worlds, or correct the name; .* has .*, C\w+, "),
        ("tests.env.worlds:Clock.Missing", "define Missing in Clock, or correct the name; Clock has .*reset"),
        ("json:dumbs", "did you mean 'dumps'"),
        ("json:", "define the class in json"),
        ("math:pi.x", "name a class or function of a module, not 'x' of 3.14"),
        ("no_such_module:Missing", "python -c 'import no_such_module'"),
    ],
)
def test_a_missing_name_is_named(path, fix):
    with pytest.raises(ConfigError, match=f"fix: +.*{fix}"):
        import_object(ImportPath(path), "here")


IMPORTS = {
    "__init__.py": {"importlib.import_module"},  # the table of public names
    "algorithms/registry.py": {"importlib.import_module"},  # the table of algorithms
    "config/__init__.py": {"importlib.import_module"},  # constants
    "core/extensions.py": {"importlib.import_module"},  # a constant of rollax
    "models/distributions/factory.py": {"importlib.import_module"},  # constants
    "cli/console.py": {"importlib.import_module"},  # --import
    "offline/formats/common.py": {"gymnasium.make"},  # of id_without_module
    "offline/formats/d4rl.py": {"gymnasium.spec"},  # of a name without a module
    "offline/formats/minari_format.py": {"MinariStorage.read"},  # of metadata with spaces
    "env/atari.py": {"gym.make", "gym.make_vec", "gym.spec"},  # of ids in Gymnasium's registry
    "env/multi_agent/pettingzoo_env.py": {"pettingzoo.make"},  # of names in PettingZoo's registry
    "env/registrations.py": {"pickle.loads"},
    "env/registry.py": {"gym.make", "gym.spec", "load_env_creator"},
    "serving/export/policy_function.py": {"importlib.import_module"},  # a constant
    "core/importing.py": {"importlib.import_module"},
    # Constants, and names in the registries of libraries.
    "env/jax/libraries/library.py": {"importlib.import_module"},
    "env/jax/libraries/gymnax_env.py": {"importlib.import_module", "library.make"},
    "env/jax/libraries/jaxmarl_env.py": {"library.make"},
    "env/jax/libraries/jumanji_env.py": {"importlib.import_module", "library.make"},
    "env/jax/libraries/navix_env.py": {"importlib.import_module", "library.make"},
    "env/jax/libraries/pgx_env.py": {"library.make"},
    "serving/policy_server_env.py": {"gym.make"},  # of id_without_module
}
"""File -> its calls that may import a module by a name, or run stored code. Files and requests must not name it there;
elsewhere use `import_object` and `id_without_module`."""
OF_MODULES = {"gym", "gymnasium", "pettingzoo", "library", "importlib", "pickle", "cloudpickle", "dill", "runpy"}
OF_THESE = {"make", "make_vec", "spec", "load", "loads"}
BY_NAME = {"import_module", "__import__", "load_env_creator", "resolve_name", "run_module", "run_path", "exec", "eval"}


def test_no_other_code_imports_by_name():
    package = Path(rollax.__file__).parent
    found: dict[str, set[str]] = {}
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", None))
                if name not in {*OF_THESE, *BY_NAME, "read"}:
                    continue
                called = ast.unparse(node.func)
                module = called.rpartition(".")[0]
                imports = module in OF_MODULES and name in OF_THESE
                by_name = name in BY_NAME and module in {"", *OF_MODULES} and called != "import_module"
                if imports or by_name or called == "MinariStorage.read":
                    found.setdefault(file.relative_to(package).as_posix(), set()).add(called)
    assert found == IMPORTS


def test_a_plain_string_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "never_imported.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    path = ImportPath("never_imported:Thing")
    made_from_it = [str(path), path.strip(), f"{path}", path + "", json.loads(json.dumps(path)), "json:dumps"]
    for text in made_from_it:
        refused(ConfigError, import_object, text, "here", says="trust_code=True")
    refused(ConfigError, import_object, "json", "here", says="is not module:Name")
    sent = pickle.loads(pickle.dumps(path))  # noqa: S301
    for kept in (sent, copy.deepcopy(path), named_by_caller(str(path))):
        refused(ConfigError, import_object, kept, "here", says="SystemExit")
