"""The page of a policy server, in a real browser."""

import math
import re

import pytest

from rollax.serving.server import PolicyServer
from tests.serving.browser import browser
from tests.serving.wire import ask, serving

TOKEN = "secret"


def test_the_page_loads_nothing_from_other_servers():
    with serving() as server:
        page = ask(server, "/")
        script = ask(server, "/rollax.js")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert (script.status, script.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    for name in ("src", "href", "url", "import"):
        assert not re.search(rf"{name}\s*[=(]\s*[\"']?(https?:)?//", page.body.decode())


class Learning:
    """A service whose statistics show a run that improves."""

    def __init__(self):
        from benchmarks.serving.echo import EchoService

        self.echo = EchoService()
        self.points = 3

    def __getattr__(self, name):
        return getattr(self.echo, name)

    def call(self, verb, request, client):
        if verb != "statistics":
            return self.echo.call(verb, request, client)
        curve = [
            {"time_s": 2.0 * n, "steps": 500 * n, "reward": 500 / (1 + math.exp(4 - n / 15)), "length": 100.0}
            for n in range(self.points)
        ]
        counts = {"version": self.points, "learns": True, "pending": 3, "clients": 8, "timestep": 500 * self.points}
        episodes = {"episodes_running": 8, "episodes_ended": 41, "episodes_expired": 2, "episodes_total": 1234567}
        last = {"episode_reward_mean": curve[-1]["reward"], "episode_len_mean": 100.0, "steps_total": 98765}
        return {**counts, **episodes, **last, "curve": curve}


@pytest.mark.long
def test_the_page_shows_the_run_and_updates_itself(tmp_path):
    service = Learning()
    with PolicyServer(service, token=TOKEN) as server, browser() as tab:
        tab.resize(1000, 700)
        tab.open(server.address)
        tab.wait_for("document.querySelector('#state').innerText == 'locked'")
        assert not tab.evaluate("document.querySelector('#login').hidden")
        tab.problems.clear()  # the refused request
        tab.evaluate(f"document.querySelector('#token').value = '{TOKEN}'")
        tab.evaluate("document.querySelector('#login button').click()")
        tab.wait_for("document.querySelector('#state').innerText == 'live'")
        tab.wait_for("document.querySelector('#tile-version .value').innerText == '3'")
        service.points = 120
        tab.wait_for("document.querySelector('#tile-version .value').innerText == '120'")
        assert tab.evaluate("document.querySelector('#tile-episodes .value').innerText") == "1.2M"
        assert tab.evaluate("document.querySelector('#tile-clients .value').innerText") == "8"
        assert tab.evaluate("document.querySelector('#chart .curve').getAttribute('points').split(' ').length") == 120
        assert "ms" in tab.evaluate("document.querySelector('#tile-p99 .value').innerText")
        tab.evaluate("document.querySelector('#by-time').click()")
        assert "min" in tab.evaluate("document.querySelector('#chart').textContent")
        for dark in (False, True):
            for width, height in ((1000, 700), (320, 640)):
                tab.resize(width, height, dark=dark)
                assert tab.wait_for("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
                tab.screenshot(tmp_path / f"page-{width}-{'dark' if dark else 'light'}.png")
        shades = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        tab.resize(1000, 700)
        assert tab.wait_for(f"getComputedStyle(document.body).backgroundColor != '{shades}'")
        assert not tab.problems
