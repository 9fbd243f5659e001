"""`Limits`: the limits of a policy server."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from rollax.errors import ConfigError, RequestError


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a policy server; a request beyond a limit is refused.

    A client is an address, or one connection of the stream. An episode belongs to the client that started it.

    Attributes:
        max_episodes: total number of running episodes.
        max_episodes_per_client: running episodes of one client.
        max_pending: total number of observations that wait for an action.
        max_pending_per_client: observations of one client that wait for an action.
        max_submissions: total number of waiting requests of `submit_episodes`.
        max_episodes_per_request: episodes in one `get_actions` or `submit_episodes`.
        max_agents: agents in one dict of observations, actions or rewards.
        max_id_length: characters of the id of an episode, agent or request.
        idle_timeout_s: an episode is dropped this many seconds after its last response.
        retry_after_s: seconds that a client should wait after a refusal by one of the limits above.
        largest_number: the largest absolute value of a number that a server learns from: of rewards, and of floats in
            observations and actions (unless a bound of their space is higher). The default is larger than the seconds
            since 1970, and its fourth power, the squared gradient of a squared error, is finite in float32. A server
            that does not learn accepts all finite numbers.
        max_body_bytes: bytes of one request.
        max_connections: open connections.
        max_connections_per_client: open connections of one address.
        max_header_bytes: bytes of the request line and the headers.
        max_unsent_bytes: bytes of responses that a client has not read; if exceeded, its connection is aborted.
        request_timeout_s: seconds within which a request must arrive completely.
        requests_per_s: requests of one address per second, and at most this many at once.
        wrong_tokens_per_s: requests of one address per second with a wrong or no token; ten times as many at once.
    """

    max_episodes: int = 10_000
    max_episodes_per_client: int = 5_000
    max_pending: int = 16_384
    max_pending_per_client: int = 4_096
    max_submissions: int = 64
    max_episodes_per_request: int = 4_096
    max_agents: int = 1_024
    max_id_length: int = 128
    idle_timeout_s: float = 300.0
    retry_after_s: float = 1.0
    largest_number: float = 2.0**31
    max_body_bytes: int = 16 * 2**20
    max_connections: int = 1_024
    max_connections_per_client: int = 512
    max_header_bytes: int = 32 * 2**10
    max_unsent_bytes: int = 16 * 2**20
    request_timeout_s: float = 30.0
    requests_per_s: float = 50_000.0
    wrong_tokens_per_s: float = 10.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value, whole = getattr(self, field.name), type(field.default) is int
            if not isinstance(value, int | float) or not value > 0 or (whole and value % 1 != 0):
                raise ConfigError("The limit is not a positive number.", field.name, value).expected(
                    "a whole number above 0" if whole else "a number above 0", f"set {field.name} to such a number"
                )
            if whole:
                object.__setattr__(self, field.name, int(value))  # 1e6, as in configs

    def as_numbers(self) -> dict[str, float | None]:
        """The limits by name, for `hello`; None for infinity, which JSON does not have."""
        return {name: None if value == float("inf") else value for name, value in asdict(self).items()}

    def exceeded(self, what: str, got: int, name: str, *, wait: bool = True, fix: str | None = None) -> RequestError:
        """The error of a request beyond the limit `name`: 429 if waiting helps, otherwise 413."""
        expected = f"at most {getattr(self, name)}"
        return RequestError(
            what, name, got, status=429 if wait else 413, retry_after_s=self.retry_after_s if wait else None
        ).expected(expected, fix or ("wait, then send it again" if wait else "send fewer in one request"))
