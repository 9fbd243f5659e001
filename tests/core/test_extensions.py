"""Extensions are found by their folders, and their tables are joined."""

from types import SimpleNamespace

import pytest

import rollax
from rollax import BC, ES, PPO
from rollax.config import TrainerConfig
from rollax.config.hooks import ConfigHooks
from rollax.core import extensions as found
from rollax.core.importing import current_path, named_by_file, path_of

POLICY = ("rollax.policy.base_algorithm:BaseAlgorithm",)


@pytest.fixture
def fresh(monkeypatch):
    """Extensions are looked for again, in this test and after it."""
    found.extensions.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    found.extensions.cache_clear()


def test_a_package_that_is_not_there_is_left_out(fresh):
    fresh.setattr(rollax, "EXTENSIONS", ("rollax.not_there", "rollax.search"))
    assert [module.__name__ for module in found.extensions()] == ["rollax.search"]


def test_an_extension_that_does_not_import_is_an_error(fresh, tmp_path):
    (tmp_path / "broken_extension.py").write_text("import not_there_at_all")
    fresh.syspath_prepend(tmp_path)
    fresh.setattr(rollax, "EXTENSIONS", ("broken_extension",))
    with pytest.raises(ModuleNotFoundError):
        found.extensions()


def test_tables_are_joined_and_may_be_missing(monkeypatch):
    modules = SimpleNamespace(ALGORITHMS={"A": "a:A"}), SimpleNamespace(ALGORITHMS={"B": "b:B"}), SimpleNamespace()
    monkeypatch.setattr(found, "extensions", lambda: modules)
    assert found.contributed("ALGORITHMS") == {"A": "a:A", "B": "b:B"}
    assert found.contributed("MOVED") == {}


FORMER = {"rollax.offline.marwil:BCPolicy": BC, "rollax.search.es:ESPolicy": ES, "rollax.algorithms.ppo:PPOPolicy": PPO}


@pytest.mark.parametrize(("former", "policy"), FORMER.items())
def test_a_class_is_found_by_its_former_module(former, policy):
    assert current_path(former) == path_of(policy)
    assert named_by_file(former, "class", base=POLICY, trusted=False) is policy


@pytest.mark.parametrize("path", ["rollax.algorithms.ppo:PPO", "own.marwil:BCPolicy", "rollax.offline.marwil"])
def test_other_paths_stay(path):
    kept = path if ":" in path else "rollax.offline.marwil"
    assert current_path(path) == kept


def test_a_config_has_hooks_of_a_run_of_its_own_experience():
    config = TrainerConfig(env="CartPole-v1")
    assert isinstance(config, ConfigHooks)
    assert config.steps_the_env
    assert not config.is_pretrained
    assert config.recording_key is None
    assert config.with_spaces("here") is config
    assert config.for_workers() is config
