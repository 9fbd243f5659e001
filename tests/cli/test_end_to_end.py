"""The command line with a real algorithm: train, evaluate, resume, record."""

import json
import shutil
from pathlib import Path

import gymnasium as gym
import pytest

from rollax import load_policy
from rollax.algorithms.registry import get_trainer_class
from rollax.runs.experiment import read_experiment
from tests.cli.command_line import invoke
from tests.pages import REPOSITORY
from tests.python_process import output_of

SMALL = '--config={"train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 2, "num_envs_per_worker": 4}'


@pytest.fixture
def rollax(cwd, without_drawing):
    return invoke


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    options = ["--run=PPO", "--env=CartPole-v1", SMALL, "--stop-iterations=2", "--seed=1", "--no-evaluate"]
    invoke("train", *options, f"--out={folder}")
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    return folder


@pytest.fixture
def trained(trained_once, cwd):
    """The folder of a run, as `run` in the current folder."""
    return Path(shutil.copytree(trained_once, cwd / "run"))


def without_times(line):
    kept = {key: value for key, value in line.items() if "time" not in key or "timesteps" in key}
    return {**kept, "env_steps_per_s": 0}


def test_train_then_act_on_raw_observations(trained, lines):
    policy = load_policy(trained / "checkpoints" / "checkpoint_000002")
    assert policy.compute_single_action(gym.make("CartPole-v1").reset(seed=0)[0]) in (0, 1)
    last = lines(trained)[-1]
    assert last["timesteps_total"] == 128
    assert last["info"]["learner"]["default_policy"]["kl"] is not None


def test_resume_continues_counting(rollax, trained, lines, cwd):
    rollax("train", "--resume=run", "--stop-iterations=3", "--out=on", "--no-evaluate")
    assert [line["timesteps_total"] for line in lines(cwd / "on")] == [64, 128, 192]
    assert lines(cwd / "on")[:2] == lines(trained)
    rollax("resume", "on", "--continue-for=64", "--no-evaluate")
    assert [line["timesteps_total"] for line in lines(cwd / "on")] == [64, 128, 192, 256]


@pytest.mark.long
def test_a_nested_option_of_a_resumed_run_keeps_the_other_keys(rollax, trained, cwd):
    more = ["--stop-iterations=3", "--out=deep", "--no-evaluate", "--set", "env_config.gravity=9"]
    (cwd / "env_of_test.py").write_text(
        "import gymnasium as gym\n"
        "def make(config):\n"
        "    assert config['kind'] == 'hard', config\n"
        "    return gym.make('CartPole-v1')\n"
    )
    model = ["--set=model.fcnet_hiddens=[4]", "--set=model.fcnet_activation=relu"]
    first = ["--run=PG", "--env=env_of_test:make", "--set=env_config.kind=hard", *model]
    rollax("train", *first, "--stop-iterations=1", "--out=first")
    rollax("train", "--resume=first", "--trust-code", *more, "--set", "model.fcnet_hiddens=[4]")
    config = json.loads((cwd / "deep" / "config.json").read_text())["config"]
    assert config["env_config"] == {"kind": "hard", "gravity": 9}
    assert config["model"]["fcnet_activation"] == "relu"


@pytest.mark.long
def test_code_of_users(rollax, cwd, monkeypatch, lines):
    (cwd / "corridor_env.py").write_text(
        "import gymnasium as gym\n"
        "from rollax import PPOTrainer\n"
        "class Mine(PPOTrainer):\n"
        "    name = 'Mine'\n"
        "class Noted:\n"
        "    def on_train_result(self, *, trainer, result):\n"
        "        result['noted'] = trainer.name\n"
        "def corridor(config):\n"
        "    return gym.wrappers.TimeLimit(gym.make('CartPole-v1'), config['length'])  # the pole falls later\n"
    )
    monkeypatch.syspath_prepend(cwd)
    config = json.loads(SMALL.partition("=")[2]) | {"env_config": {"length": 7}}
    options = ["--run=corridor_env:Mine", "--env=corridor_env:corridor", f"--config={json.dumps(config)}"]
    options += ["--set=callbacks=corridor_env:Noted"]
    done = rollax("train", *options, "--stop-iterations=1", "--out=run")
    assert lines(cwd / "run")[0]["episode_len_mean"] == 7
    assert lines(cwd / "run")[0]["noted"] == "Mine"
    assert "mean reward 7.00 over 10" in done.output
    assert json.loads((cwd / "run" / "config.json").read_text())["run"] == "corridor_env:Mine"
    own = "--run=corridor_env:Mine"
    # The printed command works: the checkpoint names code.
    assert done.output.splitlines()[-1].endswith("--video videos/ --trust-code --run=corridor_env:Mine")
    assert "mean reward 7.00 over 3" in rollax("evaluate", "run", "--episodes=3", "--trust-code", own).output
    refused = rollax("evaluate", "run", "--episodes=3", own, code=2)
    assert "(--trust-code)" in refused.output
    assert "(--env)" in refused.output
    # A trainer class is code too, if the run was resumed without naming it.
    done = rollax("train", own, "--env=CartPole-v1", SMALL, "--stop-iterations=1", "--out=class", "--no-evaluate")
    resume = ["--resume=class", "--trust-code", "--stop-iterations=2", "--out=on", "--no-evaluate"]
    assert rollax("train", *resume).output.splitlines()[-1].endswith("--video videos/ --trust-code")


def test_the_example_is_a_valid_experiment():
    experiment = read_experiment(REPOSITORY / "examples" / "cartpole-ppo.yaml")
    assert experiment.run is not None
    get_trainer_class(experiment.run).config_class(env=experiment.env, **experiment.config)
    assert "evaluation_reward_mean" in experiment.stop


@pytest.mark.long
def test_the_example_reaches_its_goal_with_optimizations(tmp_path, monkeypatch):
    """With all optimizations of XLA, which are off in other tests."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    experiment = REPOSITORY / "examples" / "cartpole-ppo.yaml"
    output_of("-m", "rollax", "train", "-f", experiment, "--seed=1", "--must-reach", "--out=run", cwd=tmp_path)


@pytest.mark.learning
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_example_reaches_its_goal(rollax, seed):
    rollax("train", "-f", REPOSITORY / "examples" / "cartpole-ppo.yaml", f"--seed={seed}", "--must-reach")
