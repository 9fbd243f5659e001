"""Trainers with workers in the test's own process: weights, filters, restarts and checkpoints."""

from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rollax import EnvContext, IMPALATrainer, PPOTrainer, RolloutWorker, TrainerConfig
from rollax.algorithms.ppo import PPO
from rollax.errors import EnvError
from rollax.processes.actors import LocalActors
from rollax.rollout import remote_workers
from rollax.rollout.filters import MeanStdFilter
from rollax.rollout.worker_set import WorkerSet, worker_arguments


class Drifting(gym.Env):
    """A random walk; episodes of 7 steps.

    Keys of the config: "seen", a deque of all observations; "made", a deque of contexts; "fails", worker indices whose
    next reset raises.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, context: EnvContext) -> None:
        self.context = context
        context.get("made", deque()).append(context)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.context.worker_index in self.context.get("fails", ()):
            self.context["fails"].remove(self.context.worker_index)
            raise ValueError("no level")
        self.place, self.count = self.np_random.normal(max(self.context.worker_index, 1), 1, 3), 0
        return self._obs(), {}

    def step(self, action):
        self.count += 1
        self.place += self.np_random.normal(action, 1, 3)
        return self._obs(), float(self.place[0]), False, self.count == 7, {}

    def _obs(self):
        obs = self.place.astype(np.float32)
        self.context.get("seen", deque()).append(obs)
        return obs


def workers_here(config: TrainerConfig, worker_class: type, arguments: dict[str, Any]) -> LocalActors:
    """Replaces `ray_workers`: workers in this process, made by a call of `make`."""

    class Here(worker_class):
        def __init__(self, index: int, restarts: int) -> None:
            self.index, self.number = index, restarts

        def make(self) -> None:
            super().__init__(**arguments, worker_index=self.index, restarts=self.number)

    return LocalActors(Here)


@pytest.fixture
def make(monkeypatch):
    """Makes trainers, and stops them."""
    monkeypatch.setattr(remote_workers, "ray_workers", workers_here)
    made: list[PPOTrainer] = []

    def make_one(num_workers, **changes):
        config = {
            "num_workers": num_workers,
            "num_envs_per_worker": 2,
            "train_batch_size": 48,
            "rollout_fragment_length": 12,
            "sgd_minibatch_size": 24,
            "num_sgd_iter": 2,
            "observation_filter": "MeanStdFilter",
            "model": {"fcnet_hiddens": [4]},
            "seed": 3,
            **changes,
        }
        made.append(PPOTrainer(Drifting, config))
        return made[-1]

    yield make_one
    for trainer in made:
        trainer.stop()


def numbers(trainer, iterations):
    """The results, weights and filters after a few iterations."""
    results = [trainer.train() for _ in range(iterations)]
    means = [(result["episode_reward_mean"], result["info"]["learner"]) for result in results]
    return means, trainer.get_weights(), trainer.worker.get_filters()


def sampling_states(trainer):
    return trainer.get_state()["workers"]["sampling"]


def begun(trainer):
    """The episodes that each sub-environment of each worker has begun."""
    return [state["episodes_begun"].tolist() for state in sampling_states(trainer)]


def test_two_workers_are_reproducible_and_differ_from_one(make):
    first = numbers(make(2), 3)
    np.testing.assert_equal(numbers(make(2), 3), first)
    assert numbers(make(1), 3)[0] != first[0]


@pytest.mark.short("1")
@pytest.mark.parametrize("num_workers", [1, 3])
def test_the_drivers_filter_has_all_observations(make, num_workers):
    seen: deque[np.ndarray] = deque()  # a list would be copied
    trainer = make(num_workers, env_config={"seen": seen})
    for _ in range(3):
        trainer.train()
    together = MeanStdFilter(Drifting.observation_space)
    together(np.array(seen))
    state = trainer.worker.get_filters()["default_policy"]
    assert state["count"] == len(seen) > 3 * 48
    for name, values in together.state().items():
        np.testing.assert_allclose(state[name], values, rtol=1e-9, err_msg=name)
    if num_workers > 1:
        counts = trainer.workers.foreach_worker(lambda worker: worker.get_filters()["default_policy"]["count"])
        # They have the state of the last request, and their own observations since.
        assert all(len(seen) / 2 < count < len(seen) for count in counts)


@pytest.mark.short("3")
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_a_checkpoint_of_two_workers_continues_with_fewer_or_more(make, num_workers, tmp_path):
    trainer = make(2)
    trainer.train()
    path = trainer.save(tmp_path)
    assert begun(trainer) == [[2, 2], [2, 2]]
    other = make(num_workers)
    other.train()
    other.restore(path)
    np.testing.assert_equal(other.get_weights(), trainer.get_weights())
    np.testing.assert_equal(other.worker.get_filters(), trainer.worker.get_filters())
    # All workers begin fresh episodes at the next step; the third worker had begun some of its own.
    assert begun(other)[:2] == [[2, 2], [2, 2]][: max(num_workers, 1)]
    assert other.optimizer.env_steps == 48
    assert all(other.workers.foreach_worker(lambda worker: not (worker.sampler.episodes["id"] >= 0).any()))
    result = other.train()
    assert result["timesteps_total"] == 48 + result["timesteps_this_iter"]
    assert result["info"]["workers"] == {"healthy": max(num_workers, 1), "restarts": 0, "last_errors": {}}


@pytest.mark.long
def test_a_worker_that_fails_while_a_checkpoint_is_written(make, tmp_path):
    trainer = make(2, delay_between_worker_restarts_s=0)
    trainer.train()
    fail = RolloutWorker.get_sampling_state

    def fails(worker):
        if worker.worker_index == 1:
            raise EnvError("It broke.")
        return fail(worker)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RolloutWorker, "get_sampling_state", fails)
        path = trainer.save(tmp_path)
    for num_workers in (2, 0):
        other = make(num_workers)
        other.restore(path)
        np.testing.assert_equal(other.get_weights(), trainer.get_weights())
        # The first worker had started twice: it begins as after a second restart, and repeats no episode.
        assert begun(other) == [[2 << 32, 2 << 32], [2, 2]][: max(num_workers, 1)]
        other.train()
    assert trainer.train()["info"]["workers"]["restarts"] == 1


@pytest.mark.long
def test_a_worker_that_is_restarted_in_a_restored_run_repeats_no_episode_of_a_restart_before(make, tmp_path):
    def next_episodes(trainer):
        found = trainer.workers.foreach_worker(lambda worker: (worker.sampler.episodes.seeds(), worker.restarts))
        return found[1]

    def restarted(trainer):
        fails.append(2)
        trainer.workers.restart_episodes()  # the next step resets all sub-environments
        trainer.train()

    fails: deque[int] = deque()
    first = make(2, env_config={"fails": fails}, delay_between_worker_restarts_s=0)
    restarted(first)
    seeds, restarts = next_episodes(first)
    assert restarts == 1
    other = make(2, env_config={"fails": fails}, delay_between_worker_restarts_s=0)
    other.restore(first.save(tmp_path))
    assert next_episodes(other)[0] == seeds
    restarted(other)
    assert next_episodes(other)[1] == 2
    ids = [sampling_states(trainer)[1]["next_episode_id"] for trainer in (first, other)]
    assert ids[1] - ids[0] == 1 << 32


@pytest.mark.long
def test_workers_that_a_checkpoint_lacks_play_other_episodes_than_they_played_before(make, tmp_path):
    trainer = make(2)
    trainer.train()
    fewer = make(1)
    fewer.restore(trainer.save(tmp_path / "first"))
    more = make(2)
    more.restore(fewer.save(tmp_path / "second"))
    assert begun(more) == [[2, 2], [1 << 32, 1 << 32]]
    assert [state["next_episode_id"] for state in sampling_states(more)] == [(1 << 48) + 4, (2 << 48) + (1 << 32)]
    assert more.get_state()["workers"]["starts"] == 2


def test_workers_that_do_not_sample_count_no_starts():
    workers = WorkerSet(worker_arguments(PPOTrainer.config_class(env=Drifting), PPO), samples=False)
    state = workers.get_state()
    workers.set_state(state)
    assert workers.get_state()["starts"] == state["starts"] == 1


@pytest.mark.long
def test_a_single_worker_that_is_restarted_between_two_broadcasts_loses_no_statistics(monkeypatch):
    monkeypatch.setattr(remote_workers, "ray_workers", workers_here)
    fails: deque[int] = deque()
    config = {
        "num_workers": 1,
        "rollout_fragment_length": 4,
        "train_batch_size": 8,
        "timesteps_per_iteration": 80,
        "broadcast_interval": 1000,
        "observation_filter": "MeanStdFilter",
        "model": {"fcnet_hiddens": [4]},
        "env_config": {"fails": fails},
        "delay_between_worker_restarts_s": 0,
    }
    with IMPALATrainer(Drifting, config) as trainer:
        trainer.train()
        fails.append(1)
        result = trainer.train()
        assert result["info"]["workers"]["restarts"] == 1
        assert trainer.worker.get_filters()["default_policy"]["count"] > result["timesteps_total"] >= 160


def test_a_restarted_worker_has_the_current_weights_and_filters(make):
    fails: deque[int] = deque()  # a list would be copied
    trainer = make(2, env_config={"fails": fails})
    trainer.train()
    fails.append(2)
    acted = trainer.get_weights()
    health = trainer.train()["info"]["workers"]
    assert health["restarts"] == 1
    assert health["healthy"] == 2
    assert "no level" in health["last_errors"]["2"]
    for weights in trainer.workers.foreach_worker(lambda worker: worker.get_weights()):
        np.testing.assert_equal(weights, acted)
    versions = trainer.workers.foreach_worker(lambda worker: (worker.worker_index, worker.version))
    assert versions == [(1, 2), (2, 2)]


@pytest.mark.parametrize(("given", "by_driver"), [(True, 0), (False, 1)])
def test_environments_that_the_driver_makes(make, given, by_driver):
    made: deque[EnvContext] = deque()  # a list would be copied
    spaces = {name: getattr(Drifting, name) for name in ("observation_space", "action_space")}
    make(2, env_config={"made": made}, **(spaces if given else {})).train()
    indices = [context.worker_index for context in made]
    assert sorted(indices) == [0] * by_driver + [1, 1, 2, 2]
    assert [context.num_workers for context in made] == [2] * len(made)


def test_the_first_fragments_after_a_restore_are_those_of_the_restored_weights(make, tmp_path):
    other = make(0, seed=7)
    other.train()
    path = other.save(tmp_path)
    acted = other.get_weights()
    trainer = make(2)
    trainer.train()
    trainer.train()  # its workers have the weights of version 2, the version of the first update after the restore
    trainer.restore(path)
    trainer.train()
    for weights in trainer.workers.foreach_worker(lambda worker: worker.get_weights()):
        np.testing.assert_equal(weights, acted)


def test_restoring_drops_pending_requests(make, tmp_path):
    trainer = make(2)
    path = trainer.save(tmp_path)
    for index in trainer.workers.remote.indices:
        trainer.workers.remote.request(index, "sample_fragment")
    trainer.restore(path)
    assert trainer.workers.remote.requests_in_flight == 0
    assert trainer.train()["timesteps_this_iter"] == 48


@pytest.mark.parametrize("num_workers", [0, 1])
def test_restoring_without_a_sampling_state_drops_running_episodes_too(make, num_workers):
    trainer = make(num_workers)
    trainer.train()
    state = trainer.get_state()
    state["workers"]["sampling"] = [None]  # the worker had failed when the state was saved
    trainer.set_state(state)
    # 12 steps of each sub-environment: an episode of 7 steps, and 5 of the next, unless one was running.
    batches = trainer.workers.foreach_worker(lambda worker: worker.sample())
    np.testing.assert_array_equal(np.flatnonzero(batches[0]["truncateds"]), [6, 13])
