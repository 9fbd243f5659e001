"""`rollax serve --run`: a server that learns from the episodes of its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollax.cli.checkpoints import trainer_class_named
from rollax.cli.experiment import merged, parse_config, parse_settings
from rollax.cli.train import new_folder
from rollax.errors import ConfigError
from rollax.runs.run_lock import RunLock

DEFAULT_FREQUENCY_S = 60.0


def serve_and_learn(
    run: str | None,
    config: str | None,
    settings: Sequence[str],
    env_config: Mapping[str, Any],
    out: Path | None,
    checkpoint_frequency_s: float,
) -> int:
    """Serves and learns until a signal arrives; returns its number.

    Args:
        run: the algorithm.
        config: its settings as JSON.
        settings: further settings, as KEY=VALUE.
        env_config: settings of the server.
        out: folder of the run; None for a new one.
    """
    if run is None:
        raise ConfigError("There is nothing to serve.", "rollax serve").expected(
            "a checkpoint, or an algorithm that learns: --run",
            "as in `rollax serve runs/one`, or `rollax serve --run=DQN --set env_config.spaces_of=CartPole-v1`",
        )
    from rollax.serving.learning_run import addresses_of, learn_until_signal, make_learning_trainer

    given = merged({} if config is None else parse_config(config), parse_settings(settings))
    trainer_class = trainer_class_named(run)
    folder = new_folder(f"{run.rpartition(':')[2]}-server") if out is None else out
    with RunLock(folder, "--out") as lock, make_learning_trainer(trainer_class, given, env_config, folder) as trainer:
        goes_on = f", from iteration {trainer.iteration}" if trainer.recorded_in else ""

        def announce() -> None:
            print(f"{trainer.name} learns at {', '.join(addresses_of(trainer))} ({folder}{goes_on})", flush=True)

        return learn_until_signal(trainer, lock, checkpoint_frequency_s, announce)
