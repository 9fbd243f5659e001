"""From a creator to the environment of a worker: settings, errors, and missing packages."""

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, EnvContext, EnvError, check_env, register_env, to_base_env
from rollax.core.importing import named_by_caller
from rollax.env.making import call_convention, make_base_env
from rollax.env.recording import drawing
from rollax.env.registry import env_creator
from tests.env.refused import refused
from tests.env.worlds import Clock


class Sized(Clock):
    """Takes its own settings."""

    def __init__(self, env_config):
        super().__init__(**self.settings(**env_config))

    def settings(self, size=1, *, wind=0.0):
        return {"size": size}


gym.register("rollax-tests/Sized-v0", entry_point=lambda size=1, wind=0.0: Clock())


def made(env, config, num_envs=1):
    return make_base_env(env_creator(named_by_caller(env)), EnvContext(config), num_envs)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (
            "CartPole-v1",
            "env CartPole-v1...{'sice': 3}...unexpected keyword argument 'sice'...CartPoleEnv(...sutton_barto",
        ),
        ("rollax-tests/Sized-v0", "{'sice': 3}...'sice'...(size=1, wind=0.0)"),
        (Sized, "env Sized...{'sice': 3}...unexpected keyword argument 'sice'...Sized(env_config)"),
    ],
)
def test_a_wrong_key_of_env_config(env, says):
    error = refused(ConfigError, made, env, {"sice": 3}, says=f"does not accept this env_config...{says}")
    assert isinstance(error.__cause__, TypeError)


@pytest.mark.parametrize("raises", [gym.error.DependencyNotInstalled("no MuJoCo"), ModuleNotFoundError("no pygame")])
def test_a_package_that_is_missing(raises):
    def creator(context):
        raise raises

    refused(EnvError, made, creator, {}, says=f"{raises}...install what the environment needs")


@pytest.mark.parametrize(
    ("package", "env", "installs"),
    [("Box2D", "LunarLander-v3", "rollax[box2d]"), ("mujoco", "HalfCheetah-v5", "gymnasium[mujoco]")],
)
def test_the_packages_of_gymnasiums_environments(monkeypatch, package, env, installs):
    for module in [name for name in sys.modules if name.startswith(("gymnasium.envs.box2d", "gymnasium.envs.mujoco"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)  # its import raises as if it were not installed
    refused(ConfigError, made, env, {}, says=f"{env}...{package}...{installs}")


@pytest.mark.parametrize(
    ("env", "wrappers", "package"),
    [
        ("minigrid:MiniGrid-Empty-8x8-v0", [], "minigrid"),
        ("gymnasium_robotics:FetchReach-v4", [], "gymnasium_robotics"),
        ("CartPole-v1", ["minigrid.wrappers:ImgObsWrapper"], "minigrid"),
    ],
)
def test_the_packages_of_environments_in_extras(monkeypatch, env, wrappers, package):
    for module in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    extra = package.removeprefix("gymnasium_")
    says = f"requires a package that is not installed...the package {package}...pip install 'rollax[{extra}]'"
    refused(ConfigError, lambda: check_env(env, env_wrappers=wrappers), says=says)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("raises", [SystemExit(0), KeyError("size"), TypeError("none")])
def test_errors_of_a_creator(raises, index):
    def creator(context):
        if context.vector_index == index:
            raise raises
        return Clock()

    says = f"raised {type(raises).__name__} in its creator...test_errors_of_a_creator"
    assert refused(EnvError, made, creator, {}, 2, says=says).__cause__ is raises


GOAL, GOALS = np.zeros(2), {"x": 1.0}


class Keywords(gym.Env):
    """Takes settings as keywords, as most Gymnasium environments do."""

    observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)

    def __init__(self, render_mode=None, size=5):
        assert render_mode in (None, "rgb_array")
        self.size = size

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}


def of_context(world: EnvContext) -> gym.Env:
    return gym.make(world["world"])


def dict_or_none(settings_of_mine: dict | None = None, size: int = 5) -> None: ...


def dict_of_numbers(goals: dict[str, float] = GOALS, size: int = 5) -> None: ...


def model_or_none(model: Clock | None = None, size: int = 5) -> None: ...


def number_or_none(goal: int | None = None) -> None: ...


def anything(settings_of_mine: Any = None) -> None: ...


