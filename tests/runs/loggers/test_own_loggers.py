"""Loggers by name, by path and of one's own; the calls that they get, and what happens if one fails."""

import errno
import os
import signal

import pytest

from rollax import ConfigError, EnvError, Logger, RollaxError
from rollax.runs.loggers.group import LoggerGroup
from rollax.runs.loggers.logger import LoggedRun
from rollax.runs.loggers.table import LOGGERS, make_loggers
from rollax.runs.loggers.tensorboard import TensorBoardLogger
from rollax.runs.loggers.text_files import CsvLogger
from tests.cli.fake_algorithm import FakeTrainer
from tests.env.refused import raised, refused
from tests.runs.loggers import reading

HERE = __name__


class Recorder(Logger):
    """Notes its calls."""

    def __init__(self, label="it"):
        self.calls = []
        self.label = label

    def begin(self, run):
        self.run = run
        self.calls.append("begin")

    def log(self, numbers, step):
        self.calls.append(("log", step, numbers.get("episode_reward_mean")))

    def media(self, name, path, step):
        self.calls.append(("media", step, name))

    def close(self, outcome):
        self.calls.append(("close", outcome))


class Breaks(Recorder):
    """Fails where `when(step)` is true."""

    def __init__(self, when, error=None):
        super().__init__()
        self.when, self.error = when, error or ConnectionError("the network is down")

    def log(self, numbers, step):
        super().log(numbers, step)
        if self.when(step):
            raise self.error


class NeverBegins(Recorder):
    def begin(self, run):
        raise ConnectionError("no login")


def fit(loggers, out, settings=None, **stop):
    trainer = FakeTrainer(settings or {})
    return trainer.fit(stop or {"training_iteration": 2}, out, progress="none", evaluate=False, loggers=loggers)


def test_the_calls_of_a_run(tmp_path):
    one, two = Recorder(), Recorder()
    FakeTrainer({"gamma": 0.5}).fit({"training_iteration": 2}, tmp_path / "run", progress="none", loggers=[one, two])
    # Iteration 1 has no reward; the third call is the evaluation at the end.
    results = [("log", 100, None), ("log", 200, 20.0), ("log", 200, None)]
    assert one.calls == two.calls == ["begin", *results, ("media", 200, "curve"), ("close", "finished")]
    assert (one.run.algorithm, one.run.env, one.run.earlier_id) == ("FAKE", "Fake-v0", None)
    assert one.run.config["gamma"] == 0.5
    assert one.run.folder == (tmp_path / "run").resolve()


def test_a_logger_is_told_how_the_run_ended(tmp_path):
    failed, stopped = Recorder(), Recorder()
    raised(EnvError, fit, [failed], tmp_path / "failed", {"fail_at": 2}, training_iteration=3)
    assert failed.calls[-1] == ("close", "failed")

    class Interrupted(FakeTrainer):
        def train(self):
            signal.raise_signal(signal.SIGINT)
            return super().train()

    Interrupted({}).fit({}, tmp_path / "stopped", progress="none", loggers=[stopped])
    assert stopped.calls[-1] == ("close", "interrupted")


def test_new_pictures_and_videos_of_the_run_folder_are_handed_over(tmp_path):
    media, outside = tmp_path / "run" / "media", tmp_path / "outside.png"
    outside.write_bytes(b"mine")

    class Draws(FakeTrainer):
        def train(self):
            media.mkdir(exist_ok=True)
            if self.iteration == 0:
                (media / "film.mp4").write_bytes(b"first")
                (media / "notes.txt").write_text("no picture")
                (media / ".film.mp4.part").write_bytes(b"unfinished")
                (media / "link.png").symlink_to(outside)
            if self.iteration == 2:
                (media / "film.mp4").write_bytes(b"the second")
                (media / "plot.png").write_bytes(b"another")
            return super().train()

    recorder = Recorder()
    Draws({}).fit({"training_iteration": 4}, tmp_path / "run", progress="none", evaluate=False, loggers=[recorder])
    files = [call[1:] for call in recorder.calls if call[0] == "media"]
    assert files == [(100, "film"), (300, "film"), (300, "plot"), (400, "curve")]


