"""The names of the loggers, and loggers from names with settings."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from rollax.core.importing import ImportPath, import_object, named_by_caller
from rollax.errors import ConfigError, RollaxError
from rollax.runs.loggers.logger import Logger

LOGGERS = {
    "tensorboard": "rollax.runs.loggers.tensorboard:TensorBoardLogger",
    "csv": "rollax.runs.loggers.text_files:CsvLogger",
    "jsonl": "rollax.runs.loggers.text_files:JsonLinesLogger",
    "wandb": "rollax.runs.loggers.wandb_logger:WandbLogger",
    "mlflow": "rollax.runs.loggers.mlflow_logger:MlflowLogger",
}
DEFAULT_LOGGERS = ("tensorboard",)
_FORMS = "a name, {name: {setting: value}}, or an instance of Logger"


def make_loggers(given: Any, where: str, *, trusted: bool) -> list[Logger]:
    """Returns the loggers of a list.

    Args:
        given: a list; each item is a logger, or a name, alone or as `{name: {setting: value}}`. A name is a key of
            `LOGGERS` or "module:Class".
        where: the place of the list, for errors.
        trusted: whether the caller wrote the names, or trusts the file with them; otherwise "module:Class" is refused.
    Raises:
        ConfigError: a value that is not a list, an unknown name or setting, a class that is not a `Logger`, a missing
            extra, or a logger that raised.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ConfigError.is_not("loggers", "a list", where, given).expected(
            f"a list, whose items are {_FORMS}", "put it into a list, as in ['csv']"
        )
    return [_make(item, where, trusted) for item in given]


def _make(item: Any, where: str, trusted: bool) -> Logger:
    if isinstance(item, Logger):
        return item
    name, settings = item, {}
    if isinstance(item, Mapping) and len(item) == 1:
        ((name, settings),) = item.items()
        settings = {} if settings is None else settings
    if not isinstance(name, str) or not isinstance(settings, Mapping) or not all(isinstance(k, str) for k in settings):
        raise ConfigError.is_not("A logger", _FORMS, where, item).fix("write 'csv', or {'wandb': {'project': 'mine'}}")
    kind = _class_named(name, where, trusted)
    try:
        inspect.signature(kind).bind(**settings)
    except TypeError as error:
        known = [key for key in inspect.signature(kind).parameters if key != "settings"]
        raise ConfigError("The settings do not fit the logger.", f"{where}: {name}", str(error)).expected(
            ", ".join(known) or "no settings", "correct or remove the setting"
        ) from error
    try:
        return kind(**settings)
    except RollaxError:
        raise
    except Exception as error:
        raise ConfigError.raised(f"The logger {name}", error, where, "a logger that can be made") from error


def _class_named(name: str, where: str, trusted: bool) -> type[Logger]:
    if name not in LOGGERS and ":" not in name:
        raise ConfigError.unknown("logger", name, LOGGERS, where)
    path = ImportPath(LOGGERS[name]) if name in LOGGERS else named_by_caller(name) if trusted else name
    try:
        kind = import_object(path, where)
    except ConfigError as error:
        if name in LOGGERS and isinstance(error.__cause__, ConfigError):  # the error of an extra that is missing
            raise error.__cause__ from None
        raise
    if not (isinstance(kind, type) and issubclass(kind, Logger)):
        raise ConfigError.is_not("The class", "a subclass of rollax.Logger", where, name)
    return kind
