"""The lines of rollax by package, and of the modules that training PPO on CartPole loads.

    python -m benchmarks.code_size

All lines of files are counted, including blank lines and docstrings. The training run is one small iteration in a
separate process.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import rollax

_PACKAGE = Path(rollax.__file__).parent
_TRAINING = """
import sys
from rollax import PPOTrainer
config = {"train_batch_size": 64, "sgd_minibatch_size": 64, "num_sgd_iter": 1}
with PPOTrainer("CartPole-v1", config) as trainer:
    trainer.train()
for name, module in sorted(sys.modules.items()):
    if name.partition(".")[0] == "rollax":
        print("module", module.__file__)
"""


def all_files() -> list[Path]:
    """Returns the Python files of rollax, and the stub of its public names."""
    return sorted([*_PACKAGE.rglob("*.py"), *_PACKAGE.rglob("*.pyi")])


def files_loaded_by_training() -> list[Path]:
    """Returns the files of rollax that are in `sys.modules` after an iteration of PPO on CartPole."""
    done = subprocess.run(
        [sys.executable, "-c", _TRAINING], cwd=_PACKAGE.parent, check=True, capture_output=True, text=True
    )
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    return sorted({Path(file) for word, _, file in lines if word == "module"})


def sizes(files: Iterable[Path]) -> tuple[Counter[str], Counter[str]]:
    """Returns the numbers of files and lines by package; `rollax` means the modules beside the packages."""
    counts: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for file in files:
        folders = file.relative_to(_PACKAGE).parts[:-1]
        package = folders[0] if folders else "rollax"
        counts[package] += 1
        lines[package] += len(file.read_text(encoding="utf-8").splitlines())
    return counts, lines


def report() -> str:
    """Returns the table as Markdown."""
    counts, lines = sizes(all_files())
    loaded_counts, loaded_lines = sizes(files_loaded_by_training())
    rows = [
        "| package | files | lines | files loaded by PPO on CartPole | lines loaded |",
        "|---|---:|---:|---:|---:|",
    ]
    for package in sorted(lines, key=lambda name: (-lines[name], name)):
        cells = (package, counts[package], lines[package], loaded_counts[package], loaded_lines[package])
        rows.append("| {} | {:,} | {:,} | {:,} | {:,} |".format(*cells))
    total = (counts.total(), lines.total(), loaded_counts.total(), loaded_lines.total())
    rows.append("| **all** | {:,} | {:,} | {:,} | {:,} |".format(*total))
    return "\n".join(rows)


if __name__ == "__main__":
    print(report())
