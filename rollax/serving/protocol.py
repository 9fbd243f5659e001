"""The messages between a policy server and its clients, over HTTP (JSON) and WebSockets (JSON or msgpack).

A request is a verb with a body, one of the structs below. Observations and actions are plain values or packed arrays
(`rollax.serving.values`). With several agents, observations, actions and rewards are dicts by agent id.
"""

from __future__ import annotations

from typing import Any

import msgspec

PROTOCOL_VERSION = 1


class Request(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The body of a verb.

    Attributes:
        request_id: identifies a request that is sent again after a lost response; the server executes it once and
            repeats its response. The id is unique in its episode, or among submissions of the same episodes.
    """

    request_id: str | None = None


class StartEpisode(Request, kw_only=True):
    """Starts an episode; without an id the server makes one."""

    episode_id: str | None = None
    training_enabled: bool = True


class GetAction(Request, kw_only=True):
    """Requests an action for an observation; with several agents, for a dict of observations."""

    episode_id: str
    obs: Any


class GetActions(Request, kw_only=True):
    """Requests actions for the observations of several episodes: episode id -> observation."""

    observations: dict[str, Any]


class LogAction(Request, kw_only=True):
    """Records an action that the policy did not choose."""

    episode_id: str
    obs: Any
    action: Any


class LogReturns(Request, kw_only=True):
    """Adds to the reward of the last action; with several agents a dict of rewards by agent."""

    episode_id: str
    reward: float | dict[str, float]
    info: dict[str, Any] | None = None


class EndAgents(Request, kw_only=True):
    """Ends some agents of a running episode: agent id -> last observation, or None for an agent without one."""

    episode_id: str
    observations: dict[str, Any]
    truncated: bool = False


class EndEpisode(Request, kw_only=True):
    """Ends an episode with its last observation."""

    episode_id: str
    obs: Any
    truncated: bool = False


class Trajectory(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One agent's trajectory of T steps, played elsewhere.

    The lines of a data set in the format `json_lines` have the same columns.

    Attributes:
        obs: [T + 1] observations; the last one follows the last action.
        actions: [T] actions, as sent to the environment.
        rewards: [T] reward of each action.
        terminated, truncated: how the trajectory ended; at most one is true; if both are false, it counts as truncated.
        action_logp: [T] log-probability of each action under the policy that chose it.
        t: [T] number of the environment step of each action in its episode; None: 0, 1, 2, ...
        infos: [T] info dicts.
        policy_id: the policy that chose the actions; None if the sender does not know it.
    """

    obs: list[Any]
    actions: list[Any]
    rewards: list[float]
    terminated: bool = False
    truncated: bool = False
    action_logp: list[float] | None = None
    t: list[int] | None = None
    infos: list[dict[str, Any]] | None = None
    policy_id: str | None = None


class Episode(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A whole episode, played elsewhere: agent id -> trajectory; a single agent has the id "agent0".

    Attributes:
        episode_id: an id that the sender uses only once.
        policy_version: the version of the weights that chose the actions; None for actions of another origin.
        training_enabled: false for episodes that only count in the metrics.
    """

    agents: dict[str, Trajectory]
    episode_id: str | None = None
    policy_version: int | None = None
    training_enabled: bool = True


class SubmitEpisodes(Request, kw_only=True):
    """Submits whole episodes, of local inference or another origin."""

    episodes: list[Episode]


REQUESTS: dict[str, type[Request]] = {
    "start_episode": StartEpisode,
    "get_action": GetAction,
    "get_actions": GetActions,
    "log_action": LogAction,
    "log_returns": LogReturns,
    "end_agents": EndAgents,
    "end_episode": EndEpisode,
    "submit_episodes": SubmitEpisodes,
}
"""Verb -> its request; each is POST /v1/<verb>, and the field `verb` of a message on /v1/stream."""

QUERIES = ("hello", "health", "statistics")
"""The verbs without a body: GET /v1, /v1/health and /v1/statistics, and messages on the stream."""


class PolicyInfo(msgspec.Struct):
    """One policy: its spaces as JSON (`rollax.config.json_form.space_to_json`), and whether it has memory."""

    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    recurrent: bool


class Hello(msgspec.Struct):
    """The answer to GET /v1: the description of the server.

    Attributes:
        protocol: PROTOCOL_VERSION.
        server: name and version.
        learns: whether the server learns from the episodes.
        multi_agent: whether observations, actions and rewards are dicts by agent id.
        policies: policy id -> spaces.
        version: version of the weights, which grows with each update.
        addresses: addresses of all servers of a run with several sampling workers, including this one.
        limits: the limits of the server by name; null for no limit.
    """

    protocol: int
    server: str
    learns: bool
    multi_agent: bool
    policies: dict[str, PolicyInfo]
    version: int
    addresses: list[str]
    limits: dict[str, float | None]


class Health(msgspec.Struct):
    """The answer to GET /v1/health; `pending` is the number of observations that wait for an action."""

    status: str
    version: int
    episodes: int
    pending: int


class Started(msgspec.Struct):
    """The answer to start_episode."""

    episode_id: str


class Action(msgspec.Struct):
    """The answer to get_action: the action, and the version of the weights that chose it."""

    action: Any
    version: int


class Actions(msgspec.Struct):
    """The answer to get_actions: episode id -> action, and the version of the weights that chose them."""

    actions: dict[str, Any]
    version: int


class Submitted(msgspec.Struct):
    """The answer to submit_episodes: the numbers of accepted episodes and of episodes dropped by `max_policy_lag`."""

    accepted: int
    too_old: int
    version: int


class Done(msgspec.Struct):
    """The answer to the other verbs: an empty object."""


class ErrorBody(msgspec.Struct, omit_defaults=True):
    """The error of a request. The server's log has the same `id`, with the traceback if there is one."""

    id: str
    what: str
    where: str | None = None
    got: str | None = None
    expected: str | None = None
    fix: str | None = None


class ErrorResponse(msgspec.Struct):
    """The answer to a request that failed, with a status of 4xx or 5xx."""

    error: ErrorBody


class StreamError(msgspec.Struct, omit_defaults=True):
    """A failed request on /v1/stream: HTTP's status and Retry-After header are fields next to the error.

    Attributes:
        id: id of the request; None if the message has no readable id.
        status: status as over HTTP.
        retry_after: seconds, for status 429 or 503.
    """

    error: ErrorBody
    status: int
    id: int | None = None
    retry_after: float | None = None
