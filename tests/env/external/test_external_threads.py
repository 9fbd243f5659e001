"""Threads of external environments: how they wait, and everything that ends a wait."""

import threading
import traceback
from types import SimpleNamespace

import numpy as np
import pytest

from rollax import EnvError, EnvStoppedError, to_base_env
from rollax.env.external import external_base_env
from rollax.env.external import queue as external_queue
from rollax.env.external.episodes import ExternalEpisodes
from tests.env.external.worlds import Scripted, answer, in_threads, playing, seen
from tests.env.refused import raised, refused
from tests.env.worlds import ACTION_SPACE, OBS_SPACE
from tests.waiting import LONG, until


class TestStopping:
    @pytest.mark.parametrize("polled", [True, False])
    def test_ends_every_get_action(self, polled):
        outcomes = []

        def script(env):
            def play(n):
                episode = env.start_episode(n)
                with pytest.raises(EnvStoppedError, match=r"was stopped(?s:.)*return when EnvStoppedError"):
                    env.get_action(episode, seen(n))
                outcomes.append(n)

            in_threads(8, play)

        with playing(script) as base:
            base.reset_rows(np.arange(1))
            queue = base.env._external_episodes.queue
            until(lambda: len(queue.waiting) == 8)
            if polled:
                assert len(base.poll_rows()) == 8
            base.stop()
            assert sorted(outcomes) == list(range(8))
            assert not base._thread.is_alive()
            assert base.env.stopped
            refused(EnvStoppedError, base.env.start_episode, says="was stopped")
            refused(EnvStoppedError, base.env.get_action, 9, seen(1), says="was stopped")
            refused(EnvStoppedError, base.env.log_returns, 0, 1.0, says="was stopped")
            refused(EnvStoppedError, base.env.end_episode, 0, seen(1), says="was stopped")
            refused(EnvStoppedError, base.poll_rows, says="was stopped")
            base.stop()

    def test_ends_a_poll_in_another_thread(self):
        base = to_base_env(Scripted(lambda env: env.end.wait()))
        base.env.end = threading.Event()
        base.env.close = base.env.end.set
        raised = []

        def poll():
            try:
                base.poll_rows()
            except EnvStoppedError as error:
                raised.append(error)

        thread = threading.Thread(target=poll)
        thread.start()
        until(lambda: base.env._external_episodes.queue._awaited)
        base.stop()
        thread.join(LONG)
        assert len(raised) == 1
        assert not base._thread.is_alive()

    def test_answers_after_a_stop_are_dropped(self):
        base = to_base_env(Scripted(lambda env: env.get_action(env.start_episode(), seen(1))))
        rows = base.poll_rows()
        base.stop()
        answer(base, rows)

    def test_an_answer_to_a_call_that_has_not_noticed_the_stop_is_dropped(self):
        queue = external_queue.EventQueue("env", 5.0)
        request = external_queue.ActionRequest(1, 1)
        queue.waiting.add(request)
        queue.stop()
        queue.answer([external_queue.Trajectory("agent0", request=request)], [0])
        refused(EnvStoppedError, queue.wait, request, says="was stopped")

    def test_a_run_that_does_not_end_is_logged(self, monkeypatch, caplog):
        monkeypatch.setattr(external_base_env, "_SECONDS_TO_STOP", 0.05)
        release = threading.Event()
        base = to_base_env(Scripted(lambda env: release.wait()))
        base.reset_rows(np.arange(1))
        base.stop()
        assert "run() is still running" in caplog.text
        release.set()
        base._thread.join(LONG)
        assert not base._thread.is_alive()

    def test_run_can_stop_its_environment(self):
        done = threading.Event()

        def script(env):
            env.base.stop()
            done.set()

        base = to_base_env(Scripted(script))
        base.env.base = base
        raised(EnvStoppedError, base.poll_rows)
        base._thread.join(LONG)
        assert done.is_set()


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no message")


def raises(error: BaseException) -> None:
    raise error


class TestErrorsOfRun:
    def fails(self, env):
        raise ValueError("the simulator broke")

    def test_every_poll_raises_them_with_their_traceback(self):
        with playing(self.fails) as base:
            for _ in range(2):
                error = refused(EnvError, base.poll_rows, says="raised ValueError in run(): the simulator broke")
                assert isinstance(error.__cause__, ValueError)
                assert "in fails" in "".join(traceback.format_exception(error))

    def test_a_waiting_poll_raises_them(self):
        def script(env):
            until(lambda: env._external_episodes.queue._awaited)
            self.fails(env)

        with playing(script) as base:
            refused(EnvError, base.poll_rows, says="the simulator broke")

    @pytest.mark.parametrize(
        ("run", "kind", "message"),
        [
            (lambda env: raises(MuteError()), MuteError, ""),
            (lambda env: raises(SystemExit(3)), SystemExit, ""),
            (lambda env: env.get_action("unknown", seen(1)), EnvError, ": Unknown episode"),
        ],
        ids=["without a message", "exit", "refused call"],
    )
    def test_of_any_kind_are_the_cause(self, run, kind, message):
        with playing(run) as base:
            error = refused(EnvError, base.poll_rows, says=f"raised {kind.__name__} in run(){message}")
            assert isinstance(error.__cause__, kind)


