"""The rules about logged statistics, which are also applied while a run goes on."""

from __future__ import annotations

from rollax.runs.rules import on_policy, replay, score, settings, values
from rollax.runs.rules.finding import Rule

RULES: tuple[Rule, ...] = (
    on_policy.explained_variance,
    on_policy.kl_divergence,
    on_policy.kl_target,
    on_policy.clipped_share,
    on_policy.entropy_collapsed,
    on_policy.entropy_stays,
    values.value_loss,
    values.action_values,
    values.not_finite,
    values.reward_scale,
    settings.learning_rate_zero,
    settings.short_discount,
    settings.exploration_goes_on,
    replay.no_updates,
    replay.updates_per_step,
    replay.small_replay,
    replay.old_samples,
    score.score_fell,
    score.evaluation_is_worse,
    score.no_episodes,
    score.few_episodes,
    score.score_flat,
    score.one_part_takes_the_time,
)