def test_the_learning_curve_is_a_picture_in_tensorboard(tmp_path):
    fit(["tensorboard"], tmp_path / "run")
    values = [value for event in reading.events(tmp_path / "run") for value in event.summary.value]
    (picture,) = [value.image for value in values if value.WhichOneof("value") == "image"]
    assert picture.encoded_image_string == (tmp_path / "run" / "curve.png").read_bytes()
    assert (picture.width, picture.height) == (960, 600)  # 8 by 5 inches of 120 pixels


def test_a_logger_that_fails_loses_only_its_own_numbers(tmp_path, caplog):
    breaks, other = Breaks(lambda step: step == 200), Recorder()
    fit([breaks, other], tmp_path / "run", training_iteration=4)
    assert breaks.calls == other.calls
    assert caplog.text.count("the network is down") == 1
    assert "1 failed" in caplog.text  # once more at the end


def test_a_logger_that_always_fails_is_not_called_for_ever(tmp_path, caplog):
    breaks, other = Breaks(lambda step: True), Recorder()
    result = fit([breaks, other], tmp_path / "run", training_iteration=6)
    assert result.reached == "training_iteration"
    assert [call[1] for call in breaks.calls if call[0] == "log"] == [100, 200, 300]
    assert breaks.calls[-1] == ("close", "finished")
    assert len([call for call in other.calls if call[0] == "log"]) == 6
    assert caplog.text.count("the network is down") == 1
    assert "7 failed" in caplog.text  # six results, and the curve


def test_an_error_of_rollax_ends_the_run(tmp_path):
    other = Recorder()
    with pytest.raises(RollaxError, match="not written"):
        fit([Breaks(lambda step: step == 200, RollaxError("It was not written.")), other], tmp_path / "run")
    assert other.calls[-1] == ("close", "failed")


@pytest.mark.parametrize("name", ["csv", "jsonl"])
def test_a_file_of_the_run_folder_that_cannot_be_written_is_an_error(tmp_path, name):
    (logger,) = make_loggers([name], "here", trusted=True)

    class Blocks(FakeTrainer):
        def train(self):
            if self.iteration == 1:
                logger._path.unlink()
                logger._path.mkdir()
            return super().train()

    with pytest.raises(RollaxError, match=f"not written(.|\n)*{os.strerror(errno.EISDIR)}"):
        Blocks({}).fit({"training_iteration": 3}, tmp_path / "run", progress="none", loggers=[logger])


def test_a_disk_too_full_for_the_tensorboard_log_is_an_error(tmp_path):
    logger = TensorBoardLogger()

    with open("/dev/full", "wb", buffering=0) as full:

        class Fills(FakeTrainer):
            def train(self):
                if self.iteration == 1:
                    records = logger._writer._py_recordio_writer
                    records.close()
                    records._writer = full
                return super().train()

        with pytest.raises(RollaxError, match=r"events\.out(.|\n)*No space left on device"):
            Fills({}).fit({"training_iteration": 3}, tmp_path / "run", progress="none", loggers=[logger])


class Remembers(Recorder):
    """Continues a record elsewhere."""

    def begin(self, run):
        super().begin(run)
        self.id = run.earlier_id or self.label


def test_ids_are_kept_for_runs_that_continue(tmp_path):
    trainer = FakeTrainer({})
    first = [Remembers("a"), Remembers("b"), Recorder()]
    trainer.fit({"training_iteration": 1}, tmp_path / "one", progress="none", loggers=first)
    second = [Remembers("c"), Remembers("d"), Remembers("e")]
    trainer.fit({"training_iteration": 2}, tmp_path / "two", progress="none", loggers=second)
    assert [logger.run.earlier_id for logger in second] == ["a", "b", None]
    assert [call[1] for call in second[0].calls if call[0] == "log"] == [200, 200]  # nothing earlier again


@pytest.mark.parametrize("label", ["my run 1", "Läufe", "a:b"])
def test_an_id_may_be_any_text_without_slashes(tmp_path, label):
    run = LoggedRun("PPO", None, {}, tmp_path)
    LoggerGroup([Remembers(label)]).begin(run, None, [])
    LoggerGroup([later := Remembers()]).begin(run, tmp_path, [])
    assert later.run.earlier_id == label


