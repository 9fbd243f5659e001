"""`Sessions`: the running episodes of a policy server, and the ids of recently ended ones."""

from __future__ import annotations

import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from rollax.errors import RequestError
from rollax.serving.limits import Limits

_REMEMBERED_RESPONSES = 4
_REMEMBERED_ENDS = 20_000

EXPIRED, ENDED, DROPPED = "expired", "ended", "dropped"
_ENDED = {
    EXPIRED: "The episode was dropped, because it was idle for too long.",
    ENDED: "The episode has ended.",
    DROPPED: "The episode was dropped, because it ended without an action.",
}
NOBODY: frozenset[str] = frozenset()

Key = tuple[type, str]
"""The class of a request's message, one for each verb, and its id; requests of other verbs may have the same id."""

Agents = Mapping[str, frozenset[str]]
"""Episode id -> agents."""


@dataclass(slots=True, eq=False)
class Session:
    """A running episode.

    Attributes:
        client: the client that started the episode.
        agents: the agents that have acted and not ended; the agent of a single-agent server is "".
        acted: whether any agent has acted.
        last_response: time of the response to the last request.
        responses: key of a recent request -> its response, or the pending request.
    """

    id: str
    client: Hashable
    last_response: float
    agents: set[str] = field(default_factory=set)
    acted: bool = False
    responses: OrderedDict[Key, Any] | None = None

    def remember(self, key: Key | None, response: Any) -> None:
        """Stores the response, or the pending request, that a repetition of the request gets; None: it has no id."""
        if key is None:
            return
        if self.responses is None:
            self.responses = OrderedDict()
        self.responses[key] = response
        while len(self.responses) > _REMEMBERED_RESPONSES:
            self.responses.popitem(last=False)


