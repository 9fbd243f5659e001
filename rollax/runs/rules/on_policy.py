"""Rules about algorithms that learn from their own fresh samples: value function, divergence, entropy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from gymnasium import Space, spaces

from rollax.runs.rules.finding import Finding
from rollax.runs.rules.statistics import LEAST, RunStatistics

_PRECISE = 0.1
"""The share of a typical value below which the error of the value function does no harm."""


def explained_variance(run: RunStatistics) -> Iterator[Finding]:
    """The value function explains none of the variance of the returns: median of the later half at most 0.

    Errors below a tenth of a typical value are no finding, because returns that hardly vary leave nothing to explain.
    The finding is only a note while the score rises.

    Source: Stable-Baselines3, "Explanation of logger output": at or below 0 a constant would predict as well or better.
    """
    if run.is_solved or not run.has_score:
        return
    for policy in run.policies:
        values, losses = run.learner(policy, "vf_explained_var"), run.learner(policy, "vf_loss")
        if len(values) < 2 * LEAST:
            continue
        median = float(np.median(values.last().values))
        error = float(np.sqrt(np.median(losses.last().values))) if len(losses) else np.inf
        if median > 0 or (error < _PRECISE * run.typical_value and not run.scales_rewards):
            continue
        key, change, remedy = "vf_loss_coeff", "up", "Give the value function more weight, or layers of its own."
        if run.number("gamma", 0.99) < 0.5:
            key, change, remedy = "gamma", "up", "Returns look too few steps ahead to be predicted from a state."
        elif run.number("lr") < 1e-5:
            key, change, remedy = "lr", "up", "Such small steps take very long to learn anything."
        elif run.number("lr") > 1e-3:
            key, change, remedy = "lr", "down", "Large steps keep the value function from settling."
        elif run.config.get("normalize_rewards") is False and run.typical_value > 10:
            key, change, remedy = "normalize_rewards", "True", "Large returns take many updates to reach."
        yield Finding(
            severity="note" if run.has_improved else "warning",
            what="The value function predicts returns no better than a constant.",
            quantity="vf_explained_var (median)",
            number=median,
            limit=0.0,
            where=values.last().where(),
            policy=policy,
            key=key,
            change=change,
            remedy=remedy,
        )


_HUGE_KL, _LARGE_KL, _SPIKES, _EARLY = 1.0, 0.1, 3, 5


def kl_divergence(run: RunStatistics) -> Iterator[Finding]:
    """Updates change the policy too much: KL divergence above 0.1 in the median of 10 iterations.

    Also: KL divergence above 1 in 3 iterations, or in one of the first 5.

    Source: Schulman et al. (2017), arXiv:1707.06347, table 1: targets of 0.003 to 0.03; Huang et al. (2022), "The 37
    implementation details of PPO": KL stays below 0.02 in runs that work. The limits are 5 and 50 times that. Measured
    (`rollax docs doctor`): on Pendulum with a constant lr of 1e-3 a third iteration above 1 preceded a fall of the
    score.
    """
    for policy in run.policies:
        kl = run.learner(policy, "kl")
        spikes = kl.iterations[kl.values > _HUGE_KL]
        median = float(np.median(kl.values[-LEAST:])) if len(kl) >= LEAST else 0.0
        is_early = len(spikes) > 0 and spikes[0] <= _EARLY
        if not is_early and len(spikes) < _SPIKES and median <= _LARGE_KL:
            continue
        has_spikes = len(spikes) > 0 and median <= _LARGE_KL
        is_open = run.has("target_kl") and run.config["target_kl"] is None
        yield Finding(
            severity="problem" if is_early or median > _HUGE_KL else "warning",
            what="An update moves the policy too far from the one that acted.",
            quantity="kl (highest)" if has_spikes else "kl (median of 10)",
            number=float(kl.values.max()) if has_spikes else median,
            limit=_HUGE_KL if has_spikes else _LARGE_KL,
            where=f"iterations above it: {len(spikes)}, the first one {int(spikes[0])}"
            if has_spikes
            else kl.last().where(),
            policy=policy,
            key="target_kl" if is_open and not is_early else "lr",
            change="0.02" if is_open and not is_early else "down",
            remedy="Take smaller or fewer steps: lr or num_sgd_iter down, or target_kl, which ends updates early.",
        )


_KL_OVER_TARGET = 5.0


def kl_target(run: RunStatistics) -> Iterator[Finding]:
    """The KL penalty does not hold its target: median KL of the last 10 iterations above 5 · `kl_target`.

    Source: Schulman et al. (2017), arXiv:1707.06347, section 4: the weight of the penalty grows in each iteration with
    a KL far above the target, here by half above 2 · `kl_target`, so that 10 iterations multiply the weight by 58.
    """
    if not run.number("kl_coeff") or run.config.get("use_kl_loss") is False:
        return
    limit = _KL_OVER_TARGET * run.number("kl_target", 0.01)
    for policy in run.policies:
        kl = run.learner(policy, "kl")
        if len(kl) >= LEAST and (median := float(np.median(kl.values[-LEAST:]))) > limit:
            yield Finding(
                severity="warning",
                what="The KL penalty does not keep the divergence near its target.",
                quantity="kl (median of 10)",
                number=median,
                limit=limit,
                where=kl.last().where(),
                policy=policy,
                key="lr",
                change="down",
                remedy="Take smaller steps; or raise kl_target if the score rises well.",
            )


_CLIPPED = 0.4


def clipped_share(run: RunStatistics) -> Iterator[Finding]:
    """Much of the policy's gradient is clipped away: `clip_fraction` above 0.4 in the median of 10 iterations.

    Source: Stable-Baselines3, "Explanation of logger output", whose example has 0.24.
    """
    for policy in run.policies:
        share = run.learner(policy, "clip_fraction")
        if len(share) >= LEAST and (median := float(np.median(share.values[-LEAST:]))) > _CLIPPED:
            yield Finding(
                severity="warning",
                what="The objective is clipped for a large share of the rows, which then teach nothing.",
                quantity="clip_fraction (median of 10)",
                number=median,
                limit=_CLIPPED,
                where=share.last().where(),
                policy=policy,
                key="lr",
                change="down",
                remedy="Take smaller steps or fewer epochs (num_sgd_iter).",
            )


_COLLAPSED, _SURE = 0.05, 0.05
"""The policy has collapsed below this share of the largest entropy; with Gaussians, of the standard deviation."""


def entropy_collapsed(run: RunStatistics) -> Iterator[Finding]:
    """The policy stopped exploring before it learned: entropy below 5 % of its largest value, and no higher score.

    For Gaussian actions: standard deviations below 5 % of the largest ones.

    Source: Mnih et al. (2016), arXiv:1602.01783: the entropy bonus is against premature convergence to suboptimal
    deterministic policies. The limit is measured (`rollax docs doctor`): runs that learned kept 60 % of the entropy.
    """
    if run.is_solved or run.has_improved or not run.has_score:
        return
    for policy in run.policies:
        entropy = run.learner(policy, "entropy")
        if len(entropy) < 3 or len(run.learner(policy, "alpha")):
            continue
        space = run.action_spaces.get(policy)
        first, now = float(entropy.values.max()), float(entropy.values[-1])
        if numbers := _box_numbers(space):  # whose entropy is that of a density, and may be negative
            limit = first + np.log(_SURE) * numbers
        elif space is None and entropy.values.min() < 0:  # a density
            continue
        else:
            limit = _COLLAPSED * max(first, _of_random_choices(space))
        if now > limit:
            continue
        began = int(entropy.iterations[int((entropy.values <= limit).argmax())])
        yield Finding(
            severity="problem",
            what="The policy became deterministic before its score rose.",
            quantity="entropy",
            number=now,
            limit=float(limit),
            where=f"from iteration {began} on",
            policy=policy,
            key="lr" if run.number("lr") > 1e-3 or not run.has("entropy_coeff") else "entropy_coeff",
            change="down" if run.number("lr") > 1e-3 or not run.has("entropy_coeff") else "up",
            remedy="Keep exploring: an entropy bonus (entropy_coeff, 0.01 say), or smaller steps.",
        )


def _box_numbers(space: Space | None) -> int:
    """How many numbers of an action are in a Box, alone or as a part of the space."""
    if isinstance(space, spaces.Box):
        return int(np.prod(space.shape))
    parts = space.values() if isinstance(space, spaces.Dict) else space if isinstance(space, spaces.Tuple) else ()
    return sum(map(_box_numbers, parts))


def _of_random_choices(space: Space | None) -> float:
    """The entropy of equally likely discrete actions, Σ log n; 0 for other and unknown spaces."""
    if isinstance(space, spaces.Discrete):
        return float(np.log(space.n))
    return float(np.log(space.nvec).sum()) if isinstance(space, spaces.MultiDiscrete) else 0.0


_RANDOM, _WIDER = 0.98, 2.0


def entropy_stays(run: RunStatistics) -> Iterator[Finding]:
    """The policy stays random: 20 iterations above 98 % of the entropy of random actions, and no higher score.

    For Gaussian actions: standard deviations that have doubled.

    Source: log n is the entropy of n equally likely actions. Measured (`rollax docs doctor`): the entropy of runs that
    learned fell below 98 % within 15 iterations.
    """
    if run.is_solved or run.has_improved or not run.has_score:
        return
    for policy in run.policies:
        entropy = run.learner(policy, "entropy")
        if len(entropy) < 2 * LEAST or len(run.learner(policy, "alpha")):
            continue
        space, lowest = run.action_spaces.get(policy), float(entropy.values[-2 * LEAST :].min())
        if numbers := _box_numbers(space):
            limit = float(entropy.values[0] + np.log(_WIDER) * numbers)
        elif space is None and entropy.values.min() < 0:
            continue
        else:
            limit = _RANDOM * max(float(entropy.values.max()), _of_random_choices(space))
        if lowest <= limit:
            continue
        bonus = run.number("entropy_coeff") > 0
        yield Finding(
            severity="warning",
            what="The policy stays as random as at the start.",
            quantity="entropy (lowest of 20)",
            number=lowest,
            limit=limit,
            where=entropy.last().where(),
            policy=policy,
            key="entropy_coeff" if bonus else "lr",
            change="down" if bonus else "up",
            remedy="Weaken the entropy bonus." if bonus else "Learn faster, or look whether rewards ever differ.",
        )
