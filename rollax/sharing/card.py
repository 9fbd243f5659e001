"""The model card of a shared run, with the metadata that the Hugging Face Hub reads."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

import yaml

from rollax.runs.results import RESULTS_NAME
from rollax.runs.run_folder import CHECKPOINTS, CONFIG, CURVE
from rollax.sharing.contents import REPLAY, SCORE
from rollax.sharing.needs import NeededCode
from rollax.sharing.score import Score


def write_card(
    path: Path,
    algorithm: str,
    score: Score,
    *,
    commands: str,
    checkpoint: str,
    loading: str,
    code: NeededCode,
) -> None:
    """Writes the card beside the other files of the run, whose curve and video it shows.

    Args:
        path: the path of the card.
        algorithm: the name of the algorithm, or of the user's trainer class.
        commands: the lines of `commands_for`.
        checkpoint: the path of the checkpoint in the run folder.
        loading: further arguments of `load_policy`.
        code: the author's code that the checkpoint names; the files do not contain it.
    """
    there = {file.name for file in path.parent.iterdir()}
    parts = [
        _metadata(algorithm, score),
        f"# {algorithm} in {score.env}",
        f"A policy that rollax trained for {score.timesteps:,} environment steps.",
        _pictures(there),
        _score(score),
        _play(commands, checkpoint, loading, code),
        _contents(there, code),
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


def _score(score: Score) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in score.versions.items())
    return f"""## Score

Mean reward **{score}** (standard deviation) over {len(score.rewards)} greedy episodes with seed {score.seed}.

- lowest {min(score.rewards):.2f}, highest {max(score.rewards):.2f}
- measured on {score.date} with {versions}"""


def commands_for(source: str, code: NeededCode, options: Iterable[str], packages: Iterable[str]) -> str:
    """Returns the lines that install rollax, play a shared run, get its files and continue its training.

    Args:
        source: the argument of `rollax play`: `hub:ORG/NAME`, or the name of a folder or zip file.
        code: the author's code that the checkpoint names. `rollax play` trusts no files, so `rollax evaluate`
            plays a run with code that no option names.
        options: the options of `rollax play` and `rollax train`.
        packages: what pip must install.
    """
    play, fetch = ["rollax", "play", source], ["rollax", "fetch", source, "--out", "run"]
    video = ["--video", "videos"]
    if code.is_named_by_options:
        plays = [[*play, *video, *options], [*play, "--verify", *options], fetch]
    else:
        plays = [fetch, ["rollax", "evaluate", "run", *video, *options]]
    train = ["rollax", "train", "--resume=run", "--continue-for=100000", *options]
    return "\n".join(map(shlex.join, [["pip", "install", *packages], *plays, train]))


def _play(commands: str, checkpoint: str, loading: str, code: NeededCode) -> str:
    about = "`--verify` plays the episodes of the score again, and compares each of them with `score.json`.\n\n"
    about = about if code.is_named_by_options else ""
    return f"""## Play it

```
{commands}
```

{about}```python
from rollax import load_policy

policy = load_policy("run/{checkpoint}"{loading})
action = policy.compute_single_action(obs)
```"""


def _contents(there: set[str], code: NeededCode) -> str:
    safe = (
        "The files contain no code, only JSON, safetensors, text, pictures and video. `rollax play`, `rollax fetch`\n"
        "and `load_policy` import nothing that they name, and need no trust in their author."
    )
    if code:
        named = ", ".join(f"`{path}`" if path else f"the {key}" for key, path in code.paths.items())
        safe = (
            f"The files contain no code, but the checkpoint names code that is not part of rollax:\n"
            f"{named}. Install its packages, or get it from the author of the run. `rollax play` imports only what\n"
            "`--run`, `--env` and `--import` name."
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
