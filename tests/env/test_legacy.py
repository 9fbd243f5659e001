"""Variants of the old interface; the contract tests check its episodes."""

from typing import Any

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rollax import EnvError, MultiAgentEnv, VectorEnv, to_base_env, to_pettingzoo
from rollax.env.adapters import is_legacy
from tests.env.drive import clock_trace, drive
from tests.env.old_worlds import OldClock, OldParty, OldVector
from tests.env.refused import play, refused
from tests.env.worlds import ACTION_SPACE, ALL, OBS_SPACE, ArrayVector, Clock, ListVector, Party

OBS = np.zeros(3, np.float32)
BOTH = {"a": True, "b": True, ALL: False}


@pytest.mark.parametrize("old", [OldClock(), OldVector(2), OldParty()])
def test_warns_once_for_each_class(old, caplog):
    to_base_env(old)
    to_base_env(old)
    assert caplog.text.count(f"{type(old).__name__} has the old Gym interface") == 1
    assert "terminated unless info['TimeLimit.truncated'] is set" in caplog.text


class WithAnyArguments(gym.Wrapper):
    def reset(self, **kwargs):
        return self.env.reset(**kwargs)


@pytest.mark.parametrize(
    "new",
    [Clock(), Party(), gym.make("CartPole-v1"), ListVector(2), ArrayVector(2), WithAnyArguments(Clock())],
    ids=lambda env: type(env).__name__,
)
def test_the_current_interface_is_not_adapted(new):
    assert not is_legacy(new)


class LikeGymnax:
    """Methods of a key and of parameters; the base class of gymnax, by which its environments are recognized, lacks."""

    def observation_space(self, params):
        return OBS_SPACE

    def reset(self, key, params=None):
        return OBS, 0

    def step(self, key, state, action, params=None):
        return OBS, 0, 0.0, True, {}


def test_a_reset_with_arguments():
    says = "reset requires arguments...LikeGymnax...got:      reset(key, params)...subclass rollax.JaxEnv"
    refused(EnvError, to_base_env, LikeGymnax(), says=says)


class OldMethods(Clock):
    """A `gymnasium.Env` with the methods of the old interface."""

    def reset(self):  # type: ignore[override]
        return super().reset()[0]

    def step(self, action):  # type: ignore[override]
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class WithoutSeed(Clock):
    """The current interface without the seed."""

    def reset(self):  # type: ignore[override]
        return super().reset()


class InBetween(Clock):
    """The interface between the two: a seed, and infos at a reset only on request."""

    def reset(self, *, seed=None, return_info=False, options=None):  # type: ignore[override]
        obs, info = super().reset(seed=seed)
        return (obs, info) if return_info else obs


class SeedOnly(Clock):
    """Today's interface but for the options, as Stable-Baselines3 accepts it."""

    def reset(self, seed=None):  # type: ignore[override]
        return super().reset(seed=seed)


@pytest.mark.parametrize("cls", [OldMethods, WithoutSeed, InBetween, SeedOnly])
def test_the_interface_in_between(cls, caplog):
    """A seed is passed where `reset` takes one; elsewhere a warning shows how to take it."""
    base = to_base_env(cls(), lambda index: cls(), 2)
    assert len(play(base, 20)) >= 2
    assert [type(env) for env in base.get_sub_environments()] == [cls, cls]
    if cls in (InBetween, SeedOnly):
        traces = drive(base, "rows", 10, [7, 8])[0], clock_trace(7, 8)
        got, expected = ([[event.obs for event in moment.events] for moment in trace[:8]] for trace in traces)
        assert got == expected
    else:
        assert "reset(self, *, seed=None, options=None)" in caplog.text


class Cut(OldClock):
    """A time limit ends each episode; `seed` is a number, not a method."""

    seed = 3  # type: ignore[assignment]
    flag: Any = True

    def step(self, action):
        obs, reward, _, _ = super().step(action)
        return obs, reward, self.flag, {"TimeLimit.truncated": True}


@pytest.mark.parametrize("flag", [True, np.bool_(True), np.array(True), jnp.array(True)], ids=str)
def test_a_time_limit_truncates_whatever_the_type_of_done(flag):
    env = Cut()
    env.flag = flag
    base = to_base_env(env)
    base.send_rows(base.reset_rows(np.arange(1), [7]), None, np.array([0]))
    rows = base.poll_rows()
    assert (rows.terminateds.tolist(), rows.truncateds.tolist()) == ([False], [True])


class Pair(OldClock):
    """Its observations are a number and a dict, which look like `(obs, info)`."""

    observation_space = spaces.Tuple([spaces.Discrete(2), spaces.Dict({"a": spaces.Discrete(2)})])

    def reset(self):
        return 1, {"a": 0}


class NewPair(Pair):
    def reset(self):
        return super().reset(), {"b": 0}


