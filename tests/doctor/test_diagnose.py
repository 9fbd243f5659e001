"""Diagnoses of runs that have really been trained."""

import json
import logging
import shutil
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from typer.testing import CliRunner

from rollax import (
    ConfigError,
    DQNTrainer,
    PolicySpec,
    PPOTrainer,
    RollaxError,
    SACTrainer,
    Trainer,
    diagnose,
    register_env,
)
from rollax.cli import app
from rollax.config.validation_errors import keys_with_parts
from rollax.doctor.activations import hidden_activations
from rollax.doctor.played import play_episodes
from rollax.runs.run_folder import newest_saved
from rollax.runs.run_lock import RunLock
from tests.cli.command_line import invoke
from tests.env.refused import refused
from tests.marks import long_except

ITERATIONS = 12
SMALL = {"train_batch_size": 128, "sgd_minibatch_size": 64, "num_sgd_iter": 2, "model": {"fcnet_hiddens": (16,)}}
SMALL["seed"] = 0
UNTAUGHT = {"seed": 0, "learning_starts": 5000, "timesteps_per_iteration": 50}
QUIET = {"progress": "none", "loggers": [], "evaluate": False}


class Loud(gym.Env):
    """Observations of about 1000; every episode terminates after 30 steps, as if a time limit were an end."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation(), {}

    def step(self, action):
        self.steps += 1
        return self.observation(), float(self.np_random.normal()), self.steps == 30, False, {}

    def observation(self):
        return self.np_random.normal(1000.0, 100.0, 3).astype(np.float32)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Trained runs by name, and the messages of the doctor while they were trained."""
    register_env("Loud-v0", lambda _: Loud())
    folder, logged = tmp_path_factory.mktemp("runs"), {}
    log = logging.getLogger("rollax.doctor")
    for name, trainer, env, config, more in (
        ("well", PPOTrainer, "CartPole-v1", SMALL, {}),
        ("large-steps", PPOTrainer, "Loud-v0", {**SMALL, "lr": 1.0}, {}),
        ("unwatched", PPOTrainer, "CartPole-v1", {**SMALL, "lr": 0.0}, {"diagnose": False}),
        ("untaught", DQNTrainer, "CartPole-v1", UNTAUGHT, {}),
    ):
        messages: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record, to=messages: to.append(record.getMessage())
        log.addHandler(handler)
        with trainer(env, config) as trained:
            trained.fit({"training_iteration": ITERATIONS}, folder / name, **QUIET, **more)
        log.removeHandler(handler)
        logged[name] = messages
    return folder, logged


def found(diagnosis):
    return {finding.rule for finding in diagnosis}


@pytest.mark.long
def test_a_run_that_is_well_has_no_problem_and_logs_nothing(runs):
    folder, logged = runs
    assert diagnose(folder / "well", play=2).worst in (None, "note")
    assert logged["well"] == []


def test_large_steps_on_large_observations(runs):
    folder, logged = runs
    diagnosis = diagnose(folder / "large-steps", play=3)
    assert {"kl-divergence", "observation-scale", "time-limit-as-end"} <= found(diagnosis)
    assert diagnosis.worst == "problem"
    assert all(finding.rule in str(diagnosis) and finding.remedy in str(diagnosis) for finding in diagnosis)
    while_it_ran = [message for message in logged["large-steps"] if "kl-divergence" in message]
    assert len(while_it_ran) == 1, "each finding once"


def test_keys_that_findings_name_are_keys_of_the_run(runs):
    folder, _ = runs
    keys = set(keys_with_parts(PPOTrainer.config_class))
    assert {finding.key for finding in diagnose(folder / "large-steps", play=3)} <= {*keys, None}


def test_a_learning_rate_of_0_is_found_but_not_logged_without_diagnose(runs):
    folder, logged = runs
    (finding,) = (finding for finding in diagnose(folder / "unwatched", play=0) if finding.severity == "problem")
    assert (finding.rule, finding.key, finding.number) == ("learning-rate-zero", "lr", ITERATIONS)
    assert logged["unwatched"] == []


def test_a_run_that_ended_before_it_learned(runs):
    folder, logged = runs
    assert {"no-updates", "exploration-goes-on"} <= found(diagnose(folder / "untaught", play=0))
    assert logged["untaught"] == [], "the run might have gone on"
    with RunLock(folder / "untaught", "out"):  # as while it goes on
        assert not {"no-updates", "exploration-goes-on"} & found(diagnose(folder / "untaught", play=0))


def test_play_is_checked_and_a_folder_without_a_run_refused(runs, tmp_path):
    folder, _ = runs
    refused(ConfigError, diagnose, folder / "well", play=-1)
    refused(RollaxError, diagnose, tmp_path)


def test_the_command_exits_with_1_if_something_is_wrong(runs):
    folder, _ = runs
    invoke("doctor", folder / "well", "--play=0")
    content = json.loads(invoke("doctor", folder / "unwatched", "--play=0", "--json", code=1).stdout)
    assert [finding["key"] for finding in content["findings"] if finding["severity"] == "problem"] == ["lr"]
    invoke("doctor", folder / "none", code=2)


