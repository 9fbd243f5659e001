"""`rollax serve --run` as a process: it learns, is killed, and continues from its newest checkpoint."""

import json
import os
import re
import signal
import threading

import pytest

from rollax import DQNTrainer
from rollax.runs.run_lock import RunLock
from rollax.serving.client import PolicyClient
from rollax.serving.learning_run import make_learning_trainer
from tests.cli.command_line import invoke
from tests.serving.serve_process import serving
from tests.waiting import until

CONFIG = {"env_config": {"spaces_of": "CartPole-v1"}, "model": {"fcnet_hiddens": [4]}, "min_time_s_per_iteration": 0}
OF_DQN = {**CONFIG, "learning_starts": 16, "timesteps_per_iteration": 16, "seed": 0}


TWO_WORKERS = {"num_workers": 2, "num_cpus_per_worker": 0.1, "rollout_fragment_length": 16, "train_batch_size": 64}
SGD = {"sgd_minibatch_size": 32, "num_sgd_iter": 1}


def learning(out, run="DQN", config=OF_DQN):
    """A process of `rollax serve --run`, the address of its first worker, and the line that it has printed."""
    return serving(f"--run={run}", f"--config={json.dumps(config)}", f"--out={out}", "--checkpoint-frequency-s=0")


def play(address, steps):
    with PolicyClient(address) as client:
        episode = client.episode()
        for _ in range(steps):
            episode.get_action([0.0] * 4)
            episode.log_returns(1.0)
        episode.end([0.0] * 4)
        return client.version


def checkpoints(out):
    return sorted(path.name for path in (out / "checkpoints").glob("checkpoint_??????"))


@pytest.mark.long
def test_it_continues_after_a_kill(tmp_path):
    out = tmp_path / "run"
    with learning(out) as (process, address, _):
        play(address, 40)
        until(lambda: len(checkpoints(out)) > 1)  # the first one is that of iteration 0
        process.kill()
        process.wait()
    with learning(out) as (process, address, line):
        assert re.search(r"from iteration \d+", line)
        play(address, 40)
        before = checkpoints(out)
        until(lambda: checkpoints(out) != before or play(address, 20))
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 128 + signal.SIGTERM
    results = [json.loads(line) for line in (out / "result.jsonl").read_text().splitlines()]
    iterations = [result["training_iteration"] for result in results]
    assert iterations == sorted(set(iterations))
    assert iterations[0] == 1


@pytest.mark.long
def test_a_signal_ends_a_server_without_clients(tmp_path):
    for begun in (r"run\)", r"run, from iteration \d\)"):
        with learning(tmp_path / "run") as (process, _, line):
            assert re.search(begun, line)
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 128 + signal.SIGINT


@pytest.mark.long
def test_settings_replace_keys_of_a_preset(tmp_path):
    options = ("--set=env_config.spaces_of=CartPole-v1", "--set=model.fcnet_activation=relu", "--set=lambda=0.9")
    with serving("--run=PPO", "--preset=rllib", *options, f"--out={tmp_path / 'run'}"):
        config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["lr"] == 5e-5
    assert config["lambda"] == 0.9
    assert config["model"]["fcnet_hiddens"] == [256, 256]
    assert config["model"]["fcnet_activation"] == "relu"


def test_limits_of_options_and_of_settings_both_apply(tmp_path):
    given = {**OF_DQN, "env_config": {**CONFIG["env_config"], "port": 0, "limits": {"max_agents": 5}}}
    with make_learning_trainer(DQNTrainer, given, {"limits": {"max_episodes": 3}}, tmp_path) as trainer:
        (served,) = trainer.worker.env.get_sub_environments()
        limits = served.server.service.limits
    assert (limits.max_episodes, limits.max_agents) == (3, 5)


@pytest.mark.long
@pytest.mark.parametrize("run", ["PPO", "IMPALA", "APEX"])  # the algorithms wait in different loops
def test_a_worker_without_clients_delays_neither_learning_nor_the_end(run, tmp_path):
    out = tmp_path / "run"
    own = {"PPO": SGD, "IMPALA": {}, "APEX": {"learning_starts": 16, "train_batch_size": 16}}[run]
    config = {**CONFIG, **TWO_WORKERS, "timesteps_per_iteration": 64, **own}
    with learning(out, run, config) as (process, address, line):
        assert line.count("http://") == 2
        stop = threading.Event()
        player = threading.Thread(target=play_until, args=(address, stop))
        player.start()
        try:
            until(lambda: len(checkpoints(out)) >= 3, within_s=240.0)
        finally:
            stop.set()
            player.join()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM, said
    results = [json.loads(line) for line in (out / "result.jsonl").read_text().splitlines()]
    assert results[1]["timesteps_total"] > 0
    assert checkpoints(out)[-1] == f"checkpoint_{results[-1]['training_iteration']:06d}"


def play_until(address, stop):
    while not stop.is_set():
        play(address, 20)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "There is nothing to serve"),
        (["--run=DQM"], "did you mean"),
        (["--run=DQN"], "has no spaces"),
        (["--run=DQN", "--preset=nothing"], "rllib"),
        (["runs/one", "--preset=rllib"], "The option is for a run that learns"),
        (["runs/one", "--set=lr=1"], "The option is for a run that learns"),
        (["runs/one", "--checkpoint-frequency-s=5"], "The option is for a run that learns"),
        (["--run=DQN", "--explore"], "The option is for a served checkpoint"),
        (["--run=DQN", "--single-agent"], "The option is for a served checkpoint"),
        (["--run=DQN", "--policy-mapping={}"], "The option is for a served checkpoint"),
        (["--run=DQN", "--trust-code"], "The option is for a served checkpoint"),
    ],
)
def test_errors(arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in invoke("serve", "--port=0", *arguments, code=2).stderr


def test_the_folder_of_another_run_is_refused_before_the_server_starts(tmp_path):
    """Of one that a server holds, and of one that has results."""
    arguments = ["--run=DQN", "--port=0", "--set=env_config.spaces_of=CartPole-v1", f"--out={tmp_path}"]
    with RunLock(tmp_path, "here"):
        assert f"process {os.getpid()}" in invoke("serve", *arguments, code=2).stderr
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "result.jsonl").write_text("{}\n")
    assert "where:    --out" in invoke("serve", *arguments, code=2).stderr
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("result.jsonl", "{}\n")]
