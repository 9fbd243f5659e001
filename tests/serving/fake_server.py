"""A small policy server that loses connections on request."""

import base64
import http.server
import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

BOX = {"type": "Box", "shape": [2], "dtype": "float32", "low": -1.0, "high": 1.0}
DISCRETE = {"type": "Discrete", "n": 3, "start": 0, "dtype": "int64"}

MAX_BODY_BYTES = 10_000

DROP_BEFORE, DROP_AFTER = "drop before", "drop after"
"""Faults: the connection is closed before or after the request is executed, without an answer."""


class FakeServer:
    """Executes each request once; answers the actions 0, 1, 2, ... of each episode.

    Attributes:
        refusals: statuses with which the next handshakes of a WebSocket are refused.
        faults: faults of the next requests: None, DROP_BEFORE, DROP_AFTER, or an answer (status, body, headers).
        executed: (verb, body) of the executed requests, without their request ids.
        requests: all verbs that arrived.
    """

    def __init__(self, action_space: dict[str, Any] = DISCRETE, token: str | None = None) -> None:
        self.action_space, self.token = action_space, token
        self.refusals: list[int] = []
        self.faults: deque[Any] = deque()
        self.executed: list[tuple[str, dict[str, Any]]] = []
        self.requests: list[str] = []
        self.version = 1
        self.opened = 0
        self._answers: dict[str, Any] = {}
        self._episodes: dict[str, int] = {}
        self._lock = threading.Lock()

    def answer(self, verb: str, body: dict[str, Any]) -> tuple[int, dict[str, Any], dict[str, str]] | None:
        """Status, body and headers; None to close the connection."""
        with self._lock:
            if verb == "arrange":  # from the programs in other languages
                return self._arrange(**body)
            self.requests.append(verb)
            fault = self.faults.popleft() if self.faults and verb != "hello" else None
            if isinstance(fault, tuple | list):
                return tuple(fault)  # pyright: ignore[reportReturnType]
            if fault == DROP_BEFORE:
                return None
            request_id = body.pop("request_id", None)
            if request_id is None or request_id not in self._answers:
                self._answers[request_id or ""] = self._execute(verb, body)
            return None if fault == DROP_AFTER else (*self._answers[request_id or ""], {})

    def _arrange(self, faults: Any = (), forget: bool = False) -> Any:
        """Sets the faults of the next requests, simulates a restart with `forget`, and returns the requests so far."""
        executed, requests = [verb for verb, _ in self.executed], list(self.requests)
        self.faults = deque(faults)
        self.executed.clear()
        self.requests.clear()
        if forget:
            self.forget()
        return 200, {"executed": executed, "requests": requests, "opened": self.opened}, {}

    def forget(self) -> None:
        """Drops the state that a restart loses."""
        self._answers.clear()
        self._episodes.clear()

    def _execute(self, verb: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if verb == "hello":
            policy = {"observation_space": BOX, "action_space": self.action_space, "recurrent": False}
            return 200, {
                "protocol": 1, "server": "fake", "learns": True, "multi_agent": False,
                "policies": {"default_policy": policy}, "version": self.version, "addresses": [],
                "limits": {"max_body_bytes": MAX_BODY_BYTES},
            }  # fmt: skip
        self.executed.append((verb, body))
        if verb == "start_episode":
            self._episodes[body["episode_id"]] = 0
            return 200, {"episode_id": body["episode_id"]}
        ids = list(body["observations"]) if verb == "get_actions" else [body["episode_id"]]
        for episode_id in ids:
            if episode_id not in self._episodes:
                return 404, error("An episode that is not known.", got=episode_id)
        if verb == "get_actions":
            return 200, {"actions": {episode_id: self._action(episode_id) for episode_id in ids}, "version": 1}
        if verb == "get_action":
            return 200, {"action": self._action(ids[0]), "version": self.version}
        if verb == "end_episode":
            del self._episodes[ids[0]]
        return 200, {}

    def _action(self, episode_id: str) -> Any:
        self._episodes[episode_id] += 1
        number = self._episodes[episode_id] - 1
        return number if self.action_space is DISCRETE else [float(number), 0.5]


def error(what: str, **details: str) -> dict[str, Any]:
    return {"error": {"id": "e1", "what": what, **details}}


@contextmanager
def over_http(fake: FakeServer) -> Iterator[str]:
    """The address of the server over HTTP."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60
        disable_nagle_algorithm = True  # otherwise each answer takes 40 ms, as it is sent in two parts

        def setup(self) -> None:
            fake.opened += 1
            super().setup()

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if fake.token is not None and self.headers.get("Authorization") != f"Bearer {fake.token}":
                answer = (401, error("A wrong token."), {})
            else:
                verb = self.path.removeprefix("/v1").removeprefix("/") or "hello"
                answer = fake.answer(verb, json.loads(content or b"{}"))
            if answer is None:
                self.close_connection = True
                return
            status, body, headers = answer
            encoded = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(encoded)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(encoded)

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _subprotocol(connection: Any, offered: Any) -> Any:
    return "rollax" if "rollax" in offered else None


@contextmanager
def over_websocket(fake: FakeServer) -> Iterator[str]:
    """The address of the server over WebSockets."""

    def handle(connection: Any) -> None:
        fake.opened += 1
        headers = connection.request.headers
        offered = f"bearer.{base64.urlsafe_b64encode((fake.token or '').encode()).decode().rstrip('=')}"
        allowed = headers.get("Authorization") == f"Bearer {fake.token}" or offered in str(headers)
        if fake.token is not None and not allowed:
            connection.close(1008)
            return
        try:
            for message in connection:
                codec = msgspec.json if isinstance(message, str) else msgspec.msgpack
                body = codec.decode(message)
                verb, number = body.pop("verb"), body.pop("id")
                answer = fake.answer(verb, body)
                if answer is None:
                    return
                status, body, headers = answer
                if status != 200:
                    wait = headers.get("Retry-After")
                    body = {"status": status, **body, **({} if wait is None else {"retry_after": float(wait)})}
                encoded = codec.encode({"id": number, **body})
                connection.send(encoded.decode() if isinstance(message, str) else encoded)
        except ConnectionClosed:
            pass

    def refuse(connection: Any, _: Any) -> Any:
        return connection.respond(fake.refusals.pop(0), "a proxy") if fake.refusals else None

    with serve(
        handle, "127.0.0.1", 0, compression=None, select_subprotocol=_subprotocol, process_request=refuse
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()
