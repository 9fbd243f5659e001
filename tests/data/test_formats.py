"""Data sets of other libraries: read as they are, or refused with the place and the way out."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from rollax import ConfigError, DatasetError, DatasetReader, open_dataset, trees
from rollax.config.stored import space_to_json
from rollax.data.convert import convert
from rollax.data.describe import describe
from rollax.data.formats.minari_format import write_minari
from rollax.data.reader import reading
from rollax.data.writer import DatasetWriter
from tests.data.test_parquet import trajectory
from tests.data.worlds import IMAGE

BOX1 = spaces.Box(-np.inf, np.inf, (1,), np.float32)
BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)


def read(source, **settings):
    return list(open_dataset(source, **settings).trajectories())


def lines(path, *values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


class TestJsonLines:
    EPISODE = {
        "episode_id": "e",
        "agents": {
            "left": {"obs": [[1, 2], [3, 4], [5, 6]], "actions": [0, 1], "rewards": [0.1, 2], "terminated": True},
            "right": {"obs": [[7, 8], [9, 9]], "actions": [1], "rewards": [3], "action_logp": [-0.5], "t": [1]},
        },
    }

    def test_agents_of_an_episode(self, tmp_path):
        left, right = read(lines(tmp_path / "log.jsonl", self.EPISODE), observation_space=BOX)
        assert left.columns["obs"].dtype == np.float32
        assert left.columns["obs"].tolist() == [[1, 2], [3, 4], [5, 6]]
        assert left.columns["rewards"].tolist() == [0.1, 2]
        assert (left.terminated, right.terminated, right.cut) == (True, False, True)
        assert right.columns["action_logp"].tolist() == [-0.5]
        assert (left.columns["t"].tolist(), right.columns["t"].tolist()) == ([0, 1], [1])
        assert [one.agent_id for one in (left, right)] == ["left", "right"]
        assert {one.episode_id for one in (left, right)} == {"0:e"}

    def test_files_with_the_same_ids_have_episodes_of_their_own(self, tmp_path):
        files = [lines(tmp_path / f"{name}.jsonl", self.EPISODE) for name in "ab"]
        assert [one.episode_id for one in read(files)] == ["0:e", "0:e", "1:e", "1:e"]
        convert(open_dataset(files), tmp_path / "both.jsonl", "json_lines")
        assert describe(open_dataset(tmp_path / "both.jsonl")).episodes == 2

    @pytest.mark.parametrize(
        ("flags", "ends"),
        [
            ({"terminated": [False, False], "truncated": [False, True]}, (False, True)),
            ({"terminated": [False, True]}, (True, False)),
            ({"truncated": True}, (False, True)),
        ],
    )
    def test_flags_of_the_end(self, tmp_path, flags, ends):
        agents = {"left": {**self.EPISODE["agents"]["left"], "terminated": False, **flags}}
        (found,) = read(lines(tmp_path / "log.jsonl", {"agents": agents}))
        assert (found.terminated, found.truncated) == ends

    @pytest.mark.parametrize("flag", ["false", 1, None, [], [True, False], [True], [0, 1], {"a": True}])
    def test_what_is_no_flag_of_the_end(self, tmp_path, flag):
        agents = {"left": {**self.EPISODE["agents"]["left"], "terminated": flag}}
        with pytest.raises(DatasetError, match=r"(?s)flag.*log.jsonl, line 1, agent 'left', terminated.*a list of 2"):
            read(lines(tmp_path / "log.jsonl", {"agents": agents}))

    def test_what_is_not_utf8_is_a_broken_line(self, tmp_path):
        path = tmp_path / "log.jsonl"
        path.write_bytes(b'{"x": "\xff"}\n' + json.dumps(self.EPISODE).encode())
        with pytest.raises(DatasetError, match=r"(?s)log.jsonl, line 1.*utf-8.*max_broken"):
            read(path)
        assert len(read(path, max_broken=1)) == 2

    def test_a_file_that_is_gone_is_skipped(self, tmp_path):
        files = [lines(tmp_path / f"{name}.jsonl", self.EPISODE) for name in "ab"]
        reader = open_dataset(files, max_broken=1)
        files[0].unlink()
        assert len(list(reader.trajectories())) == 2
        assert "a.jsonl" in reader.broken[0]

    def test_a_single_agent_that_begins_late_goes_on(self, tmp_path):
        steps = {"obs": [[1, 2], [3, 4]], "actions": [0], "rewards": [5], "terminated": True}
        agents = {"agent0": {**steps, "t": [4]}}, {"agent0": steps}, {"agent0": {**steps, "t": [4]}, "other": steps}
        found = read(lines(tmp_path / "log.jsonl", *({"agents": each} for each in agents)))
        assert [one.continues for one in found] == [True, False, False, False]  # of several, some enter later

    def test_truncated_lines_are_counted(self, tmp_path):
        path = tmp_path / "log.jsonl"
        path.write_text(json.dumps(self.EPISODE) + "\n" + json.dumps(self.EPISODE)[:50])
        with pytest.raises(DatasetError, match=r"(?s)truncated.*log.jsonl, line 2.*max_broken"):
            read(path)
        reader = open_dataset(path, max_broken=1)
        assert len(list(reader.trajectories())) == 2
        assert len(reader.broken) == 1
        path.write_text("{\n{\n" + json.dumps(self.EPISODE))
        with pytest.raises(DatasetError, match=r"(?s)max_broken=1.*line 2"):
            read(path, max_broken=1)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"obs": [[1, 2]]}, "wrong length"),
            ({"action_logp": [-1.0]}, "wrong length"),
            ({"t": [3]}, "wrong length"),
            ({"obs": [[1, 2], [3], [4, 5]]}, "Values"),
            ({"obs": [{"a": 1}] * 3}, "not of the space"),
            ({"rewards": ["x", 1]}, "not one number for each step"),
            ({"rewards": [[1, 2], [3, 4]]}, "not one number for each step"),
        ],
    )
    def test_what_is_no_trajectory(self, tmp_path, change, says):
        agents = {"left": {**self.EPISODE["agents"]["left"], **change}}
        path = lines(tmp_path / "log.jsonl", self.EPISODE, {"agents": agents})
        with pytest.raises(DatasetError, match=rf"(?s){says}.*line 2"):
            read(path, observation_space=BOX)

    @pytest.mark.parametrize("change", [{"rewards": [10**400, 1]}, {"t": [2**70, 1]}, {"actions": [2**70, 1]}])
    def test_numbers_that_are_too_large(self, tmp_path, change):
        agents = {"left": {**self.EPISODE["agents"]["left"], **change}}
        path = lines(tmp_path / "log.jsonl", self.EPISODE, {"agents": agents})
        reader = open_dataset(path, observation_space=BOX, action_space=spaces.Discrete(2), max_broken=1)
        assert len(list(reader.trajectories())) == 2
        assert "line 2" in reader.broken[0]


class TestRLlibJson:
    ROWS = {
        "type": "SampleBatch",
        "obs": [[0.0], [1.0], [10.0], [11.0]],
        "new_obs": [[1.0], [2.0], [11.0], [12.0]],
        "actions": [0, 1, 2, 3],
        "rewards": [1.0, 2.0, 3.0, 4.0],
        "terminateds": [False, True, False, False],
        "truncateds": [False, False, False, False],
        "eps_id": [5, 5, 6, 6],
        "agent_index": [0, 0, 0, 0],
        "action_logp": [-1.0, -2.0, -3.0, -4.0],
    }

    def test_episodes_over_lines(self, tmp_path):
        more = {**self.ROWS, **{name: column[:1] for name, column in self.ROWS.items() if name != "type"}}
        more |= {"obs": [[12.0]], "new_obs": [[13.0]], "eps_id": [6], "truncateds": [True], "actions": [4]}
        first, second = read(lines(tmp_path / "out.json", self.ROWS, more))
        assert first.columns["obs"].ravel().tolist() == [0, 1, 2]
        assert (first.terminated, first.truncated) == (True, False)
        assert second.columns["obs"].ravel().tolist() == [10, 11, 12, 13]
        assert second.columns["actions"].tolist() == [2, 3, 4]
        assert second.columns["action_logp"].tolist() == [-3, -4, -1]
        assert (second.terminated, second.truncated) == (False, True)

    def test_without_new_obs_the_last_step_of_what_goes_on_is_left_out(self, tmp_path):
        rows = {name: column for name, column in self.ROWS.items() if name != "new_obs"}
        first, second = read(lines(tmp_path / "out.json", rows))
        assert first.columns["obs"].ravel().tolist() == [0, 1, 1]
        assert second.columns["obs"].ravel().tolist() == [10, 11]
        assert second.columns["rewards"].tolist() == [3]
        assert second.cut

    def test_several_policies(self, tmp_path):
        batch = {"type": "MultiAgentBatch", "count": 4, "policy_batches": {"a": self.ROWS, "b": self.ROWS}}
        found = read(lines(tmp_path / "out.json", batch))
        assert [(one.episode_id, one.policy_id) for one in found] == [
            *(("0:5", "a"), ("0:5", "b"), ("0:6", "a"), ("0:6", "b"))
        ]

    def test_the_trajectories_of_an_episode_follow_one_another(self, tmp_path):
        # Two episodes at a time; agent 1 of each ends in the first line, agent 0 in the second.
        def line(first, *agents):
            batches = [self.rows(first, 2, eps_id=i, agent=a, ends=e) for i in (5, 6) for a, e in agents]
            columns = {name: [row for each in batches for row in each[name]] for name in batches[0] if name != "type"}
            return {"type": "MultiAgentBatch", "policy_batches": {"a": columns}}

        path = lines(tmp_path / "a.json", line(0, (0, False), (1, True)), line(2, (0, True)))
        found = read(path)
        assert [(one.episode_id, one.agent_id) for one in found] == [("0:5", 1), ("0:5", 0), ("0:6", 1), ("0:6", 0)]

    @pytest.mark.parametrize("as_json", [False, True])
    def test_spaces_by_policy(self, tmp_path, as_json):
        batch = {"type": "MultiAgentBatch", "policy_batches": {"a": self.ROWS, "b": self.ROWS}}
        path, form = lines(tmp_path / "out.json", batch), space_to_json if as_json else lambda space: space
        small = spaces.Box(-5, 5, (1,), np.float32)
        settings = {
            "observation_space": {"a": form(BOX1), "b": form(small)},
            "action_space": {name: form(spaces.Discrete(4)) for name in "ab"},
        }
        report = describe(open_dataset(path, **settings), check=True)
        assert len(report.errors) == 1
        assert "is not in Box(-5.0" in report.errors[0]
        convert(open_dataset(path, **settings), tmp_path / "own")
        assert open_dataset(tmp_path / "own").observation_spaces == {"a": BOX1, "b": small}
        with pytest.raises(
            ConfigError, match=r"(?s)without a space.*out.json, line 1, policy 'a'.*\{policy id: space\}"
        ):
            read(path, observation_space=BOX1)
        with pytest.raises(DatasetError, match=r"(?s)not known.*\['a', 'b'\], action spaces of \[\].*policy id: space"):
            convert(open_dataset(path, observation_space=settings["observation_space"]), tmp_path / "no")
        with pytest.raises(ConfigError, match=r"(?s)no space.*observation_space.*Box"):
            open_dataset(path, observation_space="Box")

    @pytest.mark.parametrize(
        "change",
        [
            {"new_obs": [[1.0]]},
            {"new_obs": [[1.0, 2.0]] * 4},
            {"rewards": [[1, 2]] * 4},
            {"terminateds": ["false"] * 4},
            {"agent_index": [[0]] * 4},
            {"type": "MultiAgentBatch", "policy_batches": {"a": [1]}},
            {"type": "MultiAgentBatch", "policy_batches": []},
        ],
    )
    def test_what_is_no_batch(self, tmp_path, change):
        path = lines(tmp_path / "a.json", {**self.ROWS, **change})
        with pytest.raises(DatasetError, match="a.json, line 1"):
            read(path)
        assert read(path, max_broken=4) == []

    def test_numbers_that_are_too_large(self, tmp_path):
        path = lines(tmp_path / "a.json", {**self.ROWS, "rewards": [10**400, 0, 0, 0]}, self.ROWS)
        reader = open_dataset(path, max_broken=1)
        assert len(list(reader.trajectories())) == 2
        assert "line 1" in reader.broken[0]

    def test_no_step_leads_over_a_broken_line(self, tmp_path):
        # Episode 6 goes on in the first line after the broken one, but not with the step after 11.0.
        more = {name: column[:1] for name, column in self.ROWS.items() if name != "type"}
        more |= {"type": "SampleBatch", "obs": [[20.0]], "new_obs": [[21.0]], "eps_id": [6], "terminateds": [True]}
        path = tmp_path / "out.json"
        path.write_text(f"{json.dumps(self.ROWS)}\n{{broken\n{json.dumps(more)}\n")
        _, before, after = read(path, max_broken=1)
        assert (before.columns["obs"].ravel().tolist(), before.cut) == ([10, 11, 12], True)
        assert (after.columns["obs"].ravel().tolist(), after.terminated) == ([20, 21], True)
        assert before.episode_id == after.episode_id

    def rows(self, first, steps, *, eps_id=7, agent=0, ends=False, with_t=True):
        """A line with steps of an episode; each has the reward 1, and its `t` as its observation."""
        t = list(range(first, first + steps))
        data = {"obs": [[i] for i in t], "new_obs": [[i + 1] for i in t], "actions": [0] * steps}
        data |= {"rewards": [1.0] * steps, "terminateds": [False] * (steps - 1) + [ends], "truncateds": [False] * steps}
        data |= {"eps_id": [eps_id] * steps, "agent_index": [agent] * steps}
        return {"type": "SampleBatch", **data, **({"t": t} if with_t else {})}

    def files(self, folder, *files):
        """Files of RLlib: ((worker, *lines), ...) in the order of their names."""
        for number, (worker, *content) in enumerate(files):
            lines(folder / f"output-2026-01-01_00-00-{number:02}_worker-{worker}_{number}.json", *content)
        return folder

    def test_an_episode_over_files_of_a_worker_is_joined(self, tmp_path):
        # Worker 1 writes between the two files of worker 2, and has an episode with the same id.
        self.files(
            tmp_path,
            (2, self.rows(0, 5, eps_id=1, ends=True), self.rows(0, 8)),
            (1, self.rows(0, 3), self.rows(3, 1, ends=True)),
            (2, self.rows(8, 2, ends=True), self.rows(0, 4, eps_id=2, ends=True)),
        )
        found = read(tmp_path)
        assert [(len(one), one.total_reward) for one in found] == [(5, 5), (4, 4), (10, 10), (4, 4)]
        assert found[2].columns["obs"].ravel().tolist() == list(range(11))
        assert len({one.episode_id for one in found}) == 4

    @pytest.mark.parametrize("agent", [0, 1])
    @pytest.mark.parametrize("with_t", [True, False])
    def test_what_is_not_the_next_step_is_not_joined(self, tmp_path, agent, with_t):
        # The file with t = 8 is missing; without t, whether one is missing is not known.
        first, rest = (self.rows(*steps, agent=agent, with_t=with_t) for steps in ((0, 8), (9, 2)))
        rest["terminateds"][-1] = True
        cut, continued = read(self.files(tmp_path, (0, first), (0, rest)))
        assert (len(cut), cut.ended, len(continued), continued.ended) == (8, False, 2, True)
        assert (cut.continues, continued.continues) == (False, True)
        assert cut.episode_id == continued.episode_id

    def test_a_used_id_is_another_episode(self, tmp_path):
        # Without random ids: the second file begins with an episode 7 of its own, the third has none.
        again = self.rows(0, 3, ends=True)
        files = (0, self.rows(0, 8)), (0, again), (0, self.rows(0, 2, eps_id=8, ends=True))
        cut, whole, other = read(self.files(tmp_path, *files))
        assert [len(one) for one in (cut, whole, other)] == [8, 3, 2]
        assert [one.cut for one in (cut, whole, other)] == [True, False, False]
        assert cut.episode_id != whole.episode_id

    def test_the_rest_of_an_episode_alone_has_no_return(self, tmp_path):
        whole, rest = self.rows(0, 4, eps_id=1, ends=True), self.rows(8, 2, ends=True)
        self.files(tmp_path, (0, rest, whole))
        report = describe(open_dataset(tmp_path))
        assert report.policies["default_policy"].returns == [4]
        assert any("0 trajectories were cut, and 1 go on" in warning for warning in report.warnings)
        late, _ = open_dataset(tmp_path).trajectories()
        with pytest.raises(DatasetError, match=r"(?s)not known.*line 1.*without the beginning"):
            late.total_reward  # noqa: B018
        late = self.rows(8, 2, agent=1, ends=True)  # another agent may enter late
        assert [one.continues for one in read(self.files(tmp_path, (0, late)))] == [False]

    @pytest.mark.parametrize("with_t", [True, False])
    def test_what_follows_a_broken_first_line_is_the_rest(self, tmp_path, with_t):
        after = [self.rows(3, 2, ends=True, with_t=with_t), self.rows(0, 3, eps_id=8, ends=True, with_t=with_t)]
        path = tmp_path / "out.json"
        path.write_text("{broken\n" + "".join(json.dumps(each) + "\n" for each in after))
        found = read(path, format="rllib_json", max_broken=1)
        assert [one.continues for one in found] == [True, False]
        files = [tmp_path / "a.json", tmp_path / "b.json"]  # the line may also be the last of the file before
        files[0].write_text(json.dumps(self.rows(0, 1, eps_id=6, ends=True)) + "\n{broken\n")
        found = read([files[0], lines(files[1], *after)], format="rllib_json", max_broken=1)
        assert [one.continues for one in found] == [False, True, False]

    @pytest.mark.parametrize("t", [[np.nan, 0], [[0, 1], [1, 2]], {"a": [0, 1]}])
    def test_steps_without_numbers(self, tmp_path, t):
        path = lines(tmp_path / "out.json", {**self.rows(0, 2), "t": t})
        with pytest.raises(DatasetError, match=r"(?s)cannot be read.*line 1.*t that is no number"):
            read(path)

    def test_actions_are_those_of_the_policy(self, tmp_path):
        # RLlib's setting normalize_actions=True, its default: an action of 0.5 is one of 1 for Pendulum.
        path = lines(tmp_path / "out.json", {**self.ROWS, "actions": [[0.5]] * 4})
        reader = open_dataset(path)
        assert reader.actions_of == "policy"
        assert open_dataset(path, actions_of="environment").actions_of == "environment"
        with pytest.raises(ConfigError, match="actions_of"):
            open_dataset(path, actions_of="env")
        with pytest.raises(DatasetError, match=r"(?s)not recorded.*out.json, line 1.*env_actions.*environment"):
            convert(reader, tmp_path / "converted.jsonl", "json_lines")

    def test_packed_columns_are_refused(self, tmp_path):
        with pytest.raises(DatasetError, match=r"(?s)packed.*line 1, column 'obs'.*output_compress_columns=\[\]"):
            read(lines(tmp_path / "out.json", {**self.ROWS, "obs": "BCJNGGhAggAAA"}))


class TestRLlibParquet:
    def table(self, **changes):
        t = [1, 0, 0, 1]
        columns = {
            "eps_id": ["a", "a", "b", "b"],
            "agent_id": [None] * 4,
            "module_id": ["default_policy"] * 4,
            "obs": [[1.0], [0.0], [10.0], [11.0]],
            "new_obs": [[2.0], [1.0], [11.0], [12.0]],
            "actions": [1, 0, 2, 3],
            "rewards": [1.0, 0.0, 2.0, 3.0],
            "terminateds": [True, False, False, False],
            "truncateds": [False, False, False, True],
            "t": t,
        }
        return pa.table({**columns, **changes})

    def test_rows_become_episodes(self, tmp_path):
        pq.write_table(self.table(), tmp_path / "out.parquet")
        first, second = read(tmp_path)
        assert first.columns["obs"].ravel().tolist() == [0, 1, 2]
        assert first.columns["actions"].tolist() == [0, 1]
        assert (first.terminated, second.truncated) == (True, True)
        assert second.columns["obs"].ravel().tolist() == [10, 11, 12]

    def test_spaces_by_policy_and_the_order_of_episodes(self, tmp_path):
        # Agent 1 of both episodes ends before agent 0; policy b has observations of its own shape.
        agents = {"agent_id": ["1", "1", "0", "0"], "module_id": ["b", "b", "a", "a"], "eps_id": ["x", "y", "x", "y"]}
        obs = [[1.0], [2.0], [3.0, 4.0], [5.0, 6.0]]
        ends = {"t": [0] * 4, "terminateds": [True] * 4, "truncateds": [False] * 4}
        pq.write_table(self.table(**agents, **ends, obs=obs, new_obs=obs), tmp_path / "out.parquet")
        settings = {"observation_space": {"a": BOX, "b": BOX1}}
        found = read(tmp_path, **settings)
        assert [(one.episode_id, one.policy_id) for one in found] == [("x", "b"), ("x", "a"), ("y", "b"), ("y", "a")]
        assert [one.columns["obs"].shape for one in found] == [(2, 1), (2, 2)] * 2
        with pytest.raises(ConfigError, match=r"(?s)without a space.*out.parquet, row 0, policy 'b'"):
            read(tmp_path, observation_space={"a": BOX})

    def test_objects_are_refused(self, tmp_path):
        pq.write_table(self.table(obs=[b"x"] * 4), tmp_path / "out.parquet")
        with pytest.raises(DatasetError, match=r"(?s)objects.*out.parquet, column 'obs'.*output_compress_columns"):
            read(tmp_path)

    def test_a_single_agent_that_begins_late_goes_on(self, tmp_path):
        pq.write_table(self.table(t=[3, 2, 0, 1]), tmp_path / "out.parquet")
        assert [one.continues for one in read(tmp_path)] == [True, False]
        pq.write_table(self.table(t=[3, 2, 0, 1], agent_id=["agent0"] * 4), tmp_path / "out.parquet")
        assert [one.continues for one in read(tmp_path)] == [False, False]  # of several agents, some enter later

    @pytest.mark.parametrize("change", [{"t": [0, 1, None, 2]}, {"rewards": ["1", "x", "2", "3"]}])
    def test_values_that_are_missing_or_no_numbers(self, tmp_path, change):
        pq.write_table(self.table(), tmp_path / "a.parquet")
        pq.write_table(self.table(**change), tmp_path / "b.parquet")
        reader = open_dataset(tmp_path, max_broken=1)
        assert len(list(reader.trajectories())) == 2
        assert "b.parquet" in reader.broken[0]

    def test_the_columns_of_a_long_footer_are_found(self, tmp_path):
        table = self.table()
        table = table.replace_schema_metadata({"note": "x" * (1 << 18)})  # after the names of the columns
        pq.write_table(table, tmp_path / "out.parquet")
        assert len(read(tmp_path)) == 2

    @pytest.mark.parametrize(("whole", "truncated"), [("a", "b"), ("b", "a")])
    def test_truncated_files_are_counted(self, tmp_path, whole, truncated):
        pq.write_table(self.table(), tmp_path / f"{whole}.parquet")
        half = (tmp_path / f"{whole}.parquet").read_bytes()[:-40]
        (tmp_path / f"{truncated}.parquet").write_bytes(half)
        with pytest.raises(DatasetError, match=rf"(?s)damaged.*{truncated}.parquet"):
            read(tmp_path)
        reader = open_dataset(tmp_path, max_broken=1)
        assert len(list(reader.trajectories())) == 2
        assert len(reader.broken) == 1


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

    def test_a_damaged_part_is_named(self, tmp_path):
        path, rng = tmp_path / "a.hdf5", np.random.default_rng(0)
        self.write(path, observations=None)
        with h5py.File(path, "a") as file:
            file.create_dataset("observations", data=rng.normal(size=(6, 100)), chunks=(2, 100), compression="gzip")
            place = file["observations"].id.get_chunk_info(1)
        content = bytearray(path.read_bytes())
        content[place.byte_offset : place.byte_offset + place.size] = b"\xff" * place.size
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=r"(?s)damaged.*a.hdf5, rows 0 to 5.*max_broken"):
            read(path)
        self.write(tmp_path / "b.hdf5")
        reader = open_dataset(tmp_path, max_broken=1)
        assert len(list(reader.trajectories())) == len(read(tmp_path / "b.hdf5"))
        assert "a.hdf5" in reader.broken[0]

    def test_what_followed_a_timeout_is_not_known(self, tmp_path):
        reader = open_dataset(self.write(tmp_path / "a.hdf5"))
        ended, timed_out, cut = reader.trajectories()
        assert ended.columns["obs"].ravel().tolist() == [0, 1, 1]
        assert timed_out.columns["obs"].ravel().tolist() == [2, 3]
        assert timed_out.columns["rewards"].tolist() == [2]
        assert [(one.terminated, one.truncated) for one in (ended, timed_out, cut)] == [
            (True, False),
            (False, True),
            (False, False),
        ]
        assert cut.columns["obs"].ravel().tolist() == [4, 5]

    def test_the_return_has_the_reward_of_the_step_that_is_left_out(self, tmp_path, caplog):
        # Rewards 2 and 3 up to the timeout. The steps 0 and 1 have a termination, so that none is left out.
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
        ended, first, second = read(path, time_limit=2)
        assert ended.columns["obs"].ravel().tolist() == [0, 1, 2]
        assert first.columns["obs"].ravel().tolist() == [2, 3, 4]
        assert (first.truncated, second.truncated, second.columns["rewards"].tolist()) == (True, True, [4, 5])
        assert (second.total_reward, second.shortened) == (9, False)

    def test_links_and_objects_are_refused(self, tmp_path):
        path = self.write(tmp_path / "a.hdf5", rewards=None)
        with h5py.File(path, "a") as file:
            file["rewards"] = h5py.ExternalLink(str(tmp_path / "b.hdf5"), "/x")
        with pytest.raises(DatasetError, match=r"(?s)link.*/rewards.*ExternalLink"):
            read(path)
        path = self.write(tmp_path / "c.hdf5")
        with h5py.File(path, "a") as file:
            file.create_dataset("infos", data=np.array([1, 2]).astype("V8"))
        with pytest.raises(DatasetError, match=r"(?s)objects.*/infos"):
            read(path)

    def test_what_would_fill_the_memory_is_refused(self, tmp_path):
        path = self.write(tmp_path / "a.hdf5", terminals=None)
        with h5py.File(path, "a") as file:
            file.create_dataset("terminals", (1 << 40,), "?", chunks=(1 << 20,))
        with pytest.raises(DatasetError, match=r"(?s)larger than the file.*/terminals"):
            read(path)
        path = self.write(tmp_path / "b.hdf5")
        with h5py.File(path, "a") as file:
            group = file.create_group("infos")
            group["again"] = group
        with pytest.raises(DatasetError, match=r"(?s)contain themselves.*b.hdf5"):
            read(path)

    def test_an_empty_file(self, tmp_path):
        names = ("observations", "actions", "rewards", "terminals", "timeouts")
        reader = open_dataset(self.write(tmp_path / "a.hdf5", **{name: np.zeros((0,)) for name in names}))
        assert (len(reader), list(reader.trajectories())) == (0, [])

    @pytest.mark.parametrize("time_limit", ["5", -1, 0, 2.5, True])
    def test_a_time_limit_that_is_no_number_of_steps(self, tmp_path, time_limit):
        with pytest.raises(ConfigError, match="time_limit"):
            open_dataset(self.write(tmp_path / "a.hdf5"), time_limit=time_limit)

    def test_the_length_is_that_of_the_steps_that_are_read(self, tmp_path):
        for number, change in enumerate([{}, {"next_observations": np.zeros((6, 1), np.float32)}]):
            reader = open_dataset(self.write(tmp_path / f"{number}.hdf5", **change))
            assert len(reader) == sum(map(len, reader.trajectories())) == [4, 6][number]
        (tmp_path / "damaged.hdf5").write_bytes(b"x")
        assert len(open_dataset(tmp_path, max_broken=1)) == 10

    @pytest.mark.parametrize("name", ["rewards", "terminals", "timeouts"])
    def test_several_values_for_a_step_are_refused(self, tmp_path, name):
        with pytest.raises(DatasetError, match=rf"(?s)not one number.*a.hdf5.*{name}.*shape \(6, 2\)"):
            read(self.write(tmp_path / "a.hdf5", **{name: np.zeros((6, 2))}))
        with pytest.raises(DatasetError, match=r"(?s)without steps.*'rewards': \(\)"):
            read(self.write(tmp_path / "b.hdf5", rewards=1.0))
        assert len(read(self.write(tmp_path / "c.hdf5", rewards=np.zeros((6, 1))))) == 3

    def test_truncated_files(self, tmp_path):
        path = self.write(tmp_path / "a.hdf5")
        path.write_bytes(path.read_bytes()[:200])
        with pytest.raises(DatasetError, match=r"(?s)damaged.*a.hdf5"):
            read(path)


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
    own = tmp_path / "own"
    with DatasetWriter(own, {"default_policy": space}, {"default_policy": action_space}) as writer:
        for one in written:
            writer.write(one)
    assert write_minari(open_dataset(own), tmp_path / "out", storage=storage) == 3
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
@pytest.mark.filterwarnings("ignore")  # those of Minari
def test_what_minari_collects_is_read(tmp_path, storage, monkeypatch):
    import gymnasium as gym
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


class TestMinari:
    def written(self, folder, space=BOX1):
        own = folder.with_suffix(".own")
        with DatasetWriter(own, {"default_policy": space}, {"default_policy": spaces.Discrete(2)}) as writer:
            writer.write(trajectory(np.random.default_rng(0), 2, 0, obs=space, acts=spaces.Discrete(2)))
        write_minari(open_dataset(own), folder)
        return folder

    def test_sets_with_other_spaces_are_refused(self, tmp_path):
        one, other = self.written(tmp_path / "one"), self.written(tmp_path / "other", BOX)
        with pytest.raises(DatasetError, match=r"(?s)another observation space.*other.*as in .*one"):
            open_dataset([one, other])

    @pytest.mark.parametrize("setting", ["env", "observation_space", "action_space"])
    def test_settings_of_spaces_are_refused(self, tmp_path, setting):
        with pytest.raises(ConfigError, match=rf"(?s)Settings.*'{setting}'"):
            open_dataset(self.written(tmp_path / "one"), **{setting: "CartPole-v1"})

    @pytest.mark.parametrize("change", [{"env_spec": "["}, {"env_spec": "[]"}, {"total_steps": "x"}, None])
    def test_damaged_metadata(self, tmp_path, change):
        one, other = self.written(tmp_path / "one"), self.written(tmp_path / "other")
        path = one / "data" / "metadata.json"
        path.write_text("[" if change is None else json.dumps({**json.loads(path.read_text()), **change}))
        with pytest.raises(DatasetError, match=r"(?s)cannot be read.*one, data/metadata.json"):
            open_dataset([one, other])
        reader = open_dataset([one, other], max_broken=1)
        for _ in range(2):
            assert len(list(reader.trajectories())) == 1
            assert len(reader.broken) == 1

    def test_several_rewards_for_a_step_are_refused(self, tmp_path):
        path = self.written(tmp_path / "one")
        with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
            del file["episode_0"]["rewards"]
            file["episode_0"]["rewards"] = np.zeros((2, 2))
        with pytest.raises(DatasetError, match=r"(?s)not one number.*episode 0, rewards.*shape \(2, 2\)"):
            read(path)


class TestCsv:
    TEXT = """batch,temp,pressure,valve,profit,done
