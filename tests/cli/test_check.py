"""`rollax check`: the verdict and the exit code."""

import pytest

ENVS = """
import gymnasium as gym
import numpy as np
from rollax import register_env


class Fine(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)

    def __init__(self, env_config):
        self.length = env_config.get("length", 5)

    def reset(self, *, seed=None, options=None):
        self.left = self.length
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left == 0, False, {}


class Wrong(Fine):
    def step(self, action):
        return np.zeros(3, np.float32), 1.0, False, False, {}


class Raises(Fine):
    def step(self, action):
        return 1 / 0


class Spaceless(Fine):
    action_space = None


register_env("endless", lambda context: Fine({"length": -1}))
"""


@pytest.fixture(autouse=True)
def envs(cwd, monkeypatch):
    (cwd / "checked_envs.py").write_text(ENVS)
    monkeypatch.syspath_prepend(cwd)
    monkeypatch.delitem(__import__("sys").modules, "checked_envs", raising=False)


def test_fit(rollax):
    done = rollax("check", "checked_envs:Fine", "--episodes=3", "--seed=7")
    assert done.output.splitlines() == [
        "checked_envs:Fine: fit for training",
        "  kind:         gymnasium.Env",
        "  observations: Box(-1.0, 1.0, (2,), float32)",
        "  actions:      Discrete(2)",
        "  agents:       agent0",
        "  played:       6 episodes, 30 steps, in 2 sub-environments",
    ]


LIMIT = '[["gymnasium.wrappers:TimeLimit", {"max_episode_steps": 3}]]'


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["CartPole-v1"], "CartPole-v1: fit for training\n"),
        (["checked_envs:Fine", "--env-config", '{"length": 2}'], "4 episodes, 8 steps"),
        (["checked_envs:Fine", "--env-wrappers", LIMIT], "4 episodes, 12 steps"),
    ],
    ids=["id", "settings", "wrappers"],
)
def test_what_is_checked(rollax, arguments, says):
    assert says in rollax("check", *arguments).output


def test_warnings_are_no_errors(rollax):
    done = rollax("check", "endless", "--import=checked_envs", "--max-steps=20")
    assert done.output.startswith("endless: fit for training, with 1 warning\n")
    assert "  warning: no end: no episode has ended within 20 steps" in done.output


NOT_FIT = {"Wrong": "observation has the wrong shape.", "Raises": "1 / 0\n", "Spaceless": "not a Gymnasium space."}


@pytest.mark.parametrize(("name", "says"), NOT_FIT.items())
def test_not_fit(rollax, name, says):
    done = rollax("check", f"checked_envs:{name}", code=1)
    assert done.stdout == f"checked_envs:{name}: not fit for training\n"
    assert says in done.stderr
    assert "  fix:  " in done.stderr
    assert "rollax/env" not in done.stderr
    assert "rollax/env" in rollax("check", f"checked_envs:{name}", "--traceback", code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["CartPol-v1"], "'CartPole-v1'"),
        (["nowhere:Env"], "cannot be imported"),
        (["CartPole-v1", "--env-config={"], "The option is not valid JSON"),
        (["CartPole-v1", "--env-config=3"], "The option is not a JSON object"),
        (["CartPole-v1", "--env-wrappers=gymnasium.wrappers:TimeLimit"], "expected: a JSON list"),
        (["CartPole-v1", "--env-wrappers=3"], "env_wrappers is not a list"),
        (["CartPole-v1", "--import=nowhere_at_all"], "The module cannot be imported"),
    ],
)
def test_wrong_arguments(rollax, arguments, says):
    assert says in rollax("check", *arguments, code=2).stderr
