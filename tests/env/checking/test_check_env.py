"""`check_env`: it raises the errors that training would raise, and reports what training does not notice."""

import functools
import logging
import multiprocessing
import re
import threading
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv

from rollax import ConfigError, EnvError, ExternalEnv, ExternalMultiAgentEnv, MultiAgentEnv, check_env
from rollax.env.checking.random_play import RandomActions
from tests.env.drive import clock_trace, old_clock_trace
from tests.env.goal_worlds import LIMIT, Reach
from tests.env.kinds import KINDS
from tests.env.old_worlds import OldClock, OldVector
from tests.env.recording.films import Film
from tests.env.refused import refused
from tests.env.test_bad_output import FAULTS, faulty
from tests.env.worlds import (
    ACTION_SPACE,
    ALL,
    CLOCK_ID,
    OBS_SPACE,
    ArrayVector,
    Clock,
    Counting,
    DictParties,
    ListVector,
    Party,
)
from tests.env.wraps import WRAPS


def names(report) -> list[tuple[str, str]]:
    return [(finding.severity, finding.name) for finding in report.findings]


@pytest.mark.short(every=3)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_passes(kind):
    report = check_env(lambda context: KINDS[kind].make(2))
    found = [("note", "old interface")] if kind.startswith("old") else []
    if kind == "PettingZoo AEC":
        found = [("warning", "first reward")]  # there an agent may be rewarded before its first action
    assert names(report) == found
    assert report.num_envs == 2
    assert report.episodes >= 4
    assert report.steps >= report.episodes
    assert (report.observation_space, report.action_space) == (OBS_SPACE, ACTION_SPACE)
    one_agent = KINDS[kind].trace in (clock_trace, old_clock_trace)
    assert set(report.agents) == ({"agent0"} if one_agent else set("abcd"))


@pytest.mark.parametrize(
    ("env", "kind", "name"),
    [
        (CLOCK_ID, "gymnasium.Env", CLOCK_ID),
        (Clock, "gymnasium.Env", "Clock"),
        (Clock(), "gymnasium.Env", "Clock"),
        (lambda context: Clock(dict(context)), "gymnasium.Env", "Clock"),
        ("tests.env.worlds:Party", "rollax.MultiAgentEnv", "tests.env.worlds:Party"),
        (lambda: ListVector(3), "rollax.VectorEnv", "ListVector"),
        (ArrayVector(2), "rollax.VectorEnv", "ArrayVector"),
        (lambda: gym.vector.SyncVectorEnv([Clock] * 2), "gymnasium.VectorEnv", "SyncVectorEnv"),
        (DictParties(2), "rollax.BaseEnv", "DictParties"),
        (OldClock(), "the old Gym interface", "OldClock"),
        (lambda: OldVector(2), "the old Gym interface", "OldVector"),
    ],
)
def test_accepted_kinds(env, kind, name):
    report = check_env(env)
    assert (report.kind, report.name) == (kind, name)
    assert report.warnings == ()
    assert str(report).startswith(f"{name}: fit for training\n  kind:         {kind}\n")


def test_settings_reach_the_creator():
    seen = []

    def make(context):
        seen.append((dict(context), context.vector_index))
        return Clock()

    report = check_env(make, {"speed": 3}, num_envs=3, episodes=5)
    assert seen[:3] == [({"speed": 3}, index) for index in range(3)]
    assert report.num_envs == 3
    assert report.episodes >= 15


class Brief(gym.wrappers.TimeLimit):
    """Ends episodes early, and shows the number of steps in place of the observation."""

    def __init__(self, env, max_episode_steps):
        super().__init__(env, max_episode_steps)
        self.observation_space = spaces.Discrete(max_episode_steps + 1)

    def reset(self, **keywords):
        return 0, super().reset(**keywords)[1]

    def step(self, action):
        return self._elapsed_steps + 1, *super().step(action)[1:]


BRIEF = f"{__name__}:Brief"


