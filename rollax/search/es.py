"""ES: evolution strategies.

Source: Salimans et al. (2017), arXiv:1703.03864. The candidates θ ± σ ε_k of N directions are played; r_k⁺ and r_k⁻ are
their returns, s shapes them, by default to centered ranks, and Adam ascends the estimate g, with weight decay c:
    g = 1/(2N) Σ_k (s(r_k⁺) - s(r_k⁻)) ε_k,  θ ← Adam(-g + c θ)
Deviations: equal returns have equal ranks; both candidates of a direction begin from the same states, unless
`shared_starts` is false; directions are generated where they are needed, not read from a table of noise; noise
on actions is in units of half their range; no virtual batch normalization; no adaptive time limit; with
`observation_filter="MeanStdFilter"` statistics come from all episodes, not from 1 % of them, standard deviations have
no lower bound (the authors': 0.1), and standardized observations are clipped to [-10, 10] (the authors': [-5, 5]).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from numpy.typing import NDArray
from pydantic import Field

from rollax.algorithms.trainer import Trainer
from rollax.config.field_group import ENABLED
from rollax.core.spaces import space_text
from rollax.errors import ConfigError
from rollax.ops.evolution import Shaping, es_weights
from rollax.search.config import SearchFields
from rollax.search.messages import Candidates
from rollax.search.optimizer import SearchOptimizer
from rollax.search.searched_policy import Searched


class ESConfig(SearchFields):
    """The fields of ES in addition to the fields of a search, with the symbols of the module's equation."""

    defaults = {"lr": 0.01, "num_directions": 50, "noise_stdev": 0.02, "observation_filter": "MeanStdFilter"}
    requires = {
        "clip_rewards": {"shaping": ("centered_rank", "identity")},
        "explore": {"action_noise_std": ENABLED},
    }
    places = {("shaping", "l2_coeff", "action_noise_std"): ()}

    shaping: Shaping = Field(
        default="centered_rank",
        description="weights of candidates: centered_rank, the ranks of their returns; identity, the returns; sign, "
        "the sums of the signs of rewards; centered_sign_rank, the ranks of these sums",
    )
    l2_coeff: float = Field(default=0.005, ge=0, description="c, weight decay")
    action_noise_std: float = Field(
        default=0.01,
        ge=0,
        description="standard deviation of the noise on Box actions of candidates, in units of half an action's range "
        "(of the action itself if it has no bounds, or without normalize_actions); no noise in evaluations, with "
        "explore=False, and on a Box inside Dict or Tuple actions",
    )


class ES(Searched):
    """A searched policy whose optimizer is Adam."""

    config_class = ESConfig

    def check_spaces(self) -> None:
        super().check_spaces()
        noise, default = self.config.action_noise_std, ESConfig.model_fields["action_noise_std"].default
        if noise not in (0.0, default) and not _takes_noise(self.action_space):
            raise ConfigError(
                "The actions are not continuous, so no noise can be added to them.",
                "config key 'action_noise_std'",
                f"{noise:g}, for {space_text(self.action_space)}",
            ).expected("a Box action space", "leave action_noise_std out for this action space")


class ESOptimizer(SearchOptimizer):
    """Each step of this optimizer is one iteration of ES."""

    config_class = ESConfig

    def _set_up(self) -> None:
        super()._set_up()
        if not (self.config.explore or _takes_noise(self._policy.action_space)):
            what = "explore has no effect: all actions are greedy, and noise is added to continuous ones only."
            got = f"False, for {space_text(self._policy.action_space)}"
            fix = "leave explore out: candidates explore by perturbed parameters"
            raise ConfigError(what, "config key 'explore'", got, expected="a Box action space, or no such key", fix=fix)

    def weights(self, returns: NDArray[np.float64]) -> NDArray[np.float64]:
        return es_weights(returns, self.config.shaping)

    def decay(self) -> float:
        return self.config.l2_coeff

    def request(self, indices: NDArray) -> Candidates:
        config = self.config
        return replace(
            super().request(indices),
            action_noise=config.action_noise_std if config.explore and _takes_noise(self._policy.action_space) else 0.0,
            sign_rewards="sign" in config.shaping,
        )


def _takes_noise(space: Space) -> bool:
    """Whether actions are numbers that noise can be added to."""
    return isinstance(space, Box)


class ESTrainer(Trainer):
    """ES: evolution strategies.

    Source: Salimans et al. (2017), arXiv:1703.03864. Its config is `ESConfig`.
    """

    name = "ES"
    config_class = ESConfig
    policy_class = ES
    optimizer_class = ESOptimizer
