"""Wrong calls of an external environment's players raise in their own threads, and training continues."""

import logging

import numpy as np
import pytest
from gymnasium import spaces

from rollax import EnvError, ExternalEnv, ExternalMultiAgentEnv, MultiAgentError, SpaceError
from tests.env.external.worlds import Scripted, ScriptedAgents, answer, playing, seen
from tests.env.refused import refused
from tests.env.worlds import ACTION_SPACE, OBS_SPACE
from tests.waiting import until

GOOD = seen(1), 1
NAN = np.array([np.nan, 0, 0], np.float32)


def check_beside_an_episode(check, kind=Scripted, *of_kind, good=GOOD):
    """Runs `check(env)`, whose calls are refused, while another episode is served.

    Args:
        check: makes the wrong calls, in the thread of `run()`.
        kind: class of the environment; its spaces follow.
        good: an observation and an action of these spaces.
    """

    def script(env):
        try:
            check(env)
        finally:
            env.checked = True

    with playing(script, kind, *of_kind) as base:
        base.env.checked = False
        agents = isinstance(base.env, ExternalMultiAgentEnv)
        base.env.start_episode("good")
        base.reset_rows(np.arange(1))
        until(lambda: base.env.checked)
        # No wrong value has reached the sampler.
        base.env.log_action("good", *({"a": part} if agents else part for part in good))
        while True:
            rows = base.poll_rows()
            assert np.isfinite(rows.rewards).all()
            if rows.given_actions:
                break
            answer(base, rows)


def beside_an_episode(kind=Scripted):
    """Makes a test of a function `check(env)`."""
    return lambda check: lambda: check_beside_an_episode(check, kind)


def running_episode(env, episode="mine"):
    """A running episode in which one action was taken."""
    env.start_episode(episode)
    env.log_action(episode, seen(1), 1)
    return episode


@pytest.mark.parametrize("early", [True, False], ids=["in its first episodes", "later"])
@pytest.mark.parametrize(
    ("obs", "says"),
    [
        (np.zeros(2, np.float32), "wrong shape...episode 'mine'...(2,)...(3,)"),
        (np.zeros((3, 1), np.float32), "wrong shape...(3, 1)"),
        (NAN, "NaN...episode 'mine'"),
        (np.array([0, np.inf, 0], np.float32), "contains NaN or infinity...episode 'mine'...inf"),
        (None, "wrong shape...None"),
        ([1.0, [2.0]], "shape"),
        (["a", "b", "c"], "dtype"),
    ],
)
@pytest.mark.parametrize("call", ["get_action", "get_actions", "log_action", "end_episode"])
def test_observations(call, obs, says, early):
    def check(env):
        if not early:
            for n in range(8):
                env.start_episode(n)
        running_episode(env)
        env.start_episode("beside")
        arguments = {"get_actions": ({"beside": seen(1), "mine": obs},), "log_action": ("mine", obs, 1)}
        refused(EnvError, getattr(env, call), *arguments.get(call, ("mine", obs)), says=says if early else "")
        # The refused call changed nothing.
        env.log_action("mine", seen(2), 1)
        env.log_action("beside", seen(2), 1)

    check_beside_an_episode(check)


KEYS = spaces.Dict({"a": spaces.Discrete(2)}), {"b": 1}, {"a": 1}, "wrong keys...'mine'...['b']...['a']"


@pytest.mark.parametrize(
    ("space", "bad", "good", "says", "before"),
    [(*KEYS, 0), (*KEYS, 8), (spaces.Discrete(2), 0.5, 1, "dtype...float64...int64", 0)],
    ids=["keys of the first episodes", "keys later", "a dtype of the first episodes"],
)
def test_observations_of_other_spaces(space, bad, good, says, before):
    def check(env):
        for n in range(before):
            env.start_episode(n)
        env.start_episode("mine")
        refused(EnvError, env.get_action, "mine", bad, says=says)

    check_beside_an_episode(check, Scripted, space, ACTION_SPACE, good=(good, 1))


def test_masks_without_a_valid_action():
    space = spaces.Dict({"action_mask": spaces.MultiBinary(5), "x": spaces.Discrete(2)})
    actions = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])
    good, bad = ({"action_mask": np.array(mask, np.int8), "x": 1} for mask in ([1, 0, 0, 1, 1], [1, 1, 0, 0, 0]))

    def check(env):
        env.start_episode("mine")
        refused(EnvError, env.get_action, "mine", bad, says="allows no action...episode 'mine'...no entry above 0")
        env.log_action("mine", good, (0, 1))
        env.end_episode("mine", bad)  # no action follows the last observation

    check_beside_an_episode(check, Scripted, space, actions, good=(good, (0, 1)))


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        ("1", "not a real number...'mine'...str"),
        (None, "The reward is not a real number"),
        ([1.0], "The reward is not a real number"),
        (1j, "The reward is not a real number"),
        (float("nan"), "The reward is NaN or infinite...'mine'...nan"),
        (np.float32(np.inf), "The reward is NaN or infinite...inf"),
    ],
)
def test_rewards(reward, says):
    def check(env):
        running_episode(env)
        refused(EnvError, env.log_returns, "mine", reward, says=says)

    check_beside_an_episode(check)


