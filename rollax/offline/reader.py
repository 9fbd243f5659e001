"""`open_dataset`: opens a file, a folder, a pattern, a function, or a list of these, as a reader."""

from __future__ import annotations

import glob
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from rollax.core.importing import ImportPath, import_object, named_by_caller
from rollax.core.spaces import same_space, space_text
from rollax.errors import ConfigError, DatasetError, not_installed, page, text_of
from rollax.offline.dataset import DatasetReader, RecordedTrajectory, common_header
from rollax.offline.new_file import unfinished_in

log = logging.getLogger("rollax.offline")

FORMATS: dict[str, str] = {
    "rollax": "rollax.offline.formats.parquet_reader:ParquetReader",
    "rllib_json": "rollax.offline.formats.rllib_json:RLlibJsonReader",
    "rllib_parquet": "rollax.offline.formats.rllib_parquet:RLlibParquetReader",
    "minari": "rollax.offline.formats.minari_format:MinariReader",
    "d4rl": "rollax.offline.formats.d4rl:D4RLReader",
    "json_lines": "rollax.offline.formats.json_lines:JsonLinesReader",
    "csv": "rollax.offline.formats.csv_log:CsvReader",
}
"""Name -> the reader class."""
SUFFIXES = {
    **dict.fromkeys(("rllib_json", "json_lines"), (".json", ".jsonl")),
    **dict.fromkeys(("rollax", "rllib_parquet"), (".parquet",)),
    "d4rl": (".hdf5", ".h5"),
    "csv": (".csv",),
}
"""Name of a format -> suffixes of its files."""
MINARI_ID = "minari:"
"""The beginning of a source that is an id of Minari, such as minari:mujoco/hopper/medium-v0."""
_ALL_SUFFIXES = tuple(dict.fromkeys(suffix for suffixes in SUFFIXES.values() for suffix in suffixes))
_NOT_READ = {"rlds": "RLDS (TensorFlow Datasets)", "lerobot": "LeRobot"}

_ONE_BY_ONE = "open them one by one, or convert them first"

Source = str | Path | Sequence[Any] | Callable[[], DatasetReader] | DatasetReader


def open_dataset(source: Source, *, format: str | type[DatasetReader] = "auto", **settings: Any) -> DatasetReader:  # noqa: A002
    """Opens a data set and returns its reader.

    Args:
        source: a file, a folder, a pattern such as `runs/*/data`, `minari:ID` for a data set that Minari has
            downloaded, a reader, a function that returns one, or a list of these.
        format: a name in `FORMATS`; "auto", to detect it; or a custom reader class, or its path "module:Class".
        settings: settings of the reader, or arguments of the function.
    Raises:
        DatasetError: no such file, a file of unknown format, unreadable content, or sources that do not fit together.
        ConfigError: an unknown `format` or setting, or a setting that no source uses.
    """
    sources = list(_each(source))
    _refuse_without_effect(sources, format, settings)
    settings = {name: named_by_caller(value) if name == "env" else value for name, value in settings.items()}
    with ExitStack() as opened:
        reader = _opened(sources, named_by_caller(format), settings, opened)
        opened.pop_all()
    return reader


@contextmanager
def reading(
    source: Source,
    *,
    format: str | type[DatasetReader] = "auto",  # noqa: A002
    **settings: Any,
) -> Iterator[DatasetReader]:
    """`open_dataset` as a context manager that closes the readers it has opened.

    Readers in `source` stay open, because the caller may read them again. They ignore `settings`, because settings of
    a config may be for another source.
    """
    with ExitStack() as opened:
        yield _opened(list(_each(source)), format, settings, opened)


def _opened(
    sources: list[Any], kind: str | type[DatasetReader], settings: dict[str, Any], opened: ExitStack
) -> DatasetReader:
    """The reader of some sources; `opened` closes the readers that this function opens."""

    def of_paths(paths: Sequence[str | Path]) -> DatasetReader:
        try:
            groups = _grouped([path for one in paths for path in paths_of(one)], kind)
        except OSError as error:
            raise DatasetError("The data cannot be read.", "open_dataset", str(error)).expected(
                "files and folders that you may read", "check the permissions"
            ) from error
        return _chained([opened.enter_context(closing(_made(of, files, settings))) for of, files in groups])

    def of_one(one: Any) -> DatasetReader:
        if isinstance(one, DatasetReader):
            return one
        if isinstance(one, str | Path):
            return of_paths([one])
        return opened.enter_context(closing(_returned(_called(one, settings), one)))

    if all(isinstance(one, str | Path) for one in sources):
        return of_paths(sources)
    return _chained([of_one(one) for one in sources])


