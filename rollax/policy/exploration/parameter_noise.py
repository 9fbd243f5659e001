"""`ParameterNoise`: exploration by perturbed parameters of the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from rollax.batch import SampleBatch
from rollax.core.stored_values import read_count, read_number
from rollax.models.distributions import MASKED_LOGIT
from rollax.policy.exploration import Exploration, OutputsOf, Params, log_softmax
from rollax.policy.exploration.wrapper import ExplorationWrapper

_FACTOR = 1.01  # α of the adaptation
_STEPS = 50  # steps between adaptations


class ParameterNoise(ExplorationWrapper):
    """Acts with parameters θ + σ · n, with normal numbers n that are drawn again about once per episode.

    Source: Plappert et al. (2018), section 3 and appendix C, arXiv:1706.01905: every 50 steps σ becomes α · σ
        if d(π, π̃) <= δ, otherwise σ / α, with α = 1.01. Deviations: all parameters of the model are perturbed, and by
        default models have no layer normalization; sub-environments of one process share n; d is measured after a
        fragment, on its first rows; n is drawn again when at least as many trajectories have ended as are running.

    Args:
        inner: the exploration that chooses actions from the outputs of the perturbed model.
        distance: `distance(outputs, perturbed)` returns d for outputs [N, num_inputs] with θ and with θ + σ · n.
        scale: `scale(timestep)` returns δ.
        sigma: the initial σ.
    """

    def __init__(
        self,
        inner: Exploration,
        distance: Callable[[np.ndarray, np.ndarray], float],
        scale: Callable[[float], float],
        sigma: float,
    ) -> None:
        super().__init__(inner)
        self.scale, self.sigma = scale, sigma
        self._distance = distance
        self._seed = 0  # of n; 0: not drawn yet
        self._steps = self._ended = 0  # steps since the last adaptation, trajectories that ended since n was drawn
        self._directions: dict[str, np.ndarray] = {}
        self._perturbed: tuple[Params, Params] | None = None  # parameters, and perturbed parameters
        self._perturb = jax.jit(_perturb)

    @property
    def traced(self) -> Exploration:
        return self.inner.traced

    def behaviour(self, actions: Any, fetches: Mapping[str, Any], timestep: int) -> dict[str, Any]:
        """Returns an empty dict, because the perturbed parameters are not recorded."""
        return {}

    def acting_params(self, params: Params, rng: np.random.Generator) -> Params:
        if not self._seed:
            self._seed = int(rng.integers(1, 2**63))
        if not self._directions:
            normal = np.random.Generator(np.random.SFC64(self._seed))
            self._directions = {n: normal.standard_normal(params[n].shape, np.float32) for n in sorted(params)}
        if self._perturbed is None or self._perturbed[0] is not params:
            self._perturbed = params, self._perturb(dict(params), self._directions, self.sigma)
        return self._perturbed[1]

    def after_fragment(self, batch: SampleBatch, params: Params, outputs_of: OutputsOf, timestep: int) -> None:
        if not self._directions:
            return  # the fragment was sampled without exploration
        self._steps += batch.count
        adaptations, self._steps = divmod(self._steps, _STEPS)
        if adaptations:
            perturbed = self._perturb(dict(params), self._directions, self.sigma)
            is_near = self._distance(outputs_of(params), outputs_of(perturbed)) <= self.scale(timestep)
            self.sigma *= _FACTOR ** (adaptations if is_near else -adaptations)
            self._perturbed = None
        ended = int(np.count_nonzero(batch[SampleBatch.TERMINATEDS] | batch[SampleBatch.TRUNCATEDS]))
        self._ended += ended
        if self._ended >= max(len(np.unique(batch[SampleBatch.TRAJECTORY_ID])) - ended, 1):
            self._seed, self._ended, self._directions, self._perturbed = 0, 0, {}, None

    def get_state(self) -> dict[str, Any]:
        return {"sigma": self.sigma, "seed": self._seed, "steps": self._steps, "ended": self._ended}

    def set_state(self, state: Mapping[str, Any]) -> None:
        if not state:
            return  # from a run with another exploration
        where = "parameter noise"
        sigma = read_number(state, "sigma", where)
        steps = read_count(state, "steps", where, below=_STEPS)
        seed, ended = (read_count(state, key, where) for key in ("seed", "ended"))
        self._seed, self._steps, self._ended = seed, steps, ended
        self.sigma = sigma
        self._directions, self._perturbed = {}, None


def softmax_distance(values: np.ndarray, perturbed: np.ndarray) -> float:
    """Returns the mean Kullback-Leibler divergence between the softmax of masked values [N, A] and perturbed values.

    Source: Plappert et al. (2018), appendix C.1, arXiv:1706.01905:  D_KL(π || π̃), π = softmax(Q).
    """
    # A model may mask with minus infinity, and ∞ - ∞ would be NaN.
    finite = (np.maximum(outputs.astype(np.float64), MASKED_LOGIT) for outputs in (values, perturbed))
    logp, perturbed_logp = map(log_softmax, finite)
    return float((np.exp(logp) * (logp - perturbed_logp)).sum(axis=-1).mean())


def epsilon_distance(epsilon: float, num_actions: int) -> float:
    """Returns the distance between ε-greedy and greedy actions, the limit δ of `softmax_distance`.

    Source: Plappert et al. (2018), appendix C.1, arXiv:1706.01905:  δ = -log(1 - ε + ε / |A|).
    """
    return -math.log(1 - epsilon + epsilon / num_actions)


def action_distance(actions: np.ndarray, perturbed: np.ndarray) -> float:
    """Returns the root mean square difference of actions [N, W], in the units of the σ of action noise.

    Source: Plappert et al. (2018), appendix C.2, arXiv:1706.01905:  d = √(1/W Σ_i E[(π(s)_i - π̃(s)_i)²]),  δ = σ.
    """
    return float(np.sqrt(np.square(actions - perturbed).mean()))


def _perturb(params: Params, directions: Params, sigma: jax.Array) -> Params:
    return {name: value + sigma * directions[name] for name, value in params.items()}
