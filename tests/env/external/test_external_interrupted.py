"""External environments and a sampler that is interrupted at any moment: every player still gets its actions."""

import queue
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from rollax import Callbacks, EnvStoppedError, RolloutWorker, open_dataset
from tests.env.external.test_external_sampling import NumberedPolicy, decisions, recorded_play, worker_of
from tests.env.external.worlds import Scripted, ScriptedAgents, in_threads, seen
from tests.interrupting import Interrupts
from tests.waiting import LONG

KINDS = pytest.mark.parametrize("agents", [None, "xyz"], ids=["one agent", "several agents"])


class Numbered(NumberedPolicy):
    """`NumberedPolicy`, also for sampling in the background."""

    acts_while_learning = True


@contextmanager
def sampled(env: Any, agents: str | None = None, **config: Any) -> Iterator[RolloutWorker]:
    """A worker that samples `env`; its polls raise instead of waiting for ever."""
    worker = worker_of(env, agents, Numbered, **config)
    watchdog = threading.Timer(10 * LONG, worker.env.interrupt, [True])
    watchdog.daemon = True
    watchdog.start()
    try:
        yield worker
    finally:
        watchdog.cancel()
        worker.stop()


def interrupted_at(lines: Callable[[int], int], agents: str | None, episodes: int) -> int:
    """Samples recorded play with an interrupt in every second call, and compares all that was sampled with the records.

    Args:
        lines: the number of the interrupt, from 0 -> the line before which it comes.
        agents: the agents of the environment; None for one.
        episodes: of each thread.
    Returns:
        The number of interrupts.
    """
    script, expected, played = recorded_play(agents, episodes)
    found: list[list] = []

    def sample() -> None:
        samples = worker.sample()
        for batch in [samples] if agents is None else samples.policy_batches.values():
            found.extend(decisions(batch))

    interrupts, count = Interrupts(), 0
    kind = Scripted if agents is None else ScriptedAgents
    with sampled(kind(script), agents, rollout_fragment_length=4) as worker:
        while not played.is_set():
            count += interrupts.at(lines(count), sample)
            sample()
    for row in found:
        wanted = expected.pop(tuple(row[0].tolist()))  # once
        assert [*row[1:5], row[6]] == [*wanted[1:5], wanted[6]], interrupts.place
        if wanted[5] is not None:
            np.testing.assert_array_equal(row[5], wanted[5])
    assert found
    return count


@pytest.mark.short("one agent")
@KINDS
def test_interrupts_at_some_lines(agents):
    assert interrupted_at(lambda number: 3 + 37 * number % 700, agents, episodes=60) > 50


@pytest.mark.long
@KINDS
def test_interrupts_at_many_lines(agents):
    assert interrupted_at(lambda _: random.randrange(700), agents, episodes=300) > 300