def _each(source: Any) -> Iterator[Any]:
    """The paths, readers and functions of a source; DatasetError for other values."""
    if isinstance(source, str | Path | DatasetReader) or callable(source):
        yield source
    elif isinstance(source, Iterable) and not isinstance(source, Mapping | bytes):
        for one in source:
            yield from _each(one)
    else:
        raise DatasetError("This is not a source of data.", "open_dataset", source).expected(
            "a path, a pattern, a DatasetReader, a function that returns one, or a list of these",
            "pass the file or folder; {source: weight} is for the config key 'input' of a trainer",
        )


def _refuse_without_effect(sources: Sequence[Any], kind: Any, settings: Mapping[str, Any]) -> None:
    """Raises ConfigError for settings that no source uses: only paths use a format, and readers use no settings."""
    takes_format = any(isinstance(one, str | Path) for one in sources)
    takes_settings = takes_format or not all(isinstance(one, DatasetReader) for one in sources)
    given = {**({} if kind == "auto" or takes_format else {"format": kind}), **({} if takes_settings else settings)}
    if sources and given:
        what = "The settings have no effect: the data is given as a reader, or as a function, which takes no format."
        fix = f"leave {', '.join(given)} out, or pass {'it' if len(given) == 1 else 'them'} to the reader"
        raise ConfigError(what, "open_dataset", given, fix=fix)


def _chained(readers: Sequence[DatasetReader]) -> DatasetReader:
    return readers[0] if len(readers) == 1 else ChainedReader(readers)


class ChainedReader(DatasetReader):
    """Several data sets in turn, with equal spaces for a policy; episode ids begin with the number of the data set."""

    def __init__(self, readers: Sequence[DatasetReader]) -> None:
        if not readers:
            raise DatasetError.missing("source of data", "open_dataset", "one source or more")
        self.readers = list(readers)
        first = self.readers[0]
        self.observation_spaces, self.action_spaces = dict(first.observation_spaces), dict(first.action_spaces)
        self.actions_of = first.actions_of
        self.header = common_header([reader.header for reader in self.readers], self.actions_of)
        for number, reader in enumerate(self.readers[1:], start=1):
            for kind in ("observation_spaces", "action_spaces"):
                ours, theirs = getattr(first, kind), getattr(reader, kind)
                for policy_id in ours.keys() & theirs.keys():
                    if not same_space(ours[policy_id], theirs[policy_id]):
                        what = f"The data of a policy has different {kind.replace('_', ' ')}."
                        where, got = f"source {number}, policy {policy_id!r}", space_text(theirs[policy_id])
                        raise DatasetError(what, where, got, expected=space_text(ours[policy_id]), fix=_ONE_BY_ONE)
                setattr(self, kind, {**theirs, **getattr(self, kind)})
            if reader.actions_of != self.actions_of:
                what, got = "The actions of the sources have different scales.", f"actions of the {reader.actions_of}"
                expected = f"actions of the {self.actions_of}, as in source 0"
                raise DatasetError(what, f"source {number}", got, expected=expected, fix=_ONE_BY_ONE)

    @property
    def broken(self) -> list[str]:  # type: ignore[override]
        return [message for reader in self.readers for message in reader.broken]

    def __len__(self) -> int:
        return sum(map(len, self.readers))

    def trajectories(self) -> Iterator[RecordedTrajectory]:
        for number, reader in enumerate(self.readers):
            for trajectory in reader.trajectories():
                yield replace(trajectory, episode_id=f"{number}:{trajectory.episode_id}")

    def close(self) -> None:
        for reader in self.readers:
            reader.close()


