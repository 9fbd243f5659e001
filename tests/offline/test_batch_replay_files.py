"""Recorded data in memory and in files: how much, in which folders, and when files are used again."""

import os

import numpy as np
import pytest
from gymnasium.spaces import Tuple

from rollax import DQN, ConfigError, DQNTrainer, NonFiniteError, QMIXTrainer
from rollax.algorithms.trainer import Trainer
from rollax.offline.column_files import ColumnWriter
from rollax.offline.writer import DatasetWriter
from tests.env.refused import refused
from tests.offline.data_runs import TINY, reader, same_weights
from tests.offline.recorded import ACTIONS, OBSERVATIONS, ListReader, trajectory, written


def test_data_in_files_gives_the_same_run(line, tmp_path):
    data, settings = reader(), {**TINY, "n_step": 2, "observation_filter": "MeanStdFilter"}
    with DQNTrainer(line, {**settings, "input": data}) as memory:
        memory.train()
        with DQNTrainer(line, {**settings, "input": data, "input_folder": str(tmp_path)}) as files:
            files.train()
            assert same_weights(memory, files)
            ours, theirs = (trainer.worker.get_filters()["default_policy"] for trainer in (memory, files))
            assert ours["count"] == theirs["count"] == 30  # without observations after terminations
            np.testing.assert_array_equal(ours["mean"], theirs["mean"])


def test_more_data_than_memory_is_refused_without_a_folder(line, tmp_path):
    settings = {**TINY, "input": reader(60, 50), "input_memory_gb": 2e-5}  # 21 KB, and 3000 rows of 45 bytes
    refused(ConfigError, DQNTrainer, line, settings, says="larger than the memory...input_folder")
    with pytest.raises(ConfigError, match=r"input_memory_gb has no effect: input_folder is(.|\n)*input_folder=None"):
        DQNTrainer(line, {**settings, "input_folder": str(tmp_path)})
    with DQNTrainer(line, {**settings, "input_memory_gb": None, "input_folder": str(tmp_path)}) as trainer:
        assert trainer.train()["info"]["data"]["rows"] == {"default_policy": 3000}


def test_the_memory_of_all_sources_counts(line, tmp_path):
    # Three data sets of 20 rows of about 30 bytes; all of them are more than the 1 KB that is allowed.
    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        written(path, [trajectory(number, 5) for number in range(4)])
    for sources in (paths, dict.fromkeys(paths, 1)):
        with pytest.raises(ConfigError, match="larger than the memory"):
            DQNTrainer(line, {**TINY, "input": sources, "input_memory_gb": 1e-6})
    with DQNTrainer(line, {**TINY, "input": paths[0], "input_memory_gb": 1e-6}):
        pass


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="the system does not list mapped files")
def test_a_stopped_trainer_maps_no_files(line, tmp_path):
    folder = tmp_path / "columns"

    def mapped():
        with open("/proc/self/maps") as maps:
            return sum(str(folder) in each for each in maps)

    with DQNTrainer(line, {**TINY, "input": reader(), "input_folder": str(folder)}) as trainer:
        trainer.train()
        assert mapped() > 0
    assert mapped() == 0
    path = trainer.save(tmp_path)
    with DQNTrainer(line, {**TINY, "input": reader()}) as other:
        other.restore(path)
        assert same_weights(trainer, other)


@pytest.mark.long
def test_files_are_used_again_while_the_data_is_the_same(line, tmp_path, monkeypatch):
    decoded, finish = [], ColumnWriter.finish
    monkeypatch.setattr(ColumnWriter, "finish", lambda self, about: decoded.append(1) or finish(self, about))
    folder, data = str(tmp_path / "columns"), tmp_path / "data"
    written(data, [trajectory(number, 5) for number in range(3)])

    def run(**changes):
        config = {**TINY, "input": str(data), "input_folder": folder, **changes}
        with DQNTrainer(line, config) as trainer:
            trainer.train()
            return len(decoded), trainer.optimizer.data.fingerprint, trainer.get_weights()["default_policy"]

    first, again = run(), run(n_step=3)  # n_step does not change the stored rows
    assert (first[0], again[0]) == (1, 1)
    assert first[1] == again[1]
    assert run(clip_rewards=True)[0] == 2
    written(data, [trajectory(9, 2)])
    count, fingerprint, _ = run()
    assert count == 3
    assert fingerprint != first[1]


def test_columns_of_own_code_are_decoded_for_every_run(line, tmp_path):
    class Policy(DQN):
        replayed_columns = ("scaled",)

        def postprocess(self, fragment, values):
            fragment["scaled"] = np.float32(self.config.gamma) * fragment["rewards"]
            return super().postprocess(fragment, values)

    class OwnTrainer(DQNTrainer):
        policy_class = Policy

    written(tmp_path / "data", [trajectory(0, 5)])
    for gamma in (0.5, 0.25):
        config = {**TINY, "input": str(tmp_path / "data"), "input_folder": str(tmp_path / "columns"), "gamma": gamma}
        with OwnTrainer(line, config) as trainer:
            rows = trainer.optimizer.data.parts["default_policy"][0].buffer.sample(20, np.random.default_rng(0))
            np.testing.assert_array_equal(rows["scaled"], gamma * rows["rewards"])