@pytest.mark.parametrize("label", ["https://host/3", "a\n", "", 7, "x" * 129, None])
def test_a_logger_that_cannot_begin_or_whose_id_cannot_be_kept_is_refused_before_training(tmp_path, label):
    other, trainer = Recorder(), FakeTrainer({})
    logger = NeverBegins() if label is None else Remembers(label)
    with pytest.raises(ConfigError, match="NeverBegins(.|\n)*no login" if label is None else "Remembers"):
        trainer.fit({"training_iteration": 1}, tmp_path / "run", progress="none", loggers=[other, logger])
    assert trainer.iteration == 0
    assert other.calls == ["begin", ("close", "failed")]
    assert label is None or logger.calls == other.calls


@pytest.mark.short("[]")
@pytest.mark.parametrize("content", ["{", "[]", '{"a": 1}', '{"a": "../../x"}'])
def test_damaged_ids_are_refused(tmp_path, content):
    trainer = FakeTrainer({})
    trainer.fit({"training_iteration": 1}, tmp_path / "one", progress="none", loggers=[Remembers()])
    (tmp_path / "one" / "loggers.json").write_text(content)
    with pytest.raises(RollaxError, match=r"loggers\.json"):
        trainer.fit({"training_iteration": 2}, tmp_path / "two", progress="none", loggers=[Remembers()])


def test_a_csv_file_gets_new_columns_and_one_row_for_each_step(tmp_path):
    class Late(FakeTrainer):
        def train(self):
            return {**super().train(), **({"a, b": 1.5} if self.iteration == 1 else {})}

    Late({}).fit({"training_iteration": 2}, tmp_path / "run", progress="none", loggers=["csv"])
    rows = reading.csv_rows(tmp_path / "run")
    assert [row["step"] for row in rows] == ["100", "200"]
    assert [row["a, b"] for row in rows] == ["1.5", ""]
    assert [row["evaluation/episode_reward_mean"] for row in rows] == ["", "41.0"]


def test_without_loggers_a_run_has_its_results_only(tmp_path):
    fit([], tmp_path / "run")
    files = sorted(path.name for path in (tmp_path / "run").iterdir() if path.is_file())
    assert files == ["best.json", "config.json", "curve.png", "result.jsonl"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("csv", "a list"),
        ({"csv": {}}, "a list"),
        (5, "a list"),
        (["cvs"], "did you mean 'csv'"),
        ([3], "A logger is not"),
        ([{"csv": {}, "jsonl": {}}], "A logger is not"),
        ([{"csv": 5}], "A logger is not"),
        ([{"csv": {"file": "a"}}], "here: csv"),
        ([{f"{HERE}:Recorder": {"lable": 1}}], "label"),
        ([f"{HERE}:fit"], "not a subclass of rollax.Logger"),
        ([f"{HERE}:Missing"], "cannot be imported"),
        ([f"{HERE}:Breaks"], "do not fit"),
    ],
)
def test_mistakes_name_their_place(given, message):
    with pytest.raises(ConfigError, match="here") as raised:
        make_loggers(given, "here", trusted=True)
    assert message in str(raised.value)


def test_loggers_by_name_by_path_and_instances():
    mine = Recorder()
    given = ["csv", {"tensorboard": None}, {f"{HERE}:Recorder": {"label": "x"}}, mine]
    loggers = make_loggers(given, "here", trusted=True)
    assert [type(logger).__name__ for logger in loggers] == ["CsvLogger", "TensorBoardLogger", "Recorder", "Recorder"]
    assert isinstance(loggers[0], CsvLogger)
    assert isinstance(loggers[1], TensorBoardLogger)
    assert loggers[2].label == "x"
    assert loggers[3] is mine
    assert set(LOGGERS) == {"tensorboard", "csv", "jsonl", "wandb", "mlflow"}


def test_a_path_in_a_file_that_is_not_trusted_is_not_imported():
    with pytest.raises(ConfigError, match="not imported(.|\n)*trust"):
        make_loggers(["antigravity:Logger"], "here", trusted=False)


def test_loggers_require_a_folder(tmp_path):
    with pytest.raises(ConfigError, match=r"fit\(loggers=...\)"):
        fit(["csv"], None)
    refused(ConfigError, fit, ["cvs"], tmp_path / "run", says="did you mean 'csv'")
    assert not (tmp_path / "run").exists()