def paths_of(source: str | Path) -> list[Path]:
    """The files and folders of a source; DatasetError if there are none."""
    if isinstance(source, str) and source.startswith(MINARI_ID):
        return _minari_folders(source.removeprefix(MINARI_ID))
    path = Path(source)
    if os.path.exists(path):  # False for a name that is too long, or a folder that cannot be read
        return [path]
    named = [Path(name) for name in sorted(glob.glob(str(source), recursive=True))]
    folders = set(named)
    found = [each for each in named if folders.isdisjoint(each.parents)]  # `**` matches a folder and its content
    if not found:
        raise DatasetError("The data does not exist.", "open_dataset", str(source)).expected(
            "a file, a folder, or a pattern that names some",
            "check the path; a relative path starts at the current folder",
        )
    return found


def _minari_folders(dataset_id: str) -> list[Path]:
    """The folders of Minari's data sets with an id, or a pattern of ids, in the folder where Minari keeps them."""
    try:
        from minari.storage import get_dataset_path
    except ImportError as error:
        raise not_installed("The data set", error, where="open_dataset", package="minari", extra="offline") from error
    root = get_dataset_path()
    parts = PurePosixPath(dataset_id).parts
    if parts and parts[0] != "/" and ".." not in parts:
        pattern = os.path.join(glob.escape(str(root)), dataset_id, "data", "metadata.json")
        if described := sorted(glob.glob(pattern, recursive=True)):
            return [Path(file).parent.parent for file in described]
    raise DatasetError(
        "This Minari data set is not on this machine.", "open_dataset", f"{MINARI_ID}{dataset_id}"
    ).expected(
        f"the id, or a pattern of ids, of a data set in {root}",
        f"download it: minari download {dataset_id}; `minari list local` shows what is there",
    )


def _grouped(paths: list[Path], given: str | type[DatasetReader]) -> list[tuple[Any, list[Path]]]:
    """`(format, paths)` for each reader: adjacent paths of the same format share a reader.

    A file in several paths is read once.
    """
    groups: list[tuple[Any, list[Path]]] = []
    by_file: dict[Path, tuple[Any, Path]] = {}
    for kind, file in (each for path in paths for each in _files_of(path, given)):
        own = file.parent if kind == "minari" and not (file / "data").is_dir() else file  # the path is `data` itself
        by_file.setdefault(own.resolve(), (kind, file))
    found = list(by_file.values())
    # A damaged Parquet file joins the other Parquet files, whose reader reports or skips it.
    of_parquet = next((kind for kind, _ in found if kind in ("rollax", "rllib_parquet")), "rollax")
    for kind, file in ((kind or of_parquet, file) for kind, file in found):
        if groups and groups[-1][0] == kind:
            groups[-1][1].append(file)
        else:
            groups.append((kind, [file]))
    return groups


def _files_of(path: Path, given: str | type[DatasetReader]) -> Iterator[tuple[Any, Path]]:
    """The files of a path with their formats; for Minari and custom readers, the path itself, or folders inside it."""
    if isinstance(given, str) and given in _NOT_READ:
        raise _not_read(given, path)
    if not callable(given) and (not isinstance(given, str) or (":" not in given and given not in ("auto", *FORMATS))):
        raise ConfigError.unknown("format", given, ["auto", *FORMATS], "format")
    auto = given == "auto"
    if not auto and given not in SUFFIXES:
        yield given, path
    elif not path.is_dir():
        yield (_format_of(path) if auto else given), path
    elif auto and any((folder / "metadata.json").is_file() for folder in (path, path / "data")):
        yield "minari", path
    else:
        yield from _files_in(path, None if auto else str(given))


