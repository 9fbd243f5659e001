"""JSON files of RLlib's old stack."""

import json

import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, DatasetError, open_dataset
from rollax.core.space_json import space_to_json
from rollax.offline.convert import convert
from rollax.offline.describe import describe
from tests.env.refused import refused
from tests.offline.formats.reading import BOX1, lines, read, unreadable


def joined(*batches):
    """One line with the rows of several lines."""
    return {k: v if k == "type" else [row for each in batches for row in each[k]] for k, v in batches[0].items()}


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

    def test_without_new_obs_the_last_step_of_a_running_episode_is_left_out(self, tmp_path):
        rows = {name: column for name, column in self.ROWS.items() if name != "new_obs"}
        first, second = read(lines(tmp_path / "out.json", rows))
        assert first.columns["obs"].ravel().tolist() == [0, 1, 1]
        assert second.columns["obs"].ravel().tolist() == [10, 11]
        assert second.columns["rewards"].tolist() == [3]
        assert second.cut

    def test_steps_without_a_next_observation_are_counted(self, tmp_path, caplog):
        rows = {name: column[:1] for name, column in self.ROWS.items() if name not in ("new_obs", "type")}
        assert read(lines(tmp_path / "out.json", {"type": "SampleBatch", **rows})) == []
        assert "1 trajectories of one step are left out" in caplog.text

    def test_several_policies(self, tmp_path):
        batch = {"type": "MultiAgentBatch", "count": 4, "policy_batches": {"a": self.ROWS, "b": self.ROWS}}
        found = read(lines(tmp_path / "out.json", batch))
        ids = [(one.episode_id, one.policy_id) for one in found]
        assert ids == [("0:5", "a"), ("0:5", "b"), ("0:6", "a"), ("0:6", "b")]

    def test_trajectories_of_an_episode_are_adjacent(self, tmp_path):
        # Two parallel episodes; agent 1 of each ends in the first line, agent 0 in the second.
        def line(first, *agents):
            batches = [self.rows(first, 2, eps_id=i, agent=a, ends=e) for i in (5, 6) for a, e in agents]
            return {"type": "MultiAgentBatch", "policy_batches": {"a": joined(*batches)}}

        found = read(lines(tmp_path / "a.json", line(0, (0, False), (1, True)), line(2, (0, True))))
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
        with pytest.raises(ConfigError, match=r"(?s)has no space.*out.json, line 1, policy 'a'.*\{policy id: space\}"):
            read(path, observation_space=BOX1)
        with pytest.raises(DatasetError, match=r"(?s)not known.*\['a', 'b'\], action spaces of \[\].*policy id: space"):
            convert(open_dataset(path, observation_space=settings["observation_space"]), tmp_path / "no")
        refused(ConfigError, open_dataset, path, says="not a space...observation_space...Box", observation_space="Box")

    def test_keys_that_are_integers(self, tmp_path):
        space = spaces.Dict({0: BOX1, 1: spaces.Discrete(3)})
        obs, new_obs = ({"0": self.ROWS[name], "1": [0, 1, 2, 0]} for name in ("obs", "new_obs"))
        path = lines(tmp_path / "a.json", {**self.ROWS, "obs": obs, "new_obs": new_obs})
        first, _ = read(path, observation_space=space)
        assert first.columns["obs"][0].ravel().tolist() == [0, 1, 2]
        assert (list(first.columns["obs"]), first.columns["obs"][1].dtype) == ([0, 1], np.int64)

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
    def test_invalid_batches(self, tmp_path, change):
        path = lines(tmp_path / "a.json", {**self.ROWS, **change})
        unreadable("a.json, line 1", path)
        assert read(path, max_broken=4) == []

    def test_numbers_that_are_too_large(self, tmp_path):
        path = lines(tmp_path / "a.json", {**self.ROWS, "rewards": [10**400, 0, 0, 0]}, self.ROWS)
        reader = open_dataset(path, max_broken=1)
        assert len(list(reader.trajectories())) == 2
        assert "line 1" in reader.broken[0]

    def test_steps_are_not_joined_across_a_broken_line(self, tmp_path):
        # Episode 6 continues in the first line after the broken one, but not with the step after 11.0.
        more = {name: column[:1] for name, column in self.ROWS.items() if name != "type"}
        more |= {"type": "SampleBatch", "obs": [[20.0]], "new_obs": [[21.0]], "eps_id": [6], "terminateds": [True]}
        path = tmp_path / "out.json"
        path.write_text(f"{json.dumps(self.ROWS)}\n{{broken\n{json.dumps(more)}\n")
        _, before, after = read(path, max_broken=1)
        assert (before.columns["obs"].ravel().tolist(), before.cut) == ([10, 11, 12], True)
        assert (after.columns["obs"].ravel().tolist(), after.terminated) == ([20, 21], True)
        assert before.episode_id == after.episode_id

    def rows(self, first, steps, *, eps_id=7, agent=0, ends=False, with_t=True):
        """A line with steps of an episode, with the reward 1 and their `t` as the observation."""
        t = list(range(first, first + steps))
        data = {"obs": [[i] for i in t], "new_obs": [[i + 1] for i in t], "actions": [0] * steps}
        data |= {"rewards": [1.0] * steps, "terminateds": [False] * (steps - 1) + [ends], "truncateds": [False] * steps}
        data |= {"eps_id": [eps_id] * steps, "agent_index": [agent] * steps}
        return {"type": "SampleBatch", **data, **({"t": t} if with_t else {})}

    def files(self, folder, *files):
        """Files of RLlib: ((worker, *lines), ...) in the order of their names."""
        folder.mkdir(exist_ok=True)
        for number, (worker, *content) in enumerate(files):
            lines(folder / f"output-2026-01-01_00-00-{number:02}_worker-{worker}_{number}.json", *content)
        return folder

    def test_an_episode_over_files_of_a_worker_is_joined(self, tmp_path):
        # Worker 1 writes an episode with the same id between the two files of worker 2.
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

    def test_an_agent_that_joins_in_a_later_file_belongs_to_the_same_episode(self, tmp_path):
        # Agent 0 begins again with the same id, so agent 2 joins another episode than agent 1.
        again = self.rows(0, 2, ends=True), self.rows(1, 1, agent=2, ends=True)
        joins = self.rows(3, 2, ends=True), self.rows(3, 2, agent=1, ends=True)
        first = self.rows(0, 3)
        whole = describe(open_dataset(self.files(tmp_path / "whole", (0, first), (0, *joins))))
        assert (whole.episodes, whole.policies["default_policy"].lengths) == (1, [5, 2])
        found = read(self.files(tmp_path / "again", (0, first), (0, *again)))
        ids = [(one.episode_id, one.agent_id, len(one)) for one in found]
        assert ids == [("0:7", 0, 3), ("1:7", 0, 2), ("1:7", 2, 1)]

    def test_an_agent_that_begins_again_in_a_later_file_begins_another_episode(self, tmp_path):
        # Agent 1 ends in the first file and agent 0 in the second one, where agent 2 has joined before.
        first = self.rows(0, 3), self.rows(0, 2, agent=1, ends=True)
        end = self.rows(1, 2, agent=2, ends=True), self.rows(3, 2, ends=True)
        again = [self.rows(0, 2, agent=agent, ends=True) for agent in (0, 1, 2)]
        found = read(self.files(tmp_path / "again", (0, *first), (0, *end, *again)))
        assert sorted((one.episode_id, one.agent_id, len(one)) for one in found) == [
            *(("0:7", 0, 5), ("0:7", 1, 2), ("0:7", 2, 2)),
            *(("1:7", 0, 2), ("1:7", 1, 2), ("1:7", 2, 2)),
        ]

    @pytest.mark.parametrize("agent", [0, 1])
    @pytest.mark.parametrize("with_t", [True, False])
    def test_steps_with_a_gap_are_not_joined(self, tmp_path, agent, with_t):
        # The file with t = 8 is missing; without t, the gap cannot be noticed, so nothing is joined.
        first, rest = (self.rows(*steps, agent=agent, with_t=with_t) for steps in ((0, 8), (9, 2)))
        rest["terminateds"][-1] = True
        cut, continued = read(self.files(tmp_path, (0, first), (0, rest)))
        assert (len(cut), cut.ended, len(continued), continued.ended) == (8, False, 2, True)
        assert (cut.continues, continued.continues) == (False, True)
        assert cut.episode_id == continued.episode_id

    def test_a_reused_id_is_another_episode(self, tmp_path):
        # Without random ids: the second file begins with another episode 7, the third has none.
        again = self.rows(0, 3, ends=True)
        files = (0, self.rows(0, 8)), (0, again), (0, self.rows(0, 2, eps_id=8, ends=True))
        cut, whole, other = read(self.files(tmp_path, *files))
        assert [len(one) for one in (cut, whole, other)] == [8, 3, 2]
        assert [one.cut for one in (cut, whole, other)] == [True, False, False]
        assert cut.episode_id != whole.episode_id

    def test_a_continued_episode_has_no_return(self, tmp_path):
        whole, rest = self.rows(0, 4, eps_id=1, ends=True), self.rows(8, 2, ends=True)
        self.files(tmp_path, (0, rest, whole))
        report = describe(open_dataset(tmp_path))
        assert report.policies["default_policy"].returns == [4]
        assert any("0 trajectories were cut, and 1 go on" in warning for warning in report.warnings)
        late, _ = open_dataset(tmp_path).trajectories()
        with pytest.raises(DatasetError, match=r"(?s)is unknown.*line 1.*without the beginning"):
            late.total_reward  # noqa: B018
        late = self.rows(8, 2, agent=1, ends=True)  # another agent can join later
        assert [one.continues for one in read(self.files(tmp_path, (0, late)))] == [False]

    @pytest.mark.parametrize("in_one_line", [True, False])
    def test_a_reused_id_in_the_same_file(self, tmp_path, in_one_line):
        # An episode without an end, then two others, all with one id.
        parts = [self.rows(0, 3), self.rows(0, 2, ends=True), self.rows(0, 4, ends=True)]
        if in_one_line:
            parts = [joined(*parts)]
        found = read(lines(tmp_path / "a.json", *parts))
        assert [one.columns["obs"].ravel().tolist() for one in found] == [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2, 3, 4]]
        assert [one.cut for one in found] == [True, False, False]
        assert [one.episode_id for one in found] == ["0:7", "0:7#1", "0:7#2"]

    def test_agents_that_skip_steps_are_not_cut(self, tmp_path):
        first, rest = self.rows(0, 3), self.rows(3, 2, ends=True)
        first["t"], rest["t"] = [0, 2, 4], [6, 8]
        (found,) = read(lines(tmp_path / "a.json", first, rest))
        assert found.columns["t"].tolist() == [0, 2, 4, 6, 8]

    @pytest.mark.parametrize("in_one_line", [True, False])
    def test_rows_after_a_gap_are_not_joined(self, tmp_path, in_one_line):
        # The agent skips t = 1 without a gap. Rows of t = 4 and 5 are missing: the row of t = 3 is followed by 3, not
        # by 5.
        first, rest = self.rows(0, 3), self.rows(5, 2, ends=True)
        first["t"], rest["t"] = [0, 2, 3], [6, 7]
        parts = [joined(first, rest)] if in_one_line else [first, rest]
        before, after = read(lines(tmp_path / "a.json", *parts))
        assert before.columns["obs"].ravel().tolist() == [0, 1, 2, 3]
        assert after.columns["obs"].ravel().tolist() == [5, 6, 7]
        assert [(one.ended, one.continues) for one in (before, after)] == [(False, False), (True, True)]
        assert before.episode_id == after.episode_id

    @pytest.mark.parametrize("with_t", [True, False])
    def test_steps_after_a_broken_first_line_are_the_rest_of_a_trajectory(self, tmp_path, with_t):
        after = [self.rows(3, 2, ends=True, with_t=with_t), self.rows(0, 3, eps_id=8, ends=True, with_t=with_t)]
        path = tmp_path / "out.json"
        path.write_text("{broken\n" + "".join(json.dumps(each) + "\n" for each in after))
        found = read(path, format="rllib_json", max_broken=1)
        assert [one.continues for one in found] == [True, False]
        files = [tmp_path / "a.json", tmp_path / "b.json"]  # the broken line can also be the end of the file before
        files[0].write_text(json.dumps(self.rows(0, 1, eps_id=6, ends=True)) + "\n{broken\n")
        found = read([files[0], lines(files[1], *after)], format="rllib_json", max_broken=1)
        assert [one.continues for one in found] == [False, True, False]

    @pytest.mark.parametrize("t", [[np.nan, 0], [[0, 1], [1, 2]], {"a": [0, 1]}])
    def test_steps_t_that_are_not_numbers(self, tmp_path, t):
        path = lines(tmp_path / "out.json", {**self.rows(0, 2), "t": t})
        unreadable(r"(?s)cannot be read.*line 1.*t is not a number", path)

    def test_actions_are_in_the_policys_scale(self, tmp_path):
        # RLlib's default is normalize_actions=True: its action 0.5 is 1 for Pendulum.
        path = lines(tmp_path / "out.json", {**self.ROWS, "actions": [[0.5]] * 4})
        reader = open_dataset(path)
        assert reader.actions_of == "policy"
        assert open_dataset(path, actions_of="environment").actions_of == "environment"
        refused(ConfigError, open_dataset, path, says="actions_of", actions_of="env")
        with pytest.raises(DatasetError, match=r"(?s)not recorded.*out.json, line 1.*env_actions.*environment"):
            convert(reader, tmp_path / "converted.jsonl", "json_lines")

    def test_packed_columns_are_refused(self, tmp_path):
        path = lines(tmp_path / "out.json", {**self.ROWS, "obs": "BCJNGGhAggAAA"})
        unreadable(r"(?s)packed.*line 1, column 'obs'.*output_compress_columns=\[\]", path)
