"""Policies for the tests of `rollax.torch`, with some in JAX, and experience for them."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from examples.torch_dqn import TorchDQN
from examples.torch_ppo import TorchPPO
from examples.torch_sac import TorchSAC
from rollax import SampleBatch
from rollax.algorithms.dqn import DQN
from rollax.algorithms.ppo import PPO
from rollax.algorithms.sac import SAC
from tests.marks import long_except
from tests.policy.small_ppo import CHOICES, SEEN, seen

BOX = spaces.Box(-1, 1, (2,))
SMALL = {"model": {"fcnet_hiddens": (8,)}, "seed": 3, "lr": 1e-2}
PPO_CONFIG = {**SMALL, "sgd_minibatch_size": 8, "num_sgd_iter": 2}
REPLAY = {**SMALL, "train_batch_size": 8}
KINDS = {
    "TorchPPO": (TorchPPO, CHOICES, PPO_CONFIG),
    "TorchPPO-Box": (TorchPPO, BOX, {**PPO_CONFIG, "model": {"fcnet_hiddens": (8,), "free_log_std": True}}),
    "TorchPPO-LSTM": (TorchPPO, CHOICES, {**PPO_CONFIG, "model": {"use_lstm": True, "lstm_cell_size": 4}}),
    "TorchDQN": (TorchDQN, CHOICES, REPLAY),
    "TorchSAC": (TorchSAC, BOX, REPLAY),
    "PPO": (PPO, CHOICES, PPO_CONFIG),
    "PPO-LSTM": (PPO, CHOICES, {**PPO_CONFIG, "model": {"use_lstm": True, "lstm_cell_size": 4}}),
    "DQN": (DQN, CHOICES, REPLAY),
    "SAC": (SAC, BOX, REPLAY),
}
IN_SHORT = {"PPO", *(kind for kind in KINDS if kind.startswith("Torch"))}
every_kind = pytest.mark.parametrize("kind", long_except(IN_SHORT, KINDS.keys()))
same = np.testing.assert_equal


def make(kind="TorchPPO", **changes):
    policy_class, action_space, config = KINDS[kind]
    return policy_class.make_policy(SEEN, action_space, {**config, **changes})


def own(kind="TorchPPO", changes=(), **members):
    """As `make`, with changes of its config; its class `Own` has these methods and attributes."""
    policy_class, action_space, config = KINDS[kind]
    return type("Own", (policy_class,), members).make_policy(SEEN, action_space, {**config, **dict(changes)})


def in_parts(rows, kind, **changes):
    """As `make`; it learns in microbatches of this many rows."""
    plan_of = KINDS[kind][0].make_plan
    return own(kind, changes, make_plan=lambda self: replace(plan_of(self), microbatch_size=rows))


def experience(policy, rows=16, seed=0):
    """Actions of the policy with random rewards, advantages and targets; or replayed transitions."""
    random = np.random.default_rng(seed)
    obs = seen(rows, seed)
    actions, _, fetches = policy.compute_actions(obs)
    numbers = random.standard_normal((3, rows)).astype(np.float32)
    columns = {"obs": obs, "actions": actions, "rewards": numbers[0]}
    if policy.learns_off_policy:
        columns |= {"new_obs": seen(rows, seed + 1), "discounts": np.full(rows, 0.9, np.float32)}
        return SampleBatch({**columns, "weights": np.ones(rows, np.float32), "indices": np.arange(rows)})
    columns |= {"advantages": numbers[1], "value_targets": numbers[2], **fetches}
    if policy.memory.present:
        (state,) = policy.memory.initial_state
        columns |= {"state_in": (np.zeros((rows, *state.shape), np.float32),)}
        columns |= {"trajectory_id": np.repeat([0, 1], rows // 2), "eps_id": np.repeat([0, 1], rows // 2)}
    return SampleBatch(columns)


def continues_exactly(policy, other):
    """Asserts that `other` gets the state of `policy` after an update, and learns the same from then on."""
    batch = experience(policy)
    policy.learn_on_batch(batch)
    other.set_state(policy.get_state())
    for one in (policy, other):
        one.learn_on_batch(batch)
    same(policy.get_weights(), other.get_weights())
