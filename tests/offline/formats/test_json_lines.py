"""JSON lines with one episode per line."""

import json
import tracemalloc

import numpy as np
import pytest
from gymnasium import spaces

from rollax import DatasetError, open_dataset
from rollax.offline.convert import convert
from rollax.offline.describe import describe
from tests.offline.formats.reading import BOX, lines, read, unreadable


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

    def test_the_same_ids_in_two_files_are_different_episodes(self, tmp_path):
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
    def test_terminated_and_truncated(self, tmp_path, flags, ends):
        agents = {"left": {**self.EPISODE["agents"]["left"], "terminated": False, **flags}}
        (found,) = read(lines(tmp_path / "log.jsonl", {"agents": agents}))
        assert (found.terminated, found.truncated) == ends

    @pytest.mark.parametrize("flag", ["false", 1, None, [], [True, False], [True], [0, 1], {"a": True}])
    def test_invalid_flags(self, tmp_path, flag):
        agents = {"left": {**self.EPISODE["agents"]["left"], "terminated": flag}}
        path = lines(tmp_path / "log.jsonl", {"agents": agents})
        unreadable(r"(?s)flag.*log.jsonl, line 1, agent 'left', terminated.*a list of 2", path)

    def test_a_repeated_key_is_refused(self, tmp_path):
        path = lines(tmp_path / "log.jsonl", self.EPISODE, self.EPISODE)
        first, second = path.read_text().splitlines()
        twice = second.replace('"actions": [0, 1]', '"actions": [0, 1], "actions": [1, 1]')
        path.write_text(f"{first}\n{twice}\n")
        unreadable(r"(?s)log.jsonl, line 2.*repeated key", path)
        assert len(read(path, max_broken=1)) == 2

    @pytest.mark.parametrize("column", ["obs", "actions", "rewards"])
    def test_text_takes_no_more_memory_than_the_file(self, tmp_path, column):
        text = ["x" * 100_000, *[""] * 100_000]  # NumPy pads each text to the longest: 40 GB
        path = lines(tmp_path / "log.jsonl", {"agents": {"a": {**self.EPISODE["agents"]["left"], column: text}}})
        tracemalloc.start()
        for settings in ({}, {"observation_space": BOX, "action_space": spaces.Discrete(2)}):
            with pytest.raises(DatasetError):
                read(path, **settings)
        assert tracemalloc.get_traced_memory()[1] < 1 << 28
        tracemalloc.stop()

    def test_a_single_agent_that_begins_late_is_a_continuation(self, tmp_path):
        steps = {"obs": [[1, 2], [3, 4]], "actions": [0], "rewards": [5], "terminated": True}
        agents = {"agent0": {**steps, "t": [4]}}, {"agent0": steps}, {"agent0": {**steps, "t": [4]}, "other": steps}
        found = read(lines(tmp_path / "log.jsonl", *({"agents": each} for each in agents)))
        assert [one.continues for one in found] == [True, False, False, False]  # one of several agents can join later

    def test_more_broken_lines_than_the_setting_allows_are_refused(self, tmp_path):
        path = tmp_path / "log.jsonl"
        path.write_text("{\n{\n" + json.dumps(self.EPISODE))
        unreadable(r"(?s)max_broken=1.*line 2", path, max_broken=1)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"obs": [[1, 2]]}, "wrong length"),
            ({"action_logp": [-1.0]}, "wrong length"),
            ({"t": [3]}, "wrong length"),
            ({"obs": [[1, 2], [3], [4, 5]]}, "values"),
            ({"obs": [{"a": 1}] * 3}, "do not belong to the space"),
            ({"rewards": ["x", 1]}, "not one number for each step"),
            ({"rewards": [[1, 2], [3, 4]]}, "not one number for each step"),
        ],
    )
    def test_invalid_trajectories(self, tmp_path, change, says):
        agents = {"left": {**self.EPISODE["agents"]["left"], **change}}
        path = lines(tmp_path / "log.jsonl", self.EPISODE, {"agents": agents})
        unreadable(rf"(?s){says}.*line 2", path, observation_space=BOX)

    @pytest.mark.parametrize("change", [{"rewards": [10**400, 1]}, {"t": [2**70, 1]}, {"actions": [2**70, 1]}])
    def test_numbers_that_are_too_large(self, tmp_path, change):
        agents = {"left": {**self.EPISODE["agents"]["left"], **change}}
        path = lines(tmp_path / "log.jsonl", self.EPISODE, {"agents": agents})
        reader = open_dataset(path, observation_space=BOX, action_space=spaces.Discrete(2), max_broken=1)
        assert len(list(reader.trajectories())) == 2
        assert "line 2" in reader.broken[0]


@pytest.mark.parametrize("number", [300, -1, 1e10])
def test_integers_beyond_the_dtype_are_refused(tmp_path, number):
    # A cast to uint8 would return 44, 255 and 0.
    episode = {"agents": {"a": {"obs": [[number], [0]], "actions": [0], "rewards": [0.0], "terminated": True}}}
    image = spaces.Box(0, 255, (1,), np.uint8)
    says = r"(?s)do not belong to the space.*line 1, agent 'a', obs.*cannot represent"
    unreadable(says, lines(tmp_path / "a.jsonl", episode), observation_space=image)