def test_returns_and_values_of_played_episodes(runs):
    """Rewards of CartPole are 1, so that with γ = 0.99 a row with n steps left has the return (1 - 0.99ⁿ) / 0.01."""
    folder, _ = runs
    with Trainer.from_checkpoint(newest_saved(folder / "well"), learn=False) as trainer:
        played = play_episodes(trainer, 2)["default_policy"]
        values = trainer.worker.policies["default_policy"].compute_values(played.obs)
    assert not played.truncated.any()
    assert len(played.lengths) >= 2
    left = np.concatenate([np.arange(length, 0, -1) for length in played.lengths])
    np.testing.assert_allclose(played.returns, (1 - 0.99**left) / 0.01, rtol=1e-6)
    np.testing.assert_allclose(played.values, values, rtol=1e-5)
    # One hidden layer of 16 in the actor, one in the critic.
    assert {layer.shape[1] for layer in played.activations.values()} == {16}
    assert len(played.activations) == 2


@pytest.mark.long
def test_returns_have_the_discount_of_their_policy():
    multiagent = {"policies": {"a": PolicySpec(config={"gamma": 0.0})}, "policy_mapping_fn": of_a}
    with PPOTrainer("CartPole-v1", {**SMALL, "multiagent": multiagent}) as trainer:
        assert (play_episodes(trainer, 1)["a"].returns == 1.0).all(), "the reward of each step"


def of_a(agent_id, episode):
    return "a"


@pytest.mark.long
@pytest.mark.parametrize("activation", long_except({"tanh", "relu"}, ["tanh", "relu", "elu", "gelu", "silu"]))
def test_outputs_of_hidden_units(activation):
    """Of an actor with layers of 7 and 5, and two critics with layers of 7 and 5."""
    config = {"model": {"fcnet_hiddens": (7, 5), "fcnet_activation": activation}, "buffer_size": 100}
    with SACTrainer("Pendulum-v1", {**config, "learning_starts": 50, "train_batch_size": 8}) as trainer:
        played = play_episodes(trainer, 1)["default_policy"]
    assert [layer.shape[1] for layer in played.activations.values()] == [7, 5, 7, 7, 5, 5]
    if activation == "relu":
        assert min(layer.min() for layer in played.activations.values()) == 0.0
    assert played.truncated.tolist() == [True]
    assert played.lengths.tolist() == [200]
    # γ^200 is the weight of the value after the last step in the first return.
    assert played.weight_of_end[0] == pytest.approx(0.99**200)
    assert played.values is not None
    assert len(played.values) == 200


@pytest.mark.long
def test_policies_with_memory_have_no_outputs_of_units():
    with PPOTrainer("CartPole-v1", {**SMALL, "model": {"use_lstm": True, "lstm_cell_size": 8}}) as trainer:
        played = play_episodes(trainer, 1)["default_policy"]
        assert hidden_activations(trainer.worker.policies["default_policy"], None) == {}
    assert played.values is None
    assert not played.activations


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run of an environment of the user's own, whose episodes have not ended."""
    folder = tmp_path_factory.mktemp("own") / "run"
    with PPOTrainer("tests.doctor.test_diagnose:Endless", SMALL) as trained:
        trained.fit({"training_iteration": 2}, folder, **QUIET)
    return folder


class Endless(Loud):
    def step(self, action):
        return *super().step(action)[:2], False, False, {}


def test_a_run_without_an_ended_episode_gets_a_note(own):
    (finding,) = (finding for finding in diagnose(own, play=0) if finding.rule == "no-episodes")
    assert finding.severity == "note"


@pytest.mark.long
def test_own_code_is_played_only_with_trust_or_another_environment(own):
    untrusted = diagnose(own, play=1)
    assert not untrusted.plays
    assert "--trust-code" in str(untrusted)
    assert diagnose(own, play=1, env="tests.doctor.test_diagnose:Loud").plays
    loud = ("--env=tests.doctor.test_diagnose:Loud", "--run=PPO", "--play=1", "--json")
    assert json.loads(CliRunner().invoke(app, ["doctor", str(own), *loud]).stdout)["plays"]


def test_an_entropy_is_compared_with_that_of_the_action_space_without_playing(runs, tmp_path):
    """0.05 log 2 for the two actions of CartPole, although no logged entropy is near log 2."""
    folder, _ = runs
    copy = shutil.copytree(folder / "unwatched", tmp_path / "copy")
    results = [json.loads(line) for line in (copy / "result.jsonl").read_text().splitlines()]
    for result in results:
        result.update(episode_reward_mean=10.0, episode_reward_max=10.0, episode_reward_min=10.0, episodes_this_iter=20)
        result["info"]["learner"]["default_policy"]["entropy"] = 1e-20
    (copy / "result.jsonl").write_text("".join(f"{json.dumps(result)}\n" for result in results))
    (finding,) = (finding for finding in diagnose(copy, play=0) if finding.rule == "entropy-collapsed")
    assert finding.limit == pytest.approx(0.05 * np.log(2))


def test_the_trajectories_of_all_policies_are_counted(tmp_path, monkeypatch):
    """One policy may act for several agents of an episode, or for none."""
    (tmp_path / "config.json").write_text('{"run": "PPO", "env": "E-v0", "config": {}, "stop": {}}')
    (tmp_path / "result.jsonl").write_text('{"training_iteration": 1, "timesteps_total": 64}')
    monkeypatch.setattr("rollax.doctor.diagnose.PLAYED_RULES", ())
    played = {"first": SimpleNamespace(lengths=[3, 4, 3, 4]), "second": SimpleNamespace(lengths=[9])}
    monkeypatch.setattr("rollax.doctor.diagnose._played", lambda *arguments: played)
    assert diagnose(tmp_path).played.startswith("5 trajectories")
