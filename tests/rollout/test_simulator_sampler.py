"""Simulators in PyTorch beside the same simulators in NumPy: fragments, train batches, evaluation, errors."""

import numpy as np
import pytest

from rollax import Callbacks, DQNTrainer, EnvError, ESTrainer, PPOTrainer, SACTrainer, TorchVectorEnv
from rollax.optimizers import device_batches
from rollax.rollout.block_sampler import BlockSampler
from rollax.rollout.row_sampler import RowSampler
from rollax.rollout.simulator_sampler import SimulatorSampler
from tests.env.jax.tensor_worlds import Torques, Walks
from tests.env.refused import refused
from tests.marks import long_except
from tests.rollout.compiled import GRU, by_policy, compared, make, numbers_of

torch = pytest.importorskip("torch")

KEYS = {
    "train_batch_size": 60,
    "rollout_fragment_length": 10,
    "sgd_minibatch_size": 24,
    "num_sgd_iter": 2,
    "model": {"fcnet_hiddens": [8]},
    "seed": 3,
}


def in_torch(world=Walks, **settings):
    return lambda context: TorchVectorEnv(world(torch, **settings))


def in_numpy(world=Walks, **settings):
    return lambda context: world(np, **settings)


CASES = {
    "numbers": (Walks, {}),
    "trees": (Torques, {"clip_actions": False, "normalize_actions": False}),
    "filter": (Walks, {"observation_filter": "MeanStdFilter"}),
    "memory": (Walks, {"model": GRU}),
    "greedy": (Walks, {"explore": False}),
}


@pytest.mark.short("filter")
@pytest.mark.parametrize("case", long_except({"numbers", "filter"}, [*CASES]))
def test_fragments_are_those_of_the_simulator_in_numpy(case):
    """Three fragments, and one after a fresh start: rows, what follows each segment, metrics, statistics."""
    world, settings = CASES[case]
    worker, other = make(in_torch(world), **settings), make(in_numpy(world), **settings, sampler=RowSampler)
    assert type(worker.sampler) is SimulatorSampler
    numbers, ended = set(), ([], [])
    for fragment in range(4):
        if fragment == 3:
            worker.restart_episodes()
            other.restart_episodes()
        mine, theirs = by_policy(worker), by_policy(other)
        numbers |= compared(mine["default_policy"], theirs["default_policy"])
        for metrics, of in zip(ended, (worker, other), strict=True):
            metrics += map(numbers_of, of.get_metrics())
    assert len(numbers) == len({(name, a) for name, a, _ in numbers}) == len({(name, b) for name, _, b in numbers}) > 6
    assert ended[0] == ended[1]
    for mine, theirs in zip(worker.get_filters().values(), other.get_filters().values(), strict=True):
        for name, value in mine.items():
            np.testing.assert_allclose(value, theirs[name], rtol=1e-4, atol=1e-5)


class _OnStep(Callbacks):
    def on_episode_step(self, **_):
        pass


HOST = [({"callbacks": _OnStep}, RowSampler), ({"sample_async": True}, BlockSampler)]


@pytest.mark.parametrize(("settings", "sampler"), HOST)
def test_what_needs_each_step_on_the_host_has_it_there(settings, sampler):
    worker, other = make(in_torch(), **settings), make(in_numpy(), **settings)
    assert type(worker.sampler) is type(other.sampler) is sampler
    compared(by_policy(worker)["default_policy"], by_policy(other)["default_policy"])
    worker.stop()
    other.stop()


LEARNING = {"Walks": (Walks, {"kl_coeff": 0.2, "timesteps_per_iteration": 120}), "Torques": (Torques, {})}


