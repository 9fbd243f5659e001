"""Run folders with results, made by hand."""

import json
from collections.abc import Sequence
from pathlib import Path

Rewards = Sequence[float | None]


def write_run(folder: Path, rewards: Rewards, greedy: Rewards | None = None) -> Path:
    """A run folder whose iteration n has 100·n steps and these rewards, in training and in greedy evaluations."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "result.jsonl").open("w") as file:
        for number, reward in enumerate(rewards, start=1):
            line = {"training_iteration": number, "timesteps_total": 100 * number, "episode_reward_mean": reward}
            line["evaluation"] = greedy and {"episode_reward_mean": greedy[number - 1]}
            file.write(json.dumps(line) + "\n")
    return folder
