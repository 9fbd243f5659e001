"""Recurrent policies that are loaded from a checkpoint."""

from typing import Any

import numpy as np
import pytest

from examples.stateless_cartpole import StatelessCartPole
from rollax import PPOTrainer, load_policy

SMALL: dict[str, Any] = {
    "train_batch_size": 64,
    "sgd_minibatch_size": 32,
    "num_sgd_iter": 1,
    "observation_filter": "MeanStdFilter",
    "clip_rewards": True,
    "seed": 0,
    "model": {
        "use_lstm": True,
        "lstm_cell_size": 3,
        "fcnet_hiddens": (4,),
        "max_seq_len": 8,
        "lstm_use_prev_action": True,
        "lstm_use_prev_reward": True,
    },
}


@pytest.mark.long
def test_loaded_policies_act_like_the_trainer(tmp_path):
    with PPOTrainer(StatelessCartPole, SMALL) as trainer:
        trainer.train()
        assert_acts_like(load_policy(trainer.save(tmp_path)), trainer)


def assert_acts_like(loaded: Any, trainer: PPOTrainer) -> None:
    """Compares single actions of a loaded policy and of the trainer with batches of one row, filtered by hand."""
    policy, observation_filter = trainer.get_policy(), trainer.worker.runners["default_policy"].filter
    state = theirs = action = None
    batch, previous, reward = policy.get_initial_state(), 0, 0.0
    batch = [part[None] for part in batch]
    for obs in np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32):
        seen = observation_filter(obs[None], update=False)
        memory = batch, np.array([previous]), np.sign([reward])
        actions, batch, _ = policy.compute_actions(seen, *memory, explore=False)  # type: ignore[call-arg]
        same, theirs, _ = trainer.compute_single_action(obs, theirs, prev_action=action, prev_reward=reward)
        action, state, fetches = loaded.compute_single_action(obs, state, prev_action=action, prev_reward=reward)
        assert action == same == actions[0]
        np.testing.assert_array_equal(state[0], theirs[0])
        np.testing.assert_allclose(state[0], batch[0][0], rtol=1e-5)
        assert set(fetches) == {"action_logp", "vf_preds", "action_dist_inputs"}
        previous, reward = action, 3.0
