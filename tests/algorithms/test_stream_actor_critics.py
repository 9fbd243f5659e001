"""IMPALA and APPO on fragments of a worker: sequences of a model with memory, and importance weights."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rollax import RolloutWorker, SampleBatch
from rollax.algorithms.registry import get_trainer_class
from rollax.policy.sequences_as_rows import as_rows
from tests.algorithms.contract.cases import MEMORY, echo


def worker_of(algorithm: str, **options: Any) -> RolloutWorker:
    trainer_class = get_trainer_class(algorithm)
    # Echo's episodes are truncated after ten steps
    sizes = {"num_envs_per_worker": 2, "rollout_fragment_length": 7, "model": {"fcnet_hiddens": (4,)}, "seed": 0}
    config = trainer_class.config_class(**{**sizes, **echo(spaces.Discrete(4, start=-1)), **options})
    return RolloutWorker(config.env, trainer_class.policy_class, config=config)


def sampled(worker: RolloutWorker) -> SampleBatch:
    batch = worker.sample()
    assert isinstance(batch, SampleBatch)
    return batch


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"vtrace": False, "use_kl_loss": True}], ids=["V-trace", "without"])
def test_outputs_of_sequences_equal_those_of_acting(options):
    worker = worker_of("APPO", model=MEMORY, **options)
    policy: Any = worker.get_policy()
    for _ in range(2):
        batch = sampled(worker)
    columns = policy.algorithm.loss_columns(batch, policy.learning_rng)
    sequences, count = policy.memory.sequences(columns, batch, policy.memory.max_seq_len)
    rows, mask = as_rows(jax.tree.map(jnp.asarray, sequences), jnp.ones(count))
    assert mask.min() == 0  # some sequences are shorter than others
    dist_inputs, values, *_ = policy.forward(policy.split.merge(policy.params, policy.extra), rows)
    memory = {name: batch[name] for name in policy.memory.columns}
    expected_values = policy.compute_values(batch["obs"], memory)  # bootstrap rows included
    np.testing.assert_allclose(values[mask > 0], expected_values, rtol=1e-4, atol=1e-6)
    logp = np.asarray(policy.distribution.logp(dist_inputs, rows["actions"]))[np.asarray(mask) > 0]
    acted = ~batch["bootstrap"] if "bootstrap" in batch else slice(None)
    np.testing.assert_allclose(logp[acted], batch["action_logp"][acted], rtol=1e-4)
