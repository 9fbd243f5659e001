"""The page of connect four in a real browser: games against a policy that has not learned."""

from __future__ import annotations

import re

import pytest

from examples.connect_four import CONFIG, ConnectFour
from rollax import PPOTrainer
from tests.serving.browser import page_of

pytestmark = pytest.mark.long
PIECES = "document.querySelectorAll('.column .{}').length"


def test_games_against_the_policy(tmp_path):
    model = {"conv_filters": [[4, 4, 1]], "conv_dense": 8}
    with PPOTrainer(ConnectFour, {**CONFIG, "env_config": {"boards": 2}, "model": model, "seed": 0}) as trainer:
        checkpoint = trainer.save(tmp_path)
    with page_of("connect_four_page", checkpoint) as tab:
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
