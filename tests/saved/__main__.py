"""`python -m tests.saved [NAME ...]`: saves the missing checkpoints of this version; README.md says when."""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

from rollax import __version__
from rollax.algorithms.registry import get_trainer_class
from tests.saved.cases import CASES, FOLDER, answers


def main() -> None:
    """Saves the checkpoints that are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*CASES, []], help="the cases; all without one")
    for name in parser.parse_args().names or CASES:
        path = FOLDER / __version__ / name
        if path.exists():
            print(f"{name}: there already, and kept")
            continue
        save(name, path)
        print(f"{name}: {sum(file.stat().st_size for file in path.iterdir())} bytes")


def save(name: str, path: Path) -> None:
    """Trains a case, and saves its checkpoint into `path` and what its policies answer beside it."""
    algorithm, config = CASES[name]
    with get_trainer_class(algorithm)(config=config) as trainer, tempfile.TemporaryDirectory() as folder:
        trainer.train()
        observations = {}
        for policy_id, policy in trainer.worker.policies.items():
            policy.observation_space.seed(0)
            observations[policy_id] = [np.clip(policy.observation_space.sample(), -1, 1) for _ in range(3)]
        saved = trainer.save(folder)
        recorded = {
            "iteration": trainer.iteration,
            "timesteps_total": trainer.optimizer.steps,
            "policies": answers(saved, observations),
        }
        path.parent.mkdir(exist_ok=True)
        shutil.move(saved, path)
    path.with_suffix(".json").write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
