"""The game of the examples in a real browser: the policy plays and learns, and a person takes over."""

from __future__ import annotations

import pytest

from tests.serving.browser import page_of

pytestmark = pytest.mark.long


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
