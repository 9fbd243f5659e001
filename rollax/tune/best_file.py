"""`best.yaml` of a study: the best settings, as an experiment file and an entry that `rollax zoo measure` takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rollax.tune.record import TrialResult
from rollax.tune.settings import BEST, Settings, as_yaml, requires_trust
from rollax.tune.space import with_values

_TAGS = {
    "gymnasium.envs.classic_control": "classic",
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.mujoco": "mujoco",
    "minigrid": "minigrid",
    "ale_py": "atari",
}
"""Module of an environment of Gymnasium -> tag of the zoo."""


def best_file(settings: Settings, trials: Sequence[TrialResult], best: TrialResult) -> str:
    """Returns the text of `best.yaml`."""
    counts = Counter(trial.state for trial in trials)
    ended = sum(counts[state] for state in ("finished", "pruned", "failed"))
    options, name = settings.options, settings.trainer_class.name
    seeds = ", ".join(map(str, settings.task.seeds))
    sections = settings.experiment(with_values(settings.config, best.values))
    trust = " --trust-code" if requires_trust(sections) else ""
    comment = [
        f"Found by `rollax tune`: trial {best.number}, the best of {ended} trials of {name} on {settings.env}",
        f"({counts['pruned']} pruned, {counts['failed']} failed; sampler {options.sampler}, pruner {options.pruner}).",
        f"Score {best.score:.6g} after {best.steps:,} steps: the mean of the last {scored_by(settings)},",
        f"of the training with seed{'s' if options.seeds > 1 else ''} {seeds}. The best of many trials is optimistic:",
        f"`rollax zoo measure {BEST}{trust}` measures these settings with other seeds.",
    ]
    zoo = {"tags": [_tag(settings.env)], "target": float(f"{best.score:.4g}")}
    return "".join(f"# {line}\n" for line in comment) + as_yaml({**sections, "zoo": zoo})


def scored_by(settings: Settings) -> str:
    """Returns a text about the episodes whose mean is the score."""
    if settings.options.score == "training":
        return "training episodes"
    key = "evaluation_num_episodes"
    return f"{settings.config.get(key, settings.trainer_class.config_class.model_fields[key].default)} greedy episodes"


def _tag(env: object) -> str:
    """Returns a tag of the environment, by which the zoo notes the version of its package."""
    import gymnasium

    name = str(env)
    for prefix in ("jax:", "minigrid:", "pettingzoo/"):
        if name.startswith(prefix):
            return prefix[:-1]
    spec = gymnasium.registry.get(name)
    entry = str(spec.entry_point) if spec is not None else ""
    return next((tag for module, tag in _TAGS.items() if entry.startswith(module)), "tuned")
