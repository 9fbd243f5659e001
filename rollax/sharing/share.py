"""`share_run` writes a run for others, and `fetch_run` gets a run that others shared."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollax.algorithms.registry import run_name
from rollax.algorithms.trainer import Trainer
from rollax.core.atomic_files import absolute, make_parents, named_write_errors, new_folder, read_regular
from rollax.core.importing import path_of
from rollax.core.storage import MANIFEST, read_manifest
from rollax.env.recording import encoder
from rollax.errors import CheckpointError, ConfigError, EnvError, RollaxError
from rollax.runs.display import name_of_env, title_of
from rollax.runs.results import RESULTS_NAME, draw_curves, read_results
from rollax.runs.run_folder import CHECKPOINTS, CONFIG, CURVE, PREFIX
from rollax.sharing import hub
from rollax.sharing.archive import read_zip, write_zip
from rollax.sharing.card import commands_for, write_card
from rollax.sharing.contents import CARD, REPLAY, chosen_checkpoint, limit_of, newest_in, refuse_large, run_of
from rollax.sharing.needs import ENV, TRAINER, arguments_of_load_policy, code_in, packages_for
from rollax.sharing.score import Score, measure, write_score

log = logging.getLogger("rollax.sharing")
ZIP = ".zip"


def share_run(
    run: str | Path,
    to: str | Path,
    *,
    episodes: int = 20,
    seed: int = 0,
    video: bool | None = None,
    private: bool = False,
    trainer_class: type[Trainer] | None = None,
    trust_code: bool = False,
    **changes: Any,
) -> tuple[str, Score]:
    """Measures the policy of a run and writes what others need to play it and to go on training, without code.

    The result is a run folder, which `rollax play`, `evaluate`, `train --resume` and `plot` accept. It contains one
    checkpoint, the best of the run or else the newest one, and the config, results, learning curve, score and model
    card.

    Args:
        run: a run folder, or a checkpoint.
        to: a new folder, a new file that ends with `.zip`, or `hub:ORG/NAME`, a repository of the Hugging Face Hub. In
            a repository, the files of an earlier call are replaced.
        episodes: the number of greedy episodes of the score.
        seed: the seed of these episodes.
        video: whether to record a video of an episode; None records one if the environment can be recorded.
        private: whether a new repository is private.
        trainer_class, trust_code, changes: as in `Trainer.from_checkpoint`, for a run that names code of your own.
    Returns:
        The folder, the file, or the address of the repository; and the score.
    Raises:
        ConfigError: `to` exists or is not a valid name, or the extra `hub` or `video` is missing.
        CheckpointError: the run has no checkpoint, or it names code that is neither passed nor trusted.
        RollaxError: the disk or the hub fails, or the episodes have no finite rewards.
    """
    place = os.fspath(to)
    _refuse_taken(place)
    checkpoint = chosen_checkpoint(run)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        copy = _copied(checkpoint, folder)
        own: Any = trainer_class or Trainer
        shown = place if place.startswith(hub.PREFIX) else Path(place).name
        with (
            _located(folder, str(run)),
            own.from_checkpoint(copy, trust_code=trust_code, learn=False, seed=seed, **changes) as trainer,
        ):
            # An import path may be of a subclass of str, which YAML cannot write.
            env, algorithm = str(name_of_env(trainer.config.env)), run_name(type(trainer))
            code = code_in(copy).with_paths({ENV: env, TRAINER: path_of(type(trainer))})
            options = [*code.options, *([f"--env={env}"] if "env" in changes and ENV not in code.paths else [])]
            packages, loading = packages_for(trainer, shown), arguments_of_load_policy(trainer, copy)
            score = measure(trainer, env, episodes)
            _record(trainer, folder, video)
        write_score(score, folder)
        if (folder / RESULTS_NAME).exists():
            draw_curves({"training episodes": read_results(folder)[0]}, folder / CURVE, title_of(algorithm, env))
        where = copy.relative_to(folder).as_posix()
        commands = commands_for(shown, code, options, packages)
        write_card(folder / CARD, algorithm, score, commands=commands, checkpoint=where, loading=loading, code=code)
        return _delivered(folder, place, private), score


def fetch_run(source: str | Path, out: str | Path) -> Path:
    """Writes a shared run into a new folder and returns its checkpoint, for `load_policy` or `Trainer.from_checkpoint`.

    Only the files of a shared run are taken, and nothing in them is imported or run.

    Args:
        source: a folder, a zip file, or `hub:ORG/NAME`, also with a revision: `hub:ORG/NAME@REVISION`.
        out: the new folder.
    Raises:
        ConfigError: `out` exists, or the extra `hub` is missing.
        CheckpointError: the source is not a shared run, or its files are links, are too large, or lie outside of it.
        RollaxError: the hub refused, or cannot be reached.
    """
    target = absolute(out, ConfigError)
    _refuse_taken(str(target))
    with fetched(source) as folder:
        checkpoint = newest_in(folder).relative_to(folder)
        _moved(folder, target)
    return target / checkpoint


@contextmanager
def fetched(source: str | Path) -> Iterator[Path]:
    """A copy of the run folder of a shared run, removed after the block; `fetch_run` describes sources and errors."""
    place = os.fspath(source)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        folder.mkdir()
        if place.startswith(hub.PREFIX):
            hub.download(place, folder)
        elif place.lower().endswith(ZIP) and not os.path.isdir(place):
            read_zip(absolute(place, ConfigError), folder)
        else:
            _copy_folder(absolute(place, ConfigError), folder)
        with _located(folder, place):
            yield folder


@contextmanager
def _located(folder: Path, place: str) -> Iterator[None]:
    """Errors about files in the temporary `folder` name `place` instead."""
    try:
        yield
    except RollaxError as error:
        if (where := error.parts.get("where", "")).startswith(str(folder)):
            error.parts["where"] = place + where.removeprefix(str(folder))
            error.expected(None)  # renders the message again
        raise


def _refuse_taken(place: str) -> None:
    if place.startswith(hub.PREFIX):
        hub.repository_in(place, "--to")
        hub.client(place)
    elif os.path.lexists(place):
        raise ConfigError("There is something of this name already.", "the place to write to", place).expected(
            "a new folder or file, or hub:ORG/NAME", "choose another name, or remove it"
        )


def _copied(checkpoint: Path, folder: Path) -> Path:
    """Copies a checkpoint, and the config and results of its run; returns the checkpoint in the copy."""
    names = [*read_manifest(checkpoint)["files"], MANIFEST]
    usual = limit_of(f"{CHECKPOINTS}/{checkpoint.name}/{MANIFEST}") is not None  # else its folder was renamed
    target = folder / CHECKPOINTS / (checkpoint.name if usual else f"{PREFIX}000000")
    target.mkdir(parents=True)
    for name in names:
        shutil.copyfile(checkpoint / name, target / name)
    if (run := run_of(checkpoint)) is not None:
        for name in (CONFIG, RESULTS_NAME):
            if (run / name).is_file():
                shutil.copyfile(run / name, folder / name)
    return target


def _record(trainer: Trainer, folder: Path, video: bool | None) -> None:
    """Writes the video of an episode into the folder; if `video` is None, a failure to record is no error."""
    if video is False:
        return
    if video is None:
        try:
            encoder()
        except ConfigError as error:
            log.warning("%s is left out. %s", REPLAY, error)
            return
    with tempfile.TemporaryDirectory() as videos:
        try:
            files = trainer.evaluate(1, record_dir=videos).get("videos", ())
        except (ConfigError, EnvError):
            if video:
                raise
            return
        for file in list(files)[:1]:
            shutil.copyfile(file, folder / REPLAY)


def _delivered(folder: Path, place: str, private: bool) -> str:
    if place.startswith(hub.PREFIX):
        return hub.upload(folder, place, private=private)
    target = absolute(place, ConfigError)
    if place.lower().endswith(ZIP):
        write_zip(folder, target)
    else:
        _moved(folder, target)
    return str(target)


def _moved(folder: Path, target: Path) -> None:
    """Copies a folder; the copy gets its name when it is complete."""
    with named_write_errors("The run", target):
        make_parents(target.parent)
        with new_folder(target) as temporary:
            shutil.copytree(folder, temporary, dirs_exist_ok=True)


def _copy_folder(source: Path, folder: Path) -> None:
    """Copies the files of a shared run; CheckpointError for links, and for a source that is not a run folder."""
    if newest_in(source) == source:
        raise CheckpointError("This is a checkpoint, not a shared run.", str(source)).expected(
            "a run folder", "pass its run folder, or play the checkpoint by `rollax evaluate`"
        )
    sizes = {
        path.relative_to(source).as_posix(): path.lstat().st_size for path in source.rglob("*") if not path.is_dir()
    }
    sizes = {name: size for name, size in sizes.items() if limit_of(name) is not None}
    refuse_large(sizes, str(source), folder)
    for name in sizes:
        if (source / name).is_symlink():
            raise CheckpointError("A shared run contains a link.", str(source / name)).expected(
                "files in the run folder itself", "use another copy, or replace the link by what it leads to"
            )
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(read_regular(source / name, sizes[name]))
