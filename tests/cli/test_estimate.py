"""`rollax estimate`: a checkpoint and a data set."""

import json
import logging

import numpy as np
import pytest

from rollax import DatasetWriter, PGTrainer, RecordedTrajectory, load_policy, open_dataset
from rollax.cli.estimate import progress_on_stderr
from tests.cli.command_line import invoke


def write(folder, runner, episodes) -> str:
    """Writes episodes of five steps with rewards of 1, given by (observations, actions, log-probabilities)."""
    spaces = {"default_policy": runner.policy.observation_space}, {"default_policy": runner.policy.action_space}
    with DatasetWriter(folder, *spaces, actions_of="policy") as writer:
        for number, (obs, actions, logp) in enumerate(episodes):
            columns = {"obs": obs, "actions": actions, "rewards": np.ones(5, np.float32), "action_logp": logp}
            writer.write(RecordedTrajectory(columns, True, False, f"e{number}", "agent0", "default_policy"))
    return str(folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[str, str]:
    """The paths of a checkpoint and of a data set recorded by the same policy."""
    folder = tmp_path_factory.mktemp("estimate")
    config = {"model": {"fcnet_hiddens": [4]}, "seed": 0, "gamma": 0.9}
    with PGTrainer(env="CartPole-v1", config=config) as trainer:
        path = trainer.save(folder)
    runner, rng, episodes = load_policy(path), np.random.default_rng(0), []
    for _ in range(12):
        obs = rng.normal(size=(6, 4)).astype(np.float32)
        actions, _, fetches = runner.compute_actions(obs[:5], explore=True)
        episodes.append((obs, actions, fetches["action_logp"]))
    return str(path), write(folder / "data", runner, episodes)


def test_the_same_policy_has_the_value_of_the_data(made) -> None:
    done = invoke("estimate", made[0], "--input", made[1], "--methods", "is,wis,wpdis", "--json")
    found = json.loads(done.stdout)
    value = sum(0.9**step for step in range(5))
    assert found["v_behavior"] == pytest.approx(value)
    assert (found["episodes"], found["steps"], found["gamma"]) == (12, 60, 0.9)
    assert found["effective_sample_size"] == pytest.approx(12, rel=1e-3)
    for method in ("is", "wis", "wpdis"):
        assert found["methods"][method]["v_target"] == pytest.approx(value, rel=1e-3)


def test_json_has_null_without_an_estimate(made, tmp_path) -> None:
    runner, obs = load_policy(made[0]), np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    others = 1 - runner.compute_actions(obs[:5], explore=False)[0]
    write(tmp_path, runner, [(obs, others, np.full(5, np.log(0.5), np.float32))] * 2)
    done = invoke("estimate", made[0], "--input", str(tmp_path), "--methods", "is,wis", "--greedy", "--json")
    methods = json.loads(done.stdout, parse_constant=pytest.fail)["methods"]
    assert (methods["is"]["v_target"], methods["wis"]["v_target"]) == (0, None)


def test_progress_is_shown_on_stderr_and_warnings_are_not(capsys) -> None:
    log = logging.getLogger("rollax.offline.estimators")
    with progress_on_stderr():
        log.info("1 of 2")
        log.warning("few episodes")
    log.info("2 of 2")
    assert capsys.readouterr() == ("", "1 of 2\n")


def test_a_table(made) -> None:
    done = invoke("estimate", made[0], "--input", made[1], "--methods", "wis")
    lines = done.stdout.splitlines()
    assert lines[0] == "12 episodes, 60 steps, γ = 0.9"
    assert lines[1].endswith("95% interval")
    assert lines[3].split()[:2] == ["wis", "4.095"]
    assert lines[4].startswith("effective sample size 12.0 of 12")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--methods", "wiss"], "did you mean 'wis'?"),
        (["--behaviour", "guessed"], "logged, fitted"),
        (["--data-policy-id", "other"], "Unknown policy of the data set"),
    ],
)
def test_refused_options(made, options: list[str], expected: str) -> None:
    assert expected in invoke("estimate", made[0], "--input", made[1], *options, code=2).stderr


@pytest.mark.long
def test_data_of_a_run_ends_in_cut_trajectories(made, tmp_path, caplog) -> None:
    config = {"output": str(tmp_path), "num_envs_per_worker": 2, "train_batch_size": 1000, "seed": 0}
    with PGTrainer("CartPole-v1", config) as trainer:
        trainer.train()
    cut = sum(one.cut for one in open_dataset(tmp_path).trajectories())
    assert 1 <= cut <= 2
    done = invoke("estimate", made[0], "--input", str(tmp_path), "--methods", "wis")
    assert f"warning: {cut} of " in done.stdout
    assert caplog.text == ""  # as a terminal shows both
