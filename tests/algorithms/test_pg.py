"""PG's returns, loss and gradient by hand."""

import math

import numpy as np
import pytest
from gymnasium import spaces

from rollax import BatchError, JaxPolicy, PGConfig, PGTrainer, RolloutWorker, SampleBatch
from rollax.algorithms.pg import PG
from rollax.batch import Fragment
from tests.algorithms.envs import Corridor
from tests.algorithms.tables import TABLE, f32, logits_of, one_gradient
from tests.env.refused import raised


def make(states=4, **config):
    return PG.make_policy(spaces.Discrete(states), spaces.Discrete(2), {**TABLE, **config})


def test_loss_and_gradient():
    #   row   p(0)  action    G    -G log π   ∂/∂z = -G (onehot - p) / 3
    #    0    1/2     0       2     2 ln 2        -2 (1/2, -1/2)
    #    1    1/4     0      -1    -1 ln 4         1 (3/4, -3/4)
    #    2    1/4     1       3     3 ln 4/3      -3 (-1/4, 1/4)
    #    3    padding
    policy = make()
    policy.set_weights({"logits": logits_of(0.5, 0.25, 0.25, 0.5), "values": np.zeros(4)})
    columns = {"obs": np.arange(4), "actions": np.array([0, 0, 1, 1]), "advantages": f32(2, -1, 3, np.nan)}
    gradients, stats = one_gradient(policy, columns, [0, 1, 2, -1])
    loss = (2 * math.log(2) - math.log(4) + 3 * math.log(4 / 3)) / 3
    quarter = math.log(4) / 4 + 0.75 * math.log(4 / 3)  # entropy of (1/4, 3/4)
    expected = {"policy_loss": loss, "total_loss": loss, "entropy": (math.log(2) + 2 * quarter) / 3}
    assert stats == pytest.approx(expected, rel=1e-5)
    expected = np.array([[-1, 1], [0.75, -0.75], [0.75, -0.75], [0, 0]]) / 3
    np.testing.assert_allclose(gradients["logits"], expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(gradients["values"], 0)


def test_returns_end_with_the_segment():
    # γ = 0.1 lets returns be read as digits. A cut segment is not bootstrapped: there is no value function.
    policy = make(gamma=0.1)
    batch = Fragment(
        {
            "rewards": f32(1, 2, 3, 4, 5),
            "terminateds": np.array([0, 1, 0, 0, 0], bool),
            "truncateds": np.array([0, 0, 0, 1, 0], bool),
        },
        [1, 3, 4],
        {"obs": np.zeros(3, np.int64)},
    )
    policy.postprocess_rows(batch)
    np.testing.assert_allclose(batch["advantages"], f32(1.2, 2, 3.4, 4, 5), rtol=1e-6)
    says = "not a Fragment.\n  where:    policy 'default_policy', algorithm PG, postprocess"
    raised(BatchError, policy.postprocess_rows, SampleBatch(batch.to_dict()), says=says)


def test_batches_hold_whole_episodes():
    config = PGConfig(**TABLE, gamma=0.5, num_envs_per_worker=2, train_batch_size=20)
    worker = RolloutWorker(Corridor, PG, config=config)
    batch = worker.sample()
    assert isinstance(batch, SampleBatch)
    # Reward 1 in each of the three steps.
    np.testing.assert_allclose(batch["advantages"], f32(1.75, 1.5, 1)[batch["obs"]])
    assert batch.count >= 20
    assert batch.count % 3 == 0


def test_one_gradient_step_per_iteration_on_standardized_returns():
    trainer = PGTrainer(env=Corridor, config={**TABLE, "gamma": 0.5, "train_batch_size": 12, "lr": 0.01})
    policy = trainer.get_policy()
    assert isinstance(policy, JaxPolicy)
    batches = []
    learn = policy.learn_on_batch

    def spy(batch):
        batches.append(policy.algorithm.loss_columns(batch, policy.learning_rng)["advantages"])
        return learn(batch)

    policy.learn_on_batch = spy
    result = trainer.train()
    assert policy.learner.num_updates == 1
    assert batches[0].mean() == pytest.approx(0, abs=1e-6)
    assert batches[0].std() == pytest.approx(1, abs=1e-6)
    assert result["timesteps_total"] == 12
    assert set(result["info"]["learner"]["default_policy"]) == {"policy_loss", "total_loss", "entropy", "cur_lr"}
    # Adam's first step is lr along the sign of the gradient, wherever there is one.
    moved = np.abs(policy.get_weights()["logits"])
    np.testing.assert_allclose(moved[:3].max(), 0.01, rtol=1e-3)
    np.testing.assert_array_equal(moved[3], 0)  # no decision is made in state 3
