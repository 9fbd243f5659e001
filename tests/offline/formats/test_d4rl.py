"""D4RL's HDF5 files."""

import h5py
import numpy as np
import pytest

from rollax import ConfigError, DatasetError, open_dataset
from rollax.offline.convert import convert
from rollax.offline.describe import describe
from tests.env.refused import raised, refused
from tests.offline.formats.reading import BOX1, read, unreadable


class TestD4RL:
    def write(self, path, **changes):
        arrays = {
            "observations": np.arange(6, dtype=np.float32)[:, None],
            "actions": np.arange(6, dtype=np.float32)[:, None] / 10,
            "rewards": np.arange(6, dtype=np.float32),
            "terminals": np.array([0, 1, 0, 0, 0, 0], bool),
            "timeouts": np.array([0, 0, 0, 1, 0, 0], bool),
        }
        with h5py.File(path, "w") as file:
            for name, array in {**arrays, **changes}.items():
                if array is not None:
                    file[name] = array
        return path

    def test_the_error_names_a_damaged_part(self, tmp_path):
        path, rng = tmp_path / "a.hdf5", np.random.default_rng(0)
        self.write(path, observations=None)
        with h5py.File(path, "a") as file:
            file.create_dataset("observations", data=rng.normal(size=(6, 100)), chunks=(2, 100), compression="gzip")
            place = file["observations"].id.get_chunk_info(1)
        content = bytearray(path.read_bytes())
        content[place.byte_offset : place.byte_offset + place.size] = b"\xff" * place.size
        path.write_bytes(content)
        unreadable(r"(?s)damaged.*a.hdf5, rows 0 to 5.*max_broken", path)
        self.write(tmp_path / "b.hdf5")
        reader = open_dataset(tmp_path, max_broken=1)
        assert len(list(reader.trajectories())) == len(read(tmp_path / "b.hdf5"))
        assert "a.hdf5" in reader.broken[0]

    def test_the_step_of_a_timeout_is_left_out(self, tmp_path):
        ended, timed_out, cut = open_dataset(self.write(tmp_path / "a.hdf5")).trajectories()
        assert ended.columns["obs"].ravel().tolist() == [0, 1, 1]
        assert timed_out.columns["obs"].ravel().tolist() == [2, 3]
        assert timed_out.columns["rewards"].tolist() == [2]
        assert [one.terminated for one in (ended, timed_out, cut)] == [True, False, False]
        assert [one.truncated for one in (ended, timed_out, cut)] == [False, True, False]
        assert cut.columns["obs"].ravel().tolist() == [4, 5]

    def test_episodes_whose_only_step_is_left_out_are_counted(self, tmp_path):
        reader = open_dataset(self.write(tmp_path / "a.hdf5", timeouts=np.array([0, 0, 1, 1, 0, 0], bool)))
        assert [len(one) for one in reader.trajectories()] == [2, 1]
        assert reader.left_out == 2

    def test_the_return_has_the_reward_of_the_step_that_is_left_out(self, tmp_path, caplog):
        # Rewards 2 and 3 up to the timeout. Steps 0 and 1 end in a termination, so none of them is left out.
        reader = open_dataset(self.write(tmp_path / "a.hdf5"), observation_space=BOX1, action_space=BOX1)
        ended, timed_out, cut = reader.trajectories()
        assert [one.reward_left_out for one in (ended, timed_out, cut)] == [None, 3, 5]
        assert (ended.total_reward, timed_out.total_reward) == (1, 5)
        assert [one.shortened for one in (ended, timed_out, cut)] == [False, True, False]
        list(reader.trajectories())
        assert caplog.text.count("1 truncated trajectories are read without their last step") == 1
        for own in (reader, open_dataset(self.converted(reader, tmp_path / "own"))):
            summary = describe(own).policies["default_policy"]
            assert (summary.returns, summary.shortened) == ([1, 5], 1)
        assert own.header["behaviour"]["score"] == 3
        assert any("1 truncated trajectories lack" in warning for warning in describe(own).warnings)

    def converted(self, reader, path):
        convert(reader, path)
        return path

    def test_next_observations_and_a_time_limit(self, tmp_path):
        following = np.arange(1, 7, dtype=np.float32)[:, None]
        path = self.write(tmp_path / "a.hdf5", timeouts=None, next_observations=following)
        ended, first, second = read(path, time_limit=np.int64(2))
        assert ended.columns["obs"].ravel().tolist() == [0, 1, 2]
        assert first.columns["obs"].ravel().tolist() == [2, 3, 4]
        assert (first.truncated, second.truncated, second.columns["rewards"].tolist()) == (True, True, [4, 5])
        assert (second.total_reward, second.shortened) == (9, False)

    def test_a_time_limit_beside_timeouts(self, tmp_path):
        path = self.write(tmp_path / "a.hdf5")
        refused(ConfigError, open_dataset, path, says="no effect...'time_limit'...leave time_limit out", time_limit=2)
        other = self.write(tmp_path / "b.hdf5", timeouts=None)  # the limit of the other file
        assert len(read([path, other], time_limit=2)) == 3 + 3

    def test_without_timeouts_the_limit_of_the_environment_ends_episodes(self, tmp_path):
        # 200 steps of Pendulum-v1, 200 more, and 5: the observation is the number of the row.
        rows = np.arange(405, dtype=np.float32)
        flat = {"observations": rows[:, None], "actions": rows[:, None], "rewards": rows}
        path = self.write(tmp_path / "a.hdf5", **flat, terminals=rows > 403, timeouts=None)
        settings = {"observation_space": BOX1, "action_space": BOX1}
        found = read(path, env="Pendulum-v1", **settings)
        assert [one.columns["obs"][[0, -1], 0].tolist() for one in found] == [[0, 199], [200, 399], [400, 404]]
        assert [one.terminated for one in found] == [False, False, True]
        assert [one.truncated for one in found] == [True, True, False]
        assert len(read(path, env="Pendulum-v1", time_limit=100, **settings)) == 5

    @pytest.mark.parametrize("env", [None, "Blackjack-v1", "Unregistered-v0"])  # the second has no limit
    def test_unknown_ends_are_refused(self, tmp_path, env):
        path = self.write(tmp_path / "a.hdf5", timeouts=None)
        settings = {"env": env, "observation_space": BOX1, "action_space": BOX1}
        got = "no env" if env is None else f"no time limit of {env}"
        unreadable(rf"(?s)unknown.*a.hdf5.*{got}", path, **settings)
        refused(DatasetError, len, open_dataset(path, **settings), says="pass the setting time_limit")
        (error,) = describe(open_dataset(path, max_broken=1, **settings), check=True).errors[:1]
        assert "time_limit" in error
        assert len(read(path, time_limit=100, **settings)) == 2

    def test_gaps_of_the_next_observations_end_episodes(self, tmp_path):
        # Row 1 terminates. After row 3 comes 9, but row 4 begins with 4: an episode ended there.
        following = np.array([1, 8, 3, 9, 5, 6], np.float64)[:, None]
        path = self.write(tmp_path / "a.hdf5", timeouts=None, next_observations=following)
        assert [one.columns["obs"].ravel().tolist() for one in read(path)] == [[0, 1, 8], [2, 3, 9], [4, 5, 6]]
        assert [one.cut for one in read(path)] == [False, True, True]
        assert len(open_dataset(path)) == 6

    def test_the_limit_counts_from_a_gap(self, tmp_path):
        import gymnasium

        # A gap after row 0; the limit of 3 steps is then reached in row 3, and the last 2 rows do not reach it.
        gymnasium.register("ThreeSteps-v0", lambda: None, max_episode_steps=3)
        following = np.array([9, 2, 3, 4, 5, 6], np.float32)[:, None]
        changes = {"timeouts": None, "terminals": np.zeros(6, bool), "next_observations": following}
        path = self.write(tmp_path / "a.hdf5", **changes)
        try:
            found = read(path, env="ThreeSteps-v0", observation_space=BOX1, action_space=BOX1)
        finally:
            del gymnasium.registry["ThreeSteps-v0"]
        assert [(len(one), one.truncated) for one in found] == [(1, False), (3, True), (2, False)]

    def test_next_observations_of_another_shape_are_refused(self, tmp_path):
        path = self.write(tmp_path / "a.hdf5", timeouts=None, next_observations=np.zeros((6, 2), np.float32))
        unreadable(r"(?s)wrong shape.*a.hdf5, next_observations.*\(6, 2\)", path)

    def test_links_and_objects_are_refused(self, tmp_path):
        path = self.write(tmp_path / "a.hdf5", rewards=None)
        with h5py.File(path, "a") as file:
            file["rewards"] = h5py.ExternalLink(str(tmp_path / "b.hdf5"), "/x")
        unreadable(r"(?s)link.*/rewards.*ExternalLink", path)
        path = self.write(tmp_path / "c.hdf5")
        with h5py.File(path, "a") as file:
            file.create_dataset("infos", data=np.array([1, 2]).astype("V8"))
        unreadable(r"(?s)objects.*/infos", path)

    def test_files_that_would_fill_the_memory_are_refused(self, tmp_path):
        path = self.write(tmp_path / "a.hdf5", terminals=None)
        with h5py.File(path, "a") as file:
            file.create_dataset("terminals", (1 << 40,), "?", chunks=(1 << 20,))
        unreadable(r"(?s)larger than the file.*/terminals", path)
        path = self.write(tmp_path / "b.hdf5")
        with h5py.File(path, "a") as file:
            group = file.create_group("infos")
            group["again"] = group
        unreadable(r"(?s)contains itself.*b.hdf5", path)

    def test_groups_in_several_groups_are_refused(self, tmp_path):
        path = self.write(tmp_path / "a.hdf5")
        with h5py.File(path, "a") as file:
            outer = file.create_group("infos")
            for level in range(60):  # 2^60 paths lead to the innermost group
                inner = file.create_group(f"infos{level}") if level else outer.create_group("x")
                outer["again"] = inner
                outer[f"more{level}"] = inner
                outer = inner
        unreadable("several groups", path)

    def test_an_empty_file(self, tmp_path):
        names = ("observations", "actions", "rewards", "terminals", "timeouts")
        reader = open_dataset(self.write(tmp_path / "a.hdf5", **{name: np.zeros((0,)) for name in names}))
        assert (len(reader), list(reader.trajectories())) == (0, [])

    @pytest.mark.parametrize("time_limit", ["5", -1, 0, 2.5, True])
    def test_an_invalid_time_limit(self, tmp_path, time_limit):
        raised(ConfigError, open_dataset, self.write(tmp_path / "a.hdf5"), says="time_limit", time_limit=time_limit)

    def test_the_length_is_the_number_of_steps_read(self, tmp_path):
        for number, change in enumerate([{}, {"next_observations": np.zeros((6, 1), np.float32)}]):
            reader = open_dataset(self.write(tmp_path / f"{number}.hdf5", **change))
            assert len(reader) == sum(map(len, reader.trajectories())) == [4, 6][number]
        (tmp_path / "damaged.hdf5").write_bytes(b"x")
        assert len(open_dataset(tmp_path, max_broken=1)) == 10

    @pytest.mark.parametrize("name", ["rewards", "terminals", "timeouts"])
    def test_several_values_for_a_step_are_refused(self, tmp_path, name):
        path = self.write(tmp_path / "a.hdf5", **{name: np.zeros((6, 2))})
        unreadable(rf"(?s)not one number.*a.hdf5.*{name}.*shape \(6, 2\)", path)
        unreadable(r"(?s)different lengths.*'rewards': None", self.write(tmp_path / "b.hdf5", rewards=1.0))
        assert len(read(self.write(tmp_path / "c.hdf5", rewards=np.zeros((6, 1))))) == 3