class TestWrappers:
    @pytest.mark.parametrize("wrapper", [(Brief, {"max_episode_steps": 3}), [BRIEF, {"max_episode_steps": 3}]])
    def test_the_environment_is_checked_in_its_wrappers(self, wrapper):
        report = check_env("CartPole-v1", env_wrappers=[wrapper], episodes=1, num_envs=2)
        assert (report.observation_space, report.steps, report.findings) == (spaces.Discrete(4), 6, ())

    def test_goals_are_not_compared_because_hindsight_refuses_wrappers(self):
        report = check_env(SparseSteps, {"space": spaces.Discrete(2)}, env_wrappers=[lambda env: env], max_steps=30)
        assert ("warning", "goal rewards") not in names(report)

    def test_mistakes(self):
        for env, wrappers, says in (
            (Clock(), [Brief], "env_wrappers has no effect: an instance...in its wrappers"),
            (Clock, Brief, "env_wrappers is not a list of classes or functions"),
            (Clock, [f"{BRIEF}er"], "cannot be imported...define Briefer in"),
        ):
            refused(ConfigError, functools.partial(check_env, env, env_wrappers=wrappers), says=says)


class TestClosing:
    def test_made_environments_are_closed_and_given_ones_stay_open(self):
        before = Clock.open_count
        check_env(Clock)
        assert Clock.open_count == before
        check_env(Clock())
        assert Clock.open_count == before + 1

    def test_closed_after_an_error(self):
        before = Clock.open_count

        class Breaks(Clock):
            def step(self, action):
                raise ZeroDivisionError

        refused(EnvError, check_env, Breaks, says="ZeroDivisionError in step()...sub-environment 0...action ")
        assert Clock.open_count == before

    @pytest.mark.long
    def test_no_process_is_left(self):
        assert check_env(lambda: AsyncVectorEnv([Clock] * 2, context="spawn"), episodes=1).warnings == ()
        assert multiprocessing.active_children() == []


class Threaded:
    """Plays episodes of three steps from a thread of its own."""

    patience, obs, reward = 0.1, np.zeros(3, np.float32), 1.0

    def __init__(self, env_config=None):
        super().__init__(OBS_SPACE, ACTION_SPACE)

    def run(self):
        while not self.stopped:
            episode = self.start_episode()
            for _ in range(3):
                self.get_action(episode, self.obs)
                self.log_returns(episode, self.reward)
            self.end_episode(episode, self.obs)


class ThreadedOne(Threaded, ExternalEnv):
    """For one agent."""


class ThreadedAgents(Threaded, ExternalMultiAgentEnv):
    obs, reward = dict.fromkeys("xy", Threaded.obs), {"x": 1.0, "y": 0.0}


class TestExternal:
    @pytest.mark.parametrize("env", [ThreadedOne, ThreadedOne(), ThreadedAgents])
    def test_right(self, env):
        threads = threading.active_count()
        report = check_env(env)
        assert report.episodes == 2
        assert report.findings == ()
        assert report.kind == f"rollax.{'ExternalMultiAgentEnv' if env is ThreadedAgents else 'ExternalEnv'}"
        assert report.agents == (("x", "y") if env is ThreadedAgents else ("agent0",))
        assert threading.active_count() == threads

    def test_wrong(self):
        threads = threading.active_count()
        refused(EnvError, check_env, type("Bad", (ThreadedOne,), {"reward": np.nan}))
        assert threading.active_count() == threads


class TestPettingZoo:
    def test_parallel_and_aec(self):
        pettingzoo = pytest.importorskip("pettingzoo")
        report = check_env(lambda: pettingzoo.make("parallel", "classic/rps-v2"))
        assert (report.kind, report.name) == ("pettingzoo.ParallelEnv", "rps_v2")
        assert report.warnings == ()
        # An action that the mask forbids ends the game at once, with a reward of its own.
        report = check_env(lambda: pettingzoo.make("aec", "classic/tictactoe-v3"), episodes=20)
        assert (report.kind, report.agents) == ("pettingzoo.AECEnv", ("player_1", "player_2"))
        assert report.warnings == ()
        assert report.steps >= 5 * report.episodes


ERRORS = [fault for fault, (*_, kinds, _) in FAULTS.items() if "in turn" in kinds]


