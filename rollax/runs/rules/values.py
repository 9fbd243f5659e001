"""Rules about values and losses that grow beyond what rewards allow."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollax.runs.rules.finding import Finding
from rollax.runs.rules.statistics import LEAST, RunStatistics

_LOSSES = ("vf_loss", "q_loss", "critic_loss")
_ERROR = 10.0


def value_loss(run: RunStatistics) -> Iterator[Finding]:
    """The error of the value function is far beyond any return: root of its loss above 10 times the largest value.

    The largest value: the largest |reward| of an episode, times 1 / (1 - γ) / length if 1 / (1 - γ) exceeds the length.

    Source: No value can exceed the discounted sum of the rewards; 10 leaves room for rewards of both signs, which
    cancel in the reward of an episode. Measured (`rollax docs doctor`): at most 0.012 in runs that learned.
    """
    if run.scales_rewards or not run.value_scale:
        return
    for policy in run.policies:
        for name in _LOSSES:
            losses = run.learner(policy, name)
            if len(losses) < 3:
                continue
            error = float(np.sqrt(max(0.0, np.median(losses.values[-3:]))))
            if error > _ERROR * run.value_scale:
                yield Finding(
                    severity="problem",
                    what="The value function is farther from its targets than any return is from 0.",
                    quantity=f"√{name} (median of 3)",
                    number=error,
                    limit=_ERROR * run.value_scale,
                    where=losses.last().where(),
                    policy=policy,
                    key="critic_lr" if run.number("critic_lr") else "lr",
                    change="down",
                    remedy="Take smaller steps; check rewards for single huge numbers.",
                )


_BEYOND = 3.0


def action_values(run: RunStatistics) -> Iterator[Finding]:
    """Action values diverge: |mean_q| above 3 times the sum of the largest value and the entropy bonus, if any.

    Source: van Hasselt et al. (2018), arXiv:1812.02648: "soft divergence" is a value beyond the largest
    possible |return|, 1 / (1 - γ) for rewards within ±1. The factor is for rewards that cancel in an episode. Measured
    (`rollax docs doctor`): at most 0.02 in runs that learned.
    """
    if run.scales_rewards or not run.value_scale:
        return
    for policy in run.policies:
        values = run.learner(policy, "mean_q")
        if len(values) < 3:
            continue
        alpha, entropy = (run.learner(policy, name).values for name in ("alpha", "entropy"))
        bonus = float(alpha[-1] * abs(entropy[-1])) * min(run.horizon, 1e6) if len(alpha) and len(entropy) else 0.0
        limit, value = _BEYOND * (run.value_scale + bonus), float(np.median(values.values[-3:]))
        if abs(value) > limit:
            yield Finding(
                severity="problem",
                what="Action values have left the range of possible returns.",
                quantity="mean_q (median of 3)",
                number=value,
                limit=limit if value > 0 else -limit,
                where=values.last().where(),
                policy=policy,
                key="tau" if run.has("tau") and run.number("tau") > 0.02 else "lr",
                change="down",
                remedy="Take smaller steps, slow the target network down, or average over more critics.",
            )


def not_finite(run: RunStatistics) -> Iterator[Finding]:
    """Updates were not finite: `total_loss` is missing in iterations after the first update.

    Only runs with one policy are checked, because a policy without rows in an update has no loss.

    Source: Results hold null for NaN and infinity (`rollax.runs.results.to_json`), and the learner keeps the last
    finite weights.
    """
    if len(run.policies) != 1:
        return
    losses, updates = run.learner(run.policies[0], "total_loss"), run.series("info", "replay", "num_updates")
    # A run that continues has no loss until its next update, which may have to wait until the buffer is filled again.
    idle = {*updates.iterations[1:][np.diff(updates.values) == 0]} - {*losses.iterations}
    later = [r for r in run.results if len(losses) and r.get("training_iteration", 0) > losses.iterations[0]]
    later = [r for r in later if r.get("training_iteration") not in idle]
    missing = len(later) + 1 - len(losses) if len(losses) else 0
    if missing > 0:
        yield Finding(
            severity="problem",
            what="Updates were not finite, and taught nothing.",
            quantity="iterations without total_loss",
            number=missing,
            limit=0,
            where=f"of {len(later) + 1} iterations from iteration {int(losses.iterations[0])} on",
            key="grad_clip" if run.has("grad_clip") else "lr",
            change="down",
            remedy="Clip gradients, take smaller steps, and look for NaN in observations and rewards.",
        )


_LARGE, _HUGE, _UNEXPLAINED = 100.0, 1e5, 0.5


def reward_scale(run: RunStatistics) -> Iterator[Finding]:
    """Rewards are too large for the value function: typical value above 100 and explained variance below 0.5.

    Or a typical value above 100,000, in any algorithm. The typical value is the mean reward of a step ·
    min(episode length, 1 / (1 - γ)).

    Source: Huang et al. (2022), "The 37 implementation details of PPO": rewards are scaled by the standard deviation of
    discounted returns. Henderson et al. (2018), arXiv:1709.06560, on the scale of rewards.
    """
    if run.is_solved or run.scales_rewards or run.config.get("clip_rewards"):
        return
    value = run.typical_value
    explained = [run.learner(policy, "vf_explained_var").last().values for policy in run.policies]
    medians = [float(np.median(values)) for values in explained if len(values) >= LEAST]
    if value <= _LARGE or not (value > _HUGE or (medians and min(medians) < _UNEXPLAINED)):
        return
    key = "normalize_rewards" if run.has("normalize_rewards") else None
    yield Finding(
        severity="warning",
        what="Returns are so large that the value function needs long to reach them.",
        quantity="typical value of a state",
        number=value,
        limit=_HUGE if value > _HUGE else _LARGE,
        where=run.score.last().where(),
        key=key,
        change=None if key is None else "True",
        remedy="Divide rewards in the environment so that returns are about 1 to 100"
        + ("." if key is None else ", or let normalize_rewards do it."),
    )
