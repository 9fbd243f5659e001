"""A3C's advantages, loss and gradient by hand, and A2C, which makes one gradient step on all samples."""

import math

import numpy as np
import pytest
from gymnasium import spaces

from rollax import A2C, A3C, A2CConfig, A2CTrainer, A3CConfig, A3CTrainer, JaxPolicy, RolloutWorker
from rollax.errors import ConfigError
from rollax.optimizers.async_gradients import AsyncGradientsOptimizer
from tests.algorithms.envs import Corridor
from tests.algorithms.tables import TABLE, entropy, f32, logits_of, one_gradient


def make(states=4, **config):
    return A3C.make_policy(spaces.Discrete(states), spaces.Discrete(2), {**TABLE, **config})


class TestLoss:
    # Row i is in state i; the last row is padding. p is the probability of action 0.
    #   row    p   action   A   -A log π     V    R   (V - R)²
    #    0    1/2     0     2    2 ln 2      1    3      4
    #    1    1/4     0    -1   -1 ln 4      2   2.5    .25
    #    2    1/4     1     3    3 ln 4/3    0   -1      1
    #   R has variance (1.5² + 1² + 2.5²)/3 = 9.5/3, R - V = (2, .5, -1) has (1.5² + 0 + 1.5²)/3 = 4.5/3.
    P = (0.5, 0.25, 0.25)

    def gradient(self, timestep=0, **config):
        entropy = {} if "entropy_coeff_schedule" in config else {"entropy_coeff": 0.1}
        policy = make(**{"vf_loss_coeff": 0.25, **entropy, **config})
        policy.timestep = timestep
        policy.set_weights({"logits": logits_of(*self.P, 0.5), "values": f32(1, 2, 0, 9)})
        columns = {
            "obs": np.arange(4),
            "actions": np.array([0, 0, 1, 1]),
            "advantages": f32(2, -1, 3, np.nan),
            "value_targets": f32(3, 2.5, -1, np.inf),
        }
        return one_gradient(policy, columns, [0, 1, 2, -1])

    def test_value(self):
        _, stats = self.gradient()
        policy_loss = (2 * math.log(2) - math.log(4) + 3 * math.log(4 / 3)) / 3
        mean_entropy = sum(map(entropy, self.P)) / 3
        expected = {
            "policy_loss": policy_loss,
            "vf_loss": 5.25 / 3,
            "entropy": mean_entropy,
            "vf_explained_var": 1 - 4.5 / 9.5,
            "total_loss": policy_loss + 0.25 * 5.25 / 3 - 0.1 * mean_entropy,
        }
        assert stats == pytest.approx(expected, rel=1e-5)

    def test_gradient(self):
        gradients, _ = self.gradient()
        # -A (onehot - p) + c_e p_k (ln p_k + H), divided by 3 rows; 2 c_v (V - R) / 3
        expected = np.array([[-1, 1], [0.75, -0.75], [0.75, -0.75], [0, 0]])
        for row, p in enumerate(self.P):
            expected[row] += 0.1 * np.array([q * (math.log(q) + entropy(p)) for q in (p, 1 - p)])
        np.testing.assert_allclose(gradients["logits"], expected / 3, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(gradients["values"], 2 * 0.25 * f32(-2, -0.5, 1, 0) / 3, rtol=1e-5)

    def test_entropy_coefficient_follows_its_schedule(self):
        _, stats = self.gradient(timestep=50, entropy_coeff_schedule=[[0, 0.4], [100, 0.0]], vf_loss_coeff=0.0)
        assert stats["total_loss"] == pytest.approx(stats["policy_loss"] - 0.2 * stats["entropy"], rel=1e-5)


def test_an_iteration_has_many_fragments():
    with A3CTrainer(Corridor, {**TABLE, "num_envs_per_worker": 8}) as trainer:
        assert trainer.train()["timesteps_this_iter"] == 1040  # 13 fragments of 8 * 10 steps


def test_the_reported_learning_rate_is_that_of_the_step():
    config = A3CConfig(**TABLE, lr_schedule=[[0, 0.02], [100, 0.01]])
    local, remote = (RolloutWorker(Corridor, A3C, config=config, worker_index=index) for index in (0, 1))
    optimizer = AsyncGradientsOptimizer(local)
    rollout = remote.sample_gradients()  # with the weights of step 0, while others take 50 steps
    local.set_timestep(50)
    before = local.get_policy().get_weights()
    optimizer._apply(rollout)
    assert optimizer.stats["default_policy"]["cur_lr"] == pytest.approx(0.015)
    change = local.get_policy().get_weights()["values"][:3] - before["values"][:3]
    assert np.abs(change) == pytest.approx(f32(0.015, 0.015, 0.015), rel=1e-3)  # Adam's first step


@pytest.mark.parametrize(("config_class", "policy", "rows"), [(A3CConfig, A3C, 40), (A2CConfig, A2C, 10)])
def test_an_update_has_the_rows_of_one_worker_in_a3c_and_of_all_workers_in_a2c(config_class, policy, rows):
    sizes = {"train_batch_size": 40, "rollout_fragment_length": "auto", "num_workers": 4, "num_envs_per_worker": 2}
    config = config_class(**TABLE, **sizes)
    worker = RolloutWorker(Corridor, policy, config=config, worker_index=1, num_workers=4)
    assert len(worker.sample()) == rows


def test_a2c_learns_in_microbatches():
    policy = A2C.make_policy(spaces.Discrete(4), spaces.Discrete(2), {**TABLE, "microbatch_size": 3})
    assert policy.algorithm.make_plan().microbatch_size == 3


def test_a2c_refuses_a_microbatch_larger_than_the_batch():
    with pytest.raises(ConfigError, match=r"microbatch_size=300, train_batch_size=200"):
        A2CConfig(microbatch_size=300)


def test_a2c_makes_one_gradient_step_per_iteration():
    config = {**TABLE, "num_envs_per_worker": 2, "train_batch_size": 12, "rollout_fragment_length": 3, "lr": 0.01}
    with A2CTrainer(env=Corridor, config=config) as trainer:
        result = trainer.train()
        policy = trainer.get_policy()
        assert isinstance(policy, JaxPolicy)
        assert policy.learner.num_updates == 1
        assert result["timesteps_total"] == 12
        keys = {"policy_loss", "vf_loss", "entropy", "vf_explained_var", "total_loss", "cur_lr"}
        assert set(result["info"]["learner"]["default_policy"]) == keys
        # Adam's first step is lr along the sign of the gradient, wherever there is one.
        assert np.abs(policy.get_weights()["values"][:3]) == pytest.approx(f32(0.01, 0.01, 0.01), rel=1e-3)
        assert policy.get_weights()["values"][3] == 0  # no decision is made in state 3
