"""Studies of a fake algorithm: which trials there are, their scores, failures, pruning, interruptions."""

import errno
import json
import math
import signal
from typing import Any

import pytest
from optuna.storages.journal import JournalFileBackend

from rollax import ConfigError, RollaxError
from rollax.tune import run_study
from rollax.tune.distributions import Choice
from rollax.tune.record import Record
from rollax.tune.settings import BEST, JOURNAL, OPTIONS, Options, Settings
from tests.env.refused import raised, refused
from tests.tune.fake import BEST_LR, FakeTrainer

GRID = {"lr": {"choice": [1e-4, 1e-3, 1e-2, 1e-1]}}


def values(study):
    return [trial.values for trial in study.trials]


def outcomes(study):
    return [(trial.values, trial.score) for trial in study.trials]


def test_the_best_trial_is_the_one_with_the_highest_score(search):
    study = search(search=GRID, sampler="grid")
    # 10 - |log10(lr / 1e-3)| after 10 iterations
    assert [trial.score for trial in study.trials] == pytest.approx([9, 10, 9, 8])
    assert [trial.steps for trial in study.trials] == [1000] * 4
    assert study.best.values == {"lr": BEST_LR}
    assert [trial.number for trial in study.ranked] == [1, 0, 2, 3]
    assert study.best_config["lr"] == BEST_LR
    assert (study.folder, study.best_file, study.signal) == (None, None, None)


def test_evaluations_are_at_equal_shares_of_the_limit(search):
    trial = search(trials=1, evaluations=4, search={"gamma": {"choice": [0.9, 0.99]}}).trials[0]
    # Of 10 iterations 2.5 are a quarter: the first iterations at or after it are 3, 5, 8 and 10. lr is 1e-3.
    assert trial.scores == {1: 3, 2: 5, 3: 8, 4: 10}
    assert FakeTrainer.evaluations == 4


def test_iterations_that_are_longer_than_a_share_are_evaluated_once(search):
    assert list(search(trials=1, evaluations=5, stop={"training_iteration": 2}).trials[0].scores) == [2, 5]


def test_the_score_is_the_mean_of_the_seeds(search):
    study = search(trials=1, search={"gamma": {"choice": [0.9, 0.99]}}, seeds=3, seed=1, env_config={"bonus": 6})
    # Seeds 1, 2, 3; two of them are odd: (16 + 10 + 16) / 3.
    assert study.best.score == pytest.approx(14)
    assert FakeTrainer.made == 3


def test_the_training_episodes_score_where_none_are_evaluated(search):
    asked = search(trials=1, score="training", seed=3)
    needed = search(trials=1, env_config={"evaluates": False}, seed=3)
    greedy = search(trials=1, seed=3)
    # The mean reward of training is 100 lower.
    assert asked.best.score == needed.best.score == pytest.approx(greedy.best.score - 100)


def test_goals_do_not_end_trials(search):
    study = search(trials=1, stop={"timesteps_total": 1000, "evaluation_reward_mean": 1, "episode_reward_mean": -99})
    assert study.best.steps == 1000


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes"])
def test_studies_repeat(search, sampler):
    space = {"lr": {"log": [1e-5, 1e-1]}, "gamma": {"uniform": [0.9, 1]}, "train_batch_size": {"choice": [100, 200]}}
    first, second = (search(trials=14, sampler=sampler, search=space) for _ in range(2))
    assert values(first) == values(second)
    assert len({json.dumps(found) for found in values(first)}) > 10
    assert values(search(trials=2, sampler=sampler, search=space, seed=5)) != values(first)[:2]


def test_tpe_comes_nearer_than_random_values(search):
    tpe, random = (search(trials=40, sampler=sampler).best.values["lr"] for sampler in ("tpe", "random"))
    assert abs(math.log10(tpe / BEST_LR)) < abs(math.log10(random / BEST_LR))


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.long)])
def test_trials_whose_trainers_fail_to_stop_keep_their_scores(search, jobs):
    study = search(search=GRID, sampler="grid", jobs=jobs, env_config={"fails_to_stop": True})
    assert [trial.score for trial in study.trials] == pytest.approx([9, 10, 9, 8])


def test_a_grid_ends_after_its_points(search):
    space = {"lr": {"choice": [1e-3, 1e-2]}, "train_batch_size": {"int": [100, 200], "step": 50}}
    study = search(sampler="grid", search=space)
    expected = [{"lr": lr, "train_batch_size": size} for lr in (1e-3, 1e-2) for size in (100, 150, 200)]
    assert values(study) == expected
    refused(ConfigError, search, says="lr", sampler="grid")