class Finished(Scripted):
    patience = 0.05


class TestTheEndOfRun:
    def test_is_an_error_once_all_events_are_polled(self):
        def script(env):
            episode = env.start_episode()
            env.log_action(episode, seen(1), 0)
            env.log_action(episode, seen(2), 0)
            env.end_episode(episode, seen(3))

        with playing(script, Finished) as base:
            assert [len(base.poll_rows()) for _ in range(3)] == [1, 1, 1]
            for _ in range(2):
                refused(EnvError, base.poll_rows, says="has finished...Finished...0.05 s...loop in run()")

    def test_other_threads_can_continue(self):
        """A player thread that outlives run() is served as long as its requests come within `patience`."""
        answers = []

        def script(env):
            def play(n):
                episode = env.start_episode()
                for step in range(50):
                    answers.append(env.get_action(episode, seen(step)))

            threading.Thread(target=in_threads, args=(1, play)).start()

        class Patient(Scripted):
            patience = LONG

        with playing(script, Patient) as base:
            for _ in range(50):
                answer(base, base.poll_rows())
            until(lambda: len(answers) == 50)
        assert answers == [step % 5 for step in range(50)]


class TestBackPressure:
    """The queue has room for three events, and a player logs ten."""

    @pytest.fixture
    def full(self, monkeypatch):
        """The base env while the player waits for room."""
        monkeypatch.setattr(external_queue, "MOST_QUEUED", 3)

        def script(env):
            env.logged, env.error = [], None
            episode = env.start_episode()
            try:
                for n in range(10):
                    env.log_action(episode, seen(n), 0)
                    env.logged.append(n)
            except EnvStoppedError as error:
                env.error = error

        with playing(script) as base:
            base.reset_rows(np.arange(1))
            until(lambda: base.env._external_episodes.queue._room._waiters)
            yield base

    def test_logging_waits_for_polls(self, full):
        assert full.env.logged == [0, 1, 2]
        assert [full.poll_rows().obs[0, 0] for _ in range(10)] == list(range(10))
        until(lambda: len(full.env.logged) == 10)

    def test_stopping_ends_the_wait(self, full):
        full.stop()
        assert isinstance(full.env.error, EnvStoppedError)


def episodes_of_a_sampler() -> ExternalEpisodes:
    """The episodes of an environment, without its thread."""
    return ExternalEpisodes("env", OBS_SPACE, ACTION_SPACE, None, 5.0)


class TestGathering:
    """Players that were just answered may request again at once: a poll waits a little for them."""

    def two_players(self):
        """Two episodes whose requests were answered."""
        episodes = episodes_of_a_sampler()
        players = [
            threading.Thread(target=episodes.request_actions, args=({n: {"agent0": seen(n)}},)) for n in range(2)
        ]
        for n in range(2):
            episodes.start(n, True)
            players[n].start()
        until(lambda: len(episodes.queue.waiting) == 2)
        trajectories = [event.trajectories[0] for event in episodes.queue.take()]
        episodes.queue.answer(trajectories, [0, 0])
        for player in players:
            player.join(LONG)
        return episodes, episodes.queue

    def test_a_poll_waits_for_all_of_them(self, monkeypatch):
        monkeypatch.setattr(external_queue, "_LONGEST_GATHERING", LONG)
        episodes, queue = self.two_players()
        queue._taken_at -= 2 * LONG  # as if the answers had taken long
        episodes.log(0, {"agent0": seen(0)}, {"agent0": 0})
        taken = []
        poll = threading.Thread(target=lambda: taken.extend(queue.take()))
        poll.start()
        until(lambda: queue._awaited == 2)
        episodes.log(1, {"agent0": seen(1)}, {"agent0": 0})
        poll.join(LONG)
        assert len(taken) == 2

    @pytest.mark.parametrize(("took", "waited"), [(0.0, 0.0), (0.002, 0.002), (1.0, 0.005)])
    def test_waits_no_longer_than_the_answers_took_and_at_most_5_ms(self, monkeypatch, took, waited):
        now, timeouts = [0.0], []
        monkeypatch.setattr(external_queue, "time", SimpleNamespace(perf_counter=lambda: now[0]))
        episodes, queue = self.two_players()
        monkeypatch.setattr(queue._arrived, "wait", timeouts.append)
        now[0] += took
        episodes.log(0, {"agent0": seen(0)}, {"agent0": 0})
        assert len(queue.take()) == 1
        assert timeouts == [pytest.approx(waited)]


