"""Parquet files of RLlib's new stack."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from rollax import ConfigError, open_dataset
from rollax.offline.describe import describe
from tests.offline.formats.reading import BOX, BOX1, read, unreadable


class TestRLlibParquet:
    def table(self, **changes):
        ids = {"eps_id": ["a", "a", "b", "b"], "agent_id": [None] * 4, "module_id": ["default_policy"] * 4}
        obs = {"obs": [[1.0], [0.0], [10.0], [11.0]], "new_obs": [[2.0], [1.0], [11.0], [12.0]]}
        steps = {"actions": [1, 0, 2, 3], "rewards": [1.0, 0.0, 2.0, 3.0], "t": [1, 0, 0, 1]}
        ends = {"terminateds": [True, False, False, False], "truncateds": [False, False, False, True]}
        return pa.table({**ids, **obs, **steps, **ends, **changes})

    def test_rows_become_episodes(self, tmp_path):
        pq.write_table(self.table(), tmp_path / "out.parquet")
        first, second = read(tmp_path)
        assert first.columns["obs"].ravel().tolist() == [0, 1, 2]
        assert first.columns["actions"].tolist() == [0, 1]
        assert (first.terminated, second.truncated) == (True, True)
        assert second.columns["obs"].ravel().tolist() == [10, 11, 12]

    def test_spaces_by_policy_and_the_order_of_episodes(self, tmp_path):
        # Agent 1 of both episodes ends before agent 0; policy b has observations of another shape.
        agents = {"agent_id": ["1", "1", "0", "0"], "module_id": ["b", "b", "a", "a"], "eps_id": ["x", "y", "x", "y"]}
        obs = [[1.0], [2.0], [3.0, 4.0], [5.0, 6.0]]
        ends = {"t": [0] * 4, "terminateds": [True] * 4, "truncateds": [False] * 4}
        pq.write_table(self.table(**agents, **ends, obs=obs, new_obs=obs), tmp_path / "out.parquet")
        found = read(tmp_path, observation_space={"a": BOX, "b": BOX1})
        assert [(one.episode_id, one.policy_id) for one in found] == [("x", "b"), ("x", "a"), ("y", "b"), ("y", "a")]
        assert [one.columns["obs"].shape for one in found] == [(2, 1), (2, 2)] * 2
        with pytest.raises(ConfigError, match=r"(?s)has no space.*out.parquet, row 0, policy 'b'"):
            read(tmp_path, observation_space={"a": BOX})

    def test_objects_are_refused(self, tmp_path):
        pq.write_table(self.table(obs=[b"x"] * 4), tmp_path / "out.parquet")
        unreadable(r"(?s)objects.*out.parquet, column 'obs'.*output_compress_columns", tmp_path)

    def test_a_single_agent_that_begins_late_is_a_continuation(self, tmp_path):
        pq.write_table(self.table(t=[3, 2, 0, 1]), tmp_path / "out.parquet")
        assert [one.continues for one in read(tmp_path)] == [True, False]
        pq.write_table(self.table(t=[3, 2, 0, 1], agent_id=["agent0"] * 4), tmp_path / "out.parquet")
        assert [one.continues for one in read(tmp_path)] == [False, False]  # one of several agents can join later

    def test_files_without_t(self, tmp_path):
        # As RLlib writes them. Episode b continues in the second file.
        def file(name, eps_id, first, truncateds):
            obs, new_obs = ([[float(first + i + k)] for i in range(4)] for k in (0, 1))
            table = self.table(eps_id=eps_id, obs=obs, new_obs=new_obs, rewards=[1.0] * 4)
            flags = pa.array(truncateds), pa.array([False] * 4)
            for column, values in zip(("truncateds", "terminateds"), flags, strict=True):
                table = table.set_column(table.column_names.index(column), column, values)
            pq.write_table(table.drop_columns("t"), tmp_path / name)

        file("1.parquet", ["a", "a", "b", "b"], 0, [False, True, False, False])
        file("2.parquet", ["b", "b", "c", "c"], 4, [False, True, False, True])
        assert not describe(open_dataset(tmp_path), check=True).errors
        observed = [one.columns["obs"].ravel().tolist() for one in read(tmp_path)]
        assert observed == [[0, 1, 2], [2, 3, 4, 5, 6], [6, 7, 8]]
        assert all("t" not in one.columns and not one.cut for one in read(tmp_path))
        (tmp_path / "1.parquet").write_bytes(b"PAR1")
        found = read(tmp_path, format="rllib_parquet", max_broken=1)
        assert [(one.episode_id, one.continues) for one in found] == [("b", True), ("c", False)]

    def part(self, path, t, *, agent=None, ends=False, with_t=True):
        """A file with steps of episode a, with their `t` as the observation; the agent acts at every second t."""
        flags = {"terminateds": [False] * (len(t) - 1) + [ends], "truncateds": [False] * len(t)}
        obs, new_obs = ([[float(i + k)] for i in t] for k in (0, 2))
        ids = {"eps_id": ["a"] * len(t), "agent_id": [agent] * len(t), "module_id": ["m"] * len(t)}
        steps = {"obs": obs, "new_obs": new_obs, "actions": [0] * len(t), "rewards": [1.0] * len(t)}
        pq.write_table(pa.table({**ids, **steps, **flags, **({"t": t} if with_t else {})}), path)

    @pytest.mark.parametrize("files", [[[0, 2, 8, 10]], [[0, 2], [8, 10]]])
    def test_rows_after_a_gap_are_not_joined(self, tmp_path, files):
        for number, t in enumerate(files):
            self.part(tmp_path / f"{number}.parquet", t, ends=t[-1] == 10)
        found = read(tmp_path)
        assert [one.columns["obs"].ravel().tolist() for one in found] == [[0, 2, 4], [8, 10, 12]]
        assert [(one.ended, one.continues) for one in found] == [(False, False), (True, True)]

    def test_without_t_files_are_joined_if_the_observations_match(self, tmp_path):
        for number, (t, ends) in enumerate([([0, 2], False), ([4, 6], False), ([10], True)]):
            self.part(tmp_path / f"{number}.parquet", t, ends=ends, with_t=False)
        found = read(tmp_path)
        assert [one.columns["obs"].ravel().tolist() for one in found] == [[0, 2, 4, 6, 8], [10, 12]]
        assert [(one.ended, one.continues) for one in found] == [(False, False), (True, True)]

    @pytest.mark.parametrize("agent", [None, "x"])
    def test_files_out_of_the_order_of_t(self, tmp_path, agent):
        self.part(tmp_path / "a.parquet", [6, 8], agent=agent, ends=True)
        self.part(tmp_path / "b.parquet", [0, 2, 4], agent=agent)
        unreadable(r"(?s)order of time.*b.parquet, row 0.*t = 4, after .* t = 6.*getmtime", tmp_path)
        (found,) = read([tmp_path / "b.parquet", tmp_path / "a.parquet"])
        assert (found.columns["t"].tolist(), found.cut) == ([0, 2, 4, 6, 8], False)
        assert len(read(tmp_path, max_broken=1)) == 1

    @pytest.mark.parametrize(
        ("change", "got"),
        [
            ({"t": [0, 0, 0, 1], "terminateds": [False] * 4}, "two rows with t = 0"),
            ({"terminateds": [False, True, False, False], "t": [1, 0, 0, 1]}, "a step after the end of episode 'a'"),
        ],
    )
    def test_episodes_with_the_same_ids_are_refused(self, tmp_path, change, got):
        pq.write_table(self.table(**change), tmp_path / "a.parquet")
        unreadable(rf"(?s)same ids.*a.parquet, row \d, agent 'agent0'.*{got}", tmp_path)

    def test_agent_0_keeps_its_id(self, tmp_path):
        pq.write_table(self.table(agent_id=[0, 0, 1, 1], t=[3, 2, 0, 1]), tmp_path / "a.parquet")
        found = read(tmp_path)
        assert [one.agent_id for one in found] == [0, 1]
        assert not found[0].continues  # one of several agents can join later

    def test_shapes_that_are_pickled_come_from_the_space(self, tmp_path):
        flat = pa.array([[float(i)] * 4 for i in range(4)], pa.list_(pa.float32()))
        table = self.table(obs=flat, new_obs=flat)
        for name in ("obs", "new_obs"):
            metadata = {b"ARROW:extension:metadata": pickle.dumps((2, 2))}
            field = table.schema.field(name).with_metadata(metadata)
            table = table.set_column(table.column_names.index(name), field, flat)
        pq.write_table(table, tmp_path / "a.parquet")
        space = spaces.Box(-np.inf, np.inf, (2, 2), np.float32)
        first, _ = read(tmp_path, observation_space=space)
        assert first.columns["obs"].shape == (3, 2, 2)
        assert first.columns["obs"][:, 0, 0].tolist() == [1, 0, 0]
        unreadable(r"(?s)column is pickled.*row 1, column 'obs'.*observation_space", tmp_path)

    @pytest.mark.parametrize("change", [{"t": [0, 1, None, 2]}, {"rewards": ["1", "x", "2", "3"]}])
    def test_values_that_are_missing_or_not_numbers(self, tmp_path, change):
        pq.write_table(self.table(), tmp_path / "a.parquet")
        pq.write_table(self.table(**change), tmp_path / "b.parquet")
        reader = open_dataset(tmp_path, max_broken=1)
        assert len(list(reader.trajectories())) == 2
        assert "b.parquet" in reader.broken[0]

    def test_the_columns_of_a_long_footer_are_found(self, tmp_path):
        table = self.table()
        table = table.replace_schema_metadata({"note": "x" * (1 << 18)})  # after the column names
        pq.write_table(table, tmp_path / "out.parquet")
        assert len(read(tmp_path)) == 2
