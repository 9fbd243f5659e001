"""`rollax train` with the fake algorithm: its options, its output, and the run folder."""

import json
from pathlib import Path

import pytest

from rollax.cli.console import show_error
from rollax.core.storage import read_manifest
from rollax.errors import ConfigError
from rollax.runs import run_folder
from rollax.runs.results import draw_curves


def test_writes_a_run_folder(rollax, lines, cwd, monkeypatch):
    monkeypatch.setattr(run_folder, "draw_curves", draw_curves)
    rollax("train", "--run=FAKE", "--env=My/Env-v0", "--stop-iterations=3")
    (run,) = (cwd / "runs").iterdir()
    assert run.name.startswith("FAKE-My-Env-v0-20")
    assert run.name.endswith("-1")
    assert [line["training_iteration"] for line in lines(run)] == [1, 2, 3]
    assert (run / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert list(run.glob("events.out.tfevents.*"))
    assert read_manifest(run / "checkpoints" / "checkpoint_000003")["kind"] == "checkpoint"
    config = json.loads((run / "config.json").read_text())
    assert config["run"] == "FAKE"
    assert config["env"] == "My/Env-v0"
    assert config["stop"] == {"training_iteration": 3}


def test_prints_where_the_files_are(rollax, cwd):
    done = rollax("train", "--run=FAKE", "--stop-timesteps=200", "--out=here")
    assert "timesteps_total 200 reached 200 (200 steps, 0:04)" in done.output
    assert "mean reward 41.00 over 3 (lowest 40.00, highest 42.00)" in done.output
    assert "Learning curve:   here/curve.png\n" in done.output
    assert "Results:          here/result.jsonl\n" in done.output
    assert "Checkpoint:       here/checkpoints/checkpoint_000002\n" in done.output
    assert "evaluate here/checkpoints/checkpoint_000002 --episodes 5 --video videos/" in done.output


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(
    ("finder", "command", "needs"),
    [
        ("shutil.which", "tensorboard --logdir here", "pip install tensorboard"),
        ("find_spec", "--video videos/", "rollax[video]"),
    ],
    ids=["tensorboard", "videos"],
)
def test_commands_are_proposed_with_what_they_need(finder, command, needs, installed, rollax, monkeypatch):
    monkeypatch.setattr(f"rollax.cli.training.{finder}", lambda name: name if installed else None)
    output = rollax("train", "--run=FAKE", "--stop-iterations=1", "--out=here").output
    assert command in output
    assert (needs in output) is not installed


def test_no_videos_are_proposed_of_environments_that_draw_no_pictures(rollax):
    done = rollax("train", "--run=FAKE", "--env=jax:CartPole-v1", "--stop-iterations=1", "--out=run")
    assert "evaluate run" not in done.output


def test_two_runs_have_two_folders(rollax, cwd):
    for _ in range(2):
        rollax("train", "--run=FAKE", "--stop-iterations=1")
    assert sorted(run.name[-2:] for run in (cwd / "runs").iterdir()) == ["-1", "-2"]


def test_refuses_a_folder_in_use(rollax, cwd):
    rollax("train", "--run=FAKE", "--stop-iterations=1", "--out=here")
    again = rollax("train", "--run=FAKE", "--stop-iterations=1", "--out=here", code=2)
    assert "The folder contains another run.\n  where:    --out" in again.output
    assert "rollax resume here continues that run" in again.output


@pytest.mark.short(every=3)
@pytest.mark.parametrize(
    ("options", "iterations"),
    [
        (["--stop-iterations=4"], 4),
        (["--stop-timesteps=250"], 3),
        (["--stop-time=5"], 3),
        (["--stop-reward=35"], 4),
        (["--stop-reward=35", "--stop-iterations=2"], 2),
        # Evaluated in iterations 10 and 20: 201 misses the goal, 401 reaches it.
        (["--stop-evaluation-reward=202"], 20),
        (["--stop-evaluation-reward=61", '--config={"evaluation_interval": 2}'], 4),
        (["--stop-plateau=3", '--config={"best_at": 5}'], 8),
    ],
)
def test_stop_conditions(rollax, lines, options, iterations):
    rollax("train", "--run=FAKE", "--out=here", "--no-evaluate", *options)
    assert len(lines(Path("here"))) == iterations


def test_a_missed_goal_is_printed_and_fails_only_with_must_reach(rollax):
    options = ["train", "--run=FAKE", "--stop-reward=1000", "--stop-iterations=2"]
    assert "the reward goal was not reached" in rollax(*options).output
    rollax(*options, "--must-reach", code=3)
    rollax("train", "--run=FAKE", "--stop-reward=20", "--stop-iterations=9", "--must-reach")


def test_the_command_line_overrides_the_file(rollax, cwd):
    (cwd / "fake.yaml").write_text(
        "run: FAKE\nenv: A-v0\nconfig: {lr: 3e-4, model: {width: 1, depth: 2}}\n"
        "stop: {training_iteration: 9, time_total_s: 100}\n"
    )
    options = ("--env=B-v0", "--stop-iterations=1", "--seed=7", '--config={"model": {"width": 5}}')
    rollax("train", "-f", "fake.yaml", *options, "--out=here")
    config = json.loads((cwd / "here" / "config.json").read_text())
    assert config["env"] == "B-v0"
    assert config["stop"] == {"training_iteration": 1, "time_total_s": 100}
    assert config["config"]["lr"] == 3e-4
    assert config["config"]["seed"] == 7
    assert config["config"]["model"] == {"width": 5, "depth": 2}


def test_single_settings(rollax, cwd):
    settings = ["--set=lr=1e-4", "--set=model.depths=[64, 64]", "--set", "model.name=yes", "--set=env_config.g="]
    config = '--config={"model": {"width": 5}, "lr": 3, "seed": 1}'
    rollax("train", "--run=FAKE", config, *settings, "--stop-iterations=1", "--out=here")
    written = json.loads((cwd / "here" / "config.json").read_text())["config"]
    assert written["lr"] == 1e-4
    assert written["model"] == {"width": 5, "depths": [64, 64], "name": True}
    assert written["env_config"] == {"g": None}
    assert written["seed"] == 1


@pytest.mark.long
def test_the_last_checkpoints_and_the_best_one_are_kept(rollax, cwd):
    options = ["--stop-iterations=5", "--checkpoint-frequency=1", "--keep-checkpoints=2"]
    done = rollax("train", "--run=FAKE", *options, "--out=here")
    names = [path.name for path in sorted((cwd / "here").glob("*/checkpoint_*"))]
    assert names == ["checkpoint_000005", "checkpoint_000004", "checkpoint_000005"]
    assert "Best model:       here/best/checkpoint_000005" in done.output
    assert "reward 100.00" in rollax("evaluate", "here/best", "--episodes=1").output
    rollax("train", "--run=FAKE", *options, "--no-keep-best", "--out=without")
    assert not (cwd / "without" / "best").exists()


def test_a_run_can_be_repeated_from_its_config(rollax, lines, cwd):
    rollax("train", "--run=FAKE", "--stop-iterations=2", "--seed=3", "--out=one")
    rollax("train", "-f", "one/config.json", "--out=two")
    assert (cwd / "one" / "config.json").read_text() == (cwd / "two" / "config.json").read_text()
    assert lines(cwd / "one") == lines(cwd / "two")


def test_a_run_with_a_large_env_config_is_resumed(rollax, lines, cwd):
    config = {"env_config": {"prices": [0] * 200_000}, "fail_at": 2}
    options = "--stop-iterations=3", "--checkpoint-frequency=1", "--out=one"
    rollax("train", "--run=FAKE", f"--config={json.dumps(config)}", *options, code=2)
    rollax("resume", "one", "--set=fail_at=null")
    assert len(lines(cwd / "one")) == 3


def test_resume_refuses_another_algorithm(rollax):
    rollax("train", "--run=FAKE", "--stop-iterations=1", "--out=one")
    done = rollax("train", "--resume=one", "--run=PPO", "--stop-iterations=2", code=2)
    assert "The checkpoint belongs to a different algorithm" in done.output


def test_plain_output_is_a_line_per_iteration(rollax):
    out = rollax("train", "--run=FAKE", "--stop-iterations=2", "--out=here").output.splitlines()
    assert out[:2] == [
        "iteration 1  steps 100  steps/s 50  reward -  length -  evaluation -  elapsed 0:02  left 0:02",
        "iteration 2  steps 200  steps/s 50  reward 20.00  length 20.0  evaluation -  elapsed 0:04  left 0:00",
    ]


def test_quiet_prints_only_the_summary(rollax):
    out = rollax("train", "--run=FAKE", "--stop-iterations=2", "--quiet").output.splitlines()
    assert out[0].startswith("Ended: ")
    assert not [line for line in out if line.startswith("iteration")]


def test_a_callback_ends_the_run(rollax, lines, cwd):
    options = ("train", "--run=FAKE", "--stop-iterations=5", '--config={"done_at": 2}', "--quiet", "--out=here")
    out = rollax(*options).output.splitlines()
    assert out[0] == "Ended:            a callback ended the run (200 steps, 0:04)"
    assert [row.get("done") for row in lines(cwd / "here")] == [None, True]


def test_an_error_is_short_and_keeps_the_files(rollax, lines, cwd):
    options = ("train", "--run=FAKE", "--checkpoint-frequency=1", '--config={"fail_at": 3}')
    done = rollax(*options, "--out=here", code=2)
    assert done.output.endswith("error: A sub-environment raised.\n  where:    sub-environment 3\n")
    assert "Checkpoint:       here/checkpoints/checkpoint_000002" in done.output
    assert len(lines(cwd / "here")) == 2
    assert (cwd / "here" / "curve.png").exists()


def test_the_traceback_of_user_code_is_shown_and_the_librarys_only_on_request(rollax):
    options = ("train", "--run=FAKE", '--config={"fail_at": 1}')
    out = rollax(*options, code=2).output
    assert "fake_algorithm.py" in out
    assert "ValueError: the wheel fell off\nerror: A sub-environment raised." in out
    assert "fit.py" not in out
    assert "fit.py" in rollax(*options, "--traceback", code=2).output


def test_notes_of_an_error_are_shown(capsys):
    error = ConfigError("No module.", where="model.custom_model")
    error.add_note("Raised while policy 'one' was made.")
    show_error(error, show_traceback=False)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["error: No module.", "  where:    model.custom_model", "Raised while policy 'one' was made."]


def test_a_bug_keeps_its_traceback(rollax):
    done = rollax("train", "--run=FAKE", '--config={"bug_at": 1}', "--out=here", code=1)
    assert isinstance(done.exception, ZeroDivisionError)


def test_a_failed_save_fails(rollax, monkeypatch):
    def full(self, directory):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tests.cli.fake_algorithm.FakeTrainer.save", full)
    done = rollax("train", "--run=FAKE", "--stop-iterations=1", "--out=here", code=2)
    assert "The checkpoint was not saved." in done.output
    assert "No space left on device" in done.output
    assert "Checkpoint:       none was saved" in done.output


@pytest.mark.short(every=3)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--run=FAKR"], "did you mean 'FAKE'?"),
        ([], "No algorithm is given."),
        (["--run=rollax:SampleBatch", "--env=E"], "This is not a trainer class."),
        (["--run=rollax:Trainer", "--env=E"], "This is not a trainer class."),
        (["--run=no_such_module:Mine", "--env=E"], "where:    --run"),
        (["--run=PPO"], "No environment is given.\n  where:    --env"),
        (["--run=FAKE", "--checkpoint-freq=1"], "did you mean --checkpoint-frequency"),
        (["--run=PPO", "--env=E", "--set=checkpoint_freq=1"], "rollax train --checkpoint-frequency"),
        (["--run=FAKE", "--seed=-1"], "Invalid value for '--seed'"),
        (["--run=FAKE", "--seed=1", "--seed=2"], "where:    --seed"),
        (["--run=FAKE", "-f", "a.yaml", "--file=b.yaml"], "where:    --file"),
        (["--run=FAKE", "--seed=1", "--set=seed=2"], "seed is given twice."),
        (["--run=FAKE", "--env=E", "--set=env=F"], "env is given twice."),
        (["--run=FAKE", "--set=lr=1", "--set=lr=2"], "lr is given twice."),
        (["--run=FAKE", "--set=model.a=1", "--set=model.a.b=2"], "model.a.b is given twice."),
        (["--run=FAKE", "--set=lr"], "KEY=VALUE"),
        (["--run=FAKE", "--set=lr=["], "The value of the setting is not valid YAML."),
        (["--run=FAKE", "--config={'a': 1}"], "The option is not valid JSON"),
        (["--run=FAKE", "--config=[1]"], "The option is not a JSON object"),
        (["--run=FAKE", "--stop-timesteps=0"], "before training begins.\n  where:    --stop-timesteps"),
        (["--run=FAKE", "--stop-reward=nan"], "A stop condition is not a number."),
        (["-f", "missing.yaml"], "The experiment file cannot be read."),
        (["--run=FAKE", "--import=no_such_module"], "The module cannot be imported."),
        (["--run=PPO", "--env=CartPole-v9"], "CartPole-v1"),
        (["--run=PPO", "--env=no_such_module:Env"], "cannot be imported"),
        (["--run=PPO", "--env=CartPole-v1", "--set=train_batch_sise=4"], "train_batch_size"),
        (["--run=PPO", "--env=CartPole-v1", "--set=lr=fast"], "config key 'lr'"),
        (["--resume=nowhere"], "The checkpoint does not exist."),
    ],
)
def test_wrong_arguments(rollax, cwd, options, message):
    assert message in rollax("train", *options, code=2).output
    assert not (cwd / "runs").exists()