class Sessions:
    """The running episodes by id.

    Attributes:
        waiting: episode id -> its agents with a pending request, for episodes that have any. It is separate from the
            sessions, because it is read and written for all episodes of a request at once.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits, self._clock = limits, clock
        self._running: dict[str, Session] = {}
        self.waiting: dict[str, frozenset[str]] = {}
        self._by_client: Counter[Hashable] = Counter()
        self._ended: OrderedDict[str, tuple[str, Key | None, Any]] = OrderedDict()
        self._started: OrderedDict[str, str] = OrderedDict()  # request id -> episode id
        self.started, self.ended, self.expired = 0, 0, 0

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._running.values())

    @property
    def clients(self) -> int:
        """The number of clients with a running episode."""
        return len(self._by_client)

    def start(self, episode_id: str | None, client: Hashable) -> Session:
        """Starts an episode; None means a new id. RequestError if it already runs, or too many others run."""
        if episode_id is None:
            episode_id = uuid.uuid4().hex
        elif episode_id in self._running:
            raise RequestError("The episode is already running.", "episode_id", episode_id, status=409).expected(
                "an id that no running episode has", "end it first, or leave episode_id out to get a new id"
            )
        for running, name in (
            (len(self._running), "max_episodes"),
            (self._by_client.get(client, 0), "max_episodes_per_client"),
        ):
            if running >= getattr(self._limits, name):
                drops = f"the server drops those that are idle for {self._limits.idle_timeout_s:g} s"
                fix = f"end episodes that are over; {drops}"
                raise self._limits.exceeded("Too many running episodes.", running, name, fix=fix)
        session = Session(episode_id, client, self._clock())
        self._running[episode_id] = session
        self._by_client[client] += 1
        self._ended.pop(episode_id, None)
        self.started += 1
        return session

    def running(self, episode_id: str) -> Session:
        """The running episode; RequestError with 410 if it has ended, 404 if it is unknown."""
        session = self._running.get(episode_id)
        if session is None:
            raise self._not_running(episode_id)
        return session

    def all_running(self, episode_ids: Iterable[str]) -> list[Session]:
        """The running episodes; see `running`."""
        try:
            return list(map(self._running.__getitem__, episode_ids))
        except KeyError:
            return list(map(self.running, episode_ids))

    def _not_running(self, episode_id: str) -> RequestError:
        ended = self._ended.get(episode_id)
        what, status, fix = "Unknown episode.", 404, "call start_episode first, and use the id that it returns"
        if ended is not None:
            what, status, fix = _ENDED[ended[0]], 410, "start another one with start_episode"
            if ended[0] == EXPIRED:
                fix += f"; the idle time is limited to {self._limits.idle_timeout_s:g} s"
        return RequestError(what, "episode_id", episode_id, status=status).expected("the id of a running episode", fix)

    def end(self, session: Session, how: str = ENDED, key: Key | None = None, response: Any = None) -> None:
        """Removes a running episode; a repetition of the request `key` gets `response`, other requests an error 410."""
        del self._running[session.id]
        self.waiting.pop(session.id, None)
        self._by_client[session.client] -= 1
        if not self._by_client[session.client]:
            del self._by_client[session.client]
        self._ended[session.id] = (how, key, response)
        while len(self._ended) > _REMEMBERED_ENDS:
            self._ended.popitem(last=False)
        self.expired += how == EXPIRED
        self.ended += how == ENDED

    def response_to(self, episode_id: str, key: Key | None) -> Any:
        """The response, or the pending request, of a repeated request; None for a new one, or one without an id."""
        if key is None:
            return None
        session = self._running.get(episode_id)
        if session is not None:
            return None if session.responses is None else session.responses.get(key)
        ended = self._ended.get(episode_id)
        return ended[2] if ended is not None and ended[1] == key else None

    def started_by(self, request_id: str) -> str | None:
        """The id of the episode that this request started.

        None if no such episode is running. None too if an agent of the episode has acted or waits for an action: its
        client has the response then, so this request is from another client that uses the same id by chance.
        """
        session = self._running.get(self._started.get(request_id, ""))
        return None if session is None or session.acted or session.id in self.waiting else session.id

    def remember_start(self, request_id: str, episode_id: str) -> None:
        """Stores which request started an episode."""
        self._started[request_id] = episode_id
        while len(self._started) > _REMEMBERED_ENDS:
            self._started.popitem(last=False)

    def idle(self) -> list[Session]:
        """The episodes that are idle for too long; one with a pending request is not idle."""
        before = self._clock() - self._limits.idle_timeout_s
        return [session for session in self if session.last_response < before and session.id not in self.waiting]

    def refuse_waiting(self, agents: Mapping[str, Iterable[str]]) -> None:
        """Raises RequestError if one of `agents` (episode id -> agents) waits for an action."""
        if self.waiting.keys().isdisjoint(agents):  # the common case
            return
        for episode_id in self.waiting.keys() & agents.keys():
            both = self.waiting[episode_id].intersection(agents[episode_id])
            if both:
                of_agents = "".join(f", agent {agent!r}," for agent in sorted(both) if agent)
                got = f"a second request for {episode_id!r}{of_agents} before the first is answered"
                raise RequestError("The episode is waiting for an action.", "episode_id", got, status=409).expected(
                    "one request at a time for each agent of an episode", "wait for the action"
                )

    def begin_waiting(self, agents: Agents) -> None:
        """Adds a pending request for `agents` (episode id -> agents), which do not wait yet."""
        if self.waiting.keys().isdisjoint(agents):
            self.waiting.update(agents)
            return
        others = {name: self.waiting[name] | agents[name] for name in self.waiting.keys() & agents.keys()}
        self.waiting.update(agents)
        self.waiting.update(others)

    def end_waiting(self, agents: Agents) -> None:
        """Removes the pending request for agents."""
        waited = list(map(self.waiting.pop, agents, repeat(NOBODY)))
        if waited == list(agents.values()):  # no other agents wait in these episodes
            return
        for (episode_id, names), all_names in zip(agents.items(), waited, strict=True):
            if not all_names <= names:
                self.waiting[episode_id] = all_names - names
