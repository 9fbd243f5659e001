"""`TrainingEstimates`: estimates of the policies of a trainer, from recorded data that is read once."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, replace

from rollax.errors import PolicyError
from rollax.offline.dataset import DatasetReader
from rollax.offline.estimators.episodes import LoggedEpisodes, left_out_warning, trajectories_of
from rollax.offline.estimators.estimate import NEED_LOGP, estimate
from rollax.offline.estimators.target_policy import TargetPolicy, acting_state_kept
from rollax.offline.recorded_fragments import policy_of_recorded
from rollax.rollout.policy_mapping import PolicyMapping
from rollax.rollout.policy_runner import PolicyRunner

log = logging.getLogger("rollax.offline.estimators")


class TrainingEstimates:
    """Repeated estimates of several policies from one data set in memory.

    The policies are estimated as they act in training (`explore=True`). Trajectories that lack their beginning or end
    are left out. Estimates change neither the policies nor their random state.

    Args:
        runners: policy id -> the policy to estimate.
        methods: some of `METHODS`.
        policy_of: the policy mapping; None if there is one policy.
    Raises:
        ConfigError: the data is larger than half of the memory.
        DatasetError: a policy has no whole trajectory, or lacks log-probabilities that a method requires.
        SpaceError, ShapeError, NonFiniteError: a policy has other spaces than its data, or values are impossible.
        PolicyError: a method does not support a policy, or an action is impossible.
    """

    def __init__(
        self,
        reader: DatasetReader,
        runners: Mapping[str, PolicyRunner],
        methods: Sequence[str],
        policy_of: PolicyMapping | None = None,
    ) -> None:
        self._methods = tuple(methods)

        def estimated(agent_id: Hashable, recorded: str) -> str:
            if policy_of is None:
                return next(iter(runners))
            try:
                return policy_of_recorded(policy_of, agent_id, recorded)
            except PolicyError as error:
                if error.__cause__ is None:
                    raise
                return recorded  # not a policy of the trainer

        found = trajectories_of(reader, runners, estimated, "config key 'off_policy_estimation_input'")
        self._targets: dict[str, tuple[TargetPolicy, LoggedEpisodes]] = {}
        for policy_id, runner in runners.items():
            of_policy = found.pop(policy_id)  # trajectories are dropped once they are in columns
            episodes = LoggedEpisodes.of_trajectories(of_policy, reader, runner, policy_id=policy_id, drop_cut=True)
            if episodes.left_out:
                log.warning("Policy %r: %s", policy_id, left_out_warning(episodes))
            self._targets[policy_id] = TargetPolicy(runner), replace(episodes, left_out=0)  # one warning is enough
            self._check(*self._targets[policy_id])

    def __call__(self) -> dict[str, dict[str, dict[str, float | None]]]:
        """Policy id -> method -> the numbers of an `Estimate`, and `effective_sample_size`."""
        results: dict[str, dict[str, dict[str, float | None]]] = {}
        for policy_id, (target, episodes) in self._targets.items():
            found = estimate(target, episodes, self._methods)
            results[policy_id] = {
                method: {
                    **{name: value for name, value in asdict(one).items() if name != "method"},
                    "effective_sample_size": found.effective_sample_size,
                }
                for method, one in found.methods.items()
            }
        return results

    def _check(self, target: TargetPolicy, episodes: LoggedEpisodes) -> None:
        """Raises, before training, the errors that the first evaluation would raise."""
        if {"dm", "dr"} & set(self._methods):
            from rollax.offline.estimators.fitted_q import FittedQ  # which imports JAX

            FittedQ.check(target.runner.policy)
        if NEED_LOGP & set(self._methods):
            episodes.require_logp()
            with acting_state_kept(target.runner.policy):
                target.logp(episodes.chosen([0]))
