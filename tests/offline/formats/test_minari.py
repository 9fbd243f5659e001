"""Minari's data sets in HDF5 and Arrow."""

import copy
import json
import resource

import gymnasium as gym
import h5py
import numpy as np
import pytest
from gymnasium import spaces

from rollax import BCTrainer, ConfigError, DatasetError, open_dataset
from rollax.core import trees
from rollax.offline.dataset import RecordedTrajectory
from rollax.offline.formats.minari_format import write_minari
from tests.env.refused import refused
from tests.offline.formats.reading import BOX, BOX1, read, unreadable
from tests.offline.formats.test_parquet import trajectory
from tests.offline.recorded import ListReader
from tests.offline.test_describe import some
from tests.offline.test_describe import written as write_some
from tests.offline.worlds import IMAGE

NESTED = spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float32), "b": spaces.Tuple([spaces.Discrete(3)])})


@pytest.mark.parametrize("storage", ["hdf5", "arrow"])
@pytest.mark.parametrize("space", [NESTED, IMAGE, spaces.Discrete(5)], ids=["nested", "image", "discrete"])
def test_minari_there_and_back(tmp_path, storage, space):
    import minari

    rng = np.random.default_rng(0)
    action_space = spaces.Box(-1, 1, (2,), np.float32)
    written = [
        trajectory(rng, steps, i, ends=end, obs=space, acts=action_space)
        for i, (steps, end) in enumerate([(3, "terminated"), (2, "truncated"), (4, "cut")])
    ]
    assert write_minari(ListReader(written, space, action_space), tmp_path / "out", storage=storage) == 3
    theirs = minari.MinariDataset(tmp_path / "out" / "data")
    assert (theirs.total_episodes, theirs.total_steps) == (3, 9)
    reader = open_dataset(tmp_path / "out")
    assert len(reader) == 9
    for one, episode, back in zip(written, theirs.iterate_episodes(), reader.trajectories(), strict=True):
        for found in (episode.observations, back.columns["obs"]):
            trees.tree_map(np.testing.assert_array_equal, one.columns["obs"], found)
        for found in (episode.actions, back.columns["actions"]):
            np.testing.assert_array_equal(one.columns["actions"], found)
        np.testing.assert_array_equal(one.columns["rewards"], back.columns["rewards"])
        ends = (one.terminated, one.truncated)
        assert ends == (back.terminated, back.truncated) == (episode.terminations[-1], episode.truncations[-1])


@pytest.mark.parametrize("storage", ["hdf5", "arrow"])
@pytest.mark.filterwarnings("ignore")  # Minari's own names
def test_data_collected_by_minari_is_read(tmp_path, storage, monkeypatch):
    from minari import DataCollector

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = DataCollector(gym.make("CartPole-v1"), data_format=storage)
    env.action_space.seed(0)
    played = []
    for seed in range(3):
        steps, over = [env.reset(seed=seed)[0]], False
        while not over:
            obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
            steps.append(obs)
            over = terminated or truncated
        played.append(np.array(steps))
    env.create_dataset("cartpole/random-v0", algorithm_name="random")
    env.close()
    reader = open_dataset(tmp_path / "cartpole" / "random-v0")
    assert (reader.header["env"], reader.header["behaviour"]) == ("CartPole-v1", {"algorithm": "random"})
    for obs, one in zip(played, reader.trajectories(), strict=True):
        np.testing.assert_array_equal(one.columns["obs"], obs)
        assert one.terminated
    assert len(reader) == sum(map(len, played)) - 3


def long_trajectory(steps):
    columns = {
        "obs": np.arange(steps + 1, dtype=np.float32)[:, None],
        "actions": np.zeros(steps, np.int64),
        "rewards": np.arange(steps, dtype=np.float64),
    }
    return RecordedTrajectory(columns, True, False, "long", 0, "default_policy")


class TestLongEpisodes:
    # PyArrow writes 32 * 1024 rows in a record batch, and Minari reads one batch: 32,768 observations, so 32,767 steps.
    LIMIT = 32_767

    def reader(self, steps):
        return ListReader([long_trajectory(steps)], spaces.Box(0, 1e9, (1,), np.float32), spaces.Discrete(2))

    @pytest.mark.parametrize("storage", ["hdf5", "arrow"])
    def test_the_longest_of_arrow_is_read_whole(self, tmp_path, storage):
        write_minari(self.reader(self.LIMIT), tmp_path / "out", storage=storage)
        (back,) = read(tmp_path / "out")
        np.testing.assert_array_equal(back.columns["rewards"], np.arange(self.LIMIT))

    def test_a_longer_one_is_written_in_hdf5_only(self, tmp_path):
        reader = self.reader(self.LIMIT + 1)
        with pytest.raises(DatasetError, match=r"(?s)too long for Arrow.*32768 steps.*at most 32767.*\"minari\""):
            write_minari(reader, tmp_path / "arrow", storage="arrow")
        assert not (tmp_path / "arrow").exists()
        write_minari(reader, tmp_path / "hdf5")
        (back,) = read(tmp_path / "hdf5")
        np.testing.assert_array_equal(back.columns["rewards"], np.arange(self.LIMIT + 1))

    def test_a_longer_one_that_minari_wrote_in_arrow_is_refused(self, tmp_path, monkeypatch):
        # Without the check of the writer.
        monkeypatch.setattr("rollax.offline.formats.minari_format._ARROW_ROWS", 1 << 20)
        write_minari(self.reader(40_000), tmp_path / "out", storage="arrow")
        unreadable(r"(?s)number of steps.*episode 0.*got.*expected: 40000.*HDF5", tmp_path / "out")
        reader = open_dataset(tmp_path / "out", max_broken=1)
        assert (list(reader.trajectories()), len(reader.broken)) == ([], 1)


