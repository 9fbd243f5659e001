"""`Trainer.fit`: the files of a run, and its result."""

import json
import math
import os
import signal
import threading

import gymnasium as gym
import pytest

from rollax import Callbacks, CheckpointError, ConfigError, EnvError, PPOTrainer, TrainResult, load_policy
from rollax.core.storage import newest
from tests.cli.fake_algorithm import FakeTrainer
from tests.env.refused import raised, refused

TINY = {"train_batch_size": 64, "sgd_minibatch_size": 64, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [4]}, "seed": 0}


def rows(run):
    return [json.loads(line) for line in (run / "result.jsonl").read_text().splitlines()]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class Scripted(FakeTrainer):
    """Returns the numbers of the config key `rewards`, one per iteration; evaluations return those of `greedy`."""

    def train(self):
        result = super().train()
        result["episode_reward_mean"] = self.settings["rewards"][self.iteration - 1]
        return result

    def evaluate(self, num_episodes=None, record_dir=None):
        reward = self.settings.get("greedy", self.settings["rewards"])[self.iteration - 1]
        return {**super().evaluate(1), "episode_reward_mean": reward}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """One small run of PPO, shared by the tests below."""
    run = tmp_path_factory.mktemp("runs") / "ppo"
    trainer = PPOTrainer("CartPole-v1", TINY)
    try:
        kept = {"checkpoint_frequency": 1, "keep_checkpoints": 2}
        result = trainer.fit({"training_iteration": 3}, run, **kept, progress="none")
        yield trainer, result, run
    finally:
        trainer.stop()


def test_a_run_writes_the_files_of_the_command_line(fitted):
    _, _, run = fitted
    assert names(run)[:5] == ["best", "best.json", "checkpoints", "config.json", "curve.png"]
    assert names(run)[-1] == "result.jsonl"
    assert len(list(run.glob("events.out.tfevents.*"))) == 1
    assert names(run / "checkpoints") == ["checkpoint_000002", "checkpoint_000003"]
    assert [row["timesteps_total"] for row in rows(run)] == [64, 128, 192]
    config = json.loads((run / "config.json").read_text())
    assert (config["run"], config["env"], config["stop"]) == ("PPO", "CartPole-v1", {"training_iteration": 3})
    assert config["config"]["train_batch_size"] == 64


def test_the_result_describes_the_end_of_the_run(fitted):
    _, result, run = fitted
    assert (result.reached, result.missed_goal, result.signal, result.out) == ("training_iteration", False, None, run)
    assert set(result.last) == set(TrainResult.__annotations__)
    assert result.last["training_iteration"] == 3
    # Only the last row has the greedy evaluation at the end.
    assert [row["evaluation"] is None for row in rows(run)] == [True, True, False]
    assert result.last["evaluation"] is not None
    assert rows(run)[-1]["evaluation"]["episode_rewards"] == result.last["evaluation"]["episode_rewards"]
    assert result.checkpoint == run / "checkpoints" / "checkpoint_000003"
    rewards = [row["episode_reward_mean"] or 0 for row in rows(run)]
    assert result.best_score == max(rewards)
    assert result.best_checkpoint == run / "best" / f"checkpoint_{rewards.index(max(rewards)) + 1:06d}"
    assert load_policy(result.best_checkpoint).compute_single_action([0.0] * 4) in (0, 1)


@pytest.mark.long
def test_a_second_fit_does_not_copy_later_results_of_the_first_run(fitted, tmp_path):
    _, result, run = fitted
    first = sorted(result.checkpoint.parent.iterdir())[0]
    with PPOTrainer.from_checkpoint(first) as trainer:
        start = trainer.iteration
        trainer.train()
        trainer.fit({"training_iteration": start + 2}, tmp_path / "on", progress="none", evaluate=False)
    assert rows(tmp_path / "on")[:start] == rows(run)[:start]
    assert [row["training_iteration"] for row in rows(tmp_path / "on")] == [*range(1, start + 1), start + 2]


@pytest.mark.long
def test_a_second_fit_begins_with_the_results_of_the_first(fitted, tmp_path):
    trainer = FakeTrainer({})
    trainer.fit({"training_iteration": 2}, tmp_path / "one", progress="none")
    trainer.fit({"training_iteration": 3}, tmp_path / "two", progress="none")
    assert [row["training_iteration"] for row in rows(tmp_path / "two")] == [1, 2, 3]
    _, result, run = fitted
    with PPOTrainer.from_checkpoint(result.checkpoint) as trainer:
        trainer.fit({"training_iteration": 4}, tmp_path / "three", progress="none", evaluate=False)
        trainer.fit({"training_iteration": 5}, tmp_path / "four", progress="none", evaluate=False)
    assert rows(tmp_path / "three")[:3] == rows(run)
    assert [row["training_iteration"] for row in rows(tmp_path / "four")] == [1, 2, 3, 4, 5]
    assert rows(tmp_path / "four")[:4] == rows(tmp_path / "three")


