"""The rules about logged statistics, which are also applied while a run goes on."""

from __future__ import annotations

from rollax.runs.rules.finding import Rule
from rollax.runs.rules.on_policy import (
    clipped_share,
    entropy_collapsed,
    entropy_stays,
    explained_variance,
    kl_divergence,
    kl_target,
)
from rollax.runs.rules.replay import no_updates, old_samples, small_replay, updates_per_step
from rollax.runs.rules.score import (
    evaluation_is_worse,
    few_episodes,
    no_episodes,
    one_part_takes_the_time,
    score_fell,
    score_flat,
)
from rollax.runs.rules.settings import exploration_goes_on, learning_rate_zero, short_discount
from rollax.runs.rules.values import action_values, not_finite, reward_scale, value_loss

RULES: tuple[Rule, ...] = (
    explained_variance,
    kl_divergence,
    kl_target,
    clipped_share,
    entropy_collapsed,
    entropy_stays,
    value_loss,
    action_values,
    not_finite,
    reward_scale,
    learning_rate_zero,
    short_discount,
    exploration_goes_on,
    no_updates,
    updates_per_step,
    small_replay,
    old_samples,
    score_fell,
    evaluation_is_worse,
    no_episodes,
    few_episodes,
    score_flat,
    one_part_takes_the_time,
)