1,20.0,1.0,0,0.5,
1,21.0,1.1,1,0.25,
1,22.0,1.2,,,
2,30.0,2.0,1,1.0,
2,31.0,2.1,0,2.0,1
3,40.0,3.0,1,1.0,
3,41.0,3.1,1,1.0,
"""
    SETTINGS = {
        "obs": ["temp", "pressure"],
        "actions": "valve",
        "rewards": "profit",
        "episode": "batch",
        "terminated": "done",
    }

    def test_episodes(self, tmp_path):
        (tmp_path / "log.csv").write_text(self.TEXT)
        first, second, third = read(tmp_path / "log.csv", **self.SETTINGS)
        np.testing.assert_allclose(first.columns["obs"], [[20, 1], [21, 1.1], [22, 1.2]], rtol=1e-6)
        assert first.columns["actions"].dtype == np.int64
        assert first.columns["actions"].tolist() == [0, 1]
        assert [len(one) for one in (first, second, third)] == [2, 2, 1]
        assert [one.terminated for one in (first, second, third)] == [False, True, False]
        assert [one.cut for one in (first, second, third)] == [True, False, True]

    def test_a_step_after_the_end_of_its_episode(self, tmp_path):
        # Without a column for episodes the whole file is one, in which a flag ends nothing.
        path = tmp_path / "log.csv"
        path.write_text(self.TEXT)
        settings = {name: value for name, value in self.SETTINGS.items() if name != "episode"}
        with pytest.raises(DatasetError, match=r"(?s)after the end.*log.csv, line 7.*'done'.*setting episode"):
            read(path, **settings | {"actions": "batch", "rewards": "temp"})  # columns without gaps

    @pytest.mark.parametrize("flags", [{"terminated": "done"}, {}])
    def test_no_step_leads_over_a_broken_line(self, tmp_path, flags):
        # Line 4 of four steps is broken: what followed the step of line 3 is not known.
        path = tmp_path / "log.csv"
        path.write_text("temp,valve,profit,done\n1,0,1,\n2,0,2,\n3\n4,0,4,\n5,0,5,1\n")
        settings = {"obs": "temp", "actions": "valve", "rewards": "profit", **flags}
        before, after = read(path, max_broken=1, **settings)
        assert (before.columns["obs"].tolist(), before.columns["rewards"].tolist()) == ([1, 2], [1])
        assert (before.ended, before.continues) == (False, False)
        assert after.columns["obs"][:2].tolist() == [4, 5]
        assert (after.ended, after.continues) == (True, True)
        assert before.episode_id == after.episode_id

    def test_what_follows_a_broken_first_line_is_the_rest(self, tmp_path):
        # The broken line may be the first of batch 2, or the last of batch 1: neither return is known.
        path = tmp_path / "log.csv"
        path.write_text("batch,temp,valve,profit\n1,1,0,1\n1,1,,\n2\n2,2,0,1\n2,2,0,1\n2,2,,\n3,3,0,1\n3,3,,\n")
        settings = {"obs": "temp", "actions": "valve", "rewards": "profit", "episode": "batch"}
        found = read(path, max_broken=1, **settings)
        assert [(len(one), one.continues) for one in found] == [(1, False), (2, True), (1, False)]
        assert [one.cut for one in found] == [False, True, False]

    @pytest.mark.parametrize(("batches", "line"), [([1, 2, 1, 2], 4), ([1, 1, 1, 2, 2, 1, 1], 7)])
    def test_an_episode_in_pieces_is_refused(self, tmp_path, batches, line):
        path = tmp_path / "log.csv"
        path.write_text("batch,temp,valve,profit\n" + "".join(f"{batch},1,0,1\n" for batch in batches))
        settings = {"obs": "temp", "actions": "valve", "rewards": "profit", "episode": "batch"}
        with pytest.raises(DatasetError, match=rf"(?s)do not follow.*log.csv, line {line}.*'1'.*sort the rows"):
            read(path, **settings, max_broken=1)

    def test_a_file_that_is_not_utf8_is_skipped(self, tmp_path):
        (tmp_path / "a.csv").write_bytes(b"temp\xff")
        (tmp_path / "b.csv").write_text(self.TEXT)
        with pytest.raises(DatasetError, match=r"(?s)a.csv.*utf-8.*max_broken"):
            read(tmp_path, **self.SETTINGS)
        assert len(read(tmp_path, **self.SETTINGS, max_broken=1)) == 3

    def test_what_is_broken_is_named(self, tmp_path):
        path = tmp_path / "log.csv"
        path.write_text(self.TEXT.replace("31.0", "n/a"))
        with pytest.raises(DatasetError, match=r"(?s)no number.*line 6, column 'temp'.*n/a"):
            read(path, **self.SETTINGS)
        assert len(read(path, **self.SETTINGS, max_broken=1)) == 2
        with pytest.raises(DatasetError, match=r"(?s)without a column.*heat"):
            read(path, **{**self.SETTINGS, "obs": "heat"})
        with pytest.raises(ConfigError, match=r"(?s)Settings.*CsvReader.*obs"):
            read(path)


class Countdown(DatasetReader):
    """A reader of a format of one's own."""

    def __init__(self, paths, steps=3):
        self.observation_spaces = {"default_policy": BOX}
        self.action_spaces = {"default_policy": spaces.Discrete(2)}
        self.header, self.broken, self.steps = {"paths": [path.name for path in paths]}, [], steps

    def trajectories(self):
        yield trajectory(np.random.default_rng(0), self.steps, 0, obs=BOX, acts=spaces.Discrete(2))