def test_a_grid_goes_on_at_the_point_that_was_interrupted(search):
    grid = {"sampler": "grid", "search": GRID, "env_config": {"kill": 6}}
    whole = search(**grid)  # of the trainers 1 to 4
    assert len(search("study", **grid).trials) == 1
    study = search("study", **grid)
    assert outcomes(study) == outcomes(whole)


def test_a_divergence_ends_its_trial_with_a_reason(search):
    study = search(sampler="grid", search=GRID, env_config={"diverges_above": 5e-2})
    assert [trial.state for trial in study.trials] == ["finished", "finished", "finished", "failed"]
    assert "step 3" in study.trials[3].reason
    assert study.trials[3].score is None


def test_a_refused_combination_ends_its_trial_with_a_reason(search):
    space = {"lr": {"choice": [1e-3, 1e-2]}, "lr_schedule": {"choice": [None, [[0, 1e-3], [100, 0.0]]]}}
    study = search(sampler="grid", search=space)
    # A schedule replaces lr, whose default is 1e-3.
    assert [trial.state for trial in study.trials] == ["finished", "finished", "finished", "failed"]
    assert "lr has no effect" in study.trials[3].reason


def test_a_study_whose_first_trials_all_fail_ends(search, tmp_path):
    refused(RollaxError, search, "study", says="the simulator is gone", trials=20, env_config={"breaks": True})
    assert FakeTrainer.made == 5
    assert not (tmp_path / "study" / BEST).exists()


def test_the_sampler_avoids_values_that_diverge(search):
    study = search(trials=60, env_config={"diverges_above": 1e-2})
    late = [trial.values["lr"] > 1e-2 for trial in study.trials[20:]]
    # A quarter of random values would diverge.
    assert sum(late) < len(late) / 8


@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_pruned_trials_end_early(search, pruner):
    study = search(trials=20, sampler="random", pruner=pruner, evaluations=5)
    pruned = [trial for trial in study.trials if trial.state == "pruned"]
    assert pruned
    assert all(len(trial.scores) < 5 and trial.score is None for trial in pruned)
    finished = [trial.score for trial in study.trials if trial.state == "finished"]
    assert len(finished) + len(pruned) == 20
    # What a pruned trial would have reached: its scores grow by 1 with each iteration, 2 for each share.
    assert all(max(t.scores.values()) + 2 * (5 - max(t.scores)) < max(finished) for t in pruned)


def test_importance(search):
    space = {"lr": {"log": [1e-5, 1e-1]}, "gamma": {"uniform": [0.9, 1]}}
    shares = search(trials=40, sampler="random", search=space).importances
    assert shares["lr"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)
    assert search(trials=3).importances == {}


def test_a_study_goes_on_to_a_larger_number_of_trials(search):
    whole = search(trials=15)
    search("study", trials=6)
    made = FakeTrainer.made
    study = search("study", trials=15)
    assert FakeTrainer.made - made == 9
    assert outcomes(study) == outcomes(whole)
    assert run_study(study.folder, trials=15, show=lambda line: None).trials == study.trials


@pytest.mark.parametrize(("number", "dies"), [(1, False), (13, False), (2, True)])
def test_a_trial_that_was_interrupted_is_repeated(search, number, dies):
    whole = search(trials=15)
    # The trainers of `whole` have the numbers 1 to 15.
    env_config = {"kill": 15 + number, "dies": dies}
    stopped = search("study", trials=15, env_config=env_config)
    assert stopped.signal == signal.SIGINT
    assert len(stopped.trials) == number - 1
    study = search("study", trials=15, env_config=env_config)
    assert study.signal is None
    assert outcomes(study) == outcomes(whole)


@pytest.mark.parametrize("interruptions", [0, 1])
def test_a_trial_that_was_interrupted_counts_once_in_successive_halving(tmp_path, interruptions):
    space = {"lr": Choice((1e-3, 1e-2))}
    fake: Any = FakeTrainer
    settings = Settings(fake, "CartPole-v1", {}, {}, space, Options(sampler="random", pruner="halving"))
    record, pruned = Record(tmp_path / JOURNAL, settings), []
    for number, score in enumerate([9, 1, 2, 3, 4, 8]):
        for _ in range(interruptions if number == 0 else 0):
            trial, _ = record.begin()
            record.report(trial, 1, score)
            record.interrupt(trial)
        trial, _ = record.begin()
        pruned.append(record.report(trial, 1, score))
        record.finish(trial, score, 10)
    # The best third of the scores so far goes on: of six scores, the best two.
    assert pruned == [False, True, True, True, True, False]