def _files_in(path: Path, given: str | None) -> Iterator[tuple[Any, Path]]:
    """The files and Minari data sets in a folder, with their formats; or only the files of the format `given`."""
    for unfinished in unfinished_in([path]):
        log.warning("%s is incomplete and is not read: its process was killed, or is still writing.", unfinished)
    # Hidden files and folders are unfinished, from a DatasetWriter or `convert`; reading a pipe might not end.
    seen = [
        file
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    suffixes = _ALL_SUFFIXES if given is None else SUFFIXES[given]
    of_minari: set[Path] = set()
    if given is None:
        if (path / "meta" / "info.json").is_file() and (path / "data").is_dir():
            raise _not_read("lerobot", path)
        if records := next((file for file in seen if _is_tfrecord(file)), None):
            raise _not_read("rlds", records)
        of_minari = {file.parent.parent for file in seen if file.parts[-2:] == ("data", "metadata.json")}
    files = [
        file
        for file in sorted(seen)
        if file.suffix.lower() in suffixes
        and file.name != "namespace_metadata.json"
        and of_minari.isdisjoint(file.parents)
    ]
    if not files and not of_minari:
        expected = f"files that end in {', '.join(suffixes)}"
        raise DatasetError("The folder contains no data.", path, expected=expected, fix="check the path, or the format")
    yield from (("minari", folder) for folder in sorted(of_minari))
    yield from ((given or _format_of(file), file) for file in files)


def _format_of(path: Path) -> str | None:
    """The format of a file, from its name and its content; None for a damaged Parquet file."""
    if _is_tfrecord(path):
        raise _not_read("rlds", path)
    match path.suffix.lower():
        case ".parquet":
            return _parquet_format(path)
        case ".json" | ".jsonl":
            with open(path, "rb") as file:
                start = file.read(1 << 12)
            return "rllib_json" if b'"SampleBatch"' in start or b'"MultiAgentBatch"' in start else "json_lines"
        case suffix if suffix in _ALL_SUFFIXES:
            return next(name for name, suffixes in SUFFIXES.items() if suffix in suffixes)
    raise DatasetError("The format of the file is unknown.", path, f"the name {path.name}").expected(
        f"a name that ends in {', '.join(_ALL_SUFFIXES)}",
        f"pass its format, one of {', '.join(FORMATS)}; write your own arrays with rollax.DatasetWriter",
    )


def _is_tfrecord(path: Path) -> bool:
    return any(suffix.startswith(".tfrecord") for suffix in path.suffixes)  # such as .tfrecord-00000-of-00002


def _not_read(kind: str, where: Path) -> DatasetError:
    return DatasetError(f"Data sets of {_NOT_READ[kind]} are not read.", where).expected(
        f"one of the formats {', '.join(FORMATS)}",
        f"convert the episodes with rollax.DatasetWriter, see {page('offline', 'lerobot-and-rlds')}",
    )


def _parquet_format(path: Path) -> str | None:
    """The format of a Parquet file, from the names of its columns; None for a damaged file."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return "rollax"  # the reader reports the missing package
    try:
        return "rllib_parquet" if "eps_id" in pq.read_schema(path).names else "rollax"
    except (pa.ArrowException, OSError, ValueError):  # such as a name of a column that is not UTF-8
        return None


def _made(kind: Any, paths: list[Path], settings: dict[str, Any]) -> DatasetReader:
    if isinstance(kind, str):
        try:
            kind = import_object(ImportPath(FORMATS[kind]) if kind in FORMATS else kind, "format")
        except ConfigError as error:
            if isinstance(cause := error.__cause__, ImportError) and kind in FORMATS:
                raise not_installed(
                    "The data set", cause, where="open_dataset", package="pyarrow", extra="offline"
                ) from error
            raise
    return _called(kind, settings, paths)


def _called(make: Callable[..., Any], settings: Mapping[str, Any], *arguments: Any) -> Any:
    """Calls a format's class or a function; ConfigError for wrong or missing settings."""
    try:
        return make(*arguments, **settings)
    except TypeError as error:
        if "argument" not in text_of(error):
            raise
        names = [name for name in inspect.signature(make).parameters if name not in ("paths", "settings")]
        what = f"The {'format' if isinstance(make, type) else 'function'} does not accept these settings."
        where = f"the settings for {getattr(make, '__qualname__', repr(make))}"
        raise ConfigError(what, where, str(error)).expected(
            ", ".join(names) or f"none{' besides those of all formats' if arguments else ''}",
            f"see {page('offline', 'formats')}",
        ) from error


def _returned(reader: Any, function: Any) -> DatasetReader:
    if isinstance(reader, DatasetReader):
        return reader
    where, got = getattr(function, "__qualname__", repr(function)), type(reader).__name__
    raise DatasetError("The function does not return a reader.", where, got).expected(
        "a DatasetReader", "return a subclass of rollax.DatasetReader, or what rollax.open_dataset returns"
    )
