"""A reimplementation of the policy server in RLlib's old API stack (`PolicyServerInput`).

Each request is one pickled command, sent by HTTP to a separate thread, and the policy gets one observation at a time.
`ray.rllib` 2.60 still has its client, but no server. To the advantage of this side, connections are kept alive, and
there is no queue between the request's thread and the policy.
"""

from __future__ import annotations

import pickle
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np


class PickledServer(ThreadingHTTPServer):
    """Answers GET_ACTION with an action, and every other command with an empty dict.

    Args:
        actor: the policy, a `rollax.serving.acting.Actor`.
    """

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, actor: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._actor, self._lock = actor, threading.Lock()

    def execute(self, command: dict[str, Any]) -> dict[str, Any]:
        """The response to a command."""
        if command["command"] != "GET_ACTION":
            return {}
        with self._lock:
            (action,) = self._actor.act_on(np.asarray(command["observation"])[None], (), (), ())
        return {"action": action}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body are sent together

    def do_POST(self) -> None:
        """Executes a command."""
        assert isinstance(self.server, PickledServer)
        # Unpickling can execute code from a client, so this server is only for measurements on one machine.
        command = pickle.loads(self.rfile.read(int(self.headers["Content-Length"])))  # noqa: S301
        content = pickle.dumps(self.server.execute(command))
        self.send_response_only(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Does nothing."""
