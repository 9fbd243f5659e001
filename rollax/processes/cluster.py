"""Connection to Ray, made on first use of another process."""

from __future__ import annotations

import logging
import os
import socket
import time
import warnings
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from rollax.core.memory import check_fits
from rollax.errors import ConfigError, not_installed

_ANSWERS_WITHIN_S = 15.0
_PROCESS_BYTES = 50 * 2**20  # the least that a process with Ray and an environment takes
# The start of an HTTP/2 connection, as gRPC and Ray use it: the preface and an empty settings frame.
_HELLO, _SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0", 4


def started_ray(required_by: str, address: str | None = None) -> Any:
    """Returns the module `ray`, connected to a cluster.

    The cluster is the first of these that exists: the cluster of an existing connection, the cluster at `address`, or a
    cluster on this machine. Otherwise it is a new cluster, which ends with this process.

    Args:
        required_by: the config key that requires other processes, for the error.
        address: as in `ray.init`; None uses the environment variable RAY_ADDRESS if set.
    Raises:
        ConfigError: Ray is not installed, no cluster answers at the address, or Ray does not start.
    """
    try:
        import ray
    except ImportError as error:
        raise not_installed(
            "A run with other processes",
            error,
            where=f"config key '{required_by}'",
            package="ray",
            fix=f"pip install 'rollax[ray]', or leave {required_by} out",
        ) from error
    if ray.is_initialized():
        return ray
    address = address or os.environ.get("RAY_ADDRESS") or None
    if (why := _unreachable(_resolved(ray, address) or "")) and address is not None:
        raise _no_answer(address, why)
    with warnings.catch_warnings():
        # JAX warns at every fork; Ray's forks execute another program at once.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        try:
            # Without an address Ray looks for the last `ray start` on this machine, which may have crashed.
            ray.init(address="local" if why else address, include_dashboard=False, logging_level=logging.ERROR)
        except ConnectionError as error:
            raise _no_answer(address, str(error)) from error
        except Exception as error:  # Ray has no specific error for other failures here
            raise ConfigError(
                "Ray cannot be started." if address is None else "Ray cannot connect to the cluster.",
                f"config key '{required_by}'" if address is None else "config key 'ray_address'",
                f"{type(error).__name__}: {error}",
            ).expected(
                f"that ray.init({'' if address is None else f'address={address!r}'}) succeeds",
                "run that call alone; `ray stop` ends processes of earlier runs; versions of Ray and Python must be "
                f"those of the cluster; or leave {required_by} out",
            ) from error
    return ray


def _no_answer(address: str | None, why: str) -> ConfigError:
    return ConfigError("No Ray cluster answers.", "config key 'ray_address'", f"{address} ({why})").expected(
        "the address of a running cluster, such as 'auto' or 'host:6379'",
        "start one with `ray start --head`, or leave ray_address out to use this machine alone",
    )


def _resolved(ray: Any, address: str | None) -> str | None:
    """Returns the address of the cluster that `ray.init` connects to; None if it starts one."""
    if address not in (None, "auto"):
        return address
    try:
        return ray._private.services.canonicalize_bootstrap_address(address)  # Ray has no public function for this
    except ConnectionError:  # `ray.init` raises it too
        return address


def _unreachable(address: str) -> str:
    """Returns the reason why no gRPC server answers at `host:port` in time; empty if one does, or for "auto", "local".

    `ray.init` itself waits forever for an address that does not answer.
    """
    try:
        parts = urlsplit(address if "//" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        return str(error)
    if host is None or port is None:  # "auto", "local"
        return ""
    end = time.monotonic() + _ANSWERS_WITHIN_S
    try:
        with socket.create_connection((host, port), timeout=_ANSWERS_WITHIN_S) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return ""
            connection.sendall(_HELLO)
            answer = b""
            while len(answer) < 4:
                connection.settimeout(max(end - time.monotonic(), 0.01))
                if not (more := connection.recv(9)):
                    return "the server there is not a Ray cluster"
                answer += more
        return "" if answer[3] == _SETTINGS else "the server there is not a Ray cluster"
    except OSError as error:
        return str(error) or type(error).__name__


def started_here(ray: Any) -> bool:
    """Whether this process started the cluster, which then is this machine alone; other clusters may grow."""
    # Ray has no public function for this.
    node = getattr(ray._private.worker, "_global_node", None)
    return node is not None and bool(node.head)


def check_processes_fit(ray: Any, number: int, where: str, fix: str) -> None:
    """Raises ConfigError if this machine is the cluster, and `number` further processes do not fit into its memory."""
    if started_here(ray):
        check_fits(f"A total of {number:,} processes", number * _PROCESS_BYTES, where, fix)


def refuse_lacking(ray: Any, reserved: Mapping[str, float], *, what: str, where: str, fix: str) -> None:
    """Raises ConfigError if the cluster lacks resources to reserve.

    Args:
        reserved: name of a resource -> total amount.
        what, where, fix: the parts of the error.
    """
    there = ray.cluster_resources()
    lacking = {name: amount for name, amount in reserved.items() if amount > there.get(name, 0.0)}
    if lacking:
        raise ConfigError(what, where, ", ".join(f"{name}: {amount:g}" for name, amount in lacking.items())).expected(
            "at most " + ", ".join(f"{name}: {there.get(name, 0.0):g}" for name in lacking), fix
        )
