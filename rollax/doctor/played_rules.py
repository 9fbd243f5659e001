"""Rules about what a trained policy sees, does and expects in the episodes that it plays."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from gymnasium import spaces

from rollax.core import trees
from rollax.doctor.activations import leaves_of
from rollax.doctor.played import Played
from rollax.models.features import ImageLayout
from rollax.runs.rules.finding import Finding
from rollax.runs.rules.statistics import RunStatistics

PlayedRule = Callable[[RunStatistics, str, Played], Iterator[Finding]]
"""As `Rule`, also with the id of a policy and the rows that it played."""

_LARGE, _SMALL = 30.0, 0.01


def observation_scale(run: RunStatistics, policy: str, played: Played) -> Iterator[Finding]:
    """Observations are far from the scale of networks: a number with a root mean square above 30, or all below 0.01.

    Only floats are checked, as the policy gets them, after the observation filter; the model scales images.

    Source: LeCun et al. (1998), "Efficient BackProp", section 4.3; "always normalize" (Stable-Baselines3,
    "Reinforcement Learning Tips and Tricks"). Measured (`rollax docs doctor`): 0.25 to 1.6 in CartPole and Pendulum.
    """
    model = run.config.get("model") or {}
    if model.get("normalize_observations") or run.is_solved:
        return
    scales = {
        path: np.sqrt((leaf.astype(np.float64) ** 2).mean(axis=0)).ravel()
        for path, leaf in leaves_of(played.obs)
        if leaf.dtype.kind == "f" and ImageLayout.of(spaces.Box(0, 1, leaf.shape[1:], leaf.dtype)) is None
    }
    if not scales:
        return
    every = np.concatenate([*scales.values()])
    path, largest = max(((path, float(scale.max())) for path, scale in scales.items()), key=lambda pair: pair[1])
    if largest <= _LARGE and every.max() >= _SMALL:
        return
    is_large = largest > _LARGE
    yield Finding(
        severity="warning",
        what=f"Observations are {'large' if is_large else 'tiny'} beside the weights of a network.",
        quantity=f"root mean square of obs{path}[{int(scales[path].argmax())}]",
        number=largest,
        limit=_LARGE if is_large else _SMALL,
        where=f"{len(played.lengths)} played episodes",
        key="observation_filter",
        change="MeanStdFilter",
        remedy="Normalize observations by running statistics, or scale them in the environment.",
    )


_ON_BOUND = 0.95


def saturated_actions(run: RunStatistics, policy: str, played: Played) -> Iterator[Finding]:
    """Nearly all actions are at a bound of their Box: over 95 % of the numbers within 1 % of its width.

    There is no finding if the score rose, because in many tasks actions at the bounds are best.

    Source: Hausknecht and Stone (2016), arXiv:1511.04143: beyond the bounds no gradient leads back. Seyde et al.
    (2021), arXiv:2111.02552: actions at the bounds can be best.
    """
    space = run.action_spaces.get(policy)
    if not isinstance(space, spaces.Box) or run.is_solved or run.has_improved or not space.is_bounded():
        return
    actions, width = np.asarray(played.env_actions, np.float64), (space.high - space.low).astype(np.float64)
    at_bound = np.minimum(np.abs(actions - space.low), np.abs(space.high - actions)) <= 0.01 * width
    if (share := float(at_bound.mean())) > _ON_BOUND:
        yield Finding(
            severity="warning",
            what="The policy only uses the ends of the action space.",
            quantity="share of action numbers at a bound",
            number=share,
            limit=_ON_BOUND,
            where=f"{len(played.lengths)} played episodes",
            key="actor_lr" if run.number("actor_lr") else "lr",
            change="down",
            remedy="Take smaller steps, scale rewards down, or explore more, so that the actor comes back.",
        )


_SAME = 1e-3


def same_action(run: RunStatistics, policy: str, played: Played) -> Iterator[Finding]:
    """The policy does the same in every observation: one discrete action, or Box actions that vary by less than 0.1 %.

    Source: A policy that does not react to observations has learned nothing about them; even random weights make
    actions vary by more than 0.1 %.
    """
    if run.is_solved or trees.length(played.actions) < 50:
        return
    space, spreads = run.action_spaces.get(policy), []
    for _, leaf in leaves_of(played.env_actions):
        spread, scale = leaf.astype(np.float64).std(axis=0).max(), max(1.0, np.abs(leaf).max())
        if isinstance(space, spaces.Box) and space.is_bounded():  # the Box may be small
            scale = (space.high - space.low).max() / 2
        spreads.append(float(spread / scale))
    if max(spreads) <= _SAME and not run.has_improved:
        yield Finding(
            severity="warning",
            what="The policy chooses the same action whatever it observes.",
            quantity="deviation of the actions",
            number=max(spreads),
            limit=_SAME,
            where=f"{len(played.lengths)} played episodes",
            key="lr",
            change="down",
            remedy="Take smaller steps, normalize observations, and keep exploring (entropy, noise).",
        )


_DEAD, _DORMANT, _LEAST = 0.5, 0.025, 1e-4


def dead_units(run: RunStatistics, policy: str, played: Played) -> Iterator[Finding]:
    """More than half of the units of a layer are dead: their outputs do not vary with the observations.

    A unit is dead if its standard deviation over the observations is at most 0.025 of the mean standard deviation of
    its layer, or at most 0.0001. There is no finding if the score has reached its goal: the values of a critic are then
    all alike, so its units may look dead.

    Source: Sokar et al. (2023), arXiv:2302.12902, τ = 0.025: the share of dormant units grows while a network stops
    learning. Half is a choice. Deviations: units are compared by their standard deviation instead of their mean
    magnitude, so that saturated units of tanh count too.
    """
    if run.is_solved:
        return
    for layer, outputs in played.activations.items():
        deviations = outputs.astype(np.float64).std(axis=0)
        dead = deviations <= max(_DORMANT * deviations.mean(), _LEAST)
        if (share := float(dead.mean())) > _DEAD:
            yield Finding(
                severity="note" if run.has_improved else "warning",
                what="Many hidden units are dead: they output the same for all observations.",
                quantity=f"share of dead units, {layer} of {outputs.shape[1]}",
                number=share,
                limit=_DEAD,
                where=f"{len(outputs)} observations",
                key="model.normalization" if "normalization" in (run.config.get("model") or {}) else "lr",
                change="layer" if "normalization" in (run.config.get("model") or {}) else "down",
                remedy="Smaller steps and layer normalization keep units alive. In a critic, units also look dead if "
                "the values hardly vary.",
            )
            return


_BIAS, _LEAST_ROWS, _KNOWN = 0.5, 50, 0.3


def value_bias(run: RunStatistics, policy: str, played: Played) -> Iterator[Finding]:
    """Values are far from the returns that follow: mean difference above half of the returns' scale.

    The scale is the root mean square of the returns, plus α · |entropy| / (1 - γ) for algorithms with a temperature α.
    Rows are left out if the value after a truncated episode has a weight of 30 % or more in their return. Values that
    are too low are only a note: values begin at 0, and grow.

    Source: van Hasselt et al. (2016), arXiv:1509.06461, and Fujimoto et al. (2018), arXiv:1802.09477:
    estimates against returns; overestimates grow where learning fails.
    """
    if played.values is None:
        return
    known = played.weight_of_end < _KNOWN
    if np.count_nonzero(known) < _LEAST_ROWS:
        return
    returns, values = played.returns[known], played.values[known]
    scale = float(np.sqrt((returns**2).mean()))
    alpha, entropy = (run.learner(policy, name).values for name in ("alpha", "entropy"))
    if len(alpha) and len(entropy):
        scale += float(alpha[-1] * abs(entropy[-1])) * min(run.horizon, 1e6)
    bias = float((values - returns).mean())
    if scale <= 0 or abs(bias) <= _BIAS * scale:
        return
    over, is_q = bias > 0, len(run.series("info", "replay", "num_updates")) > 0
    key, change, remedy = "lr", "up", "The values have not caught up with the policy: train longer, or learn faster."
    if over and is_q:
        if run.config.get("double_q") is False:
            key, change, remedy = "double_q", "True", "Choose the actions of targets by the online network."
        elif run.config.get("twin_q") is False:
            key, change, remedy = "twin_q", "True", "Use the lower one of two critics."
        else:
            key, change, remedy = "lr", "down", "Smaller steps, slower targets (tau), or more critics."
    elif over:
        key, change, remedy = "vf_loss_coeff", "up", "Give the value function more weight, or more epochs."
    yield Finding(
        severity="warning" if over and not run.is_solved and not run.has_improved else "note",
        what=f"The policy {'over' if over else 'under'}estimates the returns that follow.",
        quantity="mean value less mean return, in scales of the returns",
        number=bias / scale,
        limit=_BIAS if over else -_BIAS,
        where=f"{len(returns)} rows, mean value {values.mean():.4g}, mean return {returns.mean():.4g}",
        key=key,
        change=change,
        remedy=remedy,
    )


_EPISODES, _LENGTH = 3, 20


def time_limit_as_end(run: RunStatistics, policy: str, played: Played) -> Iterator[Finding]:
    """A time limit seems to be treated as an end: 3 or more episodes terminate, all at the same step, 20 or later.

    Source: Pardo et al. (2018), arXiv:1712.00378: values are wrong if a time limit counts as a termination.
    """
    lengths = played.lengths
    if len(lengths) < _EPISODES or played.truncated.any() or len(set(lengths.tolist())) > 1 or lengths[0] < _LENGTH:
        return
    yield Finding(
        severity="warning",
        what="All episodes terminate at the same step, as if a time limit were an end of the task.",
        quantity="steps of every episode",
        number=float(lengths[0]),
        limit=_LENGTH,
        where=f"{len(lengths)} played episodes, none truncated",
        key=None,
        change=None,
        remedy="Return truncated=True and terminated=False at the time limit, so that the value after it counts. "
        "Ignore this if the task does end there.",
    )


def truncated_share(run: RunStatistics, policy: str, played: Played) -> Iterator[Finding]:
    """All episodes are truncated, and 1 / (1 - γ) is at least their length: the score also measures the time limit.

    Source: Pardo et al. (2018), arXiv:1712.00378: observations without the remaining time do not show the limit.
    """
    if len(played.truncated) >= _EPISODES and played.truncated.all():
        horizon = min(run.horizon, 1e9) / played.lengths.mean()
        if horizon < 1:
            return
        yield Finding(
            severity="note",
            what="All episodes end by the time limit, and γ looks beyond it.",
            quantity="1 / (1 - γ), as a share of an episode",
            number=float(horizon),
            limit=1.0,
            where=f"{len(played.lengths)} played episodes",
            key=None,
            change=None,
            remedy="Fine if the task goes on after the limit; otherwise terminate, or observe the remaining time.",
        )


PLAYED_RULES: tuple[PlayedRule, ...] = (
    observation_scale,
    saturated_actions,
    same_action,
    dead_units,
    value_bias,
    time_limit_as_end,
    truncated_share,
)