@pytest.mark.short(every=3)
@pytest.mark.parametrize(
    ("given", "fix"),
    [
        (("--lr", "0.001"), "--set lr=VALUE;"),
        (("--num-workers=2",), "--set num_workers=VALUE;"),
        (("--set", "lr=1e-3", "env_config.name=a-b"), "--set env_config.name=a-b;"),
        (("--total-timesteps", "100"), "did you mean --stop-timesteps?"),
        (("--checkpoint-freq=3",), "did you mean --checkpoint-frequency?"),
        (("--algo=PPO",), "did you mean --run?"),
        (("--total-timestep", "100"), "did you mean --stop-timesteps?"),
        (("--no-evalute",), "did you mean --no-evaluate?"),
    ],
)
def test_an_unknown_option(rollax, given, fix):
    done = rollax("train", "--run=FAKE", *given, code=2)
    assert "There is no such option.\n  where:    rollax train\n" in done.output
    assert fix in done.output


def test_values_without_names_of_options(rollax):
    done = rollax("train", "PPO", "CartPole-v1", code=2)
    assert "got:      PPO CartPole-v1" in done.output
    assert "--run=PPO --env=CartPole-v1" in done.output


@pytest.mark.parametrize("given", ["--run", "--stop-iterations", "--set", "--traceback=3"])
def test_a_known_option_without_its_value(rollax, given):
    done = rollax("train", "--env=CartPole-v1", given, code=2)
    assert f"Option '{given.partition('=')[0]}'" in done.output
    assert "no such option" not in done.output.lower()


@pytest.mark.parametrize("given", ["-l", "extra"])
def test_an_unknown_argument(rollax, given):
    done = rollax("train", "--run=FAKE", given, code=2)
    assert given in done.output
    assert "--set" not in done.output


@pytest.mark.parametrize(("given", "iterations"), [("2", 2), ("2e0", 2), ("2.0", 2), ("0_2", 2)])
def test_a_whole_number_in_any_notation(rollax, cwd, given, iterations):
    rollax("train", "--run=FAKE", f"--stop-iterations={given}", "--out=run")
    assert len((cwd / "run" / "result.jsonl").read_text().splitlines()) == iterations


@pytest.mark.parametrize("given", ["1.5", "many", "nan", "inf", ""])
def test_no_whole_number(rollax, given):
    done = rollax("train", "--run=FAKE", f"--stop-timesteps={given}", code=2)
    assert "is not a whole number, such as 100000 or 1e5" in done.output
