"""`AsyncSamplesOptimizer` with stand-ins: no samples are lost, queues are bounded, and the learner thread."""

import threading
import time

import pytest

from rollax import AsyncSamplesOptimizer
from rollax.errors import ConfigError, WorkerError
from rollax.processes.failure_rules import FailureRules
from tests.optimizers.stand_ins import STEPS, FragmentWorker, learner_threads, policy_of, pool_of, steps
from tests.waiting import LONG, until


@pytest.fixture
def make():
    """Makes optimizers with so many workers, and stops them at the end."""
    made = []

    def make_one(count=2, rules=None, *, seed=0, fails=None, **settings):
        workers, processes = pool_of(count, rules, seed=seed, fails=fails)
        made.append(AsyncSamplesOptimizer(FragmentWorker(), workers, {"train_batch_size": STEPS, **settings}))
        return made[-1], processes

    yield make_one
    for optimizer in made:
        optimizer.stop()
    assert not learner_threads()


def numbers_by_worker(fragments):
    found = {}
    for number, _ in fragments:
        found.setdefault(number // 1000, []).append(number % 1000)
    return found


class TestSamples:
    @pytest.mark.parametrize("train_batch_size", [10, 25, 40])
    @pytest.mark.parametrize("all_come_at_once", [False, True])
    def test_every_fragment_is_learned_from_once(self, make, train_batch_size, all_come_at_once):
        optimizer, processes = make(3, train_batch_size=train_batch_size)
        if all_come_at_once:
            processes.wait = lambda references, count, timeout_s: references
        for _ in range(20):
            before = optimizer.env_steps
            optimizer.step()
            assert optimizer.env_steps > before
        learned = [fragment for batch in policy_of(optimizer).learned for fragment in batch]
        per_batch = -(-train_batch_size // STEPS)
        assert {len(batch) for batch in policy_of(optimizer).learned} == {per_batch}
        for numbers in numbers_by_worker(learned).values():
            assert numbers == list(range(1, len(numbers) + 1))
        assert optimizer.env_steps == optimizer.agent_steps == STEPS * len(learned)
        # The rest waits: four batches in the queue, one for a place in it, an incomplete batch, and six in flight.
        assert processes.fragments - len(learned) <= 4 * per_batch + per_batch + (per_batch - 1 + 6) + 2 * 3

    def test_a_restarted_worker_gets_the_requests_of_the_failed_one(self, make):
        optimizer, _ = make(2, fails={(2, 3): ValueError("no oil")})
        while not optimizer.remote.failures.restarts:
            optimizer.step()
        steps(optimizer, 20)
        learned = numbers_by_worker(fragment for batch in policy_of(optimizer).learned for fragment in batch)
        assert learned[2][:4] == [1, 2, 101, 102]
        assert learned[1] == list(range(1, len(learned[1]) + 1))

    def test_failure_of_the_last_worker_ends_the_run(self, make):
        rules = FailureRules(ignore=True)
        error = ValueError("no oil")
        optimizer, _ = make(1, rules, fails={(1, 3): error})
        with pytest.raises(WorkerError, match="No rollout worker is left") as raised:
            steps(optimizer, 10)
        assert raised.value.__cause__ is error
        assert optimizer.env_steps <= 2 * STEPS
        with pytest.raises(WorkerError, match="No rollout worker is left"):
            optimizer.step()

    def test_sampling_waits_while_the_queue_is_full(self, make):
        optimizer, processes = make(1, learner_queue_size=2)
        resume = threading.Event()
        policy_of(optimizer).before = lambda updates: resume.wait(LONG)
        stepping = threading.Thread(target=optimizer.step)
        stepping.start()
        # One is in the current update, two are in the queue, one waits for a place in it, and two are in flight.
        until(lambda: processes.fragments == 6)
        stepping.join(0.3)
        assert stepping.is_alive()
        assert processes.fragments == 6
        resume.set()
        stepping.join(LONG)
        assert not stepping.is_alive()
        _, queue = optimizer.timings.take()
        assert 0 < queue["queue_depth_mean"] <= 2


class TestWeights:
    def test_lag_is_the_number_of_updates_since_a_fragments_weights(self, make):
        optimizer, _ = make(3, learner_queue_size=2)
        for _ in range(10):
            done = policy_of(optimizer).updates
            optimizer.step()
            batches = policy_of(optimizer).learned[done:]
            lags = [done + later - acted for later, batch in enumerate(batches) for _, acted in batch]
            assert all(lag >= 0 for lag in lags)
            _, queue = optimizer.timings.take()
            assert queue["policy_lag_mean"] == pytest.approx(sum(lags) / len(lags))
            assert queue["policy_lag_max"] == max(lags)

    def test_lag_is_bounded_by_samples_in_flight(self, make):
        optimizer, _ = make(1, learner_queue_size=1, max_requests_in_flight_per_worker=1)
        steps(optimizer, 30)
        _, queue = optimizer.timings.take()
        # One in flight, one in the current update, one in the queue, and one that waits for a place in it.
        assert 0 < queue["policy_lag_max"] <= 4

    def test_workers_act_with_the_newest_weights(self, make):
        optimizer, processes = make(2)
        steps(optimizer, 20)
        versions = [update.version for update in processes.published]
        assert versions[0] == 1
        assert versions == sorted(set(versions))
        assert [update.weights["a"]["updates"] for update in processes.published] == [n - 1 for n in versions]
        assert max(acted for batch in policy_of(optimizer).learned for _, acted in batch) > 5

    def test_no_weights_wait_for_the_next_step(self, make):
        """The caller may set other weights before it, which must not be followed by older ones."""
        optimizer, processes = make(2)
        for _ in range(20):
            optimizer.step()
            assert processes.published[-1].version == optimizer.version

    def test_weights_are_broadcast_at_the_set_interval(self, make):
        optimizer, processes = make(2, broadcast_interval=3)
        steps(optimizer, 30)
        first, *later = [update.version for update in processes.published]
        assert first == 1
        assert len(later) > 3
        assert all(version % 3 == 0 for version in later)


class TestLearner:
    def test_errors_are_raised_without_new_samples(self, make):
        optimizer, _ = make(1)
        collect, collects, deadline = optimizer.remote.collect, [], time.monotonic() + LONG

        def once(timeout_s):
            collects.append(timeout_s)
            assert time.monotonic() < deadline
            if len(collects) == 1:
                return collect(timeout_s)
            time.sleep(1e-3)
            return []

        def fail(updates):
            until(lambda: len(collects) > 5)  # the learner has all samples, and no more arrive
            raise ZeroDivisionError("the loss")

        optimizer.remote.collect = once
        policy_of(optimizer).before = fail
        with pytest.raises(ZeroDivisionError):
            optimizer.step()

    def test_learner_pauses_between_two_steps(self, make):
        optimizer, _ = make(2, learner_queue_size=3)
        full = threading.Event()
        policy_of(optimizer).before = lambda updates: full.wait(LONG)
        stepping = threading.Thread(target=optimizer.step)
        stepping.start()
        until(lambda: len(optimizer._learner) == 3)
        full.set()
        stepping.join(LONG)
        done = policy_of(optimizer).updates
        assert len(optimizer._learner) > 0
        assert done < 5
        time.sleep(0.2)
        assert policy_of(optimizer).updates == done
        optimizer.step()
        assert policy_of(optimizer).updates > done

    def test_stop_ends_the_thread(self, make):
        optimizer, _ = make(2)
        optimizer.step()
        assert len(learner_threads()) == 1
        optimizer.stop()
        assert not learner_threads()
        optimizer.stop()
        optimizer.step()  # it may be used again
        assert len(learner_threads()) == 1


def test_exact_save_with_workers_is_refused(make):
    optimizer, _ = make(1)
    steps(optimizer, 2)
    with pytest.raises(ConfigError, match=r"saved exactly(.|\n)*num_workers=1,(.|\n)*num_workers=0"):
        optimizer.begin_exactly()


def test_a_restore_drops_earlier_samples(make):
    settings = {"train_batch_size": STEPS, "replay_proportion": 2.0, "replay_buffer_num_slots": 3}
    before, after = (AsyncSamplesOptimizer(FragmentWorker(), (), {"seed": seed, **settings}) for seed in (0, 1))
    steps(before, 4)
    before.begin_exactly()
    state = before.get_state()
    after.step()
    after.set_state(state)
    assert after.replayed_steps == before.replayed_steps > 0
    for optimizer in (before, after):
        optimizer.step()
        assert len(policy_of(optimizer).learned[-1]) == 1  # no fragment is left to replay
    assert after.get_state() == before.get_state()


class TestWithoutWorkers:
    def test_samples_and_learns_in_turn_in_the_callers_thread(self):
        threads = []
        optimizer = AsyncSamplesOptimizer(FragmentWorker(), config={"train_batch_size": 25})
        policy_of(optimizer).before = lambda updates: threads.append(threading.current_thread())
        assert optimizer.step() == {"a": {"rows": 30, "first": 1}}
        optimizer.step()
        assert policy_of(optimizer).learned == [[(1, 0), (2, 0), (3, 0)], [(4, 1), (5, 1), (6, 1)]]
        assert optimizer.env_steps == 60
        assert threads == [threading.current_thread()] * 2
        assert not learner_threads()
        queue = {"policy_lag_mean": 0, "policy_lag_max": 0, "queue_depth_mean": None, "dropped_steps": 0}
        assert optimizer.timings.take()[1] == queue
        optimizer.stop()

    @pytest.mark.parametrize("proportion", [0.5, 2.0])
    def test_recent_fragments_are_replayed(self, proportion):
        replay = {"replay_proportion": proportion, "replay_buffer_num_slots": 3, "seed": 0}
        optimizer = AsyncSamplesOptimizer(FragmentWorker(), config={"train_batch_size": STEPS, **replay})
        steps(optimizer, 300)
        batches = policy_of(optimizer).learned
        assert batches[0] == [(1, 0)]
        seen = set()
        for place, batch in enumerate(batches):
            fresh, *again = [number for number, _ in batch]
            assert fresh == place + 1
            assert {*again} <= {place - 2, place - 1, place} - {0, -1, -2}
            seen |= {fresh - number for number in again}
        assert seen == {1, 2, 3}
        assert optimizer.env_steps == 300 * STEPS
        replays = optimizer.replayed_steps / STEPS
        if proportion == 2.0:
            assert replays == 2 * 299
        else:
            assert abs(replays - 150) < 40  # 4.6 standard deviations of a fair coin thrown 299 times