def test_files_that_own_code_reads_are_decoded_for_every_run(tmp_path):
    class Reader(ListReader):
        factor = 1

        def __init__(self, paths):
            one = trajectory(0, 3)
            one.columns["rewards"] = one.columns["rewards"] * self.factor
            super().__init__([one])

    data = tmp_path / "log"
    data.touch()
    spaces = {"observation_space": OBSERVATIONS, "action_space": ACTIONS}
    config = {**TINY, **spaces, "input": str(data), "input_folder": str(tmp_path / "columns")}
    for Reader.factor in (1, 10):  # the code changes, the files do not
        with DQNTrainer(config={**config, "input_config": {"format": Reader}}) as trainer:
            rewards = trainer.optimizer.data.parts["default_policy"][0].buffer.read("rewards", np.arange(3))
            np.testing.assert_array_equal(rewards, np.arange(1, 4) * Reader.factor)


@pytest.mark.long
def test_states_of_another_size_are_decoded_again(tmp_path):
    spaces = {"observation_space": Tuple([OBSERVATIONS] * 2), "action_space": Tuple([ACTIONS] * 2)}
    pair = trajectory(0, 5)
    pair.columns |= {name: (pair.columns[name],) * 2 for name in ("obs", "actions")}
    with DatasetWriter(tmp_path / "data", *spaces.values()) as writer:
        writer.write(pair)
    for size in (2, 3):
        model = {"use_gru": True, "lstm_cell_size": size, "max_seq_len": 4, "fcnet_hiddens": (2,)}
        folders = {"input": str(tmp_path / "data"), "input_folder": str(tmp_path / "columns")}
        with QMIXTrainer(config={**spaces, **folders, "model": model}) as trainer:
            rows = trainer.optimizer.data.parts["default_policy"][0].buffer.sample(2, np.random.default_rng(0))
            assert [part.shape for part in rows["state_in"]] == [(2, 2, size)]


@pytest.mark.short(every=5)
@pytest.mark.parametrize(
    ("source", "folder"),
    [
        ("data", "data/columns"),
        ("data", "data"),
        ("link", "data/columns"),
        (["more", "data"], "data/a/b"),
        ({"data": 1, "more": 1}, "./more/../data/columns"),
        ("da*", "data/columns"),
        ("*", "columns"),
        ("**/dat?", "data/columns"),
    ],
)
@pytest.mark.parametrize("key", ["input_folder", "output"])
def test_a_folder_inside_the_data_is_refused(line, tmp_path, monkeypatch, source, folder, key):
    monkeypatch.chdir(tmp_path)
    for name in ("data", "more"):
        written(name, [trajectory(0, 3)])
    if source == "link":
        os.symlink("data", "link")
    there = sorted(tmp_path.rglob("*"))
    refused(ConfigError, DQNTrainer, line, {**TINY, "input": source, key: folder}, says=f"inside the data...{key}")
    assert [path for path in sorted(tmp_path.rglob("*")) if path.is_file() and path not in there] == []


@pytest.mark.parametrize(("source", "folder"), [("data", "data2"), ("data/*.parquet", "data/x"), ("dat*", "columns")])
def test_a_folder_beside_the_data_is_accepted(line, tmp_path, monkeypatch, source, folder):
    monkeypatch.chdir(tmp_path)
    written("data", [trajectory(0, 3)])
    for _ in range(2):
        DQNTrainer(line, {**TINY, "input": source, "input_folder": folder}).stop()


def test_failed_decoding_leaves_no_files(line, tmp_path):
    bad = trajectory(1, 3)
    bad.columns["rewards"][1] = np.nan
    data = ListReader([trajectory(0, 3), bad])
    with pytest.raises(NonFiniteError, match=r"list, line 2, step 1, column 'rewards'"):
        DQNTrainer(line, {**TINY, "input": data, "input_folder": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("sources", ["list", "mapping"])
@pytest.mark.parametrize("in_files_first", [False, True])
def test_the_same_data_in_files_logs_no_warning(line, tmp_path, caplog, in_files_first, sources):
    paths = [str(tmp_path / name) for name in "ab"]
    for number, path in enumerate(paths):
        written(path, [trajectory(number, 5), trajectory(number + 2, 3, "truncated")])
    data = paths if sources == "list" else dict.fromkeys(paths, 1)
    folders = [None, str(tmp_path / "columns")]
    first, second = reversed(folders) if in_files_first else folders
    with DQNTrainer(line, {**TINY, "input": data, "input_folder": first}) as trainer:
        trainer.train()
        path = trainer.save(tmp_path / "saved")
    with Trainer.from_checkpoint(path, input_folder=second, env=line) as other:
        assert "not that of the checkpoint" not in caplog.text
        assert other.train()["info"]["data"]["epochs"] == 40 / 16
