"""The tables of speeds in `README.md` and `docs/speed.md`, from the measured results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import ROOT
from benchmarks.tables import read_results

BEGIN = "<!-- speeds: begin (written by python -m benchmarks.report) -->"
END = "<!-- speeds: end -->"

LIBRARIES = ("Stable-Baselines3", "SBX", "RLlib", "Sample Factory", "Tianshou")
_WORK = {
    "sampling_cartpole_64": "sampling, 64 CartPoles in one process",
    "sampling_cartpole_1": "sampling, one CartPole",
    "sampling_100_agents": "sampling, one environment of 100 agents",
    "ppo_100k": "PPO, 100,000 steps of CartPole, start-up and compilation included",
    "ppo_iteration_64": "PPO, one iteration, two layers of 64",
    "ppo_iteration_256": "PPO, one iteration, two layers of 256",
    "impala_cartpole": "IMPALA, CartPole, two workers",
    "appo_cartpole": "APPO, CartPole, two workers",
    "apex_cartpole": "Ape-X DQN, CartPole, two workers",
    "dqn_cartpole": "DQN, CartPole",
    "dqn_frames": "DQN, one update on Atari frames",
    "sac_pendulum": "SAC, Pendulum",
    "td3_pendulum": "TD3, Pendulum",
    "ddpg_pendulum": "DDPG, Pendulum",
    "replay_prioritized": "prioritized replay of 1,000,000 rows: add, sample, update",
    "replay_prioritized_sample": "prioritized replay of 1,000,000 rows: sample, update",
}


_IN_THE_README = (
    "sampling_cartpole_64",
    "ppo_100k",
    "impala_cartpole",
    "apex_cartpole",
    "dqn_cartpole",
    "dqn_frames",
    "sac_pendulum",
    "replay_prioritized",
)
PAGES: dict[Path, Sequence[str]] = {ROOT / "README.md": _IN_THE_README, ROOT / "docs" / "speed.md": tuple(_WORK)}
"""The pages with a table, and the benchmarks in it."""


def speed_table(names: Sequence[str]) -> str:
    """Returns a Markdown table: the speed of rollax relative to each library, and the aim if it is missed."""
    lines = [f"| | {' | '.join(LIBRARIES)} |", f"|---|{'---|' * len(LIBRARIES)}"]
    results = read_results()
    for name in names:
        targets = results[name]["targets"]
        lines.append(f"| {_WORK[name]} | {' | '.join(_cell(targets, library) for library in LIBRARIES)} |")
    return "\n".join(lines)


def write_speed_tables() -> None:
    """Puts the tables between the markers of their pages."""
    for page, names in PAGES.items():
        before, rest = page.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        page.write_text(f"{before}{BEGIN}\n\n{speed_table(names)}\n\n{END}{after}", encoding="utf-8")


def _cell(targets: list[dict[str, Any]], library: str) -> str:
    """Returns the ratio against `library`; the lowest one for several sides of one library."""
    found = [target for target in targets if target.get("against", "").split(",")[0] == library]
    if not found:
        return ""
    target = min(found, key=lambda target: target["ratio"])
    missed = f" (aim {target['at_least']:g})" if target["reached"] is False else ""
    return f"{target['ratio']:.3g}{missed}"