@pytest.mark.parametrize(
    ("creator", "keys", "way"),
    [
        (lambda context: None, "", "context"),
        (lambda anything, size=3: None, "", "context"),
        (lambda _=None: None, "", "context"),
        (lambda env_config={}: None, "", "context"),
        (lambda env_args=None, seed=0: None, "", "context"),
        (lambda goal=GOAL: None, "", "keywords"),
        (lambda max_steps=None: None, "", "keywords"),
        (lambda config=None, size=3: None, "", "context"),
        (lambda *arguments: None, "", "context"),
        (lambda: None, "", "nothing"),
        (lambda one, two: None, "", "nothing"),
        (Keywords, "", "keywords"),
        (lambda size=5: None, "", "keywords"),
        (lambda goal=None: None, "", "keywords"),
        (lambda settings_of_mine={}: None, "", "context"),
        (lambda rllib_config=None: None, "", "context"),
        (lambda render_mode=None: None, "", "keywords"),
        (lambda **settings: None, "", "keywords"),
        (lambda *, size=5: None, "", "keywords"),
        # a first parameter that env_config has
        (lambda size: None, "size", "keywords"),
        (lambda goal=None: None, "goal", "keywords"),
        (lambda settings_of_mine=None: None, "size", "context"),
        (lambda goal=None, *, size=3: None, "size", "keywords"),
        (lambda goal=None, **settings: None, "size", "keywords"),
        (lambda rllib_config=None, **settings: None, "size", "context"),
        (lambda size, render_mode=None: None, "size", "keywords"),
        (lambda size, goal: None, "size goal", "keywords"),
        (lambda context, size=3: None, "context size", "context"),
        (lambda anything, size=3: None, "size", "context"),
        (lambda size, /: None, "size", "context"),
        (lambda env: gym.make(env["env"], max_episode_steps=env["limit"]), "env limit", "context"),
        (of_context, "world", "context"),
        # annotations
        (dict_or_none, "", "context"),
        (anything, "size", "context"),
        (dict_of_numbers, "", "keywords"),
        (model_or_none, "", "keywords"),
        (number_or_none, "size", "keywords"),
    ],
)
def test_how_a_creator_takes_its_settings(creator, keys, way):
    assert call_convention(creator, dict.fromkeys(keys.split(), 5)) == way


class PassesOn(Keywords):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class PassesOnAgain(PassesOn):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class TakesAny(gym.Env):
    def __init__(self, *args, **kwargs): ...


def test_a_class_that_passes_its_arguments_on_takes_those_of_its_base():
    """It got the context in the place of its base's first parameter."""
    assert make_base_env(PassesOnAgain, EnvContext({"size": 7}), 1).get_sub_environments()[0].size == 7
    assert drawing(PassesOn, EnvContext()) == {"render_mode": "rgb_array"}
    assert call_convention(TakesAny) == "context"
    says = "does not accept this env_config...sise...expected: PassesOn(render_mode=None, size=5)"
    refused(ConfigError, make_base_env, PassesOn, EnvContext({"sise": 7}), 1, says=says)


def test_env_config_gives_the_keywords():
    base = make_base_env(Keywords, EnvContext({"size": 7}), 2)
    assert [env.size for env in base.get_sub_environments()] == [7, 7]
    assert make_base_env(Keywords, EnvContext(), 1).get_sub_environments()[0].size == 5
    assert drawing(Keywords, EnvContext()) == {"render_mode": "rgb_array"}
    assert drawing(lambda size=5: None, EnvContext()) == {}
    assert drawing(env_creator("jax:CartPole-v1"), EnvContext()) == {}


def test_an_environment_that_empties_its_settings_leaves_those_of_the_others():
    seen = []

    class Popping(Clock):
        def __init__(self, env_config):
            super().__init__()
            seen.append((env_config.vector_index, env_config.pop("size", 0), env_config["winds"].pop()))

    made(Popping, {"size": 9, "winds": [1, 2]}, num_envs=3)
    assert seen == [(0, 9, 2), (1, 9, 2), (2, 9, 2)]


class CallableClock(Clock):
    def __call__(self):
        raise AssertionError("an instance is no creator")


register_env("rollax-tests-clock", lambda context: Clock())


@pytest.mark.parametrize(
    ("env", "count"),
    [
        ("CartPole-v1", 3),
        ("rollax-tests-clock", 3),
        ("tests.env.worlds:Clock", 3),
        ("jax:CartPole-v1", 3),
        (Clock, 3),
        (lambda context: Clock(), 3),
        (CallableClock(), 1),
    ],
)
def test_to_base_env_takes_what_a_trainer_takes(env, count):
    base = to_base_env(env, num_envs=count)
    obs, _ = base.try_reset()
    assert sorted(obs) == list(range(count))
    base.stop()


def test_to_base_env_refuses_an_unknown_id_a_second_creator_and_a_class_from_a_creator():
    refused(ConfigError, to_base_env, "CartPol-v1", says="Unknown environment...CartPole-v1")
    refused(ConfigError, to_base_env, Clock, lambda index: Clock(), 2, says="two creators...leave make_env out")
    refused(EnvError, to_base_env, lambda context: Clock, says="return an instance from the creator")
