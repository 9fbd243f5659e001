"""The fields that ES and ARS share."""

from __future__ import annotations

from pydantic import Field

from rollax.config.groups import OWN_NETWORKS
from rollax.config.trainer import TrainerConfig


class SearchFields(TrainerConfig):
    """The fields of a search for a vector of parameters along random directions; see `SearchOptimizer`."""

    defaults = {"num_envs_per_worker": 16}
    requires = {
        ("train_batch_size", "rollout_fragment_length", "batch_mode"): "an iteration has num_directions directions",
        "gamma": "returns are sums of rewards",
        "sample_async": "episodes are played in each iteration, with its parameters",
        "max_policy_lag": "no experience is older than the parameters",
        "accept_off_policy_actions": "nothing is learned from actions",
        "count_steps_by": "there is one agent",
        "model.normalize_observations": "its statistics change in updates on batches; set observation_filter",
        "explore": "candidates explore by perturbed parameters, and all actions are greedy",
        **OWN_NETWORKS,
    }
    places = {("num_directions", "noise_stdev", "episodes_per_candidate", "shared_starts", "reward_offset"): ()}

    num_directions: int = Field(
        default=16,
        ge=1,
        description="N, number of random directions ε in one iteration; each has the candidates θ + σ ε and θ - σ ε",
    )
    noise_stdev: float = Field(default=0.05, gt=0, description="σ, standard deviation of the perturbations")
    episodes_per_candidate: int = Field(default=1, ge=1, description="episodes per candidate, whose return is the mean")
    shared_starts: bool = Field(
        default=True,
        description="whether both candidates of a direction begin their episodes from the same seeds, so that their "
        "difference does not depend on the start; false, as in the papers: each episode has its own seed",
    )
    reward_offset: float = Field(
        default=0.0,
        description="number added to each reward before it is clipped or its sign is taken; -1 removes a bonus of 1 "
        "for each step survived; results report the rewards of the environment",
    )
    noise_size: int | None = Field(
        default=None,
        ge=1,
        description="no effect, accepted for configs of RLlib: directions are generated, not read from a table",
    )
