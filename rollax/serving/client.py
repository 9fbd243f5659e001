"""`PolicyClient`: plays episodes with the policy of a server. Imports no JAX in remote mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rollax.core.numbers import is_number, is_whole
from rollax.errors import ConfigError, InvalidRequestError, not_installed

if TYPE_CHECKING:
    from rollax.serving.client_calls import Calls
    from rollax.serving.local_inference import LocalInference
    from rollax.serving.remote_inference import RemoteInference


_LONGEST_S = 1_000_000
"""Eleven days; the time limits of sockets are milliseconds in 32 bits."""

_UPDATE_INTERVAL_S = 10.0
_LOCAL_DEFAULTS = {"update_interval": _UPDATE_INTERVAL_S, "episodes_per_message": 1, "explore": None, "seed": None}
"""The settings of local inference, and their defaults."""

_VALID: dict[str, tuple[Callable[[Any], bool], str]] = {
    "inference_mode": (lambda value: value in ("remote", "local"), "'remote' or 'local'"),
    "update_interval": (lambda value: is_number(value) and value >= 0, "seconds, a number of at least 0"),
    "policy_mapping_fn": (
        lambda value: value is None or callable(value),
        "a function of an agent id that returns a policy id, such as `table.get` of a dict",
    ),
    "episodes_per_message": (lambda value: is_whole(value) and value >= 1, "a whole number of at least 1"),
    "explore": (lambda value: value is None or isinstance(value, bool), "True, False or None"),
    "seed": (lambda value: value is None or (is_whole(value) and value >= 0), "a whole number of at least 0, or None"),
}
"""Setting -> (check of a value, description of the valid values)."""


class PolicyClient:
    """Plays episodes with the policy of a server (`rollax serve`, `PolicyServerEnv`).

    Any number of episodes may run at the same time, in any number of threads; the calls of one episode must not
    overlap. With several agents, observations, actions and rewards are dicts by agent id, which is a string.

    If a connection fails, the request is sent again over a new one, until it is answered or `timeout` is over; the
    server executes it once. An episode therefore survives a broken connection. It is lost if the server restarts, or
    drops it after `limits.idle_timeout_s` without a request: `EpisodeLostError` is then raised; start another episode.

    Args:
        address: http://HOST:PORT, or ws://HOST:PORT for a WebSocket, which is faster; https:// and wss:// with TLS.
        inference_mode: "remote": the server chooses each action. "local": this process does, with the weights of the
            server; episodes are submitted when they have ended. Requires JAX.
        update_interval: the start of an episode requests new weights if this many seconds have passed since the last
            such request, or if an answer of the server named a newer version (local mode).
        token: the server's token.
        timeout: time limit in seconds of a request, including its repetitions.
        ca_file: certificates (PEM) of the authorities to trust; None for the system's certificates.
        policy_mapping_fn: agent id -> policy id. None: the only policy, or the policy with the agent's id. In remote
            mode the server maps agents to policies; this function only tells the client the types of the actions.
        episodes_per_message: episodes that are submitted at once (local mode).
        explore: False for greedy actions; None: greedy if the server does not learn (local mode).
        seed: seed of exploration (local mode).
    Raises:
        ConfigError: a wrong argument, or the extra `client` is not installed.
        RequestError: from a method: the server refuses the request, or does not respond within `timeout`.
        EpisodeLostError: from a method: the server no longer has the episode.
    """

    def __init__(
        self,
        address: str,
        inference_mode: Literal["remote", "local"] = "remote",
        update_interval: float = _UPDATE_INTERVAL_S,
        *,
        token: str | None = None,
        timeout: float = 60.0,
        ca_file: str | None = None,
        policy_mapping_fn: Callable[[str], str] | None = None,
        episodes_per_message: int = 1,
        explore: bool | None = None,
        seed: int | None = None,
    ) -> None:
        local: dict[str, Any] = {
            "update_interval": update_interval,
            "policy_mapping_fn": policy_mapping_fn,
            "episodes_per_message": episodes_per_message,
            "explore": explore,
            "seed": seed,
        }
        _check_settings({"inference_mode": inference_mode, **local})
        self.address, self.inference_mode = address, inference_mode
        self._calls = _make_calls(address, token, timeout, ca_file)
        self._inference: RemoteInference | LocalInference
        if inference_mode == "remote":
            from rollax.serving.remote_inference import RemoteInference

            self._inference = RemoteInference(self._calls, policy_mapping_fn)
        else:
            from rollax.serving.local_inference import LocalInference

            pages = self._calls
            if not address.startswith("http"):
                pages = _make_calls(f"http{address[2:]}", token, timeout, ca_file)
            self._inference = LocalInference(self._calls, pages, **local)

    def __repr__(self) -> str:
        return f"PolicyClient({self.address!r}, inference_mode={self.inference_mode!r})"

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def version(self) -> int:
        """The version of the weights that chose the last action, or that local inference has fetched; -1 at first."""
        return self._inference.version

    def hello(self) -> dict[str, Any]:
        """The description of the server: `rollax.serving.protocol.Hello` as a dict, with the spaces as JSON."""
        return self._calls.call("hello", {})

    def episode(self, episode_id: str | None = None, training_enabled: bool = True) -> ClientEpisode:
        """Starts an episode and returns it as an object, instead of its id."""
        return ClientEpisode(self, self.start_episode(episode_id, training_enabled))

    def start_episode(self, episode_id: str | None = None, training_enabled: bool = True) -> str:
        """Starts an episode and returns its id.

        Args:
            episode_id: any id that no other episode has; None for a new one.
            training_enabled: False for an episode that is not learned from.
        """
        _check_flag("training_enabled", training_enabled, "start_episode")
        return self._inference.start_episode(episode_id, training_enabled)

    def get_action(self, episode_id: str, obs: Any) -> Any:
        """The policy's action for an observation; with several agents, agent id -> action for each observation."""
        return self._inference.get_actions({episode_id: obs})[episode_id]

    def get_actions(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        """Requests actions in one message: takes episode id -> observation, returns episode id -> action."""
        return self._inference.get_actions(observations)

    def log_action(self, episode_id: str, obs: Any, action: Any) -> None:
        """Records an action that the policy did not choose, for off-policy algorithms."""
        self._inference.log_action(episode_id, obs, action)

    def log_returns(self, episode_id: str, reward: Any, info: Mapping[str, Any] | None = None) -> None:
        """Adds to the reward of the last action, as often as needed before the next action or the end."""
        self._inference.log_returns(episode_id, reward, info)

    def end_agents(self, episode_id: str, observations: Mapping[str, Any], truncated: bool = False) -> None:
        """Ends some agents of a running episode, with the last observation (or None) of each."""
        _check_flag("truncated", truncated, f"end_agents of episode {episode_id!r}")
        self._inference.end_agents(episode_id, observations, truncated)

    def end_episode(self, episode_id: str, obs: Any, truncated: bool = False) -> None:
        """Ends an episode with its last observation: terminated, or truncated such as by a time limit."""
        _check_flag("truncated", truncated, f"end_episode of episode {episode_id!r}")
        self._inference.end_episode(episode_id, obs, truncated)

    def submit_episodes(self, episodes: Sequence[Any]) -> dict[str, Any]:
        """Submits whole episodes that were played elsewhere.

        Args:
            episodes: instances of `rollax.serving.protocol.Episode`, or dicts of the same form. Columns may be arrays.
        Returns:
            `accepted`: number of accepted episodes, 0 if the server does not learn; `too_old`: number of dropped ones,
            whose policy lag is above `max_policy_lag`; `version`: version of the current weights.
        """
        from rollax.serving.remote_inference import checked_hello, with_lists

        if self._calls.max_bytes is None:
            checked_hello(self._calls)
        return self._calls.call("submit_episodes", {"episodes": [with_lists(episode) for episode in episodes]})

    @property
    def submitted(self) -> dict[str, int]:
        """The numbers of submitted episodes in local mode: `accepted` and `too_old`; see `submit_episodes`."""
        return dict(getattr(self._inference, "submitted", {}))

    def close(self) -> None:
        """Submits the remaining episodes (local mode) and closes the connections.

        Running episodes expire at the server (remote mode), or are lost (local mode).
        """
        try:
            self._inference.close()
        finally:
            self._calls.close()


class ClientEpisode:
    """A running episode of a client. As a context manager: the episode must end inside the block."""

    def __init__(self, client: PolicyClient, episode_id: str) -> None:
        self.client, self.id = client, episode_id
        self.ended = False

    def __repr__(self) -> str:
        return f"ClientEpisode({self.id!r}, ended={self.ended})"

    def __enter__(self) -> ClientEpisode:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None and not self.ended:
            what, fix = "The episode did not end in its `with` block.", "call end(obs), or end(obs, truncated=True)"
            raise ConfigError(what, f"episode {self.id}").expected("end(obs), with the last observation", fix)

    def get_action(self, obs: Any) -> Any:
        """The policy's action for an observation."""
        return self.client.get_action(self.id, obs)

    def log_action(self, obs: Any, action: Any) -> None:
        """Records an action that the policy did not choose."""
        self.client.log_action(self.id, obs, action)

    def log_returns(self, reward: Any, info: Mapping[str, Any] | None = None) -> None:
        """Adds to the reward of the last action."""
        self.client.log_returns(self.id, reward, info)

    def end_agents(self, observations: Mapping[str, Any], truncated: bool = False) -> None:
        """Ends some agents."""
        self.client.end_agents(self.id, observations, truncated)

    def end(self, obs: Any, truncated: bool = False) -> None:
        """Ends the episode with its last observation."""
        self.client.end_episode(self.id, obs, truncated)
        self.ended = True


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Raises ConfigError for an invalid value, or a setting without effect."""
    for name, (is_valid, expected) in _VALID.items():
        if not is_valid(settings[name]):
            raise ConfigError(f"The value of {name} is invalid.", f"{name} of PolicyClient", settings[name]).expected(
                expected, f"pass a valid value, or leave {name} out"
            )
    for name, default in _LOCAL_DEFAULTS.items() if settings["inference_mode"] == "remote" else ():
        if settings[name] != default:
            what = "The setting is for local inference; with remote inference the server decides."
            also = "; PolicyBackend and `rollax serve` take explore" if name == "explore" else ""
            raise ConfigError(what, f"{name} of PolicyClient", settings[name]).expected(
                f"{default!r}, or inference_mode='local'", f"leave {name} out{also}"
            )


def _check_flag(name: str, flag: Any, where: str) -> None:
    if not isinstance(flag, bool | np.bool_):
        raise InvalidRequestError("The flag is not a boolean.", f"{name} of {where}", flag).expected(
            "True or False", f"pass {name}=bool(...)"
        )


def _make_calls(address: str, token: str | None, timeout: float, ca_file: str | None) -> Calls:
    if not isinstance(timeout, int | float) or not 0 < timeout <= _LONGEST_S:
        expected = f"seconds above 0, at most {_LONGEST_S:,}"
        raise ConfigError.out_of_range("timeout", "timeout of PolicyClient", timeout, expected)
    try:
        from rollax.serving.client_calls import Calls
        from rollax.serving.client_connections import Address
    except ImportError as error:
        raise not_installed("PolicyClient", error, where="PolicyClient", package="msgspec", extra="client") from error
    return Calls(Address.parse(address, token, ca_file), timeout)
