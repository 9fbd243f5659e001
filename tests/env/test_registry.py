"""Names of environments: registered names, Gymnasium ids, modules; and unknown ones."""

import pickle
import re
import sys
from pathlib import Path

import gymnasium as gym
import pytest

import rollax
from rollax import ConfigError, EnvContext, register_env
from rollax.core.importing import ImportPath
from rollax.env import registry
from rollax.env.adapters import adapter_of
from rollax.env.registry import env_creator
from tests.env.refused import refused
from tests.env.worlds import CLOCK_ID, Clock

PACKAGE = Path(rollax.__file__).parent


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch):
    monkeypatch.setattr(registry, "_creators", {})


def test_a_registered_name():
    register_env("clock", lambda context: Clock(context))
    made = env_creator("clock")(EnvContext({"hands": 2}, vector_index=3))
    assert made.env_config == {"hands": 2}
    assert made.env_config.vector_index == 3
    register_env("clock", Clock)
    assert env_creator("clock") is Clock
    assert registry.registered_envs() == ["clock"]


def test_a_gymnasium_id_takes_env_config_as_keywords():
    env = env_creator("CartPole-v1")(EnvContext({"max_episode_steps": 7, "sutton_barto_reward": True}))
    assert env.spec.max_episode_steps == 7


def test_module_and_class():
    assert env_creator(ImportPath("tests.env.worlds:Clock")) is Clock
    assert env_creator(ImportPath("tests.env.worlds:Clock.close")) is Clock.close
    says = "cannot be imported...env='tests.env.worlds:Clok'...AttributeError...did you mean 'Clock'?"
    refused(ConfigError, env_creator, ImportPath("tests.env.worlds:Clok"), says=says)


def test_module_and_id():
    """Gymnasium's form `module:id`: importing the module registers the id, unless it is registered already."""
    assert isinstance(env_creator(ImportPath(f"tests.env.worlds:{CLOCK_ID}"))(EnvContext()).unwrapped, Clock)


def test_module_of_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "my_folder_env.py").write_text(
        "import gymnasium\n"
        "class Mine(gymnasium.Env): pass\n"
        "gymnasium.register('Mine-v0', entry_point='my_folder_env:Mine', disable_env_checker=True)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert env_creator(ImportPath("my_folder_env:Mine")).__name__ == "Mine"
    assert type(env_creator(ImportPath("my_folder_env:Mine-v0"))(EnvContext()).unwrapped).__name__ == "Mine"
    gym.registry.pop("Mine-v0")


def test_unknown_id(monkeypatch):
    register_env("my-corridor", Clock)
    refused(ConfigError, env_creator, "CartPole-v2", says="Unknown environment...'CartPole-v2'...'CartPole-v1'")
    refused(ConfigError, env_creator, "cartpole", says="'cartpole'...CartPole")
    refused(ConfigError, env_creator, "my-coridor", says="'my-coridor'...'my-corridor'...register_env")
    refused(ConfigError, env_creator, "Zxqw", says="a Gymnasium id or a registered name")
    refused(ConfigError, env_creator, "my_package.envs.Corridor", says="write 'my_package.envs:Corridor' for a class")
    refused(ConfigError, env_creator, "MiniGrid-NoSuch-v0", says="write 'minigrid:MiniGrid-NoSuch-v0'")
    for old in ("BreakoutNoFrameskip-v4", "BreakoutDeterministic-v0"):
        monkeypatch.delitem(gym.registry, old, raising=False)  # of ale-py, if another test has imported it
        refused(ConfigError, env_creator, old, says="write 'ALE/Breakout-v5'")


def test_names_of_pettingzoo():
    parallel = env_creator("pettingzoo/rps_v2")(EnvContext({"max_cycles": 3}))
    assert adapter_of(parallel).kind == "pettingzoo.ParallelEnv"
    aec = env_creator("pettingzoo/classic/connect_four-v3")(EnvContext())
    assert adapter_of(aec).kind == "pettingzoo.AECEnv"
    says = "PettingZoo...pettingzoo/classic/connect_four_v3"
    refused(ConfigError, env_creator, "pettingzoo/conect_four_v3", says=says)


@pytest.mark.parametrize(
    "path",
    [
        *("broken_module:Env", "broken_module:Env-v0", " broken_module:Env"),
        *("ALE/broken_module:Env-v0", "pettingzoo/broken_module:env", "jax:broken_module:Env"),
    ],
)
def test_a_module_that_the_caller_did_not_name_is_not_imported(path, monkeypatch, tmp_path):
    (tmp_path / "ALE").mkdir()
    for file in ("ALE/broken_module.py", "broken_module.py"):
        (tmp_path / file).write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    assert not isinstance(refused(ConfigError, env_creator, path).__cause__, SystemExit)


@pytest.mark.parametrize("value", [Clock(), 3, None, ["CartPole-v1"]])
def test_invalid_creators(value):
    refused(ConfigError, env_creator, value, says="...creator function")
    refused(ConfigError, register_env, "name", value, says="The creator is not callable...register_env('name')")


@pytest.mark.parametrize("env", [Clock(), gym.vector.SyncVectorEnv([Clock])])
def test_an_instance_in_place_of_its_creator(env):
    says = f"not what creates...env=lambda context: {type(env).__name__}(...): each worker creates its own"
    refused(ConfigError, env_creator, env, says=says)


def test_env_context():
    context = EnvContext({"a": 1}, worker_index=2, vector_index=0, num_workers=3, remote=True)
    other = pickle.loads(pickle.dumps(context.at(5)))  # noqa: S301
    assert (other, other.worker_index, other.vector_index, other.num_workers, other.remote) == ({"a": 1}, 2, 5, 3, True)
    assert context.vector_index == 0


def test_only_registrations_from_the_driver_are_unpickled():
    """Unpickling runs code, so nothing else in rollax unpickles, and only processes started by a driver call it."""
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    unpickling = re.compile(
        r"pickle\.loads?\(|Unpickler|allow_pickle=True|weights_only=False|(import|from) (dill|joblib|shelve|marshal)\b"
    )
    assert [name for name, source in sources.items() if unpickling.search(source)] == ["env/registrations.py"]
    calling = {name for name, source in sources.items() if re.search(r"(?<!def )register_all\(", source)}
    assert calling == {"rollout/remote_workers.py", "env/remote/env_host.py", "ray_tune.py", "tune/runners.py"}


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({}, "env='CartPole-v1':"),
        ({"sutton_barto_reward": True}, "env='CartPole-v1', config={'env_config': {'sutton_barto_reward': True}}:"),
        ({"max_episode_steps": 9}, "env='CartPole-v1', config={'env_config': {'max_episode_steps': 9}}:"),
    ],
)
def test_an_instance_with_an_id_names_the_id(keywords, says):
    refused(ConfigError, env_creator, gym.make("CartPole-v1", **keywords), says=says)


def test_an_instance_that_its_id_does_not_make_names_its_class():
    with pytest.raises(ConfigError, match=r"env=lambda context: ClipReward\("):
        env_creator(gym.wrappers.ClipReward(gym.make("CartPole-v1"), 0, 1))