def test_a_killed_process_leaves_a_trial_that_is_repeated(search, tmp_path):
    whole = search(trials=4)
    search("study", trials=4)
    journal = tmp_path / "study" / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    # op_code 6 sets the state of a trial, for the last time when it ends. The process is killed while it writes this.
    last = max(number for number, line in enumerate(lines) if json.loads(line)["op_code"] == 6)
    journal.write_bytes(b"".join(lines[:last]) + lines[last][:20])
    (tmp_path / "study" / f"{JOURNAL}.lock").symlink_to("nowhere")
    study = search("study", trials=4)
    assert values(study) == values(whole)
    assert all(trial.state == "finished" for trial in study.trials)


@pytest.mark.short("6")
@pytest.mark.parametrize("call", range(1, 12))
def test_a_full_disk_leaves_a_trial_that_is_repeated(search, monkeypatch, call):
    append, calls = JournalFileBackend.append_logs, []

    def full_once(self, logs):
        calls.append(1)
        if len(calls) != call:
            return append(self, logs)
        with open(self._file_path, "ab") as file:
            file.write(json.dumps(logs[0]).encode()[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    space = {"lr": {"log": [1e-5, 1e-1]}, "gamma": {"uniform": [0.9, 1]}}
    whole = search(trials=4, search=space)
    monkeypatch.setattr(JournalFileBackend, "append_logs", full_once)
    with pytest.raises(OSError):
        search("study", trials=4, search=space)
    study = search("study", trials=4, search=space)
    assert values(study) == values(whole)
    assert all(trial.state == "finished" for trial in study.trials)


def test_no_trial_begins_after_the_time(search):
    assert len(search(time_s=1e-9).trials) == 0
    assert len(search(time_s=60, trials=3).trials) == 3


@pytest.mark.long
def test_trials_in_processes(search):
    alone = search(sampler="grid", search=GRID, env_config={"diverges_above": 5e-2})
    study = search("study", sampler="grid", search=GRID, env_config={"diverges_above": 5e-2}, jobs=2)
    assert outcomes(study) == outcomes(alone)
    assert study.trials[3].reason == alone.trials[3].reason


@pytest.mark.long
def test_the_end_of_a_process_is_a_failure_of_its_trial(search):
    study = search(sampler="grid", search=GRID, env_config={"exits": 1}, jobs=3)
    # The first trainer of each process ends it.
    assert {trial.state for trial in study.trials} == {"failed"}
    assert "exit code 7" in study.trials[0].reason


@pytest.mark.long
def test_pruning_in_processes(search):
    study = search(trials=20, sampler="random", pruner="halving", jobs=2)
    assert {trial.state for trial in study.trials} == {"finished", "pruned"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"trials": 0}, "trials"),
        ({"time_s": -1}, "time"),
        ({"jobs": 0}, "jobs"),
        ({"seeds": 0}, "seeds"),
        ({"evaluations": 0}, "evaluations"),
        ({"seed": -1}, "seed"),
        ({"sampler": "bayes"}, "tpe"),
        ({"pruner": "hyperband"}, "median"),
        ({"score": "loss"}, "evaluation"),
        ({"stop": {}}, "timesteps_total"),
        ({"stop": {"episode_reward_mean": 1}}, "timesteps_total"),
        ({"search": {"learning_rate": {"log": [1, 2]}}}, "lr"),
    ],
)
def test_mistakes_are_refused(search, arguments, named):
    raised(ConfigError, search, "study", says=named, **arguments)
    assert FakeTrainer.made == 0


def test_other_settings_for_a_folder_are_refused(search, tmp_path):
    search("study", trials=1)
    for other in ({"seeds": 2}, {"search": GRID}, {"stop": {"timesteps_total": 2000}}):
        refused(ConfigError, search, "study", says="other settings", trials=2, **other)
    refused(ConfigError, run_study, tmp_path / "study", says="seeds", seeds=2)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    refused(ConfigError, search, "full", says="not empty", trials=1)
    (tmp_path / "study" / OPTIONS).write_text("{")
    refused(ConfigError, run_study, tmp_path / "study", says="no study")
