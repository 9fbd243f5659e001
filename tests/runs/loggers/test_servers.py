"""W&B and MLflow, offline: config, files, the end of a run, and several runs of one process."""

import json

import pytest

from rollax.errors import EnvError
from tests.cli.fake_algorithm import FakeTrainer
from tests.runs.loggers import reading


@pytest.fixture
def cwd(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    return tmp_path


@pytest.mark.long
def test_mlflow_has_the_config_the_files_and_the_end(cwd):
    client = pytest.importorskip("mlflow", reason="pip install 'rollax[mlflow]'").MlflowClient("sqlite:///mlflow.db")
    loggers = [{"mlflow": {"tracking_uri": "sqlite:///mlflow.db", "experiment": "mine", "tags": {"seeds": "all"}}}]
    settings = {"model": {"fcnet_hiddens": [4]}, "100 % own": 1}
    FakeTrainer(settings).fit({"training_iteration": 1}, cwd / "good", progress="none", loggers=loggers)
    with pytest.raises(EnvError):
        FakeTrainer({"fail_at": 2}).fit({"training_iteration": 3}, cwd / "bad", progress="none", loggers=loggers)
    experiment = client.get_experiment_by_name("mine")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert {name: run.info.status for name, run in runs.items()} == {"good": "FINISHED", "bad": "FAILED"}
    good = runs["good"]
    assert good.data.params["model.fcnet_hiddens"] == "[4]"
    assert good.data.params["100 _ own"] == "1"  # MLflow refuses the character
    assert good.data.tags["seeds"] == "all"
    for folder, path in (("media/step_100", "media/step_100/curve.png"), ("config", "config/good.json")):
        assert [file.path for file in client.list_artifacts(good.info.run_id, folder)] == [path]


@pytest.mark.long
def test_names_that_mlflow_refuses():
    pytest.importorskip("mlflow", reason="pip install 'rollax[mlflow]'")
    from rollax.runs.loggers.mlflow_logger import _named

    names = ("a/b-c.d e:f", "50 %", "../up", "..up", "a//b/", "/", "a" * 250)
    assert [_named(name) for name in names] == ["a/b-c.d e:f", "50 _", "up", "_up", "a/b", "_", "a" * 250]
    long = [_named("a" * 300 + end) for end in ("b", "c", "/b")]
    assert len({*long}) == 3
    assert max(map(len, long)) <= 250


@pytest.mark.long
def test_wandb_has_the_config_the_files_and_the_end(cwd):
    wandb = pytest.importorskip("wandb", reason="pip install 'rollax[wandb]'")
    own = wandb.init(mode="offline", project="own", dir=str(cwd))
    loggers = [{"wandb": {"mode": "offline", "project": "mine", "group": "all"}}]
    trainer = FakeTrainer({"model": {"fcnet_hiddens": [4]}})
    trainer.fit({"training_iteration": 1}, cwd / "good", progress="none", loggers=loggers)
    with pytest.raises(EnvError):
        FakeTrainer({"fail_at": 2}).fit({"training_iteration": 3}, cwd / "bad", progress="none", loggers=loggers)
    own.log({"still": 1})  # a run of the user's own is not ended
    own.finish()
    good, bad = reading.wandb_records(cwd / "good"), reading.wandb_records(cwd / "bad")
    (run,) = (record.run for record in good if record.HasField("run"))
    assert (run.project, run.run_group, run.display_name) == ("mine", "all", "good")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["model"] == {"fcnet_hiddens": [4]}
    items = ["/".join(item.nested_key) for record in good for item in record.history.item]
    assert "media/curve/path" in items
    assert list((cwd / "good" / "wandb").glob("offline-run-*/files/media/images/media/curve_*.png"))
    codes = [[record.exit.exit_code for record in records if record.HasField("exit")] for records in (good, bad)]
    assert codes == [[0], [1]]
