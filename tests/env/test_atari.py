"""Atari games, as ale-py's native vector env and one by one: the same task."""

import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, EnvContext, to_base_env
from rollax.env.registry import env_creator
from rollax.env.vector.native_vector_env import NativeVectorEnv
from tests.env.refused import refused

PONG, BREAKOUT = "ALE/Pong-v5", "ALE/Breakout-v5"


def base_env(env_id, num_envs=1, **env_config):
    return to_base_env(env_creator(env_id).make_vector(EnvContext(env_config), num_envs))  # type: ignore[attr-defined]


def play(base, seeds, polls, watched):
    """What one sub-environment observes, is rewarded, and where its episodes begin and end."""
    random = [np.random.default_rng(index) for index in range(base.num_envs)]
    rows, told = base.reset_rows(np.arange(base.num_envs), seeds), []
    for _ in range(polls):
        actions = np.array([rng.integers(4) for rng in random])
        acting = np.flatnonzero(rows.acts)
        if len(acting):
            base.send_rows(rows, acting, actions[acting])
        told.append((rows.obs[watched].copy(), rows.rewards[watched], rows.starts[watched], rows.truncateds[watched]))
        rows = base.poll_rows()
        if len(rows.ended_envs):
            assert base.reset_rows(rows.ended_envs) is None
    return told


BOTH_WAYS = pytest.mark.parametrize("native", [True, False])


@BOTH_WAYS
@pytest.mark.parametrize(
    ("env_config", "shape"),
    [
        ({}, (4, 84, 84)),
        ({"stack": 2, "screen_size": 42, "noop_max": 0}, (2, 42, 42)),
        ({"grayscale": False, "screen_size": [64, 48], "stack": 1, "frame_skip": 2}, (1, 48, 64, 3)),
    ],
)
def test_observations(native, env_config, shape):
    base = base_env(PONG, 2, native_vector=native, **env_config)
    assert isinstance(base, NativeVectorEnv) == native
    assert base.observation_space == spaces.Box(0, 255, shape, np.uint8)
    assert base.action_space == spaces.Discrete(6)
    rows = base.reset_rows(np.arange(2), [1, 2])
    for _ in range(3):
        obs = rows.observations(None, base.observation_space)
        assert obs.shape == (2, *shape)
        assert obs.dtype == np.uint8
        assert obs[0, -1].std() > 5
        base.send_rows(rows, None, np.array([2, 3]))
        rows = base.poll_rows()
    base.stop()


def test_one_env():
    env = env_creator(PONG)(EnvContext())
    wrappers = str(env)
    assert wrappers.startswith("<FrameStackObservation<")
    assert "AtariPreprocessing" in wrappers
    obs, _ = env.reset(seed=2**32 - 1)
    assert (obs.shape, obs.dtype) == ((4, 84, 84), np.uint8)
    assert env.spec.id == PONG


@pytest.mark.parametrize("game", [PONG, BREAKOUT])
@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_single_ones_are_gymnasium_s_own(game, sticky):
    """Frame by frame and reward by reward, what its preprocessing and stacking give; a stack begins black."""
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
    "as it is": {},
    "no FIRE": {"fire_reset": False},
    "lives": {"terminal_on_life_loss": True},
    "colours": {"grayscale": False, "stack": 1},
    "small": {"screen_size": (64, 48), "stack": 2, "frame_skip": 3},
    "time limit": {"max_num_frames_per_episode": 100, "fire_reset": False},
    "clipped": {"clip_rewards": True, "full_action_space": True},
}


