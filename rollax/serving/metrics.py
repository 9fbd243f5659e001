"""Counts of a policy server's requests, as Prometheus text and for the live page."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the latency histogram, in seconds."""

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_RECENT = 4096
_RATE_OVER_S = 10.0


class Metrics:
    """Counts requests by verb and status, and their latencies; all calls come from the event loop's thread."""

    def __init__(self) -> None:
        self._requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._buckets: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(BUCKETS) + 1))
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._total = 0
        self._totals: deque[tuple[float, int]] = deque()
        self.connections = 0
        self.streams = 0
        self.cut_off = 0

    def observe(self, verb: str, status: int, seconds: float) -> None:
        """Counts a request that was answered `seconds` after it arrived."""
        self._requests[verb, status] += 1
        self._buckets[verb][bisect_left(BUCKETS, seconds)] += 1
        self._seconds[verb] += seconds
        self._recent.append(seconds)
        self._total += 1

    def tick(self) -> None:
        """Records the number of requests so far; called about once a second."""
        now = time.monotonic()
        self._totals.append((now, self._total))
        while now - self._totals[0][0] > _RATE_OVER_S:
            self._totals.popleft()

    def statistics(self) -> dict[str, Any]:
        """Returns the statistics for the live page; the latencies cover the last few thousand requests."""
        recent = sorted(self._recent)
        errors = sum(count for (_, status), count in self._requests.items() if status >= 400)
        return {
            "requests": self._total,
            "requests_per_s": self._rate(),
            "errors": errors,
            "latency_p50_s": _quantile(recent, 0.5),
            "latency_p99_s": _quantile(recent, 0.99),
            "connections": self.connections,
            "streams": self.streams,
            "cut_off": self.cut_off,
        }

    def text(self, gauges: Mapping[str, float]) -> str:
        """Returns all counts as Prometheus text; `gauges` are further current values by name."""
        lines = ["# HELP rollax_requests_total Requests by verb and status.", "# TYPE rollax_requests_total counter"]
        for (verb, status), count in sorted(self._requests.items()):
            lines.append(f'rollax_requests_total{{verb="{verb}",status="{status}"}} {count}')
        lines += [
            "# HELP rollax_request_seconds Time from a request's arrival to its response.",
            "# TYPE rollax_request_seconds histogram",
        ]
        for verb in sorted(self._buckets):
            lines += self._histogram(verb)
        current = {"connections": self.connections, "streams": self.streams, **gauges}
        lines += ["# TYPE rollax_cut_off_total counter", f"rollax_cut_off_total {self.cut_off}"]
        for name, value in current.items():
            lines += [f"# TYPE rollax_{name} gauge", f"rollax_{name} {float(value):.15g}"]
        return "\n".join(lines) + "\n"

    def _histogram(self, verb: str) -> list[str]:
        lines, sum_so_far = [], 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self._buckets[verb], strict=True):
            sum_so_far += count
            lines.append(f'rollax_request_seconds_bucket{{verb="{verb}",le="{bound}"}} {sum_so_far}')
        lines.append(f'rollax_request_seconds_sum{{verb="{verb}"}} {self._seconds[verb]:.6f}')
        lines.append(f'rollax_request_seconds_count{{verb="{verb}"}} {sum_so_far}')
        return lines

    def _rate(self) -> float:
        if not self._totals:
            return 0.0
        since, total = self._totals[0]
        return (self._total - total) / max(time.monotonic() - since, 1.0)


def _quantile(values: list[float], q: float) -> float | None:
    return values[min(int(q * len(values)), len(values) - 1)] if values else None
