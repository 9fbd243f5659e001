"""What sampling fills follows from the columns that an algorithm reads."""

import pytest

from rollax import DQN, PPO, PPOTrainer
from rollax.ops.mean_over_rows import masked_mean
from rollax.policy.replayed import TRANSITION_SAMPLED
from tests.policy.small_ppo import CHOICES, SEEN


class Following(PPO):
    """Its loss reads the next observation of each row."""

    reads = (*PPO.reads, "new_obs")
    statistics = (*PPO.statistics, "speed")

    def loss(self, model, out, batch, mask, coefficients):
        loss, statistics = super().loss(model, out, batch, mask, coefficients)
        speed = masked_mean(abs(batch["new_obs"] - batch["obs"]).max(axis=-1), mask)
        return loss, {**statistics, "speed": speed}


class FollowingTrainer(PPOTrainer):
    policy_class = Following


class Marked(PPO):
    reads = (*PPO.reads, "marks")  # a column of its own, which postprocess adds


@pytest.mark.parametrize(
    ("algorithm", "samples"),
    [
        (PPO, {"obs", "actions", "rewards", "vf_preds", "action_logp", "action_dist_inputs"}),
        (Following, {"obs", "actions", "rewards", "vf_preds", "action_logp", "action_dist_inputs", "new_obs"}),
        (DQN, {*TRANSITION_SAMPLED}),  # a replay buffer has the next observations
        (Marked, None),  # it may be computed from any column
    ],
)
def test_what_sampling_fills(algorithm, samples):
    assert algorithm(SEEN, CHOICES).samples == samples


def test_an_algorithm_without_replay_reads_the_next_observations():
    config = {"train_batch_size": 64, "sgd_minibatch_size": 64, "num_sgd_iter": 1, "seed": 0}
    with FollowingTrainer(env="CartPole-v1", config=config) as trainer:
        assert trainer.train()["info"]["learner"]["default_policy"]["speed"] > 0
