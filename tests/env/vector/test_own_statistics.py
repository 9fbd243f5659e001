"""The warning of wrappers that normalize observations by statistics of their own."""

from types import SimpleNamespace

import gymnasium as gym
import pytest
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit
from gymnasium.wrappers.vector import NormalizeObservation as NormalizeVector
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from rollax import check_env
from rollax.env.vector import warn_of_own_statistics


def cartpole():
    return gym.make("CartPole-v1", disable_env_checker=True)


def frozen(env):
    env.update_running_mean = False
    return env


def several(make=cartpole):
    return gym.vector.SyncVectorEnv([make, make])


@pytest.mark.parametrize(
    "make",
    [
        lambda: TimeLimit(NormalizeObservation(cartpole()), 5),
        lambda: RecordEpisodeStatistics(NormalizeVector(several())),
        lambda: several(lambda: NormalizeReward(NormalizeObservation(cartpole()))),
    ],
    ids=["single", "vector", "inside a vector"],
)
def test_check_env_finds_it(make):
    (finding,) = check_env(lambda: make(), max_steps=60).warnings
    assert finding.name == "own statistics"
    assert " has the wrapper NormalizeObservation, whose statistics are only in this copy" in finding.message
    assert "observation_filter='MeanStdFilter'" in finding.message


@pytest.mark.parametrize(
    "make",
    [
        lambda: NormalizeReward(cartpole()),
        lambda: frozen(NormalizeObservation(cartpole())),
        lambda: frozen(NormalizeVector(several())),
    ],
    ids=["rewards only", "frozen", "a frozen vector"],
)
def test_without_changing_statistics_there_is_none(make):
    assert not check_env(lambda: make(), max_steps=60).warnings


class VecEnvWrapper:
    """The part of Stable-Baselines3's wrappers that is read."""

    def __init__(self, venv, **attributes):
        self.venv = venv
        vars(self).update(attributes)


class VecNormalize(VecEnvWrapper):
    pass


VecEnvWrapper.__module__ = "stable_baselines3.common.vec_env.base_vec_env"
VecNormalize.__module__ = "stable_baselines3.common.vec_env.vec_normalize"


@pytest.mark.parametrize(("norm_obs", "training", "times"), [(True, True, 1), (False, True, 0), (True, False, 0)])
def test_of_stable_baselines3(norm_obs, training, times, caplog):
    env = VecEnvWrapper(VecNormalize(SimpleNamespace(), norm_obs=norm_obs, training=training))
    warn_of_own_statistics(SimpleNamespace(as_written=env), "CartPole-v1")
    assert caplog.text.count("has the wrapper VecNormalize") == times
