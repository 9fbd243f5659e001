"""Custom formats, settings of sources, and values that are not data."""

import os

import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, DatasetError, DatasetReader, open_dataset
from rollax.core.space_json import space_from_json
from rollax.offline.reader import reading
from tests.env.refused import raised
from tests.offline import recorded
from tests.offline.formats.reading import BOX
from tests.offline.formats.test_parquet import trajectory
from tests.offline.test_describe import some, written


class Countdown(DatasetReader):
    """A reader of a custom format."""

    def __init__(self, paths, steps=3):
        self.observation_spaces = {"default_policy": BOX}
        self.action_spaces = {"default_policy": spaces.Discrete(2)}
        self.header, self.broken, self.steps = {"paths": [path.name for path in paths]}, [], steps

    def trajectories(self):
        yield trajectory(np.random.default_rng(0), self.steps, 0, obs=BOX, acts=spaces.Discrete(2))


def test_a_custom_format(tmp_path):
    (tmp_path / "x.bin").touch()
    reader = open_dataset(tmp_path / "x.bin", format="tests.offline.formats.test_formats:Countdown", steps=5)
    assert (len(reader), reader.header) == (5, {"paths": ["x.bin"]})
    assert len(open_dataset(lambda steps: Countdown([], steps), steps=4)) == 4
    both = open_dataset([Countdown([]), lambda: Countdown([])])
    assert [one.episode_id for one in both.trajectories()] == ["0:0", "1:0"]
    assert len(both) == 6


@pytest.mark.parametrize(
    ("files", "source", "named"),
    [
        (["meta/info.json", "meta/episodes.jsonl", "data/chunk-000/episode_000000.parquet"], "", "LeRobot"),
        (["dataset_info.json", "door-train.tfrecord-00000-of-00002"], "", "RLDS"),
        (["1.0.0/dataset_info.json", "1.0.0/door-train.tfrecord-00000-of-00002"], "", "RLDS"),
        (["door.tfrecord"], "door.tfrecord", "RLDS"),
    ],
)
def test_formats_that_are_not_read(tmp_path, files, source, named):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(DatasetError, match=rf"(?s){named}.*are not read.*DatasetWriter.*rollax docs offline"):
        open_dataset(tmp_path / source)


@pytest.mark.parametrize("name", ["lerobot", "rlds"])
def test_names_of_formats_that_are_not_read(tmp_path, name):
    with pytest.raises(DatasetError, match=r"(?s)are not read.*rllib_parquet.*rollax docs offline"):
        open_dataset(tmp_path, format=name)


@pytest.mark.parametrize("source", [5, [5], None, {"data": 1}, b"data"])
def test_invalid_sources(source):
    with pytest.raises(DatasetError, match=r"not a source of data(.|\n)*got: +(5|None|\{'data': 1\}|b'data')\n"):
        open_dataset(source)


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        (Countdown([]), {"format": "csv"}),
        (Countdown([]), {"max_broken": 3}),
        ([Countdown([]), Countdown([])], {"max_broken": 3}),
        (lambda: Countdown([]), {"format": "csv"}),
    ],
)
def test_settings_that_no_source_uses(source, settings):
    (name,) = settings
    raised(ConfigError, open_dataset, source, says=f"no effect...'{name}'...leave {name} out", **settings)
    with reading(source, **settings) as reader:  # settings of a config may be for another source
        assert len(reader) == 3 * len(source if isinstance(source, list) else [source])


@pytest.mark.parametrize("settings", [{}, {"step": 4}])
def test_settings_that_a_function_does_not_accept(settings):
    with pytest.raises(ConfigError, match=r"does not accept these settings(.|\n)*<lambda>(.|\n)*expected: steps"):
        open_dataset(lambda steps: Countdown([], steps), **settings)


def test_settings_that_only_one_of_two_sources_uses(tmp_path):
    (tmp_path / "x.bin").touch()
    settings = {"format": "tests.offline.formats.test_formats:Countdown", "steps": 5}
    assert len(open_dataset([Countdown([]), tmp_path / "x.bin"], **settings)) == 8


