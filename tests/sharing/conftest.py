"""A trained run, and what is shared of it, made once."""

from pathlib import Path

import pytest

from rollax import PPOTrainer
from rollax.sharing.share import share_run

CONFIG = {"train_batch_size": 64, "sgd_minibatch_size": 64, "num_sgd_iter": 1, "seed": 0}
CONFIG["model"] = {"fcnet_hiddens": [8]}


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with two checkpoints."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with PPOTrainer("CartPole-v1", CONFIG) as trainer:
        trainer.fit({"training_iteration": 2}, folder, checkpoint_frequency=1, progress="none", evaluate=False)
    return folder


@pytest.fixture(scope="session")
def shared(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run as a shared folder, which no test may change."""
    folder = tmp_path_factory.mktemp("shared") / "shared"
    share_run(run, folder, episodes=3, video=False)
    return folder