@pytest.mark.parametrize(("wrap", "fault"), [*(("in turn", f) for f in ERRORS), *((w, "NaN reward") for w in WRAPS)])
def test_errors_that_training_would_raise(wrap, fault):
    """In any copy, and in any kind of environment."""
    place, values, *_, space = FAULTS[fault]
    refused(EnvError, check_env, lambda: faulty(wrap, place, values[0], space=space))


class Endless(Counting):
    observation_space, length = spaces.Box(-1, 1, (2,), np.float32), 0

    def obs(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


def unseeded() -> float:
    return float(np.random.default_rng().random())


class UnseededReset(Clock):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=time.perf_counter_ns())


class UnseededStep(Clock):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, unseeded(), *rest


class UnseededAgent(Party):
    def step(self, actions):
        obs, rewards, *rest = super().step(actions)
        return obs, {agent: unseeded() for agent in rewards}, *rest


class UnseededPart(gym.Env):
    """Of its observations one part differs."""

    image, number = spaces.Box(0, 255, (30, 30), np.uint8), spaces.Box(0, 1, (1,))
    observation_space = spaces.Dict({"image": image, "more": spaces.Tuple([spaces.Discrete(2), number])})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return {"image": np.zeros((30, 30), np.uint8), "more": (1, np.array([unseeded()], np.float32))}, {}

    def step(self, action):
        return self.reset()[0], 0.0, True, False, {}


class BeginsAnew(Endless):
    """Its random stream begins anew in a reset without a seed."""

    def reset(self, *, seed=None, options=None):
        super().reset()
        self.np_random = np.random.default_rng(seed)
        return self.obs(), {}


class Fixed(Clock):
    """Every copy draws the same numbers."""

    def __init__(self, _: object = None, own: int = 3) -> None:
        super().__init__()
        self.own = np.random.default_rng(own)

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=int(self.own.integers(1000)))


class Numbered(Fixed):
    """Its seed is the number of the copy, as in RLlib, where resets have no seed."""

    def __init__(self, context):
        super().__init__(own=context.vector_index)


class InTurn(Endless):
    """The players begin in turn; nothing is random."""

    player, length = 0, 1

    def reset(self, *, seed=None, options=None):
        self.player = (self.player + 1) % 4
        return super().reset()

    def obs(self):
        return np.full(2, self.player / 4, np.float32)


class Shared(Endless):
    of_all = [0]

    def reset(self, *, seed=None, options=None):
        self.of_all[0] = 0
        return super().reset(seed=seed)

    def step(self, action):
        self.of_all[0] += 1
        return self.obs(), 0.5, self.of_all[0] % 20 == 0, False, {}


class RewardsFirst(MultiAgentEnv):
    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def reset(self, *, seed=None, options=None):
        return {"a": np.zeros(3, np.float32)}, {}

    def step(self, actions):
        obs = dict.fromkeys("ab", np.zeros(3, np.float32))
        return obs, dict.fromkeys("ab", 1.0), {ALL: len(actions) == 2}, {ALL: False}, {}


@pytest.mark.parametrize(
    ("env", "found", "says"),
    [
        (Endless, ["no end"], "within 30 steps"),
        (UnseededReset, ["not repeatable"], r"in its first observation: agent 'agent0' saw \[0. "),
        (UnseededReset(), ["not repeatable"], r"in its first observation: agent 'agent0' saw \[0. "),
        (UnseededStep, ["not repeatable"], "after 1 observations"),
        (UnseededPart, ["not repeatable"], r"saw \[0\.\d+\], key 'more', element 1 with reward None, then"),
        (UnseededAgent, ["not repeatable"], ""),
        (BeginsAnew, ["no end", "not repeatable"], "after a reset without a seed, in its first observation"),
        (Fixed, ["ignored seed"], ""),
        (Numbered, [], ""),
        (InTurn, [], ""),
        (Shared, ["shared state"], "a second copy changes what the first one does, after 20 observations"),
        (Shared(), [], ""),  # a single copy shares with no other
        (RewardsFirst, ["first reward"], ""),
    ],
)
def test_findings(env, found, says):
    report = check_env(env, max_steps=30)
    assert names(report) == [("warning", name) for name in found]
    assert re.search(says, str(report))
    assert report.episodes or report.steps == 2 * 30


