"""A headless Chromium, driven over the DevTools protocol."""

import base64
import itertools
import json
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.pages import REPOSITORY
from tests.python_process import started

PATIENCE_S = 60.0
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    *("--remote-debugging-port=0", "--remote-allow-origins=*", "about:blank"),
)


class Tab:
    """One page.

    Attributes:
        problems: exceptions of the page, and what its console has logged as errors.
    """

    def __init__(self, connection: Any) -> None:
        self.problems: list[str] = []
        self._loaded = True
        self._connection, self._ids = connection, itertools.count(1)
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command, and returns its result."""
        number = next(self._ids)
        self._connection.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._connection.recv(PATIENCE_S))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def open(self, url: str) -> None:
        """Goes to a page, and waits until it is loaded."""
        self._loaded = False
        self.send("Page.navigate", url=url)
        while not self._loaded:
            self._note(json.loads(self._connection.recv(PATIENCE_S)))

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, awaited."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """The value of an expression as soon as it is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"{expression}\n{self.evaluate('document.body.innerText')}"
            time.sleep(0.05)
        return value

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Sets the size of the window, and its colors."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def key(self, name: str, *, down: bool) -> None:
        """Presses or releases a key."""
        kind = "keyDown" if down else "keyUp"
        self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def screenshot(self, path: Path) -> None:
        """Saves a screenshot as PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Page.loadEventFired":
            self._loaded = True
        elif message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(message["params"]["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.problems.append(json.dumps(message["params"]["entry"]))


@contextmanager
def browser() -> Iterator[Tab]:
    """An empty tab of a new Chromium; the test is skipped if there is none."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [program, f"--user-data-dir={folder}", *_OPTIONS]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with connect(_debugger(Path(folder) / "DevToolsActivePort", process), max_size=None) as connection:
                yield Tab(connection)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _debugger(port_file: Path, process: subprocess.Popen[bytes]) -> str:
    """The address of the first tab's debugger."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the browser has ended with {process.returncode}"
        try:
            port = int(port_file.read_text().splitlines()[0])
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=PATIENCE_S) as response:
                pages = [page for page in json.load(response) if page["type"] == "page"]
            return pages[0]["webSocketDebuggerUrl"]
        except (OSError, ValueError, IndexError):
            time.sleep(0.05)
    raise AssertionError("the browser has not started")


@contextmanager
def page_of(example: str, *arguments: Any) -> Iterator[Tab]:
    """The page of an example that serves one, on a small screen; it must fit, without errors, and end by Ctrl-C."""
    command = (REPOSITORY / "examples" / example, *arguments, "--port", "0")
    with browser() as tab, started(*command, stdout=subprocess.PIPE) as game:
        assert game.stdout is not None
        try:
            address = re.search(r"The game is at (\S+),", game.stdout.readline())
            assert address is not None
            tab.resize(320, 640)
            tab.open(address[1])
            yield tab
            assert tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
            assert not tab.problems
        finally:
            game.send_signal(signal.SIGINT)
            game.communicate(timeout=120)
    assert game.returncode == 0