def test_reading_closes_only_readers_that_it_opened(tmp_path):
    closed, given, opened = [], Countdown([]), Countdown([])
    given.close, opened.close = lambda: closed.append("given"), lambda: closed.append("opened")
    kept = trajectory(np.random.default_rng(0), 2, "id", obs=BOX, acts=spaces.Discrete(2))
    given.trajectories = lambda: iter([kept])
    for source in ([given, lambda: opened], (lambda: opened, [given]), [given], given):
        for _ in range(2):
            with reading(source) as reader:
                assert sorted(len(one) for one in reader.trajectories()) in ([2], [2, 3])
    assert closed == ["opened"] * 4
    assert kept.episode_id == "id"  # the original is not changed when several sources are numbered
    with pytest.raises(DatasetError, match="The data does not exist"), reading([lambda: opened, tmp_path / "nothing"]):
        pass
    assert closed == ["opened"] * 5


@pytest.mark.parametrize("to_file", [False, True])
def test_a_file_in_several_paths_is_read_once(tmp_path, to_file):
    inner = tmp_path / "runs" / "a" / "data"
    one = trajectory(np.random.default_rng(0), 3, 0, obs=BOX, acts=spaces.Discrete(2))
    (path,) = recorded.written(inner, [one], (BOX, spaces.Discrete(2)))
    named = tmp_path / "runs" / "**" if not to_file else tmp_path / "runs" / "**" / "*.parquet"
    for source in (named, [tmp_path / "runs", inner], [path, named], [inner, inner / ".." / "data"]):
        assert len(open_dataset(source)) == 3, source


PPO = {"env": "A", "converted": True, "behaviour": {"algorithm": "PPO", "explore": True, "score": 3.0}}
DQN = {"env": "B", "converted": True, "behaviour": {"algorithm": "DQN", "explore": True, "score": 3.0}}


def test_the_header_of_several_data_sets_has_their_common_keys():
    first, second = Countdown([]), Countdown([])
    first.header, second.header = PPO, PPO
    assert open_dataset([first, second]).header == PPO
    second.header = DQN
    shared = {"converted": True, "behaviour": {"explore": True, "score": 3.0}}
    assert open_dataset([first, second]).header == shared
    second.header = {}
    assert open_dataset([first, second]).header == {}


def test_the_header_of_files_of_several_runs_has_their_common_keys(tmp_path):
    for number, header in enumerate((PPO, DQN)):
        one = trajectory(np.random.default_rng(0), 3, number, obs=BOX, acts=spaces.Discrete(2))
        one.columns["rewards"][:] = number
        recorded.written(tmp_path, [one], (BOX, spaces.Discrete(2)), header=header)
    header = open_dataset(tmp_path).header
    assert header["behaviour"] == {"explore": True, "score": 1.5}
    assert header["converted"]
    assert "env" not in header


def test_files_that_are_not_data(tmp_path):
    raised(DatasetError, open_dataset, tmp_path / "nothing*", says="The data does not exist")
    raised(DatasetError, open_dataset, tmp_path, says="contains no data")
    (tmp_path / "x.bin").touch()
    raised(DatasetError, open_dataset, tmp_path / "x.bin", says="format of the file is unknown...x.bin")
    raised(ConfigError, open_dataset, tmp_path / "x.bin", says="did you mean 'minari'", format="minary")
    raised(DatasetError, open_dataset, list, says="The function does not return a reader")


@pytest.mark.parametrize(
    ("described", "space"),
    [
        ({"type": "Discrete", "n": 3}, spaces.Discrete(3)),
        ({"type": "MultiDiscrete", "nvec": [2, 3]}, spaces.MultiDiscrete([2, 3])),
        ({"type": "Box", "low": -1, "high": "inf", "shape": [2]}, spaces.Box(-1, np.inf, (2,), np.float32)),
        ({"type": "MultiBinary", "shape": [5]}, spaces.MultiBinary([5])),
    ],
)
def test_spaces_as_json(described, space):
    assert space_from_json(described) == space


def test_json_that_is_not_a_space(tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    for given in ({"type": "Discrete"}, {"type": "Disc", "n": 3}):
        with pytest.raises(ConfigError, match=r'(?s)does not describe a space.*\'action_space\'.*"type": "Box"'):
            open_dataset(tmp_path / "a.jsonl", action_space=given)
    with pytest.raises(ConfigError, match=r"(?s)Unknown environment.*'env'.*observation_space"):
        open_dataset(tmp_path / "a.jsonl", env="No-v0")


def test_pipes_in_a_folder_are_not_read(tmp_path):
    written(tmp_path, some(2))
    for name in ("a.parquet", "b.jsonl", "c.csv", "d.hdf5"):
        os.mkfifo(tmp_path / name)
    assert len(list(open_dataset(tmp_path).trajectories())) == 2
