"""`estimate`: the value of a policy from logged episodes, by several estimators, with confidence intervals."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from rollax.core.numbers import is_number, is_whole
from rollax.errors import ConfigError
from rollax.offline.estimators import importance
from rollax.offline.estimators.episodes import LoggedEpisodes, left_out_warning
from rollax.offline.estimators.importance import starts_of
from rollax.offline.estimators.intervals import bootstrap
from rollax.offline.estimators.target_policy import TargetPolicy, acting_state_kept
from rollax.offline.reader import Source, reading
from rollax.rollout.policy_runner import PolicyRunner

if TYPE_CHECKING:
    from rollax.offline.estimators.fitted_q import ActionValues, FQEConfig

log = logging.getLogger("rollax.offline.estimators")

_WEIGHTED = {
    "is": importance.importance_sampling,
    "pdis": importance.per_decision,
    "wis": importance.weighted,
    "wpdis": importance.weighted_per_decision,
}
METHODS = (*_WEIGHTED, "dm", "dr")
"""Importance sampling (ordinary, per decision, weighted, weighted per decision), direct method, doubly robust."""
NEED_LOGP = frozenset({*_WEIGHTED, "dr"})
"""The methods that read the log-probabilities of the logged actions."""
_FEW_EPISODES = 10
_WEIGHT_TOLERANCE = 0.1  # of the mean weight, whose expectation is 1
_MOST_OUTSIDE = 0.01  # a warning is given for a larger share of impossible values, or of actions on a bound


@dataclass(frozen=True)
class Estimate:
    """One estimate of the discounted return of the target policy.

    Attributes:
        method: one of `METHODS`.
        v_behavior: mean discounted return of the logged episodes.
        v_target: the estimate. If it is undefined, v_target, v_gain, v_std, low and high are NaN.
        v_gain: v_target - v_behavior.
        v_std: standard deviation of the estimate, by the bootstrap over episodes.
        low, high: confidence interval.
    """

    method: str
    v_behavior: float
    v_target: float
    v_gain: float
    v_std: float
    low: float
    high: float


@dataclass(frozen=True)
class Estimates:
    """The estimates of one policy from one data set.

    Attributes:
        policy_id: the id of the estimated policy.
        episodes, steps: numbers of trajectories (one for each agent of an episode) and steps, without those left out.
        gamma: γ.
        level: level of the confidence intervals.
        v_behavior, behavior_low, behavior_high: mean discounted return of the data, and its interval.
        effective_sample_size: number of equally weighted episodes that would be as informative; None without importance
            weights.
        methods: name -> estimate.
        warnings: reasons why an estimate may be meaningless.
    """

    policy_id: str
    episodes: int
    steps: int
    gamma: float
    level: float
    v_behavior: float
    behavior_low: float
    behavior_high: float
    effective_sample_size: float | None
    methods: dict[str, Estimate]
    warnings: list[str] = field(default_factory=list)

    def __getitem__(self, method: str) -> Estimate:
        return self.methods[method]


def estimate(
    target: TargetPolicy,
    episodes: LoggedEpisodes,
    methods: Sequence[str] = ("wis", "dm", "dr"),
    *,
    gamma: float | None = None,
    behaviour: Literal["logged", "fitted"] = "logged",
    values: ActionValues | None = None,
    fqe: FQEConfig | None = None,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimates:
    """Estimates the mean discounted return that a policy would have, without running it.

    The policy and its random state do not change, so that a second call gives the same numbers.

    Args:
        target: the policy to estimate.
        episodes: recorded episodes of another policy.
        methods: names in `METHODS`, or one name.
        gamma: γ; None: `gamma` of the policy's config, or 1 if the config has none.
        behaviour: "logged" uses the column `action_logp`; "fitted" fits models of the behaviour policy, for logs
            without that column: see `fitted_logp`.
        values: Q and V of the target policy for "dm" and "dr"; None: fitted Q evaluation with `fqe`.
        level, resamples: level and number of resamples of the confidence intervals; see `bootstrap`.
        seed: seed of the bootstrap and of fitted models; a passed `fqe` has its own seed.
    Raises:
        ConfigError: an unknown method or `behaviour`, or another argument of a wrong type or out of range.
        DatasetError: a method requires log-probabilities, and the log has none, or too few episodes to fit them.
        PolicyError: the policy has no probabilities for the logged actions, or fitted Q evaluation does not support it.
    """
    methods = [methods] if isinstance(methods, str) else methods
    policy = target.runner.policy
    if gamma is None:
        config = policy.config
        gamma = float(config.get("gamma", 1.0) if isinstance(config, Mapping) else getattr(config, "gamma", 1.0))
    _check(methods, gamma, behaviour, level, resamples, seed)
    rewards, lengths, groups = episodes.rewards, episodes.lengths, episodes.groups
    interval_of = partial(bootstrap, groups=groups, level=level, resamples=resamples, seed=seed)
    returns = importance.mean_of(importance.discounted_returns(rewards, lengths, gamma))
    behavior = interval_of(returns)
    warnings = [left_out_warning(episodes)] if episodes.left_out else []
    size, terms = None, {}
    with acting_state_kept(policy):
        ratios = np.zeros(0)
        if NEED_LOGP & set(methods):
            ratios = target.logp(episodes) - _logged(target, episodes, behaviour, seed)  # log ρ, -inf where π is 0
            cumulative = importance.cumulative_log_weights(ratios, lengths)
            weights = cumulative[np.cumsum(lengths) - 1]
            size = _sample_size(weights, len(episodes), warnings)
            if behaviour == "fitted":
                warnings += _warnings_of_fitted_weights(weights, target.on_bound(episodes.actions).mean())
            terms = {name: method(rewards, cumulative, lengths, gamma) for name, method in _WEIGHTED.items()}
        fitted = _fitted(methods, episodes, target, gamma, values, fqe, seed)
        if fitted:
            warnings += _warnings_of_values(episodes, gamma, fitted.values())
        if "dm" in fitted:
            terms["dm"] = importance.mean_of(fitted["dm"].v[starts_of(lengths)])
        if "dr" in fitted:
            terms["dr"] = importance.doubly_robust(rewards, ratios, lengths, gamma, *fitted["dr"])
    results = {}
    for method in methods:
        value, interval = terms[method].value, interval_of(terms[method])
        of_data = returns.value
        results[method] = Estimate(method, of_data, value, value - of_data, interval.std, interval.low, interval.high)
    for warning in warnings:
        log.warning("Policy %r: %s", policy.name, warning)
    data = returns.value, behavior.low, behavior.high
    return Estimates(policy.name, len(episodes), len(rewards), gamma, level, *data, size, results, warnings)


def estimate_policy(
    policy: PolicyRunner,
    data: Source,
    methods: Sequence[str] = ("wis", "dm", "dr"),
    *,
    explore: bool = True,
    policy_id: str | None = None,
    drop_cut: bool = False,
    **settings: Any,
) -> Estimates:
    """Estimates the mean discounted return that a policy would have, from the episodes of another policy.

    With several agents, the trajectory of each agent counts as an episode, with other agents as part of the
    environment. The agents of an episode are not independent: intervals resample them together.

    Args:
        policy: a policy that `load_policy` returned.
        data: a data set, as for `open_dataset`.
        methods: names in `METHODS`, or one name.
        explore: True for the policy as it acts in training, False for its greedy actions.
        policy_id: the id of the policy in the data whose trajectories are read; None: the only id in the data, or, if
            there are several, the id of `policy`.
        drop_cut: whether any number of trajectories may be cut; False: DatasetError if more than a tenth are cut. Cut
            trajectories are always left out, and a warning has their number.
        settings: further arguments of `estimate`.
    Raises:
        DatasetError, SpaceError, ShapeError, NonFiniteError: the data does not fit the policy, or has too many cut
            trajectories or no log-probabilities.
        ConfigError, PolicyError: as `estimate`; also for data that is too large, or has actions outside the space.
    """
    if not isinstance(policy, PolicyRunner):
        got = f"{type(policy).__name__} {policy!r}"[:100]
        raise ConfigError("This is not a policy that can be estimated.", "estimate_policy", got).expected(
            "what load_policy returns", "save a checkpoint first: estimate_policy(load_policy(path), data)"
        )
    with reading(data) as reader:
        episodes = LoggedEpisodes.of(reader, policy, policy_id=policy_id, drop_cut=drop_cut)
    return estimate(TargetPolicy(policy, explore=explore), episodes, methods, **settings)


class _FittedValues(NamedTuple):
    """q [N] of the logged actions, v [N] of the observations, and v_last [n] after the last rows: 0 if terminated."""

    q: np.ndarray
    v: np.ndarray
    v_last: np.ndarray

    @classmethod
    def of(cls, values: ActionValues, episodes: LoggedEpisodes) -> _FittedValues:
        last = np.where(episodes.terminated, 0.0, values.v(episodes.last_obs))
        return cls(values.q(episodes.obs, episodes.actions), values.v(episodes.obs), last)


def _fitted(
    methods: Sequence[str],
    episodes: LoggedEpisodes,
    target: TargetPolicy,
    gamma: float,
    values: ActionValues | None,
    fqe: FQEConfig | None,
    seed: int,
) -> dict[str, _FittedValues]:
    """Returns the values for "dm" and "dr", if they are in `methods`: from `values`, or else from fitted Q evaluation.

    For "dr", each half of the episodes gets values that were fitted to the other half: values that were fitted to a row
    also predict its noise, and would hide the errors that "dr" corrects. The agents of an episode are in the same half.

    Source: Chernozhukov et al. (2018), "Double/debiased machine learning", section 3, for the halves.
    """
    wanted = [method for method in ("dm", "dr") if method in methods]
    if not wanted:
        return {}
    if values is not None:
        return dict.fromkeys(wanted, _FittedValues.of(values, episodes))
    from rollax.offline.estimators.fitted_q import FittedQ, FQEConfig  # which imports JAX

    config = FQEConfig(seed=seed) if fqe is None else fqe
    if not isinstance(config, FQEConfig):
        raise ConfigError.is_not("The config of fitted Q evaluation", "an FQEConfig", "estimate(fqe)", config)
    found, groups = {}, episodes.groups
    count = int(groups.max()) + 1
    if "dm" in wanted or count < 2:
        log.info("Values are fitted to all episodes")
        found = dict.fromkeys(wanted, _FittedValues.of(FittedQ(target, gamma, config).fit(episodes), episodes))
    if "dr" in wanted and count > 1:
        log.info("Values for dr are fitted to one half of the episodes, then to the other")
        drawn = np.array_split(np.random.default_rng(seed).permutation(count), 2)
        halves = [np.flatnonzero(np.isin(groups, half)) for half in drawn]
        parts = [
            _FittedValues.of(FittedQ(target, gamma, config).fit(episodes.chosen(other)), episodes.chosen(half))
            for half, other in (halves, halves[::-1])
        ]
        numbers = np.concatenate(halves)
        rows = np.argsort(np.repeat(numbers, episodes.lengths[numbers]), kind="stable")
        q, v, last = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        found["dr"] = _FittedValues(q[rows], v[rows], last[np.argsort(numbers)])
    return found


def _warnings_of_values(episodes: LoggedEpisodes, gamma: float, fitted: Iterable[_FittedValues]) -> list[str]:
    """Warnings about 'dm' and 'dr'."""
    warnings = []
    truncated = int(np.count_nonzero(~episodes.terminated))
    if truncated:
        warnings.append(
            f"{truncated} of {len(episodes)} episodes were truncated, and their returns end there; 'dm' and 'dr' "
            "estimate the return without a time limit: do not compare them with v_behavior and importance sampling"
        )
    if gamma < 1:
        low, high = episodes.rewards.min(), episodes.rewards.max()
        low, high = min(low, low / (1 - gamma)), max(high, high / (1 - gamma))
        tolerance = 0.05 * max(high - low, abs(low), abs(high), 1.0)  # above 0 even if all rewards are 0
        for values in fitted:
            outside = (values.v < low - tolerance) | (values.v > high + tolerance)
            if outside.mean() > _MOST_OUTSIDE:
                warnings.append(
                    f"{outside.mean():.0%} of the fitted values are outside {low:.4g} to {high:.4g}, the range that "
                    "the rewards allow: the fit has not converged, and 'dm' and 'dr' are meaningless; use more data, "
                    "more updates, or a smaller lr (FQEConfig)"
                )
                break
    return warnings


def _logged(target: TargetPolicy, episodes: LoggedEpisodes, behaviour: str, seed: int) -> np.ndarray:
    """[N] log μ(a_t | s_t)."""
    if behaviour == "logged":
        return episodes.require_logp()
    from rollax.offline.estimators.behaviour import fitted_logp  # which imports JAX

    return fitted_logp(episodes, target, seed)


def _sample_size(log_weights: np.ndarray, episodes: int, warnings: list[str]) -> float:
    if log_weights.max() == -np.inf:
        warnings.append(
            "each logged episode has an action that the policy never takes: importance sampling cannot estimate "
            "its value, and 'wis' and 'wpdis' are NaN; use 'dm', or data of a closer policy"
        )
        return 0.0
    size = importance.effective_sample_size(log_weights)
    if size < min(_FEW_EPISODES, episodes / 2):
        warnings.append(
            f"the effective sample size is {size:.1f} of {episodes} episodes, too few for importance sampling: the "
            "policy differs too much from the behaviour policy; use 'dm', or data of a closer policy"
        )
    return size


def _warnings_of_fitted_weights(log_weights: np.ndarray, on_bound: float) -> list[str]:
    """Warnings if actions were clipped, or if the mean weight is not near 1, its expectation under a right fit.

    Args:
        on_bound: share of the actions on a bound, where clipping puts probability that no density describes.
    """
    warnings = []
    if on_bound > _MOST_OUTSIDE:
        warnings.append(
            f"{on_bound:.0%} of the actions lie on a bound of their Box and may have been clipped: their densities are "
            "unknown, and the importance weights are wrong; use 'dm', or data with the unclipped actions"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.exp(log_weights)
        mean, error = weights.mean(), weights.std() / np.sqrt(len(weights))
    if not abs(mean - 1) <= max(_WEIGHT_TOLERANCE, 3 * error):
        warnings.append(
            f"the mean importance weight is {mean:.3g} instead of 1: the fitted model of the behaviour policy does not "
            "describe the data, and 'is' and 'pdis' are wrong by about this factor; use 'dm', data with `action_logp`, "
            "or more data"
        )
    return warnings


def _check(methods: Sequence[str], gamma: Any, behaviour: str, level: Any, resamples: Any, seed: Any) -> None:
    for name in methods:
        if name not in METHODS:
            raise ConfigError.unknown("method of estimates", name, METHODS, "methods")
    if behaviour not in ("logged", "fitted"):
        raise ConfigError.unknown("behaviour policy", behaviour, ("logged", "fitted"), "estimate(behaviour)")
    for name, value, fits, expected in (
        ("gamma", gamma, is_number(gamma) and 0 <= gamma <= 1, "a number from 0 to 1"),
        ("level", level, is_number(level) and 0 < level < 1, "a number above 0 and below 1"),
        ("resamples", resamples, is_whole(resamples) and resamples > 0, "a whole number, 1 or more"),
        ("seed", seed, is_whole(seed) and seed >= 0, "a whole number, 0 or more"),
    ):
        if not fits:
            raise ConfigError.out_of_range(f"`{name}`", "estimate", value, expected)
