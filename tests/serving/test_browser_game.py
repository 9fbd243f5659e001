"""The game of the examples in a real browser: the policy plays and learns, and a person takes over."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.pages import REPOSITORY
from tests.serving.browser import browser

pytestmark = pytest.mark.long


def interrupt(program: subprocess.Popen) -> None:
    """Sends Ctrl-C until the program ends, as one during a garbage collector's callback, like JAX's, is ignored."""
    for _ in range(20):
        program.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.communicate(timeout=10)
            return
    program.kill()
    program.communicate()
    raise AssertionError("the program ignores Ctrl-C")


def test_the_policy_plays_and_a_person_takes_over():
    command = [sys.executable, str(REPOSITORY / "examples" / "browser_game"), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with browser() as tab, subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE) as game:
        assert game.stdout is not None
        try:
            address = re.search(r"The game is at (\S+),", game.stdout.readline())
            assert address is not None
            tab.resize(320, 640)
            tab.open(address[1])
            tab.wait_for("document.querySelector('#who').innerText == 'the policy plays'")
            tab.wait_for("window.game?.steps > 100")
            assert tab.evaluate("window.game.logged") == 0
            tab.key("ArrowLeft", down=True)
            tab.wait_for("document.querySelector('#who').innerText == 'you play, it learns'")
            tab.wait_for("window.game.logged > 5")
            tab.key("ArrowLeft", down=False)
            tab.wait_for("document.querySelector('#who').innerText == 'the policy plays'")
            tab.wait_for("window.game.results > 0")
            assert tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
            assert not tab.problems
        finally:
            game.send_signal(signal.SIGINT)
            game.communicate(timeout=120)
    assert game.returncode == 0
