import sys

import pytest

from rollax import ConfigError
from rollax.importing import ImportPath, import_object


def test_nested_names():
    assert (
        import_object(ImportPath("collections:OrderedDict.fromkeys"), "here")
        == __import__("collections").OrderedDict.fromkeys
    )


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
    with pytest.raises(
        ConfigError, match=r"(?s)cannot be imported.*callbacks.*fails_on_import:X.*module:Class"
    ) as error:
        import_object(ImportPath("fails_on_import:X"), "config key 'callbacks'")
    assert error.value.__cause__ is not None


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
    with pytest.raises(ConfigError, match="cannot be imported"):
        import_object(ImportPath(path), "here")


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
