"""Rules about settings that do not fit the run: learning rate, discount, exploration."""

from __future__ import annotations

from collections.abc import Iterator

from rollax.runs.rules.finding import Finding
from rollax.runs.rules.statistics import RunStatistics

_ALONE, _SHARE = 2, 0.05


def learning_rate_zero(run: RunStatistics) -> Iterator[Finding]:
    """The learning rate is 0 in the last iterations: in at least 2 iterations, and at least 5 % of all.

    Source: A gradient step of size 0 changes nothing; a schedule that ends at 0 with the run costs one iteration.
    """
    for policy in run.policies:
        rates = run.learner(policy, "cur_lr")
        zero = 0
        while zero < len(rates) and rates.values[-1 - zero] == 0:
            zero += 1
        if zero < max(_ALONE, _SHARE * len(rates)):
            continue
        scheduled = run.config.get("lr_schedule") is not None
        yield Finding(
            severity="problem",
            what="Nothing is learned: the learning rate is 0.",
            quantity="iterations with cur_lr 0",
            number=zero,
            limit=max(_ALONE, _SHARE * len(rates)),
            where=f"from iteration {int(rates.iterations[-zero])} on",
            policy=policy,
            key="lr_schedule" if scheduled else "lr",
            change="up",
            remedy="End the schedule at the last step of the run, or above 0." if scheduled else "Set it above 0.",
        )


_SHORT, _BLIND = 0.02, 0.5


def short_discount(run: RunStatistics) -> Iterator[Finding]:
    """1 / (1 - γ) is less than 2 % of an episode, or γ is below 0.5, and episodes have more than 5 steps.

    Source: Rewards later than 1 / (1 - γ) steps have less than 1/e of their weight. Benchmarks with episodes of 1000
    steps use γ = 0.99 (10 %); Stable-Baselines3's "Reinforcement Learning Tips and Tricks".
    """
    gamma = run.number("gamma", 0.99)
    if run.length <= 5 or run.is_solved:
        return
    share = run.horizon / run.length
    if gamma >= _BLIND and share >= _SHORT:
        return
    yield Finding(
        severity="warning" if gamma < _BLIND else "note",
        what="Later rewards hardly count for the actions that cause them.",
        quantity="gamma" if gamma < _BLIND else "1 / (1 - γ), as a share of an episode",
        number=gamma if gamma < _BLIND else share,
        limit=_BLIND if gamma < _BLIND else _SHORT,
        where=f"episodes of {run.length:.0f} steps",
        key="gamma",
        change="up",
        remedy="Choose γ so that 1 / (1 - γ) steps reach from an action to its reward.",
    )


_STILL_RANDOM = 0.3


def exploration_goes_on(run: RunStatistics) -> Iterator[Finding]:
    """The run ended while actions were mostly random: ε above 0.3 at its last step.

    Source: Mnih et al. (2015), doi:10.1038/nature14236: ε falls to 0.1 within the first 2 % of the run;
    Stable-Baselines3's DQN: within the first 10 %.
    """
    last = run.number("epsilon_timesteps")
    if not run.ended or not last or run.config.get("epsilon_schedule") is not None or run.config.get("noisy"):
        return
    if run.config.get("input") is not None:  # ε has no effect, or is final_epsilon after the recorded data
        return
    if run.has("worker_epsilon"):  # each worker has a constant ε
        return
    first, final = run.number("initial_epsilon", 1.0), run.number("final_epsilon")
    epsilon = first + (final - first) * min(1.0, run.steps / last)
    if epsilon > _STILL_RANDOM and run.config.get("exploration", "EpsilonGreedy") == "EpsilonGreedy":
        yield Finding(
            severity="note",
            what="The run ended before exploration did: training episodes are mostly random.",
            quantity="ε at the last step",
            number=epsilon,
            limit=_STILL_RANDOM,
            where=f"after {run.steps:.0f} steps",
            key="epsilon_timesteps",
            change="down",
            remedy="Train longer, or let ε fall within the first tenth of the run.",
        )
