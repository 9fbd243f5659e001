"""`Service` executes the requests of a policy server, and handles episodes, limits, repeated requests and values."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from rollax.errors import ConfigError, RequestError, RollaxError
from rollax.serving import protocol as messages
from rollax.serving.backend import Backend
from rollax.serving.limits import Limits
from rollax.serving.pending import PendingActions, Response, Result, as_request_error, shutting_down
from rollax.serving.readers import Readers
from rollax.serving.sessions import DROPPED, EXPIRED, NOBODY, Key, Session, Sessions

_REMEMBERED_SUBMISSIONS = 1_000
_OF_ONE_EPISODE = ("log_action", "log_returns", "end_agents", "end_episode")


class Service:
    """Executes requests of all transports. All methods run in the thread of the event loop.

    Attributes:
        addresses: addresses of all servers of the run, for `hello`; if empty, the transport fills in its own address.
    """

    def __init__(
        self, backend: Backend, limits: Limits | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if limits is not None and not isinstance(limits, Limits):
            raise ConfigError("The limits have the wrong type.", "limits", limits).expected(
                "rollax.serving.limits.Limits", "pass Limits(...), such as Limits(max_episodes=10)"
            )
        self.backend, self.limits = backend, limits or Limits()
        self.addresses: list[str] = []
        self._clock = clock
        self._description = backend.hello()
        self.sessions = Sessions(self.limits, clock)
        self._readers = Readers(backend, self.limits, self._description)
        # The method that executes a verb has the verb's name after an underscore.
        self._verbs: dict[str, Callable[[Any, Any], Result]] = {
            verb: getattr(self, f"_{verb}") for verb in (*messages.QUERIES, *messages.REQUESTS)
        }
        for verb in _OF_ONE_EPISODE:
            self._verbs[verb] = partial(self._once, self._verbs[verb])
        self._pending = PendingActions(self.sessions, self.limits, clock, multi_agent=self._description.multi_agent)
        self._submitted: OrderedDict[tuple[str, int], asyncio.Future[Response]] = OrderedDict()
        self._submitting = 0  # submissions that run or wait
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        """Binds the service to the running event loop; called once, before the first request."""
        self._loop = asyncio.get_running_loop()
        self._pending.attach(self._loop)
        self._executor = ThreadPoolExecutor(1, "rollax-serving")
        self.backend.attach(self._loop)
        self._expire_later()

    def close(self) -> None:
        """Fails the pending requests with the status 503, drops the running episodes, and closes the backend."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._pending.fail(shutting_down(self.limits.retry_after_s))
        for session in list(self.sessions):
            self._drop(session, EXPIRED)
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        self.backend.close()

    def call(self, verb: str, request: Any, client: Hashable) -> Result:
        """Executes a request of a client; returns its response, or an awaitable of it.

        `request` is the struct of the verb; None for `protocol.QUERIES`.

        Raises:
            RequestError: the request is not executed. Awaiting the response may raise it too.
        """
        function = self._verbs.get(verb)
        if function is None:
            raise RequestError("Unknown verb.", "verb", verb, status=404, expected=f"one of {sorted(self._verbs)}")
        if self._closed:
            raise shutting_down(self.limits.retry_after_s)
        try:
            return function(request, client)
        except RollaxError as error:
            raise as_request_error(error, 422) from error.__cause__

    def weights(self, policy_id: str) -> asyncio.Future[bytes]:
        """The weights of a policy as safetensors; see `Backend.weights`."""
        self._check_policy(policy_id)
        return self._in_thread(lambda: self.backend.weights(policy_id))

    def onnx(self, policy_id: str) -> asyncio.Future[bytes]:
        """The policy as an ONNX model."""
        self._check_policy(policy_id)
        return self._in_thread(lambda: self.backend.onnx(policy_id))

    def expire(self) -> int:
        """Drops the idle episodes; returns how many. Called by a timer."""
        idle = self.sessions.idle()
        for session in idle:
            self._drop(session, EXPIRED)
        return len(idle)

    def _drop(self, session: Session, how: str) -> None:
        self.sessions.end(session, how)
        self.backend.drop_episode(session.id)

    def _expire_later(self) -> None:
        assert self._loop is not None

        def expire() -> None:
            self.expire()
            self._expire_later()

        self._timer = self._loop.call_later(min(max(self.limits.idle_timeout_s / 10, 0.05), 10.0), expire)

    # The verbs.

    def _hello(self, request: None, client: Hashable) -> messages.Hello:
        hello = self._description
        hello.version = self.backend.version
        hello.addresses, hello.limits = self.addresses, self.limits.as_numbers()
        return hello

    def _health(self, request: None, client: Hashable) -> messages.Health:
        return messages.Health("ok", self.backend.version, len(self.sessions), self._pending.count)

    def _statistics(self, request: None, client: Hashable) -> dict[str, Any]:
        sessions = self.sessions
        counts = {
            "version": self.backend.version,
            "learns": self._description.learns,
            "pending": self._pending.count,
            "episodes_running": len(sessions),
            "episodes_started": sessions.started,
            "episodes_ended": sessions.ended,
            "episodes_expired": sessions.expired,
            "clients": sessions.clients,
        }
        return {**counts, **self.backend.statistics()}

    def _start_episode(self, request: messages.StartEpisode, client: Hashable) -> messages.Started:
        if (key := self._key(request)) is not None:
            repeated = self.sessions.started_by(key[1])
            if repeated is not None and request.episode_id in (None, repeated):
                return messages.Started(repeated)
        if request.episode_id is not None:
            self._readers.check_id(request.episode_id, "episode_id")
        session = self.sessions.start(request.episode_id, client)
        try:
            self.backend.start_episode(session.id, request.training_enabled)
        except BaseException:
            self.sessions.end(session)
            raise
        if request.request_id is not None:
            self.sessions.remember_start(request.request_id, session.id)
        return messages.Started(session.id)

    def _get_action(self, request: messages.GetAction, client: Hashable) -> Result:
        return self._request_actions({request.episode_id: request.obs}, self._key(request), client, single=True)

    def _get_actions(self, request: messages.GetActions, client: Hashable) -> Result:
        if not request.observations:
            return messages.Actions({}, self.backend.version)
        self._check_count(request.observations)
        return self._request_actions(request.observations, self._key(request), client, single=False)

    def _request_actions(
        self, observations: Mapping[str, Any], key: Key | None, client: Hashable, *, single: bool
    ) -> Result:
        if (known := self.sessions.response_to(next(iter(observations)), key)) is not None:
            return known
        sessions = self.sessions.all_running(observations)
        values, agents = self._readers.observations(sessions, observations)
        request = self._pending.begin(client, sessions, agents, single=single, key=key)
        try:
            self.backend.request_actions(values, partial(self._pending.finish, request))
        except BaseException:
            self._pending.release(request)
            raise
        return request.result() if request.done else request

    def _log_action(self, request: messages.LogAction, session: Session) -> None:
        obs, action, agents = self._readers.logged(session, request.obs, request.action)
        self.sessions.refuse_waiting({session.id: agents})
        self.backend.log_action(session.id, obs, action)
        session.agents.update(agents)
        session.acted = True

    def _log_returns(self, request: messages.LogReturns, session: Session) -> None:
        waiting = self.sessions.waiting.get(session.id, NOBODY)
        reward, info = self._readers.reward_and_info(session, waiting, request.reward, request.info)
        self.backend.log_returns(session.id, reward, info)

    def _end_agents(self, request: messages.EndAgents, session: Session) -> None:
        values = self._readers.ended_agents(session, request.observations)
        self.sessions.refuse_waiting({session.id: values})
        self.backend.end_agents(session.id, values, request.truncated)
        session.agents.difference_update(values)

    def _end_episode(self, request: messages.EndEpisode, session: Session) -> None:
        self.sessions.refuse_waiting({session.id: self.sessions.waiting.get(session.id, ())})
        obs = self._readers.last(session, request.obs)
        if not session.acted:
            self._drop(session, DROPPED)
            expected = "get_action or log_action between start_episode and end_episode"
            raise RequestError(
                "The episode ended without an action and is dropped.", "episode_id", session.id, status=409
            ).expected(expected, "start an episode only if an agent will act in it")
        self.backend.end_episode(session.id, obs, request.truncated)
        self.sessions.end(session, key=self._key(request), response=messages.Done())

    def _submit_episodes(self, request: messages.SubmitEpisodes, client: Hashable) -> Result:
        key, known, named = None, None, self._key(request)
        self._check_count(request.episodes)
        if named is not None:
            # The id belongs to no episode, so other clients may use it too: the key also includes the content.
            key = named[1], _fingerprint(request.episodes)
            known = self._submitted.get(key)
        if known is None:
            if self._submitting >= self.limits.max_submissions:
                raise self.limits.exceeded("Too many submissions are waiting.", self._submitting + 1, "max_submissions")
            known = self._in_thread(lambda: self.backend.submit(self._readers.episodes(request.episodes)))
            self._submitting += 1
            known.add_done_callback(lambda done: self._on_submitted(done, key))
            if key is not None:
                self._submitted[key] = known
                while len(self._submitted) > _REMEMBERED_SUBMISSIONS:
                    self._submitted.popitem(last=False)
        return asyncio.shield(known)

    def _on_submitted(self, done: asyncio.Future[Response], key: tuple[str, int] | None) -> None:
        self._submitting -= 1
        if key is not None and (done.cancelled() or done.exception() is not None):
            self._submitted.pop(key, None)  # its error's traceback would keep the episodes alive

    def _key(self, request: messages.Request) -> Key | None:
        """The key that identifies a repeated request; None for a request without an id."""
        if request.request_id is None:
            return None
        self._readers.check_id(request.request_id, "request_id")
        return type(request), request.request_id

    def _once(self, execute: Callable[[Any, Session], None], request: Any, client: Hashable) -> messages.Done:
        """Executes a quick request of one episode, unless it was executed before."""
        key = self._key(request)
        if (known := self.sessions.response_to(request.episode_id, key)) is not None:
            return known
        session = self.sessions.running(request.episode_id)
        execute(request, session)
        session.last_response = self._clock()
        done = messages.Done()
        session.remember(key, done)
        return done

    def _in_thread(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        assert self._loop is not None, "call start() first"

        def run() -> Any:
            try:
                return function()
            except RollaxError as error:
                raise as_request_error(error, 422) from error

        return self._loop.run_in_executor(self._executor, run)

    def _check_policy(self, policy_id: str) -> None:
        if policy_id not in self._description.policies:
            expected = f"one of {sorted(self._description.policies)}"
            raise RequestError("Unknown policy.", "policy_id", policy_id, status=404, expected=expected)

    def _check_count(self, episodes: Collection[Any]) -> None:
        name = "max_episodes_per_request"
        if len(episodes) > getattr(self.limits, name):
            raise self.limits.exceeded("Too many episodes in one request.", len(episodes), name, wait=False)


def _fingerprint(episodes: Any) -> int:
    """A hash of submitted episodes, different in each process."""
    try:
        return hash(msgspec.msgpack.encode(episodes))
    except (TypeError, ValueError, OverflowError):
        return 0  # the episodes have values that fit no space; refused later