class TestMinari:
    def written(self, folder, space=BOX1):
        one = trajectory(np.random.default_rng(0), 2, 0, obs=space, acts=spaces.Discrete(2))
        write_minari(ListReader([one], space, spaces.Discrete(2)), folder)
        return folder

    def test_data_sets_with_other_spaces_are_refused(self, tmp_path):
        one, other = self.written(tmp_path / "one"), self.written(tmp_path / "other", BOX)
        refused(DatasetError, open_dataset, [one, other], says="different observation spaces...other...as in ...one")

    @pytest.mark.parametrize("setting", ["env", "observation_space", "action_space"])
    def test_settings_of_spaces_are_refused(self, tmp_path, setting):
        with pytest.raises(ConfigError, match=rf"(?s)settings.*'{setting}'"):
            open_dataset(self.written(tmp_path / "one"), **{setting: "CartPole-v1"})

    @pytest.mark.parametrize("change", [{"env_spec": "["}, {"env_spec": "[]"}, {"total_steps": "x"}, None])
    def test_damaged_metadata(self, tmp_path, change):
        one, other = self.written(tmp_path / "one"), self.written(tmp_path / "other")
        path = one / "data" / "metadata.json"
        path.write_text("[" if change is None else json.dumps({**json.loads(path.read_text()), **change}))
        refused(DatasetError, open_dataset, [one, other], says="cannot be read...one, data/metadata.json")
        reader = open_dataset([one, other], max_broken=1)
        for _ in range(2):
            assert len(list(reader.trajectories())) == 1
            assert len(reader.broken) == 1

    @pytest.mark.parametrize("missing", ["observation_space", "action_space"])
    def test_the_environment_of_the_metadata_is_never_made(self, tmp_path, missing):
        path = self.written(tmp_path / "one")
        metadata = json.loads((path / "data" / "metadata.json").read_text())
        del metadata[missing]
        spec = copy.deepcopy(gym.spec("CartPole-v1"))
        spec.entry_point, spec.kwargs = "os:makedirs", {"name": str(tmp_path / "made")}
        metadata["env_spec"] = spec.to_json()
        (path / "data" / "metadata.json").write_text(json.dumps(metadata))
        refused(DatasetError, open_dataset, path, says=f"does not describe its spaces...got:      no {missing}\n")
        assert not (tmp_path / "made").exists()

    def test_several_rewards_for_a_step_are_refused(self, tmp_path):
        path = self.written(tmp_path / "one")
        with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
            del file["episode_0"]["rewards"]
            file["episode_0"]["rewards"] = np.zeros((2, 2))
        unreadable(r"(?s)not one number.*episode 0, rewards.*shape \(2, 2\)", path)


@pytest.mark.parametrize("size", [1000, 3000, 100_000])
def test_a_full_disk_is_an_error(tmp_path, size):
    write_some(tmp_path / "own", some(3))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))  # HDF5 would crash this process
    try:
        with pytest.raises(DatasetError, match=r"could not be written(.|\n)*File too large"):
            write_minari(open_dataset(tmp_path / "own"), tmp_path / "data")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


class TestIds:
    """`minari:ID` is a data set in the folder where Minari keeps those that it has downloaded."""

    @pytest.fixture(autouse=True)
    def local(self, tmp_path, monkeypatch):
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets [a]"))
        for name in ("maze/small-v0", "maze/large-v0", "door-v1"):
            write_minari(ListReader([long_trajectory(4)], BOX1, spaces.Discrete(2)), tmp_path / "datasets [a]" / name)
        write_minari(ListReader([long_trajectory(4)], BOX1, spaces.Discrete(2)), tmp_path / "elsewhere-v0")

    @pytest.mark.parametrize(
        ("source", "steps"),
        [("minari:maze/small-v0", 4), ("minari:maze/*", 8), (["minari:door-v1", "minari:maze/*"], 12)],
    )
    def test_an_id_or_a_pattern_of_ids(self, source, steps):
        assert len(open_dataset(source)) == steps

    @pytest.mark.parametrize("name", ["maze/huge-v0", "", "../elsewhere-v0", "/etc", "maze"])
    def test_others_are_refused(self, name):
        refused(DatasetError, open_dataset, f"minari:{name}")

    def test_data_sets_with_the_same_settings_are_decoded_apart(self, tmp_path):
        folder = tmp_path / "columns"
        for name in ("maze/small-v0", "door-v1", "maze/small-v0"):
            BCTrainer(config={"input": f"minari:{name}", "input_folder": str(folder), "seed": 0}).stop()
        assert len(list(folder.glob("data-*"))) == 2

    @pytest.mark.long
    def test_a_config_names_one(self):
        with BCTrainer(config={"input": "minari:maze/small-v0", "seed": 0}) as trainer:
            assert trainer.train()["timesteps_total"] > 0
