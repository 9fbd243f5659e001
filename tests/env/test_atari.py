"""Atari games are the same task with ale-py's vector environment and with single environments."""

import sys

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, EnvContext, to_base_env
from rollax.env.registry import env_creator
from rollax.env.vector.native_vector_env import NativeVectorEnv
from tests.env.refused import refused

PONG, BREAKOUT, PACMAN = "ALE/Pong-v5", "ALE/Breakout-v5", "ALE/MsPacman-v5"


def base_env(env_id, num_envs=1, **env_config):
    return to_base_env(env_creator(env_id).make_vector(EnvContext(env_config), num_envs))  # type: ignore[attr-defined]


def history(base, seeds, moments):
    """The observations, rewards, flags and starts of the first sub-environment, including resets."""
    random = [np.random.default_rng(index) for index in range(base.num_envs)]
    rows, history = base.reset_rows(np.arange(base.num_envs), seeds), []
    while len(history) < moments:
        obs = rows.observations(None, base.observation_space)[0].copy()
        columns = rows.rewards, rows.terminateds, rows.truncateds, rows.starts
        history.append((obs, *(column[0].item() for column in columns)))
        started = base.reset_rows(rows.ended_envs) if len(rows.ended_envs) else None
        if started is None:
            acting = np.flatnonzero(rows.acts)
            if len(acting):
                base.send_rows(rows, acting, np.array([random[i].integers(4) for i in rows.env_index[acting]]))
            started = base.poll_rows()
        rows = started
    base.stop()
    return history


def test_one_env():
    env = env_creator(PONG)(EnvContext())
    wrappers = str(env)
    assert wrappers.startswith("<FrameStackObservation<")
    assert "AtariPreprocessing" in wrappers
    obs, _ = env.reset(seed=2**32 - 1)
    assert (obs.shape, obs.dtype) == ((4, 84, 84), np.uint8)
    assert env.spec.id == PONG


@pytest.mark.long
@pytest.mark.parametrize(("game", "sticky"), [(PONG, 0.25), (BREAKOUT, 0.0)])
def test_single_environments_equal_gymnasiums(game, sticky):
    """Frames and rewards equal those of Gymnasium's preprocessing and stacking; a stack begins black."""
    gym.register_envs(ale_py)
    bare = gym.make(game, frameskip=1, repeat_action_probability=sticky)
    reference = gym.wrappers.AtariPreprocessing(bare, noop_max=30, frame_skip=4, screen_size=84)
    reference = gym.wrappers.FrameStackObservation(reference, 4, padding_type="zero")
    env = env_creator(game)(EnvContext({"fire_reset": False, "repeat_action_probability": sticky}))
    random = np.random.default_rng(0)
    for seed in (3, None):
        np.testing.assert_array_equal(env.reset(seed=seed)[0], reference.reset(seed=seed)[0])
        for _ in range(50):
            action = int(random.integers(4))
            (obs, *rest), (expected, *others) = env.step(action), reference.step(action)
            np.testing.assert_array_equal(obs, expected)
            assert rest[:3] == others[:3]
    env.close()
    reference.close()


SETTINGS = {
    "as it is": (BREAKOUT, {}, (4, 84, 84), 4),
    "lives, small": (BREAKOUT, {"terminal_on_life_loss": True, "screen_size": 42, "stack": 2}, (2, 42, 42), 4),
    "time limit, colours": (
        BREAKOUT,
        {
            "max_num_frames_per_episode": 100,
            "fire_reset": False,
            "grayscale": False,
            "screen_size": [64, 48],
            "stack": 1,
            "frame_skip": 3,
        },
        (1, 48, 64, 3),
        4,
    ),
    "without FIRE": (PACMAN, {}, (4, 84, 84), 9),
    "clipped": (PACMAN, {"clip_rewards": True, "full_action_space": True}, (4, 84, 84), 18),
}


@pytest.mark.short("as it is")
@pytest.mark.parametrize(("game", "settings", "shape", "actions"), SETTINGS.values(), ids=SETTINGS)
def test_both_ways_give_the_same_task(game, settings, shape, actions):
    """Exactly, through several episodes of games that draw no random number."""
    fixed = {"noop_max": 0, "repeat_action_probability": 0.0, **settings}
    histories = []
    for native in (True, False):
        base = base_env(game, 1, native_vector=native, **fixed)
        assert isinstance(base, NativeVectorEnv) == native
        assert base.observation_space == spaces.Box(0, 255, shape, np.uint8)
        assert base.action_space == spaces.Discrete(actions)
        histories.append(history(base, [7], 80 if game == PACMAN else 40))
    for one, other in zip(*histories, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        assert one[1:] == other[1:]
    obs, rewards, terminateds, truncateds, _ = (list(column) for column in zip(*histories[0], strict=True))
    assert {(image.shape, image.dtype) for image in obs} == {(shape, np.dtype(np.uint8))}
    assert obs[-1][-1].std() > 5
    assert any(terminateds) == ("terminal_on_life_loss" in settings)
    assert any(truncateds) == ("max_num_frames_per_episode" in settings)
    if game == PACMAN:
        assert max(rewards) == (1 if "clip_rewards" in settings else 10)  # a pellet is 10 points


@pytest.mark.long
def test_sub_environment_i_does_not_depend_on_their_number():
    seeds = [2**32 - 1 - 7 * index for index in range(3)]
    histories = [history(base_env(PONG, n, max_num_frames_per_episode=80), seeds[:n], 24) for n in (1, 3)]
    for one, other in zip(*histories, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        assert one[1:] == other[1:]
    assert sum(start for *_, start in histories[0]) == 2


@pytest.mark.parametrize(
    ("num_envs", "single"), [(2, {"render_mode": "rgb_array"}), (1, {"difficulty": 1}), (1, {"mode": 0})]
)
def test_features_of_single_environments_only(num_envs, single):
    base = base_env(PONG, num_envs, **single)
    assert not isinstance(base, NativeVectorEnv)
    base.reset_rows(np.arange(num_envs))
    if "render_mode" in single:
        assert base.try_render(1).shape == (210, 160, 3)
    base.stop()


@pytest.mark.parametrize("call", ["__call__", "make_vector"])
def test_wrong_settings(call):
    def make(**env_config):
        arguments = (EnvContext(env_config),) if call == "__call__" else (EnvContext(env_config), 2)
        return getattr(env_creator(PONG), call)(*arguments)

    says = "Unknown key...ALE/Pong-v5...'frameskip'...did you mean 'frame_skip'"
    refused(ConfigError, lambda: make(frameskip=4), says=says)
    says = "is invalid...'frame_skip'...got:      0...greater than or equal to 1"
    refused(ConfigError, lambda: make(frame_skip=0), says=says)
    refused(ConfigError, lambda: make(grayscale="yes"), says="is invalid...'grayscale'...yes...boolean")


def test_unknown_game():
    refused(ConfigError, env_creator, "ALE/Pongg-v5", says="Unknown environment...'ALE/Pong-v5'")


def test_without_ale_py(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    refused(ConfigError, env_creator, PONG, says="Atari requires a package...ALE/...pip install 'rollax[atari]'")