@pytest.mark.parametrize("game", [BREAKOUT, "ALE/MsPacman-v5"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_both_ways_give_the_same_task(game, settings):
    """Bit by bit, through several episodes, where the game itself draws no random number."""
    fixed = {"noop_max": 0, "repeat_action_probability": 0.0, **settings}
    stories = [story(base_env(game, 1, native_vector=native, **fixed), 120) for native in (True, False)]
    for one, other in zip(*stories, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        assert one[1:] == other[1:]


def story(base, moments):
    """What the first sub-environment shows: observations, rewards and flags, a reset beside the end before it."""
    told, random, rows = [], np.random.default_rng(3), base.reset_rows(np.arange(1), [7])
    while len(told) < moments:
        obs = rows.observations(None, base.observation_space)[0].copy()
        told.append((obs, float(rows.rewards[0]), bool(rows.terminateds[0]), bool(rows.truncateds[0])))
        if len(rows.ended_envs):
            rows = base.reset_rows(rows.ended_envs) or base.poll_rows()
            continue
        base.send_rows(rows, None, random.integers(4, size=1))
        rows = base.poll_rows()
    base.stop()
    return told


def test_native_rows_in_lockstep():
    """Ten steps to an episode: the last row keeps its observation, the one after it is the first of a new life."""
    base = base_env(BREAKOUT, 3, max_num_frames_per_episode=40)
    bare = gym.make_vec(
        BREAKOUT,
        3,
        vectorization_mode="vector_entry_point",
        max_num_frames_per_episode=40,
        reward_clipping=False,
    )
    rows = base.reset_rows(np.arange(3), [5, 6, 7])
    obs, _ = bare.reset(seed=np.array([5, 6, 7]))
    resets = np.zeros(3, bool)
    for step in range(1, 34):
        actions = np.array([1, 2, 3])
        if rows.acts.any():
            base.send_rows(rows, None, actions)
        rows = base.poll_rows()
        obs, _, _, truncs, _ = bare.step(actions)
        np.testing.assert_array_equal(rows.obs, obs)
        assert rows.starts.all() == resets.all() == (step % 11 == 0)
        assert rows.truncateds.all() == truncs.all() == (step % 11 == 10)
        np.testing.assert_array_equal(rows.acts, ~truncs)
        assert not rows.rewards[rows.starts].any()
        resets = truncs
        if len(rows.ended_envs):
            assert base.reset_rows(rows.ended_envs) is None
    base.stop()


def test_sub_environment_i_is_the_same_however_many_there_are():
    seeds = [2**32 - 1 - 7 * index for index in range(8)]
    stories = [play(base_env(PONG, n, max_num_frames_per_episode=80), seeds[:n], 45, 0) for n in (1, 4, 8)]
    for one, *others in zip(*stories, strict=True):
        for other in others:
            np.testing.assert_array_equal(one[0], other[0])
            assert one[1:] == other[1:]
    assert sum(start for _, _, start, _ in stories[0]) == 3


@BOTH_WAYS
@pytest.mark.parametrize("clip", [False, True])
def test_scores_are_whole_unless_asked_otherwise(native, clip):
    """A pellet is 10 points."""
    base = base_env("ALE/MsPacman-v5", 1, native_vector=native, clip_rewards=clip, noop_max=0)
    rows, best = base.reset_rows(np.arange(1), [1]), 0.0
    for _ in range(90):
        base.send_rows(rows, None, np.array([3]))
        rows = base.poll_rows()
        best = max(best, rows.rewards[0])
    assert best == (1 if clip else 10)
    base.stop()


@BOTH_WAYS
def test_options_of_the_game(native):
    base = base_env(
        PONG, 1, native_vector=native, full_action_space=True, repeat_action_probability=0.0, fire_reset=False
    )
    assert base.action_space == spaces.Discrete(18)
    base.stop()


@pytest.mark.parametrize("single", [{"render_mode": "rgb_array"}, {"difficulty": 1}, {"mode": 0}])
def test_what_only_single_environments_can_do(single):
    base = base_env(PONG, 2, **single)
    assert not isinstance(base, NativeVectorEnv)
    base.reset_rows(np.arange(2))
    if "render_mode" in single:
        assert base.try_render(1).shape == (210, 160, 3)
    base.stop()


@pytest.mark.parametrize("call", ["__call__", "make_vector"])
def test_wrong_settings(call):
    def make(**env_config):
        arguments = (EnvContext(env_config),) if call == "__call__" else (EnvContext(env_config), 2)
        return getattr(env_creator(PONG), call)(*arguments)

    refused(
        ConfigError,
        lambda: make(frameskip=4),
        says="unknown key...ALE/Pong-v5...'frameskip'...did you mean 'frame_skip'",
    )
    refused(
        ConfigError,
        lambda: make(frame_skip=0),
        says="wrong value...'frame_skip'...got:      0...greater than or equal to 1",
    )
    refused(ConfigError, lambda: make(grayscale="yes"), says="wrong value...'grayscale'...yes...boolean")


def test_unknown_game():
    refused(ConfigError, env_creator, "ALE/Pongg-v5", says="unknown environment...'ALE/Pong-v5'")


def test_without_ale_py(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    refused(ConfigError, env_creator, PONG, says="Atari is not installed...ALE/...pip install 'rollax[atari]'")
