"""Evaluation by workers in other processes: its episodes, its failures, and environments within reach."""

from collections import Counter, deque

import gymnasium as gym
import numpy as np
import pytest

from rollax import Callbacks, EnvContext, PPOTrainer
from rollax.errors import WorkerError
from rollax.rollout import remote_workers
from rollax.runs.results import read_results
from tests.rollout.test_worker_set import workers_here


class Counted(gym.Env):
    """Episodes of `length` steps, whose return is the number of the process.

    Keys of the config: "begun", a deque that gets the number at each reset; "fails", numbers whose next step raises.
    """

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    length = 1

    def __init__(self, context: EnvContext) -> None:
        self.context = context

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.context.get("begun", deque()).append(self.context.worker_index)
        self.steps = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        number = self.context.worker_index
        if number in self.context.get("fails", ()):
            self.context["fails"].remove(number)
            raise ValueError("no level")
        self.steps += 1
        reward = float(number if self.steps == 1 else 0)
        return np.zeros(2, np.float32), reward, self.steps >= self.length, False, {}


@pytest.fixture
def make(monkeypatch):
    """Makes trainers whose workers are in this process, and stops them."""
    monkeypatch.setattr(remote_workers, "ray_workers", workers_here)
    made: list[PPOTrainer] = []

    def make_one(env=Counted, **changes):
        config = {"evaluation_num_workers": 3, "train_batch_size": 8, "sgd_minibatch_size": 8, "num_sgd_iter": 1}
        config |= {"model": {"fcnet_hiddens": [4]}, "seed": 3, **changes}
        made.append(PPOTrainer(env, config))
        return made[-1]

    yield make_one
    for trainer in made:
        trainer.stop()


@pytest.mark.parametrize("num_envs", [1, 4])
def test_each_worker_plays_its_share_of_exactly_the_episodes(make, num_envs):
    begun: deque[int] = deque()
    trainer = make(num_envs_per_worker=num_envs, evaluation_config={"env_config": {"begun": begun}})
    for count in (8, 2, 10):
        begun.clear()
        result = trainer.evaluate(count)
        shares = {number: len(range(number - 1, count, 3)) for number in (1, 2, 3)}
        expected = [float(number) for number, share in shares.items() for _ in range(share)]
        assert result["episode_rewards"] == expected
        assert len(expected) == result["episodes"] == count
        assert Counter(begun) == {number: share for number, share in shares.items() if share}


@pytest.mark.short("2")
@pytest.mark.parametrize("workers", [0, 2])
def test_evaluations_are_reproducible_and_use_the_trained_policies_and_filters(make, workers):
    config = {"num_workers": workers, "num_envs_per_worker": 2, "observation_filter": "MeanStdFilter", "lr": 0.1}

    def played():
        trainer = make("CartPole-v1", evaluation_interval=1, evaluation_num_episodes=5, **config)
        rewards = [trainer.train()["evaluation"]["episode_rewards"] for _ in range(3)]
        read = lambda worker: (worker.get_filters(), worker.get_weights())  # noqa: E731
        states, weights = trainer.evaluation_workers.foreach_worker(read)[0]
        np.testing.assert_equal(weights, trainer.get_weights())
        np.testing.assert_equal(states, trainer.worker.get_filters())
        return rewards

    first = played()
    assert played() == first
    assert first[1] != first[2]


def test_a_worker_that_fails_is_restarted_and_plays_its_episodes(make):
    trainer = make(evaluation_config={"env_config": {"fails": deque([2])}}, delay_between_worker_restarts_s=0)
    assert trainer.evaluate(7)["episode_rewards"] == [1.0] * 3 + [2.0] * 2 + [3.0] * 2
    assert trainer.evaluation_workers.health()["restarts"] == 1


def test_other_workers_play_the_episodes_of_one_that_is_left_out(make):
    config = {"recreate_failed_workers": False, "ignore_worker_failures": True}
    trainer = make(evaluation_config={"env_config": {"fails": deque([2])}}, **config)
    assert trainer.evaluate(7)["episode_rewards"] == [1.0] * 4 + [3.0] * 3
    assert trainer.evaluate(4)["episode_rewards"] == [1.0] * 2 + [3.0] * 2


def test_the_error_of_the_last_worker_is_raised(make):
    config = {"recreate_failed_workers": False, "ignore_worker_failures": True, "evaluation_num_workers": 1}
    trainer = make(evaluation_config={"env_config": {"fails": deque([1])}}, **config)
    with pytest.raises(WorkerError, match="no level"):
        trainer.evaluate(2)


@pytest.mark.short("2")
@pytest.mark.parametrize("workers", [0, 2])
def test_environments_of_evaluation_can_be_changed(make, workers):
    trainer = make(evaluation_num_workers=workers, num_envs_per_worker=2)

    def lengthen(env):
        env.length = 5

    assert trainer.evaluate(4)["episode_len_mean"] == 1
    trainer.evaluation_workers.foreach_worker(lambda worker: worker.foreach_env(lengthen))
    assert trainer.evaluate(4)["episode_len_mean"] == 5
    assert trainer.train()["episode_len_mean"] == 1


