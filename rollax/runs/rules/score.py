"""Rules about scores, episodes, and the time that training takes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollax.errors import page
from rollax.runs.rules.finding import Finding
from rollax.runs.rules.statistics import LEAST, RunStatistics, spec_of

_FELL = 0.5


def score_fell(run: RunStatistics) -> Iterator[Finding]:
    """The score fell by more than half of its gain: the mean of the last 10 iterations, compared with the best score.

    The best score is a mean of 5 iterations. A gain counts if it exceeds half of the spread of the episodes.

    Source: Measured (`rollax docs doctor`): scores of runs that learned fell by at most a third of their gain.
    """
    score = run.score
    if len(score) < 2 * LEAST or run.is_solved:
        return
    means = np.convolve(score.values, np.full(5, 0.2), "valid")
    best, last = int(means.argmax()), float(score.values[-LEAST:].mean())
    gain = means[best] - score.values[0]
    if not run.is_clear(gain):
        return
    lost = float((means[best] - last) / gain)
    if lost <= _FELL or best >= len(means) - LEAST:
        return
    kept = {
        True: "The run folder has the best model in best/.",
        False: "Keep the best model next time (keep_best).",
        None: "Keep checkpoints, to go back to the best model.",
    }[run.has_best]
    yield Finding(
        severity="warning",
        what="The score has fallen far from its best.",
        quantity="share of the gain that is lost",
        number=lost,
        limit=_FELL,
        where=f"from {means[best]:.4g} at iteration {int(score.iterations[best + 4])} to {last:.4g}",
        key="lr",
        change="down",
        remedy=f"{kept} Smaller steps, or a learning rate that falls (lr_schedule), keep what was learned.",
    )


def evaluation_is_worse(run: RunStatistics) -> Iterator[Finding]:
    """The mean of the last 3 greedy evaluations is below the training score by more than half of the gain in training.

    Source: Greedy actions of a policy that learned well score about as its samples do, or better; half of the gain is a
    choice.
    """
    greedy, score = run.series("evaluation", "episode_reward_mean"), run.score
    if len(greedy) < 3 or len(score) < 3 or run.is_solved:
        return
    training = float(np.interp(greedy.iterations[-3:], score.iterations, score.values).mean())
    gain, missing = training - score.values[0], training - float(greedy.values[-3:].mean())
    if not run.is_clear(gain) or missing <= 0.5 * gain:
        return
    yield Finding(
        severity="warning",
        what="Greedy actions score far below the actions of training.",
        quantity="difference, as a share of the gain",
        number=missing / gain,
        limit=0.5,
        where=f"the last 3 evaluations: {greedy.values[-3:].mean():.4g}, training {training:.4g}",
        key="entropy_coeff" if run.number("entropy_coeff") else "evaluation_config",
        change="down" if run.number("entropy_coeff") else "{'explore': True}",
        remedy="The policy needs its noise: let it become less random, or evaluate with exploration; and compare the "
        "environment of evaluation_config with the one of training.",
    )


_LONG = 10_000


def no_episodes(run: RunStatistics) -> Iterator[Finding]:
    """No episode has ended: a note at first.

    It is a warning after at least 10 iterations, when each sub-environment has made more steps than its time limit in
    Gymnasium, or more than 10,000 if it has none.

    Source: Without an ended episode there is no score; most benchmarks end episodes after at most 1000 steps.
    """
    spec = spec_of(run.env)
    limit = _LONG if spec is None or spec.max_episode_steps is None else spec.max_episode_steps + 1
    steps = run.steps / (max(1.0, run.number("num_workers")) * run.number("num_envs_per_worker", 1.0))
    if run.results and not len(run.score) and run.config.get("input") is None:
        yield Finding(
            severity="warning" if len(run.results) >= LEAST and steps > limit else "note",
            what="No episode has ended, so there is no score.",
            quantity="ended episodes",
            number=0,
            limit=1,
            where=f"{steps:.0f} steps of each sub-environment",
            key=None,
            change=None,
            remedy="Train longer if episodes are that long. Otherwise return truncated=True at a time limit, or wrap "
            "the environment in TimeLimit: gymnasium.make(..., max_episode_steps=...).",
        )


_TOO_FEW = 1.0


def few_episodes(run: RunStatistics) -> Iterator[Finding]:
    """Less than one episode ends per iteration, so that successive scores are means of nearly the same episodes.

    Source: A mean of n episodes has a standard error of 1/√n of their standard deviation.
    """
    ended = run.series("episodes_this_iter")
    if len(ended) < LEAST or not len(run.score):
        return
    mean = float(ended.last().values.mean())
    if mean < _TOO_FEW:
        of_batches = run.number("train_batch_size") > run.number("timesteps_per_iteration")
        yield Finding(
            severity="note",
            what="Few episodes end in an iteration: a change of the score says little.",
            quantity="episodes per iteration",
            number=mean,
            limit=_TOO_FEW,
            where=ended.last().where(),
            key="train_batch_size" if of_batches else "timesteps_per_iteration",
            change="up",
            remedy="Sample more per iteration, and judge the run by evaluations (evaluation_interval).",
        )


_FLAT = 30


def score_flat(run: RunStatistics) -> Iterator[Finding]:
    """After 30 iterations and 100 episodes, the score has not risen by a quarter of the spread of the first episodes.

    Source: Measured (`rollax docs doctor`): runs that learned exceeded this within 27 iterations.
    """
    if len(run.score) < _FLAT or not run.has_score or run.has_improved or run.is_solved:
        return
    yield Finding(
        severity="note",
        what="The score has not risen since the beginning.",
        quantity="mean score of the last fifth, less that of the first tenth",
        number=run.gain,
        limit=0.25 * run.first_spread,
        where=run.score.where(),
        key="lr",
        change="up",
        remedy="Look at the other findings first; then try another lr, more exploration, or rewards that come sooner.",
    )


_DOMINATES = 0.9


def one_part_takes_the_time(run: RunStatistics) -> Iterator[Finding]:
    """Sampling or learning takes more than 90 % of the time, without the first iteration, which compiles.

    Source: Amdahl's law: what takes the other 10 % is no longer worth speeding up.
    """
    parts = {name: run.series("timers", f"{name}_s") for name in ("sample", "learn")}
    if run.number("num_workers") or any(len(part) < LEAST for part in parts.values()):
        return
    seconds = {name: float(part.values[1:].sum()) for name, part in parts.items()}
    if not all(seconds.values()):  # compiled rounds, whose sampling counts as learning; or no sampling at all
        return
    slower = max(seconds, key=lambda name: seconds[name])
    share = seconds[slower] / sum(seconds.values())
    if share <= _DOMINATES:
        return
    samples = slower == "sample"
    key: str | None = "num_workers" if run.number("num_envs_per_worker", 1) >= 8 else "num_envs_per_worker"
    if not samples:
        key = next((name for name in ("sgd_minibatch_size", "training_intensity") if run.has(name)), None)
    yield Finding(
        severity="note",
        what="Nearly all time is spent in the environment and in choosing actions."
        if samples
        else "Nearly all time is spent in gradient steps.",
        quantity=f"share of {slower}_s",
        number=share,
        limit=_DOMINATES,
        where=parts[slower].where(),
        key=key,
        change=None if key is None else "down" if key == "training_intensity" else "up",
        remedy=f"Step more environments at once, or in more processes; {page('workers-and-clusters')}."
        if samples
        else f"Larger minibatches or fewer updates per step; {page('gpus')}.",
    )
