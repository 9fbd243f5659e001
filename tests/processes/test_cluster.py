"""Addresses without a Ray cluster, and a Ray that does not start, are errors within seconds; tested without Ray."""

import socket
import sys
import threading
from types import SimpleNamespace

import pytest

from rollax import PGTrainer
from rollax.errors import ConfigError
from rollax.processes import cluster
from tests.env.refused import refused

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def listening(answer: bytes | None) -> tuple[str, threading.Thread]:
    """An address where a connection gets this answer, or none."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(60)

    def serve() -> None:
        with server:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(60)
                assert connection.recv(100) == b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS
                if answer is None:
                    connection.recv(1)  # until the other side closes
                else:
                    connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return f"127.0.0.1:{server.getsockname()[1]}", thread


@pytest.fixture
def ray(monkeypatch):
    """Replaces the module `ray`: `fails` is the error that `init` raises, `asked` has the addresses it was called with.

    `recorded` is the address of the last `ray start` on this machine.
    """
    module = SimpleNamespace(is_initialized=lambda: False, asked=[], fails=None, recorded=None)
    services = SimpleNamespace(canonicalize_bootstrap_address=lambda address: module.recorded)
    module._private = SimpleNamespace(services=services)

    def init(address=None, **settings):
        module.asked.append(address)
        if module.fails is not None:
            raise module.fails

    module.init = init
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return module


@pytest.fixture
def free() -> str:
    """The address of a port that is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "why"),
    [(None, "timed out"), (b"", "is not a Ray cluster"), (b"HTTP/1.1 400 Bad Request\r\n", "is not a Ray cluster")],
)
def test_listening_addresses_without_a_cluster(ray, monkeypatch, answer, why):
    monkeypatch.setattr(cluster, "_ANSWERS_WITHIN_S", 0.3 if answer is None else 50.0)
    address, thread = listening(answer)
    says = f"No Ray cluster answers...{address} ...{why}"
    refused(ConfigError, cluster.started_ray, "num_workers", address, says=says)
    assert ray.asked == []
    thread.join()


def test_closed_ports_and_invalid_addresses(ray, free, monkeypatch):
    for address in (free, f"ray://{free}", "127.0.0.1:99999"):
        refused(ConfigError, cluster.started_ray, "num_workers", address, says="No Ray cluster answers")
    monkeypatch.setenv("RAY_ADDRESS", free)
    refused(ConfigError, cluster.started_ray, "num_workers", says=f"No Ray cluster answers...{free}")
    assert ray.asked == []


def test_remote_sub_environments_use_the_address_of_the_config(ray, free):
    config = {"remote_worker_envs": True, "ray_address": free}
    refused(ConfigError, PGTrainer, "CartPole-v1", config, says=f"No Ray cluster answers...{free}")
    assert ray.asked == []


def test_a_crashed_cluster_is_ignored(ray, free):
    ray.recorded = free
    assert cluster.started_ray("num_workers") is ray
    refused(ConfigError, cluster.started_ray, "num_workers", "auto", says="No Ray cluster answers...auto")
    assert ray.asked == ["local"]


@pytest.mark.parametrize("given", ["{}", "auto", None])
def test_an_address_that_answers_is_passed_to_ray(ray, given):
    ray.recorded, thread = listening(SETTINGS)
    address = given and given.format(ray.recorded)
    assert cluster.started_ray("num_workers", address) is ray
    assert ray.asked == [address]
    thread.join()


def test_other_errors_of_ray(ray):
    ray.fails = RuntimeError("Version mismatch")
    for address, says in ((None, "Ray cannot be started"), ("auto", "Ray cannot connect to the cluster")):
        says += "...RuntimeError: Version mismatch"
        assert refused(ConfigError, cluster.started_ray, "num_workers", address, says=says).__cause__ is ray.fails


def test_auto_without_a_cluster(ray):
    def none(address):
        raise ConnectionError

    ray._private.services.canonicalize_bootstrap_address = none
    ray.fails = ConnectionError("nobody there")
    refused(ConfigError, cluster.started_ray, "num_workers", "auto", says="No Ray cluster answers...nobody there")