def test_a_format_of_ones_own(tmp_path):
    (tmp_path / "x.bin").touch()
    reader = open_dataset(tmp_path / "x.bin", format="tests.data.test_formats:Countdown", steps=5)
    assert (len(reader), reader.header) == (5, {"paths": ["x.bin"]})
    assert len(open_dataset(lambda steps: Countdown([], steps), steps=4)) == 4
    both = open_dataset([Countdown([]), lambda: Countdown([])])
    assert [one.episode_id for one in both.trajectories()] == ["0:0", "1:0"]
    assert len(both) == 6


def test_reading_closes_what_it_opened_and_leaves_open_what_was_given(tmp_path):
    closed, given, opened = [], Countdown([]), Countdown([])
    given.close, opened.close = lambda: closed.append("given"), lambda: closed.append("opened")
    kept = trajectory(np.random.default_rng(0), 2, "id", obs=BOX, acts=spaces.Discrete(2))
    given.trajectories = lambda: iter([kept])
    for source in ([given, lambda: opened], (lambda: opened, [given]), [given], given):
        for _ in range(2):
            with reading(source) as reader:
                assert sorted(len(one) for one in reader.trajectories()) in ([2], [2, 3])
    assert closed == ["opened"] * 4
    assert kept.episode_id == "id"  # the list's own, not numbered again with each reading
    with pytest.raises(DatasetError, match="No such data"), reading([lambda: opened, tmp_path / "nothing"]):
        pass
    assert closed == ["opened"] * 5


def test_what_is_no_data(tmp_path):
    with pytest.raises(DatasetError, match="No such data"):
        open_dataset(tmp_path / "nothing*")
    with pytest.raises(DatasetError, match="without data"):
        open_dataset(tmp_path)
    (tmp_path / "x.bin").touch()
    with pytest.raises(DatasetError, match=r"(?s)unknown format.*x.bin"):
        open_dataset(tmp_path / "x.bin")
    with pytest.raises(ConfigError, match="did you mean 'minari'"):
        open_dataset(tmp_path / "x.bin", format="minary")
    with pytest.raises(DatasetError, match="returns no reader"):
        open_dataset(list)
