"""The page of connect four in a real browser: games against a policy that has not learned."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from examples.connect_four import CONFIG, ConnectFour
from rollax import PPOTrainer
from tests.pages import REPOSITORY
from tests.serving.browser import browser

pytestmark = pytest.mark.long
PIECES = "document.querySelectorAll('.column .{}').length"


def test_games_against_the_policy(tmp_path):
    model = {"conv_filters": [[4, 4, 1]], "conv_dense": 8}
    with PPOTrainer(ConnectFour, {**CONFIG, "env_config": {"boards": 2}, "model": model, "seed": 0}) as trainer:
        checkpoint = trainer.save(tmp_path)
    command = [sys.executable, str(REPOSITORY / "examples" / "connect_four_page"), str(checkpoint), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with browser() as tab, subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE) as game:
        assert game.stdout is not None
        try:
            address = re.search(r"The game is at (\S+),", game.stdout.readline())
            assert address is not None
            tab.resize(320, 640)
            tab.open(address[1])
            tab.wait_for("document.querySelector('#message').innerText == 'Your move'")
            tab.evaluate("document.querySelectorAll('.column')[3].click()")
            tab.wait_for("document.querySelector('#message').innerText == 'Your move'")
            assert (tab.evaluate(PIECES.format("you")), tab.evaluate(PIECES.format("it"))) == (1, 1)
            tab.key("1", down=True)
            tab.wait_for(f"{PIECES.format('it')} == 2")
            assert tab.evaluate("document.querySelectorAll('.column')[0].lastElementChild.className").startswith("you")
            tab.evaluate("document.querySelector('#it').click()")
            tab.wait_for(f"{PIECES.format('it')} == 1 && {PIECES.format('you')} == 0")
            # Plays the first free column whenever it is asked, to the end of the game.
            over = "/win|draw/.test(document.querySelector('#message').innerText)"
            tab.wait_for(f"{over} || (document.querySelector('.column:enabled')?.click(), false)")
            assert tab.evaluate("document.querySelectorAll('.column:enabled').length") == 0
            played = re.findall(r"\d+", tab.evaluate("document.querySelector('#tally').innerText"))
            assert sum(map(int, played)) == 1
            assert tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
            assert not tab.problems
        finally:
            game.send_signal(signal.SIGINT)
            game.communicate(timeout=120)
    assert game.returncode == 0
