"""A model of the behaviour policy, for logs without log-probabilities."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from rollax import runtime, trees
from rollax.batch import SampleBatch
from rollax.estimators.episodes import LoggedEpisodes
from rollax.estimators.target_policy import TargetPolicy
from rollax.models.catalog import make_model
from rollax.models.config import ModelConfig
from rollax.models.distributions.factory import make_distribution
from rollax.ops.masked import masked_mean
from rollax.policy.learner import Learner
from rollax.policy.minibatches import Minibatches, acting_bucket
from rollax.policy.split_model import SplitModel

_HIDDENS, _BATCH_SIZE, _LR = (64, 64), 512, 3e-3
_ROUNDS, _UPDATES = 10, 500  # the step size falls from round to round, so that the last updates average


def fitted_logp(episodes: LoggedEpisodes, target: TargetPolicy, seed: int = 0) -> np.ndarray:
    """[N] log μ̂(a_t | s_t) of a model of the behaviour policy: maximum likelihood of the logged actions.

    The model is a network of the observation alone, so a behaviour policy with memory is only approximated.

    Source: Hanna, Niekum and Stone (2019), "Importance sampling policy evaluation with an estimated behavior policy",
        arXiv:1806.01347.
    """
    runtime.configure_jax()
    policy = target.runner.policy
    distribution = make_distribution(policy.action_space)
    config = ModelConfig(fcnet_hiddens=_HIDDENS, vf_share_layers=True)
    network = make_model(policy.observation_space, policy.action_space, distribution.num_inputs, config, nnx.Rngs(seed))
    split = SplitModel(network)

    def logp(params: Any, extra: Any, batch: Any) -> jax.Array:
        inputs = split.merge(params, extra)(batch[SampleBatch.OBS]).policy
        return distribution.logp(inputs, batch[SampleBatch.ACTIONS])

    def loss(params: Any, targets: Any, extra: Any, batch: Any, mask: jax.Array, coefficients: Any) -> Any:
        value = -masked_mean(logp(params, extra, batch), mask)
        return value, ({"total_loss": value}, extra)

    rows = len(episodes.rewards)
    columns = {
        SampleBatch.OBS: target.filtered(episodes.obs),
        SampleBatch.ACTIONS: episodes.actions,
    }
    columns = trees.pad(columns, acting_bucket(rows))
    learner = Learner(loss, optax.scale_by_adam(), *split.arrays_of(network))
    rng = np.random.default_rng(seed)
    for number in range(_ROUNDS):
        plan = rng.integers(rows, size=(_UPDATES, _BATCH_SIZE), dtype=np.int32)
        batches = Minibatches(plan, _UPDATES, 0, acting_bucket(rows))
        rate = np.float32(_LR * (1 - number / _ROUNDS) ** 2)
        update = learner.learn(columns, batches, {"lr": rate}, where="model of the behaviour policy")
        if update.error is not None:
            raise update.error
    variables = learner.variables
    return np.asarray(jax.jit(logp)(variables.params, variables.extra, columns), np.float64)[:rows]