@pytest.mark.long
def test_a_restored_run_evaluates_the_same_episodes(make, tmp_path):
    trainer = make("CartPole-v1", evaluation_interval=1, evaluation_num_episodes=5)
    trainer.train()
    checkpoint = trainer.save(tmp_path, exact=True)
    rewards = [trainer.train()["evaluation"]["episode_rewards"] for _ in range(2)]
    with PPOTrainer.from_checkpoint(checkpoint) as restored:
        assert [restored.train()["evaluation"]["episode_rewards"] for _ in range(2)] == rewards


@pytest.mark.long
def test_a_trainer_opened_to_evaluate_has_its_workers_only_on_request(make, tmp_path):
    checkpoint = make("CartPole-v1", evaluation_interval=1).save(tmp_path)
    for changes, processes in (({}, 0), ({"evaluation_num_workers": 2}, 2)):
        with PPOTrainer.from_checkpoint(checkpoint, learn=False, **changes) as opened:
            assert opened.evaluate(3)["episodes"] == 3
            assert len(opened.evaluation_workers.remote) == processes


def test_an_evaluation_beside_training_is_of_the_policies_before_it(make):
    """With the same seed the episodes are those of an evaluation between two iterations, one iteration later."""
    config = {"evaluation_interval": 1, "evaluation_num_episodes": 5, "lr": 0.1, "observation_filter": "MeanStdFilter"}
    made = (make("CartPole-v1", **config, evaluation_parallel_to_training=parallel) for parallel in (False, True))
    between, beside = made
    first = between.evaluate()["episode_rewards"]  # before any update
    rewards = [between.train()["evaluation"]["episode_rewards"] for _ in range(3)]
    assert [beside.train()["evaluation"]["episode_rewards"] for _ in range(4)] == [first, *rewards]


def test_a_callback_may_evaluate_while_an_evaluation_runs_beside_training(make):
    class Evaluates(Callbacks):
        def on_sample_end(self, *, worker, samples):
            if trainers:
                found.append(trainers[0].evaluate(2)["episodes"])

    trainers: list[PPOTrainer] = []
    found: list[int] = []
    config = {"evaluation_interval": 1, "evaluation_num_episodes": 5, "evaluation_parallel_to_training": True}
    trainers.append(make(callbacks=Evaluates, evaluation_config={"callbacks": Callbacks}, **config))
    assert trainers[0].train()["evaluation"]["episode_rewards"] == [1.0, 1.0, 2.0, 2.0, 3.0]
    assert set(found) == {2}


class Valued(gym.Env):
    """One step, whose reward is a function of the action, and so of the weights of a greedy policy."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), 1 - abs(float(action[0]) - 0.1), True, False, {}


@pytest.mark.long
def test_the_best_model_is_the_one_that_was_evaluated(make, tmp_path):
    config = {"evaluation_interval": 1, "evaluation_num_episodes": 3, "evaluation_parallel_to_training": True}
    trainer = make(Valued, **config, lr=0.2)
    scores = []
    for iterations in (4, 7):
        fitted = trainer.fit({"training_iteration": iterations}, tmp_path / "run", progress="none", loggers=())
        results, _ = read_results(tmp_path / "run")
        scores = [result["evaluation"]["episode_reward_mean"] for result in results]
        assert len(scores) == iterations
        assert fitted.best_score is not None
        assert fitted.best_score >= max(scores)
        with PPOTrainer.from_checkpoint(fitted.best_checkpoint, learn=False, env=Valued) as best:
            assert best.evaluate(1)["episode_reward_mean"] == pytest.approx(fitted.best_score, abs=1e-6)
        assert not (tmp_path / "run" / "candidate").exists()
        assert len(list((tmp_path / "run" / "best").iterdir())) == 1
        trainer = PPOTrainer.from_checkpoint(fitted.checkpoint, env=Valued)
    trainer.stop()
    assert np.argmax(scores) not in (0, len(scores) - 1)  # else another model could be taken for the best


@pytest.mark.long
def test_processes_of_ray_evaluate(small_ray):
    config = {"evaluation_num_workers": 2, "evaluation_interval": 1, "num_cpus_per_worker": 0.25, "seed": 0}
    sizes = {"train_batch_size": 32, "sgd_minibatch_size": 32, "evaluation_num_episodes": 5}
    with PPOTrainer(Counted, {**config, **sizes}) as trainer:
        for _ in range(2):
            assert trainer.train()["evaluation"]["episode_rewards"] == [1.0] * 3 + [2.0] * 2
        assert len(trainer.evaluation_workers.foreach_worker(lambda worker: worker.worker_index)) == 2
