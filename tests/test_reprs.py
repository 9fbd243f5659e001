"""The repr of an object, as in a notebook or a debugger, is one informative line."""

import copy
import json

import gymnasium as gym
import numpy as np
import pytest

from rollax import MultiAgentEnv, PPOTrainer, PrioritizedReplay, UniformReplay, VectorEnv
from rollax.core.spaces import space_text
from rollax.rollout.episode import Episode


@pytest.fixture(scope="module")
def trainer():
    with PPOTrainer("CartPole-v1", {"train_batch_size": 32, "sgd_minibatch_size": 32, "num_sgd_iter": 1}) as made:
        yield made


class Meeting(MultiAgentEnv):
    possible_agents = ("a", "b")


def test_repr_of_a_trainer_and_its_parts(trainer):
    policy = "PPO('default_policy', Box((4,), float32) -> Discrete(2))"
    assert repr(trainer) == "PPOTrainer(env='CartPole-v1', num_workers=0, timesteps_total=0)"
    assert repr(trainer.get_policy()) == policy
    assert repr(trainer.worker.runners["default_policy"]) == f"PolicyRunner({policy}, filter=NoFilter())"
    assert repr(trainer.worker) == "RolloutWorker(worker_index=0)"
    assert repr(trainer.workers) == ("WorkerSet(local=RolloutWorker(worker_index=0), remote=())")
    assert repr(trainer.optimizer) == "SyncSamplesOptimizer(train_batch_size=32, env_steps=0, remote_workers=0)"
    assert "\n" not in repr(trainer.config)


def test_repr_of_results(trainer, tmp_path):
    fitted = trainer.fit({"training_iteration": 2}, tmp_path / "run", progress="none", evaluate=False)
    result, evaluation = fitted.last, trainer.evaluate(2)
    length = evaluation["episode_len_mean"]
    assert repr(evaluation) == (
        f"EvaluationResult(episodes=2, episode_reward_mean={length:.4g}, episode_reward_min="
        f"{evaluation['episode_reward_min']:.4g}, episode_reward_max={evaluation['episode_reward_max']:.4g}, "
        f"episode_len_mean={length:.4g}; dict(...) shows all 9 keys)"
    )
    assert repr(result).startswith("TrainResult(training_iteration=2, timesteps_total=64, time_total_s=")
    assert len(repr(result)) < 300
    assert repr(fitted) == (
        f"FitResult(reached='training_iteration', missed_goal=False, out='{fitted.out}', "
        f"checkpoint='{fitted.checkpoint}', "
        f"best_checkpoint='{fitted.best_checkpoint}', best_score={fitted.best_score},\n  last={result!r})"
    )
    # All of it is still a dict, for JSON and copies too.
    assert "timers" in repr(dict(result))
    assert json.loads(json.dumps(evaluation)) == evaluation
    assert repr(copy.deepcopy(evaluation)) == repr(evaluation)


def test_repr_of_environments(trainer):
    assert repr(trainer.worker.env) == "VectorBaseEnv(CartPole-v1, num_envs=1)"
    stepped = VectorEnv.wrap(lambda index: gym.make("CartPole-v1"), num_envs=2)
    assert repr(stepped) == "SteppedInTurn(CartPole-v1, num_envs=2)"
    assert repr(Meeting()) == "Meeting(possible_agents=('a', 'b'))"


def test_repr_of_buffers_batches_and_episodes(trainer):
    assert repr(UniformReplay(8, n_step=3)) == "UniformReplay(transitions=0, capacity=8, n_step=3)"
    assert repr(PrioritizedReplay(8)) == "PrioritizedReplay(transitions=0, capacity=8, n_step=1)"
    assert repr(trainer.worker.sample()).startswith("Fragment(count=32, columns=[")
    episode = Episode(7, 1, {"reward": np.array([0.0, 2.5]), "length": np.array([0, 4])})
    assert repr(episode) == "Episode(episode_id=7, env_index=1, length=4, total_reward=2.5)"


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (gym.spaces.Box(-np.arange(1600).reshape(40, 40), 1, (40, 40), np.int16), "Box((40, 40), int16)"),
        (gym.spaces.Dict(a=gym.spaces.Discrete(2)), "Dict(a=Discrete(2))"),
        (gym.spaces.Tuple([gym.spaces.MultiBinary(3)]), "Tuple(MultiBinary(3))"),
    ],
)
def test_a_space_is_one_line(space, text):
    assert space_text(space) == text
