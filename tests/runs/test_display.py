"""The display of running training."""

import io
import json
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from rollax.errors import ConfigError
from rollax.runs.display import (
    Display,
    LiveDisplay,
    NotebookDisplay,
    PlainDisplay,
    cells,
    duration,
    make_display,
    title_of,
    where_time_went,
)
from tests.cli.fake_algorithm import FakeTrainer


class OwnEnv:
    """An environment of the user, in a script or a notebook."""


def result_of(iteration, **changes):
    counts = {"training_iteration": iteration, "timesteps_total": 4000 * iteration, "time_total_s": 2.5 * iteration}
    episodes = {"episode_reward_mean": 123.456, "episode_len_mean": 98.76, "evaluation": {"episode_reward_mean": 475.0}}
    return {**counts, **episodes, "env_steps_per_s": 12345.6, **changes}


def test_an_environment_without_an_import_path_is_not_recorded_data(tmp_path):
    class Local(OwnEnv):
        pass

    path = f"{__name__}:{Local.__qualname__}"
    recorded = SimpleNamespace(unrecorded=OwnEnv)
    named = {"E-v0": "E-v0", OwnEnv: f"{__name__}:OwnEnv", Local: path, None: "recorded data"}
    assert {env: title_of("PPO", env) for env in named} == {env: f"PPO on {name}" for env, name in named.items()}
    assert title_of("PPO", recorded) == title_of("PPO", OwnEnv)
    trainer = FakeTrainer({})
    trainer.config.env = Local
    trainer.fit({"training_iteration": 1}, tmp_path, progress="none", loggers=())
    assert json.loads((tmp_path / "config.json").read_text())["env"] == path


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (61, "1:01"), (3725, "1:02:05")])
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_cells():
    expected = {"iteration": "3", "steps": "12,000", "steps/s": "12,346", "reward": "123.46", "length": "98.8"}
    expected |= {"evaluation": "475.00", "elapsed": "0:07", "left": "1:02:05"}
    assert cells(result_of(3), 3725.0, thousands=",") == expected


def test_unknown_values_are_dashes():
    shown = cells({"training_iteration": 1, "episode_reward_mean": None}, None)
    assert [shown[name] for name in ("steps/s", "reward", "length", "evaluation", "left")] == ["-"] * 5


def test_where_time_went():
    result = {
        "timers": {"sample_s": 1.5, "wait_s": 0.25, "learn_s": 0.5, "learner_wait_s": 0.0, "broadcast_s": 0.01},
        "info": {"queue": {"policy_lag_mean": 4.16, "queue_depth_mean": None}, "workers": {"restarts": 2}},
    }
    timers = "sample 1.50 s  wait 0.25 s  learn 0.50 s  broadcast 0.01 s"
    assert where_time_went(result) == f"{timers}  policy lag 4.2  worker restarts 2"
    assert where_time_went({}) == ""
    screen = io.StringIO()
    with LiveDisplay("x", Console(file=screen, force_terminal=True, width=100, height=30)) as display:
        display.update(result_of(1, **result), 3725.0)
    assert "learn 0.50 s" in screen.getvalue()


def test_live_display_shows_the_last_iterations():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, height=30)
    with LiveDisplay("PPO on CartPole-v1", console, rows=3) as display:
        assert "compiling the first iteration" in screen.getvalue()
        for iteration in range(1, 6):
            display.update(result_of(iteration), 3725.0)
        display.stopping()
        screen.truncate(0)
    last = screen.getvalue()
    assert "PPO on CartPole-v1" in last
    assert "20,000" in last
    assert "12,000" in last
    assert "8,000" not in last
    assert "up to 1:02:0" in last
    assert "stopping after this iteration" in last


def test_which_display(monkeypatch):
    assert type(make_display("", "none")) is Display
    assert type(make_display("", "auto")) is PlainDisplay
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert type(make_display("", "auto")) is LiveDisplay
    assert type(make_display("", "lines")) is PlainDisplay
    assert type(make_display("", "none")) is Display
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert type(make_display("", "auto")) is NotebookDisplay
    with pytest.raises(ConfigError, match="auto, lines, none"):
        make_display("", "bar")  # type: ignore[arg-type]


def test_a_notebook_has_one_cell_that_is_replaced(monkeypatch):
    shown = []
    handle = SimpleNamespace(update=shown.append)
    fake = SimpleNamespace(HTML=str, display=lambda cell, display_id: (shown.append(cell), handle)[1])
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=fake))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    with NotebookDisplay("PPO on CartPole-v1", rows=2) as display:
        assert "compiling the first iteration" in shown[0]
        for iteration in range(1, 4):
            display.update(result_of(iteration), 3725.0)  # the first is drawn, the others follow within half a second
    assert len(shown) == 3
    assert "<pre>" in shown[-1]
    assert "PPO on CartPole-v1" in shown[-1]
    assert "4,000" in shown[1]
    assert "12,000" in shown[-1]
    assert ">4,000<" not in shown[-1]
