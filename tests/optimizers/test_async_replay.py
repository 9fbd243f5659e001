"""`AsyncReplayOptimizer` with stand-ins: rows of shards, priorities, number of updates, and weights."""

import threading
import time
from functools import partial

import numpy as np
import pytest

from rollax import AsyncReplayOptimizer
from rollax.errors import ConfigError, WorkerError
from rollax.policy.sequence_draw import SequenceDraw
from rollax.replay.prioritized import PrioritizedReplay
from tests.optimizers.replay_stand_ins import SMALL, RowWorker, due, numbers_in, shards_of
from tests.optimizers.stand_ins import STEPS, learner_threads, learning, policy_of, steps
from tests.waiting import LONG, until


class TestShards:
    def test_each_worker_has_its_shard(self, make):
        optimizer, _ = make(5, num_replay_shards=2)
        steps(optimizer, 10)
        workers = [{number // 10_000 for number in numbers_in(shard)} for shard in shards_of(optimizer)]
        assert workers == [{1, 3, 5}, {2, 4}]
        assert sum(optimizer.shards.rows.values()) == sum(len(numbers_in(shard)) for shard in shards_of(optimizer))

    def test_slots_are_divided_like_workers(self, make):
        # Five workers and two shards: three and two fifths of the slots.
        optimizer, _ = make(5, num_replay_shards=2, buffer_size=1000)
        assert [shard.buffers["a"].capacity for shard in shards_of(optimizer)] == [600, 400]

    def test_no_more_shards_than_workers(self, make):
        optimizer, _ = make(2, num_replay_shards=7)
        assert len(shards_of(optimizer)) == 2

    def test_every_fragment_is_stored_once(self, make):
        optimizer, _ = make(3, num_replay_shards=2)
        steps(optimizer, 12)
        numbers = [number for shard in shards_of(optimizer) for number in numbers_in(shard)]
        assert len(numbers) == len(set(numbers)) == optimizer.env_steps == optimizer.agent_steps

    def test_settings_too_large_for_a_buffer_are_refused_at_once(self, make, monkeypatch):
        wrong = partial(PrioritizedReplay, alpha=-1.0)
        monkeypatch.setattr(AsyncReplayOptimizer, "buffers_of", lambda self, policy: wrong)
        with pytest.raises(ConfigError, match="alpha"):
            make(1)

    def test_shards_draw_as_the_policy_says(self, monkeypatch):
        # Sequences of five of the ten rows of a fragment, and negative numbers.
        class Negative(SequenceDraw):
            def draw(self, replay, count, rng, beta):
                batch = super().draw(replay, count, rng, beta)
                batch["obs"] = -batch["obs"]
                return batch

        worker = RowWorker(0)
        policy = worker.policies["a"]
        policy.replayed = Negative(5)
        monkeypatch.setattr(
            policy, "learn_on_batch", lambda batch: policy.learned.append(batch["obs"].reshape(-1, 6).tolist()) or {}
        )
        optimizer = AsyncReplayOptimizer(worker, config={**SMALL, "train_batch_size": 15})
        steps(optimizer, 4)
        assert policy.learned
        for batch in policy.learned:
            assert len(batch) == 3  # 15 rows
            for first, *others in batch:
                assert first % 5 == 0
                assert others == [first - 1, first - 2, first - 3, first - 4, 0 if first % 10 else first - 5]


class TestPriorities:
    def test_errors_update_the_priorities_of_their_rows(self, make):
        # A row without an update has the initial priority, 1 or the largest so far; row k after an update has
        # (k + 1 + ε)^0.6.
        optimizer, _ = make(2, num_replay_shards=2, training_intensity=0.4)
        for _ in range(20):  # on a busy machine the first updates may all be of the first shard with rows
            steps(optimizer, 15)
            steps_learned = {number for batch in policy_of(optimizer).learned for number in batch}
            if len({number // 10_000 for number in steps_learned}) == 2:
                break
        optimizer.get_state()  # sends all known errors to the shards
        steps_learned = {number for batch in policy_of(optimizer).learned for number in batch}
        assert len(steps_learned) > 50
        for index, shard in optimizer.shards._live.items():
            there = numbers_in(shard.handle)
            learned = steps_learned & there.keys()
            assert {number // 10_000 for number in learned} == {index}
            for number in learned:
                assert there[number] == pytest.approx((number + 1 + 1e-6) ** 0.6)

    def test_shards_are_drawn_in_proportion_to_their_priorities(self, make):
        optimizer, _ = make(2, num_replay_shards=2, training_intensity=0.01)
        steps(optimizer, 10)
        shards = {index: actor.state for index, actor in optimizer.shards._live.items()}
        shards[1].contents.priorities["a"], shards[2].contents.priorities["a"] = 3.0, 1.0
        assert optimizer.shards._chances() == {1: 0.75, 2: 0.25}
        shards[1].contents.priorities["a"] = 0.0
        assert optimizer.shards._chances() == {2: 1.0}

    def test_priority_of_a_shard_is_the_mean_over_policies(self, make):
        optimizer, _ = make(2, num_replay_shards=2)
        shards = {index: actor.state for index, actor in optimizer.shards._live.items()}
        for index, priorities in {1: {"a": 1.0, "b": 9.0}, 2: {"a": 3.0, "b": 1.0}}.items():
            contents = shards[index].contents
            shards[index].contents = contents._replace(rows={"a": 1, "b": 1}, priorities=priorities)
        # a: 1/4 and 3/4; b: 9/10 and 1/10
        assert optimizer.shards._chances() == pytest.approx({1: (0.25 + 0.9) / 2, 2: (0.75 + 0.1) / 2})


class TestIntensity:
    @pytest.mark.short("1-0.4")
    @pytest.mark.parametrize("intensity", [0.05, 0.4, 3.0])
    @pytest.mark.parametrize("updates_per_draw", [1, 4])
    def test_sampling_and_learning_stay_in_proportion(self, make, intensity, updates_per_draw):
        settings = {"training_intensity": intensity, "updates_per_draw": updates_per_draw, "learning_starts": 55}
        optimizer, _ = make(3, learner_queue_size=2, **settings)
        for _ in range(40):
            optimizer.step()
            behind = due(optimizer) - optimizer.num_updates
            # Two draws in the queue, one in the current update, less than one not requested yet; and the updates due by
            # two fragments in flight of each worker, and by one round received at once.
            assert 0 <= behind <= 4 * updates_per_draw + (2 * 3 + 3) * STEPS * intensity
        assert optimizer.num_updates == policy_of(optimizer).updates > 0
        assert {len(batch) for batch in policy_of(optimizer).learned} == {4}

    def test_a_policy_with_minibatches_gets_a_whole_draw(self, make):
        optimizer, _ = make(2, updates_per_draw=3, training_intensity=0.4)
        policy_of(optimizer).minibatch_size = 4
        steps(optimizer, 20)
        assert optimizer.num_updates == 3 * policy_of(optimizer).updates > 0
        assert {len(batch) for batch in policy_of(optimizer).learned} == {4 * 3}

    def test_sampling_waits_for_a_slow_learner(self, make):
        optimizer, processes = make(2, training_intensity=0.5, learner_queue_size=2)
        learns, resume = threading.Event(), threading.Event()
        policy_of(optimizer).before = lambda updates: (learns.set(), resume.wait(LONG))
        stepping = threading.Thread(target=steps, args=(optimizer, 20))
        stepping.start()
        # Each fragment makes five updates due: a single one already exceeds the queue.
        until(lambda: learns.is_set() and optimizer._is_behind() and not optimizer.shards.draws_in_flight)
        sampled = processes.fragments
        assert sampled <= 2 * 2 + 2
        time.sleep(0.2)
        assert processes.fragments == sampled
        resume.set()
        stepping.join(LONG)
        assert not stepping.is_alive()
        assert processes.fragments > sampled


class TestWeights:
    def test_weights_are_broadcast_at_the_set_interval(self, make):
        optimizer, processes = make(2, training_intensity=1.0, max_weight_sync_delay=100)
        steps(optimizer, 60)
        first, *later = processes.published
        assert first.version == 1
        assert 0 < len(later) <= optimizer.env_steps / (2 * 100)
        updates = [update.weights["a"]["updates"] for update in later]
        assert updates == sorted(set(updates))
        gaps = np.diff([update.timestep for update in later])
        assert (gaps >= 200).all()

    @pytest.mark.parametrize("keys", [{"learning_starts": 10_000}, {"updates_per_draw": 1000}])
    def test_steps_and_filters_are_broadcast_before_learning(self, make, keys):
        optimizer, processes = make(2, max_weight_sync_delay=50, **keys)
        steps(optimizer, 30)
        _, *later = processes.published
        assert optimizer.num_updates == 0
        assert {update.version for update in later} == {1}
        assert (np.diff([update.timestep for update in processes.published]) >= 100).all()
        assert optimizer.env_steps - later[-1].timestep < 150

    @pytest.mark.long
    def test_workers_act_with_broadcast_weights(self, make):
        optimizer, processes = make(2, training_intensity=1.0, max_weight_sync_delay=20)
        steps(optimizer, 40)
        assert policy_of(optimizer).updates > 40
        assert all(worker.policies["a"].updates > 10 for worker in processes.workers)


class TestWithoutWorkers:
    def make(self, **settings):
        return AsyncReplayOptimizer(RowWorker(**settings.pop("agents", {})), config={**SMALL, **settings})

    def test_samples_and_learns_in_turn_in_the_callers_thread(self):
        threads = []
        optimizer = self.make(training_intensity=0.25, learning_starts=15)
        policy_of(optimizer).before = lambda updates: threads.append(threading.current_thread())
        for step in range(1, 9):
            stats = optimizer.step()
            assert optimizer.env_steps == 10 * step
            assert optimizer.num_updates == max(int((10 * step - 15) * 0.25), 0)
        assert stats == {"a": {"rows": 4}}
        assert set(threads) == {threading.current_thread()}
        assert not learner_threads()
        optimizer.stop()

    def test_a_stopped_optimizer_cannot_continue(self):
        optimizer = self.make()
        optimizer.step()
        optimizer.stop()
        with pytest.raises(WorkerError, match=r"No replay shard is left(.|\n)*they have been stopped"):
            optimizer.step()

    def test_same_seed_gives_the_same_run(self):
        def learned(seed):
            optimizer = self.make(training_intensity=0.5, updates_per_draw=2, seed=seed)
            steps(optimizer, 20)
            return policy_of(optimizer).learned

        assert learned(3) == learned(3)
        assert learned(3) != learned(4)

    def test_each_update_of_a_draw_has_its_own_rows_and_errors(self):
        optimizer = self.make(training_intensity=0.1, updates_per_draw=2, train_batch_size=300)
        steps(optimizer, 3)
        first, second = policy_of(optimizer).learned
        assert (len(first), len(second)) == (300, 300)
        assert set(first) == set(second) == set(range(10, 30))  # each is drawn from all rows
        (shard,) = (each.handle for each in optimizer.shards._live.values())
        there = numbers_in(shard)
        assert all(there[number] == pytest.approx((number + 1) ** 0.6, rel=1e-6) for number in range(10, 30))

    def test_several_policies_learn_from_their_own_rows(self):
        optimizer = self.make(agents={"a": 1, "b": 1}, training_intensity=0.5)
        steps(optimizer, 10)
        assert policy_of(optimizer, "a").updates == policy_of(optimizer, "b").updates == optimizer.num_updates > 0
        assert optimizer.shards.rows == {"a": 100, "b": 100}

    def test_a_policy_that_does_not_learn_has_no_buffer(self):
        optimizer = self.make(agents={"a": 1, "b": 1}, training_intensity=0.5, **learning(RowWorker(a=1, b=1), "b"))
        steps(optimizer, 10)
        assert policy_of(optimizer, "a").updates == 0 < policy_of(optimizer, "b").updates
        assert optimizer.shards.rows == {"b": 100}
