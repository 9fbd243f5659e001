"""Recurrent policies: restored runs, and loaded policies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples.stateless_cartpole import StatelessCartPole
from rollax import PPOTrainer, load_policy

SMALL: dict[str, Any] = {
    "num_envs_per_worker": 2,
    "train_batch_size": 64,
    "sgd_minibatch_size": 32,
    "num_sgd_iter": 1,
    "lr": 1e-2,
    "observation_filter": "MeanStdFilter",
    "clip_rewards": True,
    "evaluation_num_episodes": 2,
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


def weights_of(trainer: Any) -> dict[str, np.ndarray]:
    return trainer.get_policy().get_weights()


@pytest.mark.long
def test_restored_runs_and_loaded_policies_equal_the_trainer(tmp_path):
    with PPOTrainer(StatelessCartPole, SMALL) as trainer, PPOTrainer(StatelessCartPole, SMALL) as again:
        for one in (trainer, again):
            one.train()
        for name, value in weights_of(trainer).items():
            np.testing.assert_array_equal(value, weights_of(again)[name], err_msg=name)
        checkpoint = trainer.save(tmp_path, exact=True)
        assert_acts_like(load_policy(checkpoint), trainer)
        again.train()
        again.restore(checkpoint)
        for one in (trainer, again):
            one.train()
        for name, value in weights_of(trainer).items():
            np.testing.assert_array_equal(value, weights_of(again)[name], err_msg=name)
        assert trainer.evaluate()["episode_rewards"] == again.evaluate()["episode_rewards"]


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
