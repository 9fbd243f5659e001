"""Runs that continue in their own folder."""

import json

import pytest

from rollax.cli.training import stop_of_resumed
from tests.cli.fake_algorithm import FakeTrainer


@pytest.fixture
def interrupted(rollax, cwd):
    """A run of 9 iterations that was killed after 5, with its last checkpoint after 4."""
    options = ["--stop-iterations=9", "--stop-reward=1000", "--checkpoint-frequency=2", "--seed=3"]
    rollax("train", "--run=FAKE", *options, '--config={"fail_at": 6}', "--out=run", code=2)
    return cwd / "run"


def iterations(lines):
    return [line["training_iteration"] for line in lines]


def test_a_run_goes_on_in_its_folder_with_its_stop_conditions(rollax, lines, interrupted):
    assert iterations(lines(interrupted)) == [1, 2, 3, 4, 5]
    rollax("resume", "run", "--set=fail_at=0")
    assert iterations(lines(interrupted)) == list(range(1, 10))
    stored = json.loads((interrupted / "config.json").read_text())
    assert stored["stop"] == {"episode_reward_mean": 1000, "training_iteration": 9}
    assert stored["config"]["seed"] == 3
    # The same command in its long form, on the run that has ended.
    rollax("train", "--resume=run", "--out=run", "--stop-iterations=11")
    assert iterations(lines(interrupted)) == list(range(1, 12))


@pytest.mark.parametrize(
    ("options", "last"),
    [
        (["--continue-for=300"], 7),  # 100 steps per iteration, after 400
        (["--continue-for=3e2", "--stop-iterations=6"], 6),
        (["--stop-timesteps=1000"], 10),  # the other conditions of the run no longer count
    ],
)
def test_other_stop_conditions(rollax, lines, interrupted, options, last):
    rollax("resume", "run", "--set=fail_at=0", *options)
    assert iterations(lines(interrupted)) == list(range(1, last + 1))


def test_a_copy_with_more_steps_is_another_run(rollax, lines, interrupted, cwd):
    rollax("train", "--resume=run", "--continue-for=100", "--set=fail_at=0", "--out=copy")
    assert iterations(lines(cwd / "copy")) == [1, 2, 3, 4, 5]
    assert iterations(lines(interrupted)) == [1, 2, 3, 4, 5]
    earlier = "--resume=run/checkpoints/checkpoint_000002"
    rollax("train", earlier, "--stop-iterations=3", "--set=fail_at=0", "--out=shorter")
    assert iterations(lines(cwd / "shorter")) == [1, 2, 3]


@pytest.mark.parametrize("condition", ["--stop-iterations=3", "--stop-reward=25"])
def test_a_run_that_has_ended_is_refused(rollax, lines, cwd, condition):
    rollax("train", "--run=FAKE", condition, "--out=run")
    done = rollax("resume", "run", code=2)
    assert "--continue-for" in done.output
    assert "aborted" not in done.output
    assert len(lines(cwd / "run")) == 3


@pytest.mark.short("arguments0-rollax resume", "arguments1-rollax resume")
@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["resume", "nowhere"], "rollax resume"),
        (["resume", "run/checkpoints/checkpoint_000002"], "rollax resume"),
        (["resume", "run", "--continue-for=0"], "--continue-for"),
        (["resume", "run", "--continue-for=1", "--stop-timesteps=9"], "--stop-timesteps"),
        (["train", "--run=FAKE", "--env=F", "--continue-for=1"], "--continue-for"),
        (["train", "--resume=run/checkpoints/checkpoint_000002", "--out=run"], "later checkpoint"),
    ],
)
def test_mistakes_leave_the_folder_as_it_is(rollax, interrupted, arguments, where):
    before = (interrupted / "result.jsonl").read_bytes()
    assert where in rollax(*arguments, code=2).output
    assert (interrupted / "result.jsonl").read_bytes() == before


def test_a_config_beside_other_checkpoints_is_not_that_of_a_run(tmp_path):
    """`Trainer.save("checkpoints")` in the folder of a project, which may have a config.json of its own."""
    (tmp_path / "config.json").write_text('{"compilerOptions": {}}')
    assert stop_of_resumed(FakeTrainer({}), tmp_path, {}, None) == {}


def test_a_run_without_checkpoints_goes_on_from_its_best_model(rollax, lines, cwd):
    rollax("train", "--run=FAKE", "--stop-iterations=14", '--config={"fail_at": 12}', "--out=run", code=2)
    assert [path.parent.name for path in (cwd / "run").glob("*/checkpoint_*")] == ["best"]
    rollax("resume", "run", "--set=fail_at=0")
    assert iterations(lines(cwd / "run")) == list(range(1, 15))


def test_the_best_model_stays_the_best_until_a_better_one(tmp_path):
    class Scored(FakeTrainer):
        def train(self):
            result = super().train()
            return {**result, "episode_reward_mean": self.settings["rewards"][self.iteration - 1]}

    def fit(iteration):
        return trainer.fit({"training_iteration": iteration}, tmp_path / "run", progress="none", evaluate=False)

    trainer = Scored({"rewards": [5.0, 3.0, 7.0]})
    best = [(fitted.best_checkpoint.name, fitted.best_score) for fitted in map(fit, (1, 2, 3))]
    assert best == [("checkpoint_000001", 5.0), ("checkpoint_000001", 5.0), ("checkpoint_000003", 7.0)]
    assert [path.name for path in (tmp_path / "run" / "best").iterdir()] == ["checkpoint_000003"]