def test_the_limit_of_steps_holds_within_iterations():
    class Watched(FakeTrainer):
        limits = []

        def train(self):
            self.limits.append(self.stops_at)
            return super().train()

    trainer = Watched({})
    trainer.fit({"timesteps_total": 200}, progress="none")
    trainer.fit({"training_iteration": 3}, progress="none")
    assert (Watched.limits, trainer.stops_at) == ([200, 200, math.inf], math.inf)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"stop": {"timestep_total": 5}}, r"fit\(stop=...\)(.|\n)*did you mean 'timesteps_total'\?"),
        ({"stop": {"timesteps_total": "many"}}, "not a number"),
        ({"checkpoint_frequency": -1}, r"fit\(checkpoint_frequency=...\)"),
        ({"keep_checkpoints": 0}, r"fit\(keep_checkpoints=...\)(.|\n)*at least 1"),
        ({"progress": "bar"}, r"fit\(progress=...\)(.|\n)*auto, lines, none"),
        ({"out": None, "checkpoint_frequency": 1}, r"fit\(out=...\)(.|\n)*checkpoint_frequency=1"),
        ({"out": None, "keep_checkpoints": 1}, r"fit\(out=...\)(.|\n)*keep_checkpoints=1"),
    ],
)
def test_mistakes_are_refused_before_anything_is_made(call, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        FakeTrainer({}).fit(**{"stop": {"training_iteration": 1}, "out": tmp_path / "run", **call})
    assert names(tmp_path) == []


def test_a_folder_with_another_run_is_refused(fitted):
    _, _, run = fitted
    before = rows(run)
    says = "The folder contains another run.\n...fit(out=...)...out=this_folder"
    refused(ConfigError, FakeTrainer({}).fit, {"training_iteration": 1}, run, says=says)
    assert rows(run) == before


def test_a_folder_of_a_run_that_saved_nothing_is_named(tmp_path):
    raised(EnvError, FakeTrainer({"fail_at": 1}).fit, {"training_iteration": 1}, tmp_path / "run", progress="none")
    says = "a run that has saved nothing...or remove it"
    error = refused(ConfigError, FakeTrainer({}).fit, {"training_iteration": 1}, tmp_path / "run", says=says)
    assert "from_checkpoint" not in str(error)
    raised(EnvError, FakeTrainer({"fail_at": 12}).fit, {"training_iteration": 20}, tmp_path / "other", progress="none")
    assert not (tmp_path / "other" / "checkpoints").exists()
    with pytest.raises(ConfigError, match=r"another run(.|\n)*best model is in .*best/checkpoint_000010"):
        FakeTrainer({}).fit({"training_iteration": 1}, tmp_path / "other")


@pytest.mark.parametrize(
    ("stop", "now"), [({"timesteps_total": 200}, 300), ({"training_iteration": 3}, 3), ({"time_total_s": 6}, 7)]
)
def test_limits_are_totals_and_reached_ones_are_refused(stop, now, tmp_path):
    trainer = FakeTrainer({})
    trainer.iteration, trainer.time_total_s = 3, 7.0
    with pytest.raises(ConfigError, match=rf"reached before training begins(.|\n)*the trainer is at {now}"):
        trainer.fit({"episode_reward_mean": 1000, **stop}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_in_place_of_a_folder_is_refused(tmp_path):
    path = tmp_path / "run"
    path.write_text("notes")
    refused(ConfigError, FakeTrainer({}).fit, {"training_iteration": 1}, path, says="The folder is a file.")
    assert path.read_text() == "notes"


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    result = FakeTrainer({}).fit({"training_iteration": 2})
    assert names(tmp_path) == []
    assert (result.out, result.checkpoint, result.best_checkpoint, result.best_score) == (None, None, None, None)
    assert result.last["evaluation"]["episodes"] == 3
    *iterations, evaluation = capsys.readouterr().out.splitlines()
    assert [line[:11] for line in iterations] == ["iteration 1", "iteration 2"]
    assert "plays 3" in evaluation


def test_the_best_model_is_that_of_the_best_evaluation(tmp_path):
    trainer = Scripted({"rewards": [9, 8, 7, 6, 5], "greedy": [0, 3, 0, 2, 1], "evaluation_interval": 2})
    result = trainer.fit({"training_iteration": 5}, tmp_path / "run", progress="none")
    assert names(tmp_path / "run" / "best") == ["checkpoint_000002"]
    assert (result.best_checkpoint, result.best_score) == (tmp_path / "run" / "best" / "checkpoint_000002", 3)
    # The evaluation at the end counts, too.
    trainer = Scripted({"rewards": [9, 8, 7], "greedy": [0, 3, 4], "evaluation_interval": 2})
    assert trainer.fit({"training_iteration": 3}, tmp_path / "end", progress="none").best_score == 4
    assert names(tmp_path / "end" / "best") == ["checkpoint_000003"]


@pytest.mark.long
def test_without_evaluations_the_best_model_has_the_best_training_reward(tmp_path):
    rewards = [0, 9, 2, *[1] * 6, 3, *[4] * 9, 2, 1]
    trainer = Scripted({"rewards": rewards})
    # Rewards are compared in iterations 7, 14 and 21, at checkpoints or the end of the run, and in 10 and 20.
    result = trainer.fit({"training_iteration": 21}, tmp_path / "run", checkpoint_frequency=7, progress="none")
    assert (result.best_checkpoint, result.best_score) == (tmp_path / "run" / "best" / "checkpoint_000014", 4)
    assert names(tmp_path / "run" / "best") == ["checkpoint_000014"]
    trainer = Scripted({"rewards": rewards})
    assert trainer.fit({"training_iteration": 2}, tmp_path / "none", keep_best=False).best_checkpoint is None
    assert not (tmp_path / "none" / "best").exists()


def test_a_greedy_goal_turns_evaluations_on():
    result = FakeTrainer({}).fit({"evaluation_reward_mean": 202}, progress="none")
    assert (result.reached, result.last["training_iteration"]) == ("evaluation_reward_mean", 20)
    # The evaluation at the end may reach the goal after training has stopped at its limit.
    result = FakeTrainer({}).fit({"evaluation_reward_mean": 60, "training_iteration": 3}, progress="none")
    assert (result.reached, result.missed_goal) == ("evaluation_reward_mean", False)
    result = FakeTrainer({}).fit({"evaluation_reward_mean": 600, "training_iteration": 3}, progress="none")
    assert (result.reached, result.missed_goal) == ("training_iteration", True)


def test_a_goal_that_was_reached_beside_training_is_not_missed(tmp_path):
    """By the model with which the last iteration began; the model after it is worse."""

    class Falling(FakeTrainer):
        evaluates_while_training = True

        def train(self):
            return {**super().train(), "evaluation": {"episode_reward_mean": 50.0 * self.iteration}}

    fitted = Falling({}).fit({"evaluation_reward_mean": 100.0}, tmp_path / "run", progress="none", loggers=())
    assert (fitted.reached, fitted.missed_goal, fitted.best_score) == ("evaluation_reward_mean", False, 100.0)
    assert fitted.best_checkpoint == tmp_path / "run" / "best" / "checkpoint_000001"
    assert rows(tmp_path / "run")[-1]["evaluation"]["episode_reward_mean"] == 100.0


def test_the_best_model_of_an_evaluation_beside_the_last_iteration_stays_the_best(tmp_path):
    class Best(FakeTrainer):
        evaluates_while_training = True
        scores = (0.0, 100.0, 50.0)  # beside the second iteration: of the model of the first one

        def train(self):
            return {**super().train(), "evaluation": {"episode_reward_mean": self.scores[self.iteration - 1]}}

        def evaluate(self, *args, **kwargs):
            return {"episode_reward_mean": 5.0, "episodes": 3}

    trainer = Best({"evaluation_parallel_to_training": True, "evaluation_interval": 1})
    for iterations in (2, 3):
        fitted = trainer.fit({"training_iteration": iterations}, tmp_path / "run", progress="none", loggers=())
        assert (fitted.best_score, fitted.best_checkpoint.name) == (100.0, "checkpoint_000001")


def test_a_callback_ends_the_run(tmp_path):
    class Enough(Callbacks):
        def on_train_result(self, *, trainer, result):
            result["done"] = result["timesteps_total"] >= 100

    with PPOTrainer("CartPole-v1", {**TINY, "callbacks": Enough}) as trainer:
        result = trainer.fit({"training_iteration": 5, "episode_reward_mean": 1e9}, tmp_path / "run", progress="none")
    assert (result.reached, result.missed_goal, result.signal) == ("done", True, None)
    assert [(row["timesteps_total"], row["done"]) for row in rows(tmp_path / "run")] == [(64, False), (128, True)]
    assert result.last["evaluation"] is not None


@pytest.mark.long
def test_an_evaluation_for_a_goal_is_part_of_its_iteration(monkeypatch):
    class Seen(Callbacks):
        evaluated = []

        def on_train_result(self, *, trainer, result):
            self.evaluated.append(result["evaluation"] is not None)

    monkeypatch.setattr("rollax.runs.fit.EVALUATION_INTERVAL", 2)
    with PPOTrainer("CartPole-v1", {**TINY, "callbacks": Seen}) as trainer:
        trainer.fit({"evaluation_reward_mean": 1e9, "training_iteration": 4}, progress="none", evaluate=False)
        assert Seen.evaluated == [False, True] * 2
        assert [trainer.train()["evaluation"] for _ in range(2)] == [None, None]


class Interrupted(FakeTrainer):
    """Sends the signals of the config key `signals` to its own process in the third iteration."""

    def train(self):
        for number in self.settings["signals"] if self.iteration == 2 else ():
            signal.raise_signal(number)
        return super().train()


@pytest.mark.long
def test_a_signal_saves_and_returns(tmp_path, capfd):
    before = signal.getsignal(signal.SIGINT)
    result = Interrupted({"signals": [signal.SIGINT]}).fit({"training_iteration": 9}, tmp_path / "run")
    assert (result.reached, result.signal, result.missed_goal) == (None, signal.SIGINT, False)
    assert newest(tmp_path / "run" / "checkpoints", "checkpoint_") == result.checkpoint
    assert result.checkpoint.name == "checkpoint_000003"
    assert rows(tmp_path / "run")[-1]["evaluation"] is None
    assert "Stopping after this iteration" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        Interrupted({"signals": [signal.SIGINT] * 2}).fit({"training_iteration": 9}, tmp_path / "two")
    assert len(rows(tmp_path / "two")) == 2
    assert signal.getsignal(signal.SIGINT) is before


class EndsWithTheSignal(FakeTrainer):
    """The processes of its environment end in the third iteration, by a signal that this process gets, too."""

    error: BaseException

    def train(self):
        if self.iteration == 2:
            signal.raise_signal(signal.SIGINT)
            raise self.error
        return super().train()


@pytest.mark.parametrize("frequency", [0, 1])
@pytest.mark.parametrize("error", [EnvError("its processes have ended"), KeyboardInterrupt()], ids=repr)
def test_a_signal_that_ends_processes_of_the_environment_saves(tmp_path, error, frequency):
    trainer = EndsWithTheSignal({})
    trainer.error = error
    result = trainer.fit({"training_iteration": 9}, tmp_path / "run", checkpoint_frequency=frequency)
    assert (result.reached, result.signal) == (None, signal.SIGINT)
    assert result.checkpoint.name == "checkpoint_000002"
    assert len(rows(tmp_path / "run")) == 2


def test_an_interrupted_evaluation_at_the_end_loses_nothing(tmp_path):
    interrupted = FakeTrainer({"interrupted": True})
    result = interrupted.fit({"training_iteration": 1}, tmp_path / "run", progress="none")
    assert (result.reached, result.last["evaluation"]) == ("training_iteration", None)
    assert result.signal == signal.SIGINT
    assert len(rows(tmp_path / "run")) == 1


class Endless(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.mark.long
def test_episodes_that_have_never_ended_are_not_evaluated_at_the_end(caplog, capsys):
    with PPOTrainer(Endless, TINY) as trainer:
        fitted = trainer.fit({"training_iteration": 1}, progress="lines")
    assert (fitted.reached, fitted.last["evaluation"]) == ("training_iteration", None)
    assert "truncated" in caplog.text
    assert "max_episode_steps" in caplog.text
    with PPOTrainer("Pendulum-v1", TINY) as trainer:  # its time limit of 200 steps is known
        fitted = trainer.fit({"training_iteration": 1}, progress="lines")
    assert fitted.last["evaluation"] is not None
    assert "plays 10" in capsys.readouterr().out


def test_no_signal_handlers_in_another_thread():
    results = []
    fit = lambda: FakeTrainer({}).fit({"training_iteration": 1}, progress="none")  # noqa: E731
    thread = threading.Thread(target=lambda: results.append(fit()))
    thread.start()
    thread.join()
    assert results[0].reached == "training_iteration"


def test_a_checkpoint_that_cannot_be_removed_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    def refuse(path):
        raise CheckpointError("A saved folder could not be removed.", where=path)

    with monkeypatch.context() as patched:
        patched.setattr("rollax.runs.run_folder.storage.remove_directory", refuse)
        trainer = FakeTrainer({})
        trainer.fit({"training_iteration": 3}, tmp_path / "run", checkpoint_frequency=1, keep_checkpoints=1)
    assert "could not be removed" in caplog.text
    assert len(names(tmp_path / "run" / "checkpoints")) == 3


def test_a_partly_removed_checkpoint_is_skipped(tmp_path, monkeypatch):
    run = tmp_path / "run"
    FakeTrainer({}).fit({"training_iteration": 2}, run, checkpoint_frequency=1, progress="none", keep_best=False)

    def killed(path):
        raise KeyboardInterrupt

    from rollax.core.storage import remove_directory

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        remove_directory(run / "checkpoints" / "checkpoint_000002")
    assert os.listdir(run / "checkpoints" / "checkpoint_000002") == ["state.json"]
    assert newest(run / "checkpoints", "checkpoint_") == run / "checkpoints" / "checkpoint_000001"