@pytest.mark.long
def test_interrupts_while_a_request_with_a_callback_is_answered():
    """At each line in turn; a callback may be called again only if the interrupt came before it had returned."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def script(env):
        for number in range(10**6):
            episode = env.start_episode()
            env.request_actions({episode: seen(number)}, answers.put)
            answer = answers.get(timeout=LONG)
            while episode not in answer:  # the last one again
                assert isinstance(answer, dict)
                answer = answers.get(timeout=LONG)
            env.log_returns(episode, 1.0)
            env.end_episode(episode, seen(number))

    interrupts, line = Interrupts("env/external"), 0
    with sampled(Scripted(script), rollout_fragment_length=1) as worker:
        worker.env.env.close = lambda: answers.put(EnvStoppedError("stopped", where="the test"))
        while interrupts.at(line, worker.sample):
            assert worker.sample().count == 1, interrupts.place
            line += 1
    assert line > 50


class Raises(Callbacks):
    """Raises in the third call of one method."""

    method = ""
    calls = 0

    def _count(self, method: str) -> None:
        Raises.calls += method == Raises.method
        if Raises.calls == 3:
            Raises.calls, Raises.method = 0, ""
            raise ZeroDivisionError("once")

    def on_episode_start(self, **_):
        self._count("on_episode_start")

    def on_episode_step(self, **_):
        self._count("on_episode_step")

    def on_episode_end(self, **_):
        self._count("on_episode_end")


@KINDS
@pytest.mark.parametrize("method", ["on_episode_start", "on_episode_step", "on_episode_end"])
@pytest.mark.parametrize("players", [1, 2])
@pytest.mark.parametrize("in_background", [False, True])
def test_callbacks_that_raise_once(agents, method, players, in_background, monkeypatch):
    ended = [0] * players
    monkeypatch.setattr(Raises, "method", method)
    config = {"rollout_fragment_length": 30, "callbacks": Raises, "sample_async": in_background}
    with sampled(in_episodes_of_seven(agents, players, ended), agents, **config) as worker:
        with pytest.raises(ZeroDivisionError, match="once"):
            worker.sample()
        before = list(ended)
        while not all(now > then for now, then in zip(ended, before, strict=True)):
            assert worker.sample().env_steps >= 30


class Ends(Callbacks):
    """Counts the episodes that callbacks get."""

    started = ended = 0

    def on_episode_start(self, **_):
        Ends.started += 1

    def on_episode_end(self, **_):
        Ends.ended += 1


def in_episodes_of_seven(agents: str | None, players: int, ended: list[int] | None = None) -> Any:
    """An external environment whose episodes have 7 steps, with a reward of 1 for each agent.

    Args:
        agents: the agents of the environment; None for one.
        players: the number of threads, with an episode each.
        ended: the numbers of episodes that each thread has ended.
    """
    ended = [0] * players if ended is None else ended
    obs: Any = seen(1) if agents is None else {agent: seen(1) for agent in agents}

    def script(env):
        def play(player: int) -> None:
            while True:
                episode = env.start_episode()
                for _ in range(7):
                    env.get_action(episode, obs)
                    env.log_returns(episode, 1.0 if agents is None else dict.fromkeys(agents, 1.0))
                env.end_episode(episode, obs)
                ended[player] += 1

        in_threads(players, play)

    return (Scripted if agents is None else ScriptedAgents)(script)


@KINDS
@pytest.mark.parametrize("in_background", [False, True])
def test_the_rest_of_an_episode_without_its_beginning_is_in_no_metrics(agents, in_background, monkeypatch):
    monkeypatch.setattr(Ends, "started", 0)
    monkeypatch.setattr(Ends, "ended", 0)
    config = {"rollout_fragment_length": 5, "callbacks": Ends, "sample_async": in_background}
    with sampled(in_episodes_of_seven(agents, players=2), agents, **config) as worker:
        whole = []
        for _ in range(4):
            worker.restart_episodes()
            steps = 0
            while steps < 30:
                for rollout in worker.sample_fragments():
                    steps += rollout.env_steps  # also of the rests
                    whole += rollout.episodes
    assert len(whole) > 4
    for episode in whole:
        assert (episode.length, episode.reward) == (7, 7.0 * len(agents or "x"))
        assert {reward for rewards in episode.policy_rewards.values() for reward in rewards} == {7.0}
    assert Ends.ended >= len(whole)
    assert Ends.started >= Ends.ended


@KINDS
def test_an_evaluation_of_an_external_environment_counts_whole_episodes_only(agents):
    with sampled(in_episodes_of_seven(agents, players=3), agents, rollout_fragment_length=10) as worker:
        for _ in range(3):
            worker.sample()
            assert [episode.length for episode in worker.evaluate(5)] == [7] * 5


def test_the_rest_of_an_episode_is_not_recorded(tmp_path):
    """Its return is not known."""
    config = {"rollout_fragment_length": 25, "output": str(tmp_path / "out")}
    with sampled(in_episodes_of_seven(None, players=2), **config) as worker:
        for _ in range(3):
            worker.sample()
            worker.restart_episodes()
    recorded = [one for one in open_dataset(tmp_path / "out").trajectories() if not one.cut]
    assert {len(one) for one in recorded} == {7}
