"""Ray: started or joined once, quietly, and only where something is to run in other processes."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

from rollax.errors import ConfigError


def started_ray(wanted_by: str, address: str | None = None) -> Any:
    """The module `ray`, connected to a cluster: to the one it is connected to already, or else to the one at `address`,
    or else to one that runs on this machine, or else to one that is started here and ends with this process.

    Args:
        wanted_by: the config key that asks for other processes, for the error.
        address: of a running cluster, as `ray.init` takes it; None asks the environment variable RAY_ADDRESS too.
    Raises:
        ConfigError: Ray is not installed, or no cluster answers at the address.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "Ray is not installed.",
            where=f"config key '{wanted_by}'",
            got=str(error),
            expected="the package ray, which runs the other processes",
            fix=f"pip install 'rollax[ray]', or leave {wanted_by} out",
        ) from error
    if ray.is_initialized():
        return ray
    with warnings.catch_warnings():
        # JAX warns of every fork; those of Ray become other programs at once.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        try:
            ray.init(address=address, include_dashboard=False, logging_level=logging.ERROR)
        except ConnectionError as error:
            raise ConfigError(
                "No Ray cluster answers.",
                where="config key 'ray_address'",
                got=address or os.environ.get("RAY_ADDRESS"),
                expected="the address of a running cluster, such as 'auto' or 'host:6379'",
                fix="start one with `ray start --head`, or leave ray_address out to use this machine alone",
            ) from error
    return ray


def started_here(ray: Any) -> bool:
    """True where the cluster was started by this process, and so has this machine alone."""
    # Ray has no public way to ask.
    node = getattr(ray._private.worker, "_global_node", None)
    return bool(node is not None and node.head)
