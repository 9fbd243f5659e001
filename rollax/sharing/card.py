"""The model card of a shared run, with the metadata that the Hugging Face Hub reads."""

from __future__ import annotations

import shlex
from pathlib import Path

import yaml

from rollax.runs.results import RESULTS_NAME
from rollax.runs.run_folder import CHECKPOINTS, CONFIG, CURVE
from rollax.sharing.contents import REPLAY, SCORE
from rollax.sharing.score import Score


def write_card(path: Path, algorithm: str, score: Score, *, source: str, checkpoint: str, needs_code: bool) -> None:
    """Writes the card beside the other files of the run, whose curve and video it shows.

    Args:
        path: the path of the card.
        algorithm: the name of the algorithm, or of the user's trainer class.
        source: the argument of `rollax play`: `hub:ORG/NAME`, or the name of a folder or zip file.
        checkpoint: the path of the checkpoint in the run folder.
        needs_code: whether the checkpoint names code of its author, which is not in the files.
    """
    there = {file.name for file in path.parent.iterdir()}
    parts = [
        _metadata(algorithm, score),
        f"# {algorithm} in {score.env}",
        f"A policy that rollax trained for {score.timesteps:,} environment steps.",
        _pictures(there),
        _score(score, source),
        _play(source, checkpoint),
        _contents(there, needs_code),
    ]
    path.write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")


def _metadata(algorithm: str, score: Score) -> str:
    metric = {"type": "mean_reward", "value": str(score), "name": "mean_reward", "verified": False}
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": score.env, "type": score.env},
        "metrics": [metric],
    }
    data = {
        "library_name": "rollax",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", "rollax", score.env, algorithm],
        "model-index": [{"name": algorithm, "results": [result]}],
    }
    return f"---\n{yaml.safe_dump(data, sort_keys=False, allow_unicode=True)}---"


def _pictures(there: set[str]) -> str:
    video = f'<video src="{REPLAY}" controls autoplay loop muted></video>' if REPLAY in there else ""
    curve = f"![The reward over environment steps]({CURVE})" if CURVE in there else ""
    return "\n\n".join(filter(None, (video, curve)))


def _score(score: Score, source: str) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in score.versions.items())
    return f"""## Score

Mean reward **{score}** (standard deviation) over {len(score.rewards)} greedy episodes with seed {score.seed}.

- lowest {min(score.rewards):.2f}, highest {max(score.rewards):.2f}
- measured on {score.date} with {versions}

This plays the same episodes again, and compares each of them with `score.json`:

```
rollax play {shlex.quote(source)} --verify
```"""


def _play(source: str, checkpoint: str) -> str:
    return f"""## Play it

```
rollax play {shlex.quote(source)} --video videos
rollax fetch {shlex.quote(source)} --out run
rollax train --resume=run --continue-for=100000
```

```python
from rollax import load_policy

policy = load_policy("run/{checkpoint}")
action = policy.compute_single_action(obs)
```"""


def _contents(there: set[str], needs_code: bool) -> str:
    safe = (
        "The files contain no code, only JSON, safetensors, text, pictures and video. `rollax play`, `rollax fetch`\n"
        "and `load_policy` import nothing that they name, and need no trust in their author."
    )
    if needs_code:
        safe = (
            "The files contain no code, but the checkpoint names classes or functions of its author, which are not\n"
            "part of rollax. Nothing that they name is imported: pass your own by `--run`, `--env` and `--import`."
        )
    files = {
        CHECKPOINTS: "weights, optimizer, running statistics and random numbers, so that training goes on",
        CONFIG: "all settings: `rollax train -f config.json` trains again",
        RESULTS_NAME: "the results of training, one line for each iteration",
        SCORE: "the reward of each episode above",
        CURVE: "the learning curve",
        REPLAY: "an episode",
    }
    rows = [f"| `{name}` | {text} |" for name, text in files.items() if name in there]
    return "\n".join(["## Files", "", safe, "", "| file | content |", "|---|---|", *rows])
