"""ARS: augmented random search.

Source: Mania, Guy and Recht (2018), arXiv:1803.07055. Candidates θ ± ν δ_k are played, with the returns r_k⁺ and r_k⁻.
The b directions with the best candidates move the parameters; σ_R is the standard deviation of their 2b returns:
    θ ← θ + α / (b σ_R) Σ_k (r_k⁺ - r_k⁻) δ_k
V1 acts on observations as they are, V2 (`observation_filter="MeanStdFilter"`) standardizes them by statistics that
change between iterations, and the variants V1-t and V2-t use b < N directions. Deviations: both candidates of a
direction begin from the same states, unless `shared_starts` is false; -1 and 1 stand for the bounds of the action
space, unless `normalize_actions` is false; policies may be networks, not only linear; only the environment limits the
time of episodes; standardized observations are clipped to [-10, 10].
"""

from __future__ import annotations

import numpy as np
import optax
from numpy.typing import NDArray
from pydantic import Field

from rollax.algorithms.trainer import Trainer
from rollax.models.config import ModelConfig
from rollax.ops.evolution import ars_weights
from rollax.search.config import SearchFields
from rollax.search.optimizer import SearchOptimizer
from rollax.search.searched_policy import Searched


class ARSConfig(SearchFields):
    """The fields of ARS. In its equation, N is `num_directions`, b `directions_used`, ν `noise_stdev` and α `lr`."""

    defaults = {"lr": 0.02, "observation_filter": "MeanStdFilter"}
    requires = {"adam_epsilon": "a step is plain gradient ascent"}
    places = {"directions_used": ()}

    model: ModelConfig = Field(
        default=ModelConfig(fcnet_hiddens=()),
        description="network of the policy: by default linear, without a bias and with initial weights 0; a model in "
        "the config replaces this default, so set fcnet_hiddens=() in it too for a linear policy",
    )
    directions_used: int | None = Field(
        default=None, ge=1, description="b, number of directions in a step: those with the best candidates; None: all N"
    )

    def check(self) -> None:
        super().check()
        if self.directions_used is not None:
            self.refuse_larger("directions_used", "num_directions")


class ARS(Searched):
    """A searched policy whose optimizer makes steps of plain gradient ascent."""

    config_class = ARSConfig

    def make_optimizer(self) -> optax.GradientTransformation:
        return optax.identity()


class ARSOptimizer(SearchOptimizer):
    """Each step of this optimizer is one iteration of ARS."""

    config_class = ARSConfig

    def weights(self, returns: NDArray[np.float64]) -> NDArray[np.float64]:
        return ars_weights(returns, self.config.directions_used)


class ARSTrainer(Trainer):
    """ARS: augmented random search.

    Source: Mania, Guy and Recht (2018), arXiv:1803.07055. Its config is `ARSConfig`.
    """

    name = "ARS"
    config_class = ARSConfig
    policy_class = ARS
    optimizer_class = ARSOptimizer