def test_an_interrupted_player_does_not_affect_others():
    """Ctrl-C in a waiting thread: its request can still be answered, and stopping does not wait for it."""

    class Interrupted:
        def acquire(self):
            raise KeyboardInterrupt

        def release(self):
            released.append(self)

    released: list = []
    queue = external_queue.EventQueue("env", 5.0)
    requests = [external_queue.ActionRequest(1, 1) for _ in range(2)]
    for request in requests:
        request.lock = Interrupted()
        queue.waiting.add(request)
        raised(KeyboardInterrupt, queue.wait, request)
    queue.answer([external_queue.Trajectory("agent0", request=requests[0])], [0])
    assert len(released) == 1
    queue.stop()
    assert len(released) == 1
    assert not queue.waiting


@pytest.mark.long
def test_containers_do_not_grow():
    """After thousands of episodes every container is as large as after hundreds."""

    def script(env):
        n = 0
        while True:
            ids = [env.start_episode(), *(env.start_episode(n + i, training_enabled=i % 2 == 0) for i in range(15))]
            n += len(ids)
            env.log_returns(ids[0], 0.0, {"n": n})
            env.get_actions({})
            env.get_actions(dict.fromkeys(ids, seen(1)))
            env.log_action(ids[1], seen(3), 1)
            for episode in ids:
                env.log_returns(episode, 1.0, {"n": n})
                env.end_episode(episode, seen(4))

    with playing(script) as base:
        ended, sizes = 0, []
        for goal in (2_000, 8_000):
            while ended < goal:
                rows = base.poll_rows()
                if len(rows.ended_envs):
                    base.reset_rows(rows.ended_envs)
                ended += len(rows.ended_envs)
                answer(base, rows, 0)
            sizes.append(contents(base, set()))
        # The number of requests in flight varies; the bounded lists of known ids are full by then.
        assert sizes[1] <= sizes[0] + 200
        assert rows.env_index.max() < 64


def contents(value: object, known: set[int]) -> int:
    """The number of elements of all containers reachable from objects of the environments' modules."""
    if id(value) in known or isinstance(value, type | threading.Thread | np.ndarray):
        return 0
    known.add(id(value))
    if isinstance(value, dict):
        return len(value) + sum(contents(part, known) for part in [*value.values()])
    if isinstance(value, list | tuple | set | frozenset) or hasattr(value, "popleft"):
        return len(value) + sum(contents(part, known) for part in [*value])  # type: ignore[arg-type, misc]
    if type(value).__module__.startswith("rollax.env") or isinstance(value, Scripted):
        slots = getattr(type(value), "__slots__", ())
        attributes = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]
        return sum(contents(part, known) for part in attributes)
    return 0


class TestTwoThreadsOfOneEpisode:
    """A call of the second thread is refused until the call of the first has returned."""

    def test_refused_until_the_first_has_read_its_answer(self):
        """The sampler has answered, but the first thread has not read the answer yet."""
        episodes = episodes_of_a_sampler()
        episodes.start("mine", True)
        wait, answered, given, go_on = episodes.queue.wait, threading.Event(), [], threading.Event()

        def slowly(call):
            wait(call)
            answered.set()
            go_on.wait(LONG)

        episodes.queue.wait = slowly
        first = threading.Thread(target=lambda: given.append(episodes.request_actions({"mine": {"agent0": seen(1)}})))
        first.start()
        until(lambda: episodes.queue.waiting)
        (event,) = episodes.queue.take()
        episodes.queue.answer(event.trajectories, [3])
        assert answered.wait(LONG)
        for call in (episodes.request_actions, lambda asked: episodes.log("mine", asked["mine"], {"agent0": 0})):
            refused(EnvError, call, {"mine": {"agent0": seen(2)}}, says="still waits for an action...'mine'")
        go_on.set()
        first.join(LONG)
        assert given == [{"mine": {"agent0": 3}}]
        episodes.log("mine", {"agent0": seen(2)}, {"agent0": 0})

    def test_refused_while_a_log_waits_for_room(self, monkeypatch):
        monkeypatch.setattr(external_queue, "MOST_QUEUED", 1)
        episodes = episodes_of_a_sampler()
        episodes.start("mine", True)
        episodes.log("mine", {"agent0": seen(0)}, {"agent0": 0})
        second = threading.Thread(target=episodes.log, args=("mine", {"agent0": seen(1)}, {"agent0": 0}))
        second.start()
        until(lambda: episodes.queue._room._waiters)
        says = "Two threads play one episode...'mine', agent 'agent0'...log_action has returned"
        refused(EnvError, episodes.log, "mine", {"agent0": seen(2)}, {"agent0": 0}, says=says)
        episodes.queue.take()
        second.join(LONG)
        assert [event.values[0][0] for event in episodes.queue.take()] == [1]
