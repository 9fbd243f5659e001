"""The infos of Gymnasium's vector environments: a dict of arrays with masks, as one dict for each sub-environment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rollax import trees
from rollax.env.rows import NO_ENVS

_FINAL_OBS = ("final_obs", "final_observation")
_FINAL = (*_FINAL_OBS, "final_info")


def info_list(infos: Any, num_envs: int, ended: Iterable[int] = NO_ENVS) -> list[dict]:
    """One dict per sub-environment.

    Args:
        infos: from `step` or `reset`: such a dict, or a list of dicts.
        num_envs: the number of sub-environments.
        ended: sub-environments whose info is that of the last step of the episode, not of the reset after it.
    """
    result = list(infos) if isinstance(infos, list | tuple) else _split(infos, num_envs)
    for index in ended:
        result[index] = result[index].get("final_info") or {}
    return result


def without_final(infos: Any) -> Any:
    """The same infos without the entries of steps that ended episodes."""
    if isinstance(infos, list | tuple):
        return [without_final(info) for info in infos]
    return {key: value for key, value in infos.items() if key not in _FINAL and key not in map("_{}".format, _FINAL)}


def final_observations(infos: Any, ended: np.ndarray) -> trees.Tree | None:
    """The last observations of episodes that ended: a list, or columns; None if there are none."""
    if isinstance(infos, list | tuple):
        found = [next((infos[i][key] for key in _FINAL_OBS if key in infos[i]), None) for i in ended]
        return None if any(value is None for value in found) else found
    final = next((infos[key] for key in _FINAL_OBS if key in infos), None)
    if final is None:
        return None
    if isinstance(final, list) or (isinstance(final, np.ndarray) and final.dtype == object):
        return [final[index] for index in ended]
    return trees.index(final, ended)


def _split(infos: dict, num_envs: int) -> list[dict]:
    result: list[dict] = [{} for _ in range(num_envs)]
    for key, values in infos.items():
        if isinstance(key, str) and key.startswith("_") and key[1:] in infos:
            continue  # the mask of another key
        mask = infos.get(f"_{key}")
        parts = _split(values, num_envs) if isinstance(values, dict) else values
        by_env = isinstance(parts, list | tuple) or (isinstance(parts, np.ndarray) and parts.ndim > 0)
        if not by_env or len(parts) != num_envs:
            parts = [parts] * num_envs  # one value for all
        for index in range(num_envs):
            if mask is None or mask[index]:
                result[index][key] = parts[index]
    return result