@pytest.mark.parametrize(("cls", "info"), [(Pair, {}), (NewPair, {"b": 0})])
def test_a_dict_in_an_observation_is_not_an_info(cls, info):
    rows = to_base_env(cls()).reset_rows(np.arange(1))
    assert (rows.obs[0].tolist(), rows.obs[1]["a"].tolist(), rows.info_list()) == ([1], [0], [info])


class Parts(MultiAgentEnv):
    """An old multi-agent environment of one step; `infos` give the reason for the end."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def __init__(self, dones, infos) -> None:
        self.dones, self.infos = dones, infos

    def reset(self):  # type: ignore[override]
        return {"a": OBS, "b": OBS}

    def step(self, actions):  # type: ignore[override]
        return {"a": OBS, "b": OBS}, {"a": 1.0, "b": 1.0}, self.dones, self.infos


@pytest.mark.parametrize(
    ("dones", "infos", "terminateds", "truncateds"),
    [
        ({ALL: True}, {}, [True, True], [False, False]),
        ({ALL: True}, {"a": {"TimeLimit.truncated": True}}, [False, False], [True, True]),
        ({"a": True, ALL: False}, {"a": {"TimeLimit.truncated": True}}, [False, False], [True, False]),
        (BOTH, {"a": {"TimeLimit.truncated": False}, "b": {"TimeLimit.truncated": True}}, [True, False], [False, True]),
        (BOTH, {"b": {"TimeLimit.truncated": True}}, [False, False], [True, True]),
    ],
)
def test_time_limits_of_many_agents(dones, infos, terminateds, truncateds):
    base = to_base_env(Parts(dones, infos))
    base.send_rows(base.reset_rows(np.arange(1)), None, np.zeros(2, np.int64))
    rows = base.poll_rows()
    assert (rows.terminateds.tolist(), rows.truncateds.tolist()) == (terminateds, truncateds)


class OldPair(MultiAgentEnv):
    """Two agents with spaces of their own, in the old interface."""

    possible_agents = ("a", "b")
    observation_spaces = {"a": OBS_SPACE, "b": spaces.Discrete(2)}
    action_spaces = {"a": ACTION_SPACE, "b": spaces.Discrete(3)}

    def reset(self):  # type: ignore[override]
        return {"a": OBS, "b": 1}

    def step(self, actions):  # type: ignore[override]
        return self.reset(), {"a": 1.0, "b": 2.0}, {ALL: True}, {}


def test_spaces_by_agent():
    base = to_base_env(OldPair())
    assert base.observation_spaces == OldPair.observation_spaces
    assert base.action_spaces == OldPair.action_spaces


def test_agent_groups():
    env = OldPair().with_agent_groups({"team": ["a", "b"]})
    assert env.reset()[0]["team"][1] == 1
    _, rewards, terminateds, _, _ = env.step({"team": (0, 0)})
    assert (rewards["team"], terminateds[ALL]) == (3.0, True)


def test_export_to_pettingzoo():
    env = to_pettingzoo(OldPair())
    assert env.metadata["name"] == "OldPair"
    assert env.reset()[0]["b"] == 1
    assert env.step({"a": 0, "b": 0})[1:3] == ({"a": 1.0, "b": 2.0}, {"a": True, "b": True})


class NoInfos(OldVector):
    def vector_step(self, actions):
        return *super().vector_step(actions)[:3], None


class Returns(OldClock):
    def __init__(self, result) -> None:
        super().__init__()
        self.result = result

    def step(self, action):
        return self.result


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (Parts({"a": False}, {}), "terminateds has no '__all__'...Parts, sub-environment 0"),
        (Parts({ALL: False}, None), "infos is not a dict...Parts, sub-environment 0"),
        (Parts(False, {}), "terminateds is not a dict...Parts, sub-environment 0"),
        (NoInfos(2), "The number of infos is wrong...NoInfos...got:      NoneType"),
        *[
            (Returns(result), "neither four nor five values...Returns")
            for result in ((OBS, 1.0, False), None, (1, 2, 3, 4, 5, 6))
        ],
    ],
)
def test_wrong_results(env, says):
    """Refused as those of the current interface, and not as an error of the adapter."""
    refused(EnvError, play, to_base_env(env), 1, says=says)


def test_rendering():
    class Drawn(OldClock):
        def render(self, mode="human"):
            return mode

    class Plain(OldClock):
        def render(self):
            return "frame"

    assert [to_base_env(cls()).try_render() for cls in (Drawn, Plain, OldClock)] == ["rgb_array", "frame", None]


def test_a_vector_env_that_returns_infos_at_resets_but_takes_no_seeds():
    class Unseeded(ListVector):
        def vector_reset(self):  # type: ignore[override]
            return VectorEnv.vector_reset(self)

    base = to_base_env(Unseeded(2))
    assert len(play(base, 20)) >= 2
    assert {"count", "begins"} <= base.reset_rows(np.arange(2)).info_list()[1].keys()
