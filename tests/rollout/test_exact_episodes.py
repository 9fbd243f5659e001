"""Evaluations begin and end exactly as many episodes in the environment as they count, for each kind of environment."""

from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollax import EnvError, MultiAgentEnv, RolloutWorker, VectorEnv
from rollax.env.remote import remote_base_env
from rollax.env.remote.env_host import EnvHost
from rollax.processes.actors import LocalActors
from tests.env.refused import refused
from tests.env.worlds import ListVector
from tests.rollout.worlds import ACTION_SPACE, ALL, OBS_SPACE, Encode

STEPS = 3
OBS = np.zeros(4, np.float32)
Log = deque[tuple[str, int]]
"""A config copies lists, but not deques."""


class Items(gym.Env):
    """Each reset opens the next item of a data set, which takes three steps; the log has the start and end of each."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def __init__(self, context: Any) -> None:
        self.log: Log = context["log"]
        self.fails: deque[int] = context.get("fails", deque())
        self.item, self.step_of_item = -1, 0

    def reset(self, *, seed=None, options=None):
        self.item, self.step_of_item = self.item + 1, 0
        self.log.append(("start", self.item))
        return OBS, {}

    def step(self, action):
        if self.fails and self.fails.pop() == 1:
            raise RuntimeError("once")
        self.step_of_item += 1
        over = self.step_of_item == STEPS
        if over:
            self.log.append(("end", self.item))
        return OBS, 1.0, over, False, {}


class ItemsOfAgents(MultiAgentEnv):
    """The same with two agents, one of which ends earlier."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def __init__(self, context: Any) -> None:
        self.items = Items(context)

    def reset(self, *, seed=None, options=None):
        self.items.reset()
        return {"a": OBS, "b": OBS}, {}

    def step(self, actions):
        _, _, over, _, _ = self.items.step(None)
        ended = dict.fromkeys(actions, over) | ({"a": True} if "a" in actions else {})
        return dict.fromkeys(actions, OBS), dict.fromkeys(actions, 1.0), {**ended, ALL: over}, {ALL: False}, {}


def batched(context: Any, num_envs: int = 1) -> VectorEnv:
    """A user's vector environment."""
    return ListVector(num_envs, lambda: Items(context))


def native(mode: AutoresetMode) -> Callable[[Any], gym.vector.VectorEnv]:
    return lambda context: SyncVectorEnv([lambda: Items(context)], autoreset_mode=mode)


REMOTE = {"remote_worker_envs": True}
KINDS: dict[str, tuple[Any, dict[str, Any], tuple[int, ...]]] = {
    "copies": (Items, {}, (1, 3, 8)),
    "agents": (ItemsOfAgents, {}, (1, 3, 8)),
    "remote": (Items, REMOTE, (1, 3, 8)),
    "remote agents": (ItemsOfAgents, {**REMOTE, "remote_env_batch_wait_ms": 1e4}, (1, 3, 8)),
    "next step": (native(AutoresetMode.NEXT_STEP), {}, (1,)),
    "disabled": (native(AutoresetMode.DISABLED), {}, (1,)),
    "own vector": (batched, {}, (1,)),
}


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RolloutWorker]:
    """Makes workers whose remote sub-environments are in this process."""
    local = lambda copies, *_: LocalActors(lambda index, restarts: EnvHost(index, copies.make_one))  # noqa: E731
    monkeypatch.setattr(remote_base_env, "ray_envs", local)

    def made(env: Any, envs: int, log: Log, **config: Any) -> RolloutWorker:
        given = {"num_envs_per_worker": envs, "rollout_fragment_length": 5, "env_config": {"log": log}, **config}
        return RolloutWorker(env, Encode, config=given)

    return made


@pytest.mark.parametrize("repeat", [1, 2])
@pytest.mark.parametrize(
    ("env", "config", "envs"),
    [pytest.param(env, config, n, id=f"{name}, {n}") for name, (env, config, many) in KINDS.items() for n in many],
)
def test_as_many_episodes_begin_and_end_as_count(make, env, config, envs, repeat):
    log: Log = deque()
    worker = make(env, envs, log, action_repeat=repeat, **config)
    # With two agents the first step of a repetition counts too, because one of them ends in it.
    steps = STEPS if repeat == 1 or env is ItemsOfAgents else 2
    for count in (4, 1, 4):
        log.clear()
        assert [episode.length for episode in worker.evaluate(count)] == [steps] * count
        starts, ends = ([item for what, item in log if what == kind] for kind in ("start", "end"))
        assert len(ends) == count
        assert sorted(starts) == sorted(ends)
    worker.sample()  # from all sub-environments again
    starts = [item for what, item in log if what == "start"]
    assert len(starts) >= 4 + envs
    worker.stop()


def test_no_item_of_a_data_set_is_lost(make):
    log: Log = deque()
    worker = make(Items, 1, log)
    for count in (2, 1, 3):
        worker.evaluate(count)
    assert list(log) == [(what, item) for item in range(6) for what in ("start", "end")]


def test_an_environment_that_steps_all_of_its_copies_resets_none_after_the_last_episode(make):
    log: Log = deque()
    make(lambda context: batched(context, 3), 1, log).evaluate(4)
    # All three copies step until the last episode has ended, the first copy's second one.
    assert log.count(("start", 0)) == log.count(("end", 0)) == 3
    assert log.count(("start", 1)) == log.count(("end", 1)) == 3
    assert len(log) == 12


@pytest.mark.parametrize("env", [Items, ItemsOfAgents])
def test_a_lost_episode_begins_again(make, env):
    log: Log = deque()
    config = {"restart_failed_sub_environments": True, "env_config": {"log": log, "fails": deque([0, 0, 1, 0, 0])}}
    assert len(make(env, 3, log, **config).evaluate(2)) == 2
    starts, ends = (sum(what == kind for what, _ in log) for kind in ("start", "end"))
    assert (starts, ends) == (3, 2)


@pytest.mark.parametrize("env", [Items, ItemsOfAgents])
def test_all_sub_environments_play_on_after_an_evaluation_that_fails(make, env):
    log: Log = deque()
    worker = make(env, 3, log, env_config={"log": log, "fails": deque([0, 1, 0])})
    refused(EnvError, worker.evaluate, 1, says="once")
    assert list(log) == [("start", 0)]
    log.clear()
    worker.sample()
    assert sum(what == "start" for what, _ in log) >= 3
