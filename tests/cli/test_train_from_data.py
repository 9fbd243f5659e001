"""`rollax train --input`: learning from recorded data, without an environment, and before training in one."""

import re

import gymnasium as gym
import numpy as np
import pytest

from rollax import load_policy
from rollax.offline.dataset import RecordedTrajectory
from rollax.offline.writer import DatasetWriter
from tests.cli.command_line import invoke

SMALL = ["--run=DQN", "--set=train_batch_size=4", "--set=updates_per_step=5", "--set=timesteps_per_iteration=20"]
SMALL += ["--set=model.fcnet_hiddens=[4]", "--seed=0"]


@pytest.fixture
def data(tmp_path, monkeypatch, without_drawing):
    """A folder with recorded steps in the spaces of CartPole."""
    monkeypatch.chdir(tmp_path)
    env, rng = gym.make("CartPole-v1"), np.random.default_rng(0)
    spaces = {"default_policy": env.observation_space}, {"default_policy": env.action_space}
    with DatasetWriter("data/one", *spaces) as writer:
        for number in range(4):
            obs, actions = rng.random((11, 4), np.float32), rng.integers(2, size=10)
            columns = {"obs": obs, "actions": actions, "rewards": np.ones(10, np.float32)}
            writer.write(RecordedTrajectory(columns, True, False, str(number), "agent0", "default_policy"))
    return "data/one"


def train(*words):
    return invoke("train", *SMALL, *words)


@pytest.mark.long
def test_without_an_environment(data, tmp_path):
    done = train(f"--input={data}", "--stop-iterations=2", "--out=run")
    assert "training_iteration 2 reached 2 (40 steps" in done.output
    assert "Watch the policy" not in done.output
    assert "(60 steps" in invoke("train", "--resume=run", "--stop-iterations=3", "--out=more").output
    policy = load_policy(tmp_path / "more" / "checkpoints" / "checkpoint_000003")  # loading it does not read the data
    assert policy.compute_single_action(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.long
def test_the_estimates_of_the_last_evaluation_are_shown(data):
    estimates = ["--set=off_policy_estimation_methods=[dm]", "--set=evaluation_interval=1", "--set=gamma=0.9"]
    done = train(f"--input={data}", *estimates, "--stop-iterations=1", "--out=run")
    # Each recorded episode has 10 rewards of 1: (1 - 0.9^10) / (1 - 0.9) = 6.513.
    assert re.search(r"Estimate: +default_policy, dm: [\d.]+ \([\d.]+ to [\d.]+\), the data 6.513", done.output)


@pytest.mark.long
def test_then_online(data):
    online = ["--env=CartPole-v1", "--then-online", "--set=offline_timesteps=20", "--set=learning_starts=4"]
    done = train(f"--input={data}", "--input=data/*", *online, "--stop-timesteps=60", "--no-evaluate", "--out=run")
    assert "timesteps_total 60 reached 60" in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--then-online"], "then_online has no effect"),
        (["--input=x", "--set=input=y"], "input is given twice"),
        (["--input=nowhere"], "The data does not exist"),
        (["--input=nowhere", "--then-online", "--set=then_online=true"], "then_online is given twice"),
    ],
)
def test_errors(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in invoke("train", "--run=DQN", "--env=CartPole-v1", *words, code=2).output
