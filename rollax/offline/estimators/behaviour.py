"""A model of the behaviour policy, for logs without log-probabilities."""

from __future__ import annotations

import logging
from typing import Any

import jax
import numpy as np
from flax import nnx

from rollax.batch import Columns, SampleBatch
from rollax.config import TrainerConfig
from rollax.core import runtime, trees
from rollax.errors import DatasetError
from rollax.models.config import ModelConfig
from rollax.models.outputs import Outputs
from rollax.offline.estimators.episodes import LoggedEpisodes
from rollax.offline.estimators.fitted_q import learn_rows
from rollax.offline.estimators.target_policy import TargetPolicy
from rollax.ops.mean_over_rows import masked_mean
from rollax.policy.actor import Actor
from rollax.policy.algorithm import Algorithm
from rollax.policy.learner import Learner
from rollax.policy.objective import AlgorithmObjective
from rollax.policy.split_model import SplitModel
from rollax.policy.update_plan import acting_bucket

log = logging.getLogger("rollax.offline.estimators")
_HIDDENS, _BATCH_SIZE = (64, 64), 512
_FOLDS, _FEWEST = 5, 3
_RATES = 3e-3, 1e-3, 3e-4  # learning rates, each used until the held-out likelihood stops rising
_UPDATES, _PATIENCE, _ROUNDS = 50, 4, 20  # updates per round; rounds without a rise; maximum rounds per rate
_MOST_VALIDATED = 8192  # rows


def fitted_logp(episodes: LoggedEpisodes, target: TargetPolicy, seed: int = 0) -> np.ndarray:
    """[N] log μ̂(a_t | s_t) of models of the behaviour policy, fitted by maximum likelihood.

    The episodes, each with all of its agents, are divided into five parts (into fewer if there are fewer episodes).
    For each part, a model is fitted to all other parts except one, until the likelihood of that one no longer rises.
    A model that was fitted to the part itself would give its actions probabilities near 1. A model reads only the
    observation, so a behaviour policy with memory is only approximated.

    Source: Hanna, Niekum and Stone (2019), "Importance sampling policy evaluation with an estimated behavior policy",
        arXiv:1806.01347; Chernozhukov et al. (2018), "Double/debiased machine learning", section 3, for the parts.
    Raises:
        DatasetError: fewer than three episodes.
    """
    groups = episodes.groups
    count = int(groups.max()) + 1
    if count < _FEWEST:
        what, fix = "Too few episodes to fit a model of the behaviour policy.", "read more data, or use 'dm'"
        raise DatasetError(what, episodes.where, count, expected=f"{_FEWEST} episodes or more", fix=fix)
    runtime.configure_jax()
    rng = np.random.default_rng(seed)
    fitting = _Fitting(episodes, target, seed)
    parts = np.array_split(rng.permutation(count), min(_FOLDS, count))
    part_of = np.empty(count, np.int64)
    for number, part in enumerate(parts):
        part_of[part] = number
    part_of_row = np.repeat(part_of[groups], episodes.lengths)
    logp = np.empty(len(episodes.rewards))
    for number in range(len(parts)):
        log.info("Behaviour policy: model %d of %d", number + 1, len(parts))
        own, held_out = part_of_row == number, part_of_row == (number + 1) % len(parts)
        logp[own] = fitting.logp_of(np.flatnonzero(~(own | held_out)), np.flatnonzero(held_out), rng)[own]
    return logp


class _Likelihood(Algorithm):
    """Maximizes the likelihood of actions."""

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        return -masked_mean(self.distribution.logp(out.policy, batch[SampleBatch.ACTIONS]), mask), {}


class _Fitting:
    """Fits the same network, from the same initial weights, to several selections of rows."""

    def __init__(self, episodes: LoggedEpisodes, target: TargetPolicy, seed: int) -> None:
        policy = target.runner.policy
        config = TrainerConfig(model=ModelConfig(fcnet_hiddens=_HIDDENS, vf_share_layers=True))
        algorithm = _Likelihood(policy.observation_space, policy.action_space, config)
        network = algorithm.make_model(nnx.Rngs(seed))
        split = SplitModel(network)
        columns = {SampleBatch.OBS: target.filtered(episodes.obs), SampleBatch.ACTIONS: episodes.actions}
        self._rows = len(episodes.rewards)
        self._capacity = acting_bucket(self._rows)
        self._columns = trees.pad(columns, self._capacity)
        self._learner = Learner(AlgorithmObjective(algorithm, split, None), *split.arrays_of(network))
        self._actor = runtime.first_equal(Actor(algorithm, split, None))
        self._initial = self._copy()

    def logp_of(self, fitted: np.ndarray, held_out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """[N] log-probabilities of all rows, by a model fitted to the rows `fitted` and validated on `held_out`."""
        if len(held_out) > _MOST_VALIDATED:
            held_out = rng.choice(held_out, _MOST_VALIDATED, replace=False)
        size = min(acting_bucket(len(held_out)), acting_bucket(_MOST_VALIDATED))
        validated = trees.pad(trees.index(self._columns, held_out), size)
        best = self._learner.variables = self._initial
        highest = self._of(validated)[: len(held_out)].mean()
        for rate in _RATES:
            self._learner.variables, without = best, 0
            for _ in range(_ROUNDS):
                self._update(fitted, rate, rng)
                likelihood = self._of(validated)[: len(held_out)].mean()
                if likelihood > highest:
                    best, highest, without = self._copy(), likelihood, 0
                elif (without := without + 1) == _PATIENCE:
                    break
        self._learner.variables = best
        return self._of(self._columns)[: self._rows]

    def _update(self, rows: np.ndarray, rate: float, rng: np.random.Generator) -> None:
        plan = rng.choice(rows, size=(_UPDATES, _BATCH_SIZE)).astype(np.int32)
        learn_rows(self._learner, self._columns, plan, rate, "model of the behaviour policy")

    def _of(self, columns: Any) -> np.ndarray:
        variables = self._learner.variables
        inputs, _ = self._actor.outputs(variables.params, variables.extra, {SampleBatch.OBS: columns[SampleBatch.OBS]})
        return np.asarray(self._actor.logp(inputs, columns[SampleBatch.ACTIONS]), np.float64)

    def _copy(self) -> Any:
        # Copies, because an update may reuse the memory of the old arrays. The number of updates is a Python number.
        return jax.tree.map(
            lambda part: np.array(part) if isinstance(part, jax.Array) else part, self._learner.variables
        )
