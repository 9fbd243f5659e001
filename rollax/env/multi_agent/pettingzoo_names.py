"""PettingZoo's environments by name: `pettingzoo/connect_four_v3`, or with the family, `pettingzoo/classic/rps_v2`."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from rollax.env.context import EnvContext
from rollax.errors import ConfigError

PREFIX = "pettingzoo/"


def pettingzoo_ids() -> list[str]:
    """The names in PettingZoo's registry, as in `pettingzoo/classic/rps_v2`.

    Raises:
        ConfigError: PettingZoo is not installed.
    """
    return sorted({PREFIX + name.replace("-v", "_v") for name in _pettingzoo().aec_registry})


def pettingzoo_creator(env_id: str) -> Callable[[EnvContext], Any]:
    """Makes the environment of a name, with `env_config` as keywords: by the parallel API where it has one, else AEC.

    Args:
        env_id: with or without the family; the version after `_v` or `-v`.
    Raises:
        ConfigError: no such environment (the nearest ones are named), or PettingZoo is not installed.
    """
    pettingzoo, name = _pettingzoo(), env_id.removeprefix(PREFIX).replace("_v", "-v")
    found = [known for known in pettingzoo.aec_registry if name in (known, known.partition("/")[2])]
    if not found:
        ids = pettingzoo_ids()
        short = {known.rpartition("/")[2]: known for known in ids}
        near = [short[match] for match in difflib.get_close_matches(env_id.rpartition("/")[2], short, n=3)]
        raise ConfigError(
            "An unknown environment of PettingZoo.",
            where="env",
            got=env_id,
            expected=f"an id such as {', '.join(near or ids[:3])}",
            fix="correct the name; `rollax list --envs pettingzoo` shows them all",
        )
    api = "parallel" if found[0] in pettingzoo.parallel_registry else "aec"
    return lambda context: pettingzoo.make(api, found[0], **context)


def _pettingzoo() -> Any:
    try:
        import pettingzoo
    except ImportError as error:
        raise ConfigError(
            "PettingZoo is not installed.", where="env", got=str(error), fix="pip install 'rollax[pettingzoo]'"
        ) from error
    return pettingzoo
