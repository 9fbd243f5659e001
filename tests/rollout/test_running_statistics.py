"""Running statistics of an algorithm are merged over workers like observation filters, and restored exactly."""

import numpy as np
import pytest

from rollax import (
    PPO,
    CheckpointError,
    PolicyError,
    PPOConfig,
    PPOTrainer,
    RolloutWorker,
    SyncSamplesOptimizer,
    load_policy,
)
from rollax.core.running_statistics import RunningMoments
from rollax.policy.running_returns import RunningReturns
from rollax.processes.actors import LocalActors
from rollax.rollout.messages import Update
from rollax.rollout.remote_workers import RemoteWorkers
from rollax.rollout.row_sampler import RowSampler
from tests.algorithms.envs import TwoAgents
from tests.env.refused import refused
from tests.rollout.compiled import compare

GAMMA = 0.5
SMALL = {
    "rollout_fragment_length": 15,
    "train_batch_size": 60,
    "sgd_minibatch_size": 30,
    "num_sgd_iter": 1,
    "num_envs_per_worker": 2,
    "observation_filter": "MeanStdFilter",
    "model": {"fcnet_hiddens": (4,)},
    "seed": 0,
}


class Scaled(PPO):
    """Rewards are divided by the deviation of their discounted sums. One statistic has two elements."""

    @property
    def samples(self):
        return super().samples | {"slot", "trajectory_id"}

    def make_running_statistics(self):
        return {"returns": RunningReturns(GAMMA), "endless": RunningReturns(GAMMA, episodic=False), "rows": Rows()}

    def postprocess(self, fragment, values):
        rewards, statistics = fragment["rewards"].copy(), values.statistics
        statistics["returns"].add_rewards(fragment, rewards)
        statistics["endless"].add_rewards(fragment, rewards)
        statistics["rows"].update(np.stack([rewards, 2 * rewards], axis=1))
        fragment["rewards"] = (rewards / statistics["returns"].deviation).astype(np.float32)
        return super().postprocess(fragment, values)


class Rows(RunningMoments):
    def __init__(self):
        super().__init__((2,))


class ScaledTrainer(PPOTrainer):
    policy_class = Scaled


def made(worker_index=0, num_workers=0, **settings) -> RolloutWorker:
    config = PPOConfig(**{**SMALL, **settings})
    return RolloutWorker(
        "CartPole-v1",
        Scaled,
        config=config,
        worker_index=worker_index,
        num_workers=num_workers,
        samples=not num_workers or worker_index > 0,
    )


def own(worker, policy_id="default_policy") -> dict:
    return {name: value for name, value in worker.get_filters()[policy_id].items() if name.startswith("~/")}


def sums(batches, *, episodic) -> np.ndarray:
    """The sums after each reward of one worker's fragments by the definition, where all rewards are 1."""
    found, latest = [], {}
    for batch in batches:
        for row in np.argsort(batch["trajectory_id"], kind="stable"):
            slot, trajectory = (int(batch[name][row]) for name in ("slot", "trajectory_id"))
            before = latest.get((slot, trajectory if episodic else None), 0.0)
            found.append(1 + GAMMA * before)
            latest[slot, trajectory if episodic else None] = found[-1]
    return np.array(found)


@pytest.mark.parametrize("count", [1, 2])
def test_the_driver_has_the_statistics_of_all_workers(count):
    local = made(num_workers=count)
    workers = {index: made(index, count) for index in range(1, count + 1)}
    optimizer = SyncSamplesOptimizer(local, RemoteWorkers(LocalActors(lambda index, _: workers[index]), count))
    batches: dict[int, list] = {index: [] for index in workers}
    for _ in range(3):
        for index, worker in workers.items():
            rollout = worker.rollout()
            batches[index].append(rollout.batch["default_policy"])
            optimizer._sampled(rollout)
        update = Update(2, 0, local.get_weights(), local.get_filters(), dict(local.policies.filters_set))
        for worker in workers.values():
            worker.apply_update(update)
    state = own(local)
    parts = ("count", "mean", "squares")
    expected = {f"~/{name}/{part}" for name in ("returns", "endless", "rows") for part in parts}
    assert state.keys() == expected | {"~/returns/largest", "~/endless/largest"}
    for name, episodic in (("returns", True), ("endless", False)):
        together = np.concatenate([sums(of_one, episodic=episodic) for of_one in batches.values()])
        assert state[f"~/{name}/count"] == len(together) == 3 * 30 * count
        np.testing.assert_allclose(state[f"~/{name}/mean"], together.mean(), rtol=1e-12)
        np.testing.assert_allclose(state[f"~/{name}/squares"], together.var() * len(together), rtol=1e-9)
        np.testing.assert_allclose(state[f"~/{name}/largest"], together.max(), rtol=1e-12)
    for worker in workers.values():
        for name, value in own(worker).items():
            np.testing.assert_allclose(value, state[name], rtol=1e-9, err_msg=name)


def test_block_and_row_samplers_have_equal_statistics():
    blocks, rows = made(), made(sampler=RowSampler)
    for _ in range(3):
        first, second = blocks.sample(), rows.sample()
        for name in first:
            np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    assert first["slot"].tolist().count(0) == 15
    np.testing.assert_equal(own(blocks), own(rows))


@pytest.mark.long
def test_compiled_sampling_has_the_statistics_of_single_steps():
    compare(policy=Scaled)


@pytest.mark.long
def test_statistics_of_a_policy_that_does_not_learn_stay():
    multiagent = {
        "policies": {"left": None, "right": None},
        "policy_mapping_fn": lambda agent_id: agent_id,
        "policies_to_train": ["left"],
    }
    with ScaledTrainer(env=TwoAgents, config={**SMALL, "multiagent": multiagent}) as trainer:
        trainer.train()
        assert own(trainer.worker, "left")["~/returns/count"] > 0
        assert own(trainer.worker, "right")["~/returns/count"] == 0


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_restoring_continues_exactly(num_workers, tmp_path):
    def outcome(trainer):
        results = [trainer.train()["info"]["learner"] for _ in range(2)]
        sampling = [state["acting"] for state in trainer.get_state()["workers"]["sampling"]]
        return results, trainer.get_weights(), trainer.worker.get_filters(), sampling

    config = {**SMALL, "num_workers": num_workers, "num_cpus_per_worker": 0}  # both trainers start on any machine
    with ScaledTrainer(env="CartPole-v1", config=config) as trainer, ScaledTrainer("CartPole-v1", config) as restored:
        trainer.train()
        path = trainer.save(tmp_path / "checkpoint", exact=True)
        continued = outcome(trainer)
        restored.restore(path)
        np.testing.assert_equal(outcome(restored), continued)
    assert continued[3][0]["default_policy"]["running_returns"]["endless"]["sums"].max() > 1
    assert load_policy(path, trainer_class=ScaledTrainer).policy.running_statistics["returns"].count == 60


def test_a_checkpoint_of_other_statistics_is_refused(tmp_path):
    with PPOTrainer(env="CartPole-v1", config=SMALL) as trainer:
        path = trainer.save(tmp_path / "checkpoint")
    with ScaledTrainer(env="CartPole-v1", config=SMALL) as trainer, pytest.raises(CheckpointError):
        trainer.restore(path)


@pytest.mark.parametrize("wrong", [None, {"returns": 0.0}, {1: RunningMoments()}, [RunningMoments()]])
def test_what_is_no_statistics_is_refused(wrong):
    class Wrong(PPO):
        def make_running_statistics(self):
            return wrong

    refused(PolicyError, RolloutWorker, "CartPole-v1", Wrong, config=SMALL, says="make_running_statistics")