@beside_an_episode()
def test_infos_and_flags(env):
    running_episode(env)
    refused(EnvError, env.log_returns, "mine", 1.0, ["info"], says="info is not a dict...'mine'...list")
    refused(EnvError, env.end_episode, "mine", seen(1), 1, says="truncated flag...'mine'...int: 1...True or False")
    refused(EnvError, env.start_episode, "other", None, says="training_enabled flag...start_episode...None")
    env.end_episode("mine", seen(1), np.bool_(True))


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (spaces.Discrete(5), 5),
        (spaces.Discrete(5), 1.5),
        (spaces.Discrete(5), "1"),
        (spaces.Discrete(5), [1]),
        (spaces.Box(-1, 1, (2,)), [0.5]),
        (spaces.Box(-1, 1, (2,)), [0.5, np.nan]),
        (spaces.Box(-1, 1, (2,)), [0.5, 1.5]),
        (spaces.MultiDiscrete([2, 2]), [0.5, 1.0]),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": 1}),
    ],
)
def test_logged_actions(space, action):
    def check(env):
        env.start_episode("mine")
        refused(EnvError, env.log_action, "mine", seen(1), action, says="not in the action space...'mine'")

    check_beside_an_episode(check, Scripted, OBS_SPACE, space, good=(seen(1), space.sample()))


@beside_an_episode()
def test_unknown_episodes(env):
    for call, *arguments in (
        (env.get_action, "unknown", seen(1)),
        (env.get_actions, {"unknown": seen(1)}),
        (env.log_action, "unknown", seen(1), 1),
        (env.log_returns, "unknown", 1.0),
        (env.end_episode, "unknown", seen(1)),
    ):
        refused(EnvError, call, *arguments, says="Unknown episode...Scripted...unknown...start_episode first")


@beside_an_episode()
def test_ended_episodes(env):
    env.end_episode(running_episode(env), seen(2))
    refused(EnvError, env.get_action, "mine", seen(1), says="has ended...mine...start another")
    refused(EnvError, env.end_episode, "mine", seen(1), says="has ended")
    running_episode(env)  # the id is free again


@beside_an_episode()
def test_ids_that_are_running_or_not_hashable(env):
    running_episode(env)
    refused(EnvError, env.start_episode, "mine", says="already running...start_episode...mine")
    refused(EnvError, env.start_episode, ["mine"], says="episode id is not hashable...list")
    refused(EnvError, env.log_returns, {}, 1.0, says="episode id is not hashable...dict")
    env.log_action("mine", seen(2), 1)


@beside_an_episode()
def test_an_end_without_an_action_is_refused_and_the_episode_dropped(env):
    env.start_episode("mine")
    env.log_returns("mine", 0.0)
    refused(EnvError, env.end_episode, "mine", seen(1), says="without an action...dropped...'mine'")
    refused(EnvError, env.log_returns, "mine", 1.0, says="has ended")
    running_episode(env)


def test_a_second_call_while_one_waits():
    """Refused in the thread that makes it; the first call is answered as usual."""

    def script(env):
        env.start_episode("good")
        env.answer = env.get_action("good", seen(1))
        env.get_action("good", seen(3))

    with playing(script) as base:
        rows, env = base.poll_rows(), base.env
        for call, *arguments in ((env.get_action, seen(2)), (env.log_action, seen(2), 1), (env.end_episode, seen(2))):
            refused(EnvError, call, "good", *arguments, says="still waits for an action...'good', agent 'agent0'")
        env.log_returns("good", 2.0)  # belongs to the action that is awaited
        answer(base, rows)
        assert base.poll_rows().rewards.tolist() == [2.0]
        assert env.answer == 1


class TestSampler:
    def test_an_action_that_nothing_awaits(self):
        def script(env):
            env.get_action(env.start_episode(), seen(1))
            env.get_action(env.start_episode(), seen(1))

        with playing(script) as base:
            rows = base.poll_rows()
            answer(base, rows)
            refused(EnvError, base.send_rows, rows, None, np.array([1]), says="not waiting...slot 1")

    def test_actions_before_the_first_poll(self):
        with playing(lambda env: None) as base:
            refused(EnvError, base.send_actions, {0: {"agent0": 1}}, says="before the first observation")


