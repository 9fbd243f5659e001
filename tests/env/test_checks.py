import gymnasium as gym
import pytest
from gymnasium import spaces

from rollax import EnvError, to_base_env
from rollax.env.checks import ObservationChecks, warn_once
from tests.env.refused import play, refused


def test_first_episodes():
    watched = ObservationChecks(3)
    watched.polled([])
    watched.polled([1])
    assert watched.first_episodes == {0, 2}
    watched.polled([1, 2])
    for _ in range(ObservationChecks.MOST_POLLS - 4):
        watched.polled([])
    assert watched.first_episodes == {0}
    watched.polled([])
    assert watched.first_episodes == set()


def test_logs_once_for_each_subject(caplog):
    for subject in ("a", "b", "a"):
        warn_once("topic", subject, f"said of {subject}")
    assert [record.getMessage() for record in caplog.records] == ["said of a", "said of b"]


class Unreadable:
    """A value of another library with neither number nor text, as a tensor that NumPy cannot read."""

    def __array__(self, *args, **kwargs):
        raise RuntimeError("no array")

    def __repr__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize("place", ["reward", "flag", "observation", "observation of a Dict"])
@pytest.mark.parametrize("copies", [1, 2])
def test_values_that_cannot_be_read_are_named_errors(place, copies):
    bad, box = Unreadable(), spaces.Box(-1, 1, (1,))

    class Returning(gym.Env):
        observation_space = spaces.Dict({"a": box}) if "Dict" in place else box
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return self.observation_space.sample(), {}

        def step(self, action):
            obs = {"a": bad} if "Dict" in place else bad if place == "observation" else self.observation_space.sample()
            return obs, bad if place == "reward" else 1.0, bad if place == "flag" else False, False, {}

    base = to_base_env(Returning(), lambda index: Returning(), copies)
    refused(EnvError, play, base, 2, says="sub-environment 0...key 'a'" if "Dict" in place else "sub-environment 0")
