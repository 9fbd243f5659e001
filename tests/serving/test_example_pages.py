"""The pages of examples in a real browser: the game that a person takes over, and connect four."""

import re

import pytest

from examples.connect_four import CONFIG, ConnectFour
from rollax import PPOTrainer
from tests.serving.browser import page_of

pytestmark = pytest.mark.long
PIECES = "document.querySelectorAll('.column .{}').length"


def test_the_policy_plays_and_a_person_takes_over():
    with page_of("browser_game") as tab:
        tab.wait_for("document.querySelector('#who').innerText == 'the policy plays'")
        tab.wait_for("window.game?.steps > 100")
        assert tab.evaluate("window.game.logged") == 0
        tab.key("ArrowLeft", down=True)
        tab.wait_for("document.querySelector('#who').innerText == 'you play, it learns'")
        tab.wait_for("window.game.logged > 5")
        tab.key("ArrowLeft", down=False)
        tab.wait_for("document.querySelector('#who').innerText == 'the policy plays'")
        tab.wait_for("window.game.results > 0")


def test_games_of_connect_four_against_a_policy_that_has_not_learned(tmp_path):
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
        assert sum(map(int, re.findall(r"\d+", tab.evaluate("document.querySelector('#tally').innerText")))) == 1
