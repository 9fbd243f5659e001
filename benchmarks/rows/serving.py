"""Policy servers: latencies and actions per second, compared with an echo of the same bytes by the same server."""

from __future__ import annotations

from typing import Any

from benchmarks.measure import Against, Bound, Row
from benchmarks.processes import Side
from benchmarks.rows.commands import own

_NOTES = (
    "One process of clients on one core, the server on the other; the policy is 64×64 for CartPole. Echo: the same "
    "server, which answers with the observations that it was sent."
)


def serving_rows() -> tuple[Row, ...]:
    """Returns the benchmarks of policy servers."""
    one = "one client over a WebSocket, JSON, one request at a time: "
    return (
        _row("serving_p50", f"{one}50 % of the answers take at most", "ms", ("at most", 0.5), percentile=50),
        _row("serving_p99", f"{one}99 % of the answers take at most", "ms", ("at most", 3.0), percentile=99),
        _row("serving_clients", "64 clients over WebSockets, JSON", "actions/s", ("at least", 8_000), clients=64),
        _batch("json"),
        _batch("msgpack"),
        _learning(),
        _pickled(),
        _row("serving_http", "16 clients over HTTP", "requests/s", ("at least", 2_000), transport="http", clients=16),
    )


def _batch(transport: str) -> Row:
    name = {"json": "JSON", "msgpack": "msgpack"}[transport]
    work = f"64 episodes a message over one WebSocket, {name}"
    limit = ("at least", 40_000)
    return _row(f"serving_{transport}", work, "actions/s", limit, at_least=0.5, transport=transport, episodes=64)


def _pickled() -> Row:
    return Row(
        name="serving_pickled",
        work="16 clients, each with one request at a time",
        unit="actions/s",
        better="more",
        sides=(
            _side("rollax, WebSockets", "policy", transport="json", clients=16),
            _side("pickled HTTP", "pickled", transport="pickled", clients=16),
        ),
        targets=(Against("pickled HTTP", 2.0),),
        notes="Pickled HTTP: the design of RLlib's former policy server (`benchmarks/serving/pickled.py`), rebuilt "
        "with the same policy behind it. Ray 2.60 has no such server any more.",
    )


def _learning() -> Row:
    settings = {"transport": "json", "clients": 8, "play": True, "percentile": 99}
    return Row(
        name="serving_learning",
        work="8 clients play episodes over WebSockets while PPO learns from them: 99 % of the answers take at most",
        unit="ms",
        better="less",
        sides=(
            _side("learns", "learn", **settings),
            _side("does not learn", "policy", **settings),
        ),
        targets=(Bound("learns", "at most", 50.0), Against("does not learn", None)),
        notes="PPO updates every 1,000 steps, on the core of the server.",
    )


def _row(
    name: str,
    work: str,
    unit: str,
    limit: tuple[str, float],
    *,
    at_least: float | None = None,
    **settings: Any,
) -> Row:
    load = {"transport": "json", "clients": 1, **settings}
    sense, number = limit
    return Row(
        name=name,
        work=work,
        unit=unit,
        better="less" if sense == "at most" else "more",
        sides=(_side("rollax", "policy", **load), _side("echo", "echo", **load)),
        targets=(Bound("rollax", "at most" if sense == "at most" else "at least", number), Against("echo", at_least)),
        notes=_NOTES if name == "serving_p50" else "",
    )


def _side(name: str, service: str, **settings: Any) -> Side:
    return own(name, "rollax_serving.load", {"service": service, **settings})