class TestSpaces:
    def test_missing_and_unsupported_spaces(self):
        for bad in (None, "Box", spaces.Text(3), spaces.Dict({})):
            refused(SpaceError, ExternalEnv, bad, ACTION_SPACE, says="ExternalEnv.observation_space")
            refused(SpaceError, ExternalEnv, OBS_SPACE, bad, says="ExternalEnv.action_space")
        refused(SpaceError, ExternalMultiAgentEnv, None, spaces.Text(3), says="ExternalMultiAgentEnv.action_space")

    def test_out_of_bounds_warns_once(self, caplog):
        def script(env):
            env.start_episode("mine")
            for _ in range(3):
                env.log_action("mine", 9.0 * np.ones(2, np.float32), 1)

        with playing(script, Scripted, spaces.Box(-1, 1, (2,)), ACTION_SPACE) as base, caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert base.poll_rows().obs.tolist() == [[9.0, 9.0]]
        assert caplog.text.count("outside its space") == 1


def running_agents(env):
    """A running episode in which two agents have acted."""
    env.start_episode("mine")
    env.log_action("mine", BOTH, {"a": 1, "b": 1})


BOTH = {"a": seen(1), "b": seen(1)}
CALLS_FOR_AGENTS = [
    (EnvError, "get_action", ({"a": seen(1), "b": NAN},), "NaN...'mine', agent 'b'"),
    (EnvError, "log_returns", ({"a": 1.0, "b": "2"},), "not a real number...'mine'"),
    (EnvError, "log_returns", ({"a": 1.0}, {"a": 1}), "info is not a dict...'mine'"),
    (EnvError, "end_agents", ({"a": seen(1)}, 0), "truncated flag"),
    (EnvError, "end_agents", ({"a": NAN},), "NaN...agent 'a'"),
    (MultiAgentError, "get_action", (seen(1),), "obs is not a dict...'mine'...ndarray"),
    (MultiAgentError, "log_action", ({"a": seen(1)}, 1), "actions is not a dict"),
    (MultiAgentError, "log_returns", (1.0,), "rewards is not a dict...float: 1.0"),
    (MultiAgentError, "log_returns", ({}, [1]), "infos is not a dict"),
    (MultiAgentError, "end_episode", (None,), "obs is not a dict"),
    (MultiAgentError, "get_action", ({},), "observations are empty...'mine'...at least one agent"),
    (MultiAgentError, "log_action", (BOTH, {"a": 1}), "not of the same agents...['a']...['a', 'b']"),
    (MultiAgentError, "log_action", ({"a": seen(2)}, {"a": 1, "b": 1}), "not of the same agents"),
    (MultiAgentError, "end_agents", ({"c": seen(1)},), "not running...['c']...['a', 'b']"),
    (MultiAgentError, "log_returns", ({"a": 1.0, "c": 2.0},), "has never acted...'mine'...{'c': 2.0}...['a', 'b']"),
]


@beside_an_episode(ScriptedAgents)
def test_calls_for_several_agents(env):
    running_agents(env)
    for error, call, arguments, says in CALLS_FOR_AGENTS:
        refused(error, getattr(env, call), "mine", *arguments, says=says)
    refused(MultiAgentError, env.get_actions, {"mine": {}}, says="observations are empty")


@beside_an_episode(ScriptedAgents)
def test_agents_that_have_ended(env):
    running_agents(env)
    env.end_agents("mine", {"a": seen(2)})
    refused(MultiAgentError, env.end_agents, "mine", {"a": seen(1)}, says="not running...['a']...['b']")
    refused(MultiAgentError, env.log_returns, "mine", {"a": 1.0}, says="has ended...{'a': 1.0}")
    env.log_returns("mine", {"a": 0.0, "c": 0, "b": 1.0})
    env.log_action("mine", {"a": seen(3)}, {"a": 1})
    env.log_returns("mine", {"a": 1.0})


class Declares(ScriptedAgents):
    possible_agents = ("a", "b")


@beside_an_episode(Declares)
def test_undeclared_agents(env):
    running_agents(env)
    says = "not declared by the environment...'mine'...z...['a', 'b']"
    for call, *arguments in (
        (env.get_action, {"a": seen(1), "z": seen(1)}),
        (env.log_action, {"z": seen(1)}, {"z": 1}),
        (env.log_returns, {"z": 0.0}),
        (env.log_returns, {"a": 0.0}, {"z": {}}),
    ):
        refused(MultiAgentError, call, "mine", *arguments, says=says)