@pytest.mark.parametrize("case", long_except({"Walks"}, [*LEARNING]))
def test_ppo_learns_the_same_on_the_device(case, monkeypatch):
    """Truncated episodes bootstrap the value of their last observation, not of the next one."""
    (world, keys), found = LEARNING[case], []
    for on_device in (True, False):
        if not on_device:
            monkeypatch.setattr(device_batches, "why_not", lambda worker: "a test")
        with PPOTrainer(in_torch(world), {**KEYS, **keys}) as trainer:
            assert (trainer.optimizer.rounds is not None) == on_device
            results = [trainer.train() for _ in range(3)]
            found.append((trainer.get_policy().get_weights(), results[-1], trainer.evaluate(4)))
    (weights, result, score), (others, expected, other_score) = found
    for name, value in weights.items():
        np.testing.assert_allclose(value, others[name], rtol=1e-4, atol=1e-5, err_msg=name)
    for key in ("episode_reward_mean", "episode_len_mean", "timesteps_total"):
        assert result[key] == pytest.approx(expected[key], rel=1e-4)
    assert score["episode_reward_mean"] == pytest.approx(other_score["episode_reward_mean"], rel=1e-4)


@pytest.mark.long
def test_no_observation_comes_to_the_host(monkeypatch):
    """Between two fresh starts only rewards, flags and statistics do."""
    with PPOTrainer(in_torch(), KEYS) as trainer:
        trainer.train()
        monkeypatch.setattr(TorchVectorEnv, "step", None)
        monkeypatch.setattr(TorchVectorEnv, "reset", None)
        monkeypatch.setattr(trainer.worker.env.checks, "columns", None)
        assert trainer.train()["timesteps_total"] == 120


REPLAY = {"DQN": (DQNTrainer, Walks), "SAC": (SACTrainer, Torques)}


@pytest.mark.long
@pytest.mark.parametrize("case", [*REPLAY])
def test_replay_stays_on_the_device(case):
    trainer_class, world = REPLAY[case]
    keys = {
        "rollout_fragment_length": 2,
        "train_batch_size": 16,
        "training_intensity": 0.25,
        "learning_starts": 24,
        "buffer_size": 60,
        "timesteps_per_iteration": 60,
        "model": {"fcnet_hiddens": [8]},
        "seed": 3,
    }
    with trainer_class(in_torch(world), keys) as trainer:
        results = [trainer.train() for _ in range(2)]
        assert [result["timesteps_total"] for result in results] == [60, 120]
        report = {"rows": {"default_policy": 60}, "num_updates": 24, "on_device": True}
        assert trainer.optimizer.report() == {"replay": report}


@pytest.mark.long
def test_an_observation_with_nan_is_an_error():
    with PPOTrainer(in_torch(broken=25), KEYS) as trainer:
        trainer.train()
        before = trainer.get_policy().get_weights()
        refused(EnvError, trainer.train)
        for name, value in trainer.get_policy().get_weights().items():
            np.testing.assert_array_equal(value, before[name])
        assert trainer.train()["timesteps_total"] == 120


class Failing(Walks):
    def step(self, actions):
        if self.steps == 7:
            raise RuntimeError("the simulator is gone")
        return super().step(actions)


def test_an_error_of_the_simulator_is_named():
    with PPOTrainer(in_torch(Failing), KEYS) as trainer, pytest.raises(EnvError) as error:
        trainer.train()
    assert isinstance(error.value.__cause__, RuntimeError)


def test_a_missing_last_observation_is_an_error():
    with PPOTrainer(in_torch(final="last"), KEYS) as trainer, pytest.raises(EnvError):
        trainer.train()


@pytest.mark.long
def test_episodes_begin_from_the_seed_of_the_run():
    seeds = []
    for seed in (3, 3, 4):
        worker = make(in_torch(), seed=seed)
        worker.sample()
        seeds.append(worker.env.env.env.seeds)
    assert seeds[0] == seeds[1] != seeds[2]
    assert len(seeds[0]) == 1


def test_searches_refuse_a_simulator_that_begins_episodes_by_itself():
    with pytest.raises(EnvError), ESTrainer(in_torch(), {"model": {"fcnet_hiddens": []}}) as trainer:
        trainer.train()
