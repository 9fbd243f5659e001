"""Rules about stored and old experience: replay buffers, updates per step, policy lag."""

from __future__ import annotations

from collections.abc import Iterator

from rollax.runs.rules.finding import Finding
from rollax.runs.rules.statistics import LEAST, RunStatistics


def no_updates(run: RunStatistics) -> Iterator[Finding]:
    """The run ended before its first update.

    Source: The number of updates in the results.
    """
    updates = run.series("info", "replay", "num_updates").values
    if run.ended and len(updates) and updates[-1] == 0 and run.steps:
        yield Finding(
            severity="problem",
            what="Nothing has been learned: the run ended before its first update.",
            quantity="num_updates",
            number=0,
            limit=1,
            where=f"after {run.steps:.0f} steps",
            key="learning_starts",
            change="down",
            remedy="Train longer, or let learning start earlier.",
        )


_MANY, _FEW = 4.0, 1 / 64


def updates_per_step(run: RunStatistics) -> Iterator[Finding]:
    """Updates per environment step are below 1/64, or above 4 with at most two critics and no normalization.

    Source: Above: Chen et al. (2021), arXiv:2101.05982, and D'Oro et al. (2023), "Sample-efficient
    reinforcement learning by breaking the replay ratio barrier": SAC stops gaining, or fails, without ensembles, resets
    or normalization. Below: DQN learns every 4 steps (Mnih et al., 2015); 1/64 is a sixteenth of that.
    """
    updates, steps = run.series("info", "replay", "num_updates"), run.series("timesteps_total").values
    if len(updates) < LEAST or len(steps) != len(updates) or updates.values[-1] == 0:
        return
    if run.config.get("input") is not None:  # steps count the recorded rows of updates
        return
    half = len(updates) // 2
    ratio = float((updates.values[-1] - updates.values[half]) / max(steps[-1] - steps[half], 1))
    layers = {**(run.config.get("model") or {}), **(run.config.get("critic_model") or {})}
    is_normalized = layers.get("normalization") is not None or (run.number("num_critics") > 2)
    if ratio > _MANY and not is_normalized and not run.is_solved:
        yield Finding(
            severity="note" if run.has_improved else "warning",
            what="Many updates on little new experience: critics overfit to the earliest experience.",
            quantity="updates per step",
            number=ratio,
            limit=_MANY,
            where=updates.last().where(),
            key="training_intensity",
            change="down",
            remedy="Fewer updates per step; or more critics (num_critics), or model.normalization='layer'.",
        )
    if ratio < _FEW and not run.is_solved:
        yield Finding(
            severity="note",
            what="Few updates for so much experience.",
            quantity="updates per step",
            number=ratio,
            limit=_FEW,
            where=updates.last().where(),
            key="training_intensity",
            change="up",
            remedy="Learn more from each step, if time allows.",
        )


_EPISODES, _ROWS = 5.0, 500.0


def small_replay(run: RunStatistics) -> Iterator[Finding]:
    """The replay buffer is full and holds fewer than 5 episodes or fewer than 500 rows: recent experience is lost.

    Source: Zhang and Sutton (2017), arXiv:1712.01275, on buffers from 100 steps up; Fedus et al. (2020),
    arXiv:2007.06700: performance rises with the capacity. Measured: with 50 rows DQN unlearned CartPole.
    """
    capacity, steps = run.number("buffer_size"), run.steps
    if (
        not capacity
        or not run.length
        or steps < capacity
        or not run.series("info", "replay", "num_updates").values.any()
    ):
        return
    limit = max(_EPISODES * run.length, _ROWS)
    if capacity < limit and not run.is_solved:
        yield Finding(
            severity="warning",
            what="The replay buffer holds only the last few episodes.",
            quantity="rows in the buffer",
            number=capacity,
            limit=limit,
            where=f"episodes of {run.length:.0f} steps",
            key="buffer_size",
            change="up",
            remedy="Store more, 100,000 rows and up where memory allows.",
        )


_DROPPED, _LAG = 0.2, 10.0


def old_samples(run: RunStatistics) -> Iterator[Finding]:
    """More than 20 % of the sampled steps are dropped as too old, or samples are over 10 updates old on average.

    Source: Espeholt et al. (2018), arXiv:1802.01561: off-policy corrections keep IMPALA stable, but the reward falls
    with the age of the samples. The limits are choices: a fifth of the work, and ten updates.
    """
    dropped, steps = run.series("info", "queue", "dropped_steps").values, run.series("timesteps_this_iter").values
    if len(dropped) >= LEAST and len(steps) == len(dropped):
        recent = slice(-LEAST, None)
        share = float(dropped[recent].sum() / max(1.0, dropped[recent].sum() + steps[recent].sum()))
        if share > _DROPPED:
            yield Finding(
                severity="warning",
                what="Much of what the workers sample is too old to learn from.",
                quantity="share of dropped steps (10 iterations)",
                number=share,
                limit=_DROPPED,
                where=run.series("info", "queue", "dropped_steps").last().where(),
                key="max_policy_lag" if run.has("max_policy_lag") else "num_workers",
                change="up" if run.has("max_policy_lag") else "down",
                remedy="Accept older samples, or use fewer workers or smaller fragments.",
            )
    lags = run.series("info", "queue", "policy_lag_mean")
    if len(lags) >= LEAST and (lag := float(lags.values[-LEAST:].mean())) > _LAG:
        yield Finding(
            severity="note",
            what="Updates use samples of much older versions of the policy.",
            quantity="policy_lag_mean (10 iterations)",
            number=lag,
            limit=_LAG,
            where=lags.last().where(),
            key="num_workers",
            change="down",
            remedy="Use fewer workers, smaller fragments, or larger train batches.",
        )