class SparseSteps(Reach):
    """Its steps have no rewards, unlike its goals."""

    def step(self, action):
        obs, _, *ended, info = super().step(action)
        return obs, 0.0, *ended, info


class ReadsInfo(Reach):
    """Its rewards need an info dict, which recorded goals do not have."""

    def step(self, action):
        self.place, self.steps = self.place + 1, self.steps + 1
        return self._observation(), -1.0, False, self.steps == LIMIT, {"distance": 2.0}

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -float(info["distance"] > 1)


@pytest.mark.parametrize(
    ("env", "found"), [(Reach, []), (SparseSteps, ["goal rewards"]), (ReadsInfo, ["goal rewards"])]
)
def test_goal_rewards(env, found):
    report = check_env(env, {"space": spaces.Discrete(2)}, max_steps=30)
    assert names(report) == [("warning", name) for name in found]


def test_out_of_bounds_and_casts(caplog):
    class Odd(Clock):
        observation_space = spaces.Dict({"x": spaces.Box(-1, 1, (3,), np.float32), "n": spaces.Discrete(2)})

        def _obs(self, action):
            return {"x": np.array([0, 0.5, 2]), "n": 5}

    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # logged once in training, and reported by each check
            report = check_env(Odd)
            assert sorted(names(report)) == [("note", "cast"), *[("warning", "out of bounds")] * 2]
    assert caplog.text == ""
    (cast,) = (finding for finding in report.findings if finding.severity == "note")
    assert cast.message.startswith("Clock") or cast.message.startswith("Odd, sub-environment 0, reset(), key 'x'")
    assert "float64 are cast to float32." in cast.message
    assert "with 2 warnings\n" in str(report)


class TestPictures:
    def test_fine(self):
        assert check_env(Film).findings == ()
        assert check_env(Film, {"render_mode": "rgb_array"}).findings == ()
        assert check_env(Film({"render_mode": "rgb_array"})).findings == ()
        assert check_env("CartPole-v1").findings == ()

    def test_a_render_mode_without_frames(self):
        blind = {"render_mode": "rgb_array", "blind": True}
        for report in (check_env(Film, blind), check_env(Film(blind))):
            assert names(report) == [("warning", "no pictures")]
            assert "render() does not return an image: NoneType" in report.findings[0].message

    def test_render_raises(self):
        class RenderRaises(Film):
            def render(self):
                raise ZeroDivisionError("torn")

        for settings in ({}, {"render_mode": "rgb_array"}):
            report = check_env(RenderRaises, settings)
            assert names(report) == [("warning", "no pictures")]
            assert "ZeroDivisionError('torn')" in report.findings[0].message

    def test_a_render_mode_that_the_creator_ignores(self):
        assert names(check_env(lambda context: Film())) == [("note", "no pictures")]
        assert check_env(lambda: Film()).findings == ()


def test_the_same_seed_draws_the_same_actions():
    space = spaces.Dict({"b": spaces.Box(-1, 1, (2,)), "d": spaces.Discrete(100)})
    drawn = [[RandomActions(seed).draw(space, None, "") for _ in range(3)] for seed in (0, 0, 1)]
    assert repr(drawn[0]) == repr(drawn[1]) != repr(drawn[2])


class Limited(Counting):
    """Every episode ends after 25 steps, by the flag of the config."""

    observation_space, length = spaces.Box(0, 1, (1,)), 25

    def __init__(self, context):
        self.terminates = context["terminates"]

    def step(self, action):
        obs, reward, ends, _, info = super().step(action)
        return obs, reward, ends and self.terminates, ends and not self.terminates, info

    def obs(self):
        return self.np_random.random(1, np.float32)


def test_a_time_limit_that_terminates_is_suspected():
    assert names(check_env(Limited, {"terminates": True})) == [("warning", "time limit")]
    assert names(check_env(Limited, {"terminates": False})) == []
    assert names(check_env(Limited, {"terminates": True}, num_envs=1)) == []  # two episodes say too little
