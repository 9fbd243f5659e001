"""CSV logs."""

import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, DatasetError
from tests.offline.formats.reading import read, unreadable


@pytest.fixture
def log(tmp_path):
    """Writes a log, and returns its path."""

    def write(text, name="log.csv"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


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
    BATCHES = {"obs": "temp", "actions": "valve", "rewards": "profit", "episode": "batch"}
    SETTINGS = {**BATCHES, "obs": ["temp", "pressure"], "terminated": "done"}

    def test_episodes(self, log):
        first, second, third = read(log(self.TEXT), **self.SETTINGS)
        np.testing.assert_allclose(first.columns["obs"], [[20, 1], [21, 1.1], [22, 1.2]], rtol=1e-6)
        assert first.columns["actions"].dtype == np.int64
        assert first.columns["actions"].tolist() == [0, 1]
        assert [len(one) for one in (first, second, third)] == [2, 2, 1]
        assert [one.terminated for one in (first, second, third)] == [False, True, False]
        assert [one.cut for one in (first, second, third)] == [True, False, True]

    @pytest.mark.parametrize("digits", [1000, 10_000])
    def test_an_integer_beyond_all_floats_is_infinite(self, log, digits):
        (one,) = read(log(f"x,a,r\n1,{'9' * digits},1\n2,,\n"), obs="x", actions="a", rewards="r")
        assert one.columns["actions"].tolist() == [np.inf]

    @pytest.mark.parametrize("known", [True, False])
    def test_integers_that_a_float_would_round(self, log, known):
        whole = spaces.Box(-(2**62), 2**62, (), np.int64)
        settings = {"observation_space": whole, "action_space": whole} if known else {}
        (one,) = read(
            log(f"x,a,r\n{2**53 + 1},{2**53 + 1},1\n{2**53 + 3},,\n"), obs="x", actions="a", rewards="r", **settings
        )
        assert one.columns["actions"].tolist() == [2**53 + 1]
        assert one.columns["rewards"].dtype == np.float64
        if known:
            assert one.columns["obs"].tolist() == [2**53 + 1, 2**53 + 3]
        else:
            assert one.columns["obs"].dtype == np.float32

    @pytest.mark.parametrize("action", ["1e300", str(2**70)])
    def test_integers_beyond_64_bits_are_floats(self, log, action):
        action_space = spaces.Box(-np.inf, np.inf, (), np.float64)
        (one,) = read(log(f"x,a,r\n1,{action},1\n2,,\n"), obs="x", actions="a", rewards="r", action_space=action_space)
        assert one.columns["actions"].tolist() == [float(action)]

    def test_a_step_after_the_end_of_its_episode(self, log):
        # Without a column for episodes the whole file is one episode, and a flag does not end it.
        path = log(self.TEXT)
        settings = {name: value for name, value in self.SETTINGS.items() if name != "episode"}
        with pytest.raises(DatasetError, match=r"(?s)follows the end.*log.csv, line 7.*'done'.*set episode"):
            read(path, **settings | {"actions": "batch", "rewards": "temp"})  # columns without gaps

    @pytest.mark.parametrize("flags", [{"terminated": "done"}, {}])
    def test_steps_are_not_joined_across_a_broken_line(self, log, flags):
        # Line 4 is broken, so the next observation of the step in line 3 is unknown.
        path = log("temp,valve,profit,done\n1,0,1,\n2,0,2,\n3\n4,0,4,\n5,0,5,1\n")
        settings = {"obs": "temp", "actions": "valve", "rewards": "profit", **flags}
        before, after = read(path, max_broken=1, **settings)
        assert (before.columns["obs"].tolist(), before.columns["rewards"].tolist()) == ([1, 2], [1])
        assert (before.ended, before.continues) == (False, False)
        assert after.columns["obs"][:2].tolist() == [4, 5]
        assert (after.ended, after.continues) == (True, True)
        assert before.episode_id == after.episode_id

    def test_steps_after_a_broken_first_line_are_the_rest_of_a_trajectory(self, log):
        # The broken line is the first of batch 2 or the last of batch 1, so both returns are unknown.
        path = log("batch,temp,valve,profit\n1,1,0,1\n1,1,,\n2\n2,2,0,1\n2,2,0,1\n2,2,,\n3,3,0,1\n3,3,,\n")
        found = read(path, max_broken=1, **self.BATCHES)
        assert [(len(one), one.continues) for one in found] == [(1, False), (2, True), (1, False)]
        assert [one.cut for one in found] == [False, True, False]

    @pytest.mark.parametrize(("batches", "line"), [([1, 2, 1, 2], 4), ([1, 1, 1, 2, 2, 1, 1], 7)])
    def test_an_episode_with_rows_apart_is_refused(self, log, batches, line):
        path = log("batch,temp,valve,profit\n" + "".join(f"{batch},1,0,1\n" for batch in batches))
        unreadable(rf"(?s)not contiguous.*log.csv, line {line}.*'1'.*sort the rows", path, max_broken=1, **self.BATCHES)

    @pytest.mark.parametrize("row", ["1,21,5,1.1,1,0.25,0", "1,21.0,1.1,1,0.251,22.0,1.2"])  # a comma, a line break
    def test_a_line_with_more_values_than_the_header(self, log, row):
        path = log(self.TEXT.replace("1,21.0,1.1,1,0.25,", row))
        unreadable(rf"(?s)more values than the header.*log.csv, line 3.*{row}.*6 values", path, **self.SETTINGS)
        found = read(path, **self.SETTINGS, max_broken=1)
        assert [len(one) for one in found] == [2, 1]  # one step remains of batch 1

    def test_delimiters_at_the_end_of_lines(self, log):
        head, *rows = self.TEXT.splitlines()
        path = log("\n".join([head, *(f"{row},, " for row in rows)]))
        assert len(read(path, **self.SETTINGS)) == 3

    def test_errors_name_the_broken_value(self, log):
        path = log(self.TEXT.replace("31.0", "n/a"))
        unreadable(r"(?s)not a number.*line 6, column 'temp'.*n/a", path, **self.SETTINGS)
        assert len(read(path, **self.SETTINGS, max_broken=1)) == 2
        unreadable(r"(?s)lacks a column.*heat", path, **{**self.SETTINGS, "obs": "heat"})
        with pytest.raises(ConfigError, match=r"(?s)settings.*CsvReader.*obs"):
            read(path)

    @pytest.mark.parametrize(
        "setting",
        [
            *({"obs": 5}, {"obs": []}, {"actions": [1]}, {"rewards": ["a"]}, {"episode": ["e"]}, {"delimiter": "ab"}),
            *({"max_broken": "a"}, {"max_broken": -1}),
        ],
    )
    def test_settings_of_the_wrong_kind(self, log, setting):
        path = log(self.TEXT)
        (name,) = setting
        with pytest.raises(ConfigError, match=rf"(?s)wrong type.*setting '{name}'.*expected"):
            read(path, **{**self.SETTINGS, **setting})

    def test_a_repeated_column_name(self, log):
        path = log(self.TEXT.replace("pressure", "temp"), "LOG.CSV")
        unreadable(r"(?s)name twice.*LOG.CSV.*one column 'temp'", path, **{**self.SETTINGS, "obs": "temp"})

    def test_steps_without_a_next_observation_are_counted(self, log, caplog):
        # A log of a bandit: each row is an episode. The third has two.
        path = log("batch,temp,valve,profit\n1,1,0,1\n2,1,0,1\n3,1,0,1\n3,1,0,2\n")
        assert len(read(path, **self.BATCHES)) == 1
        assert "2 trajectories of one step are left out" in caplog.text
        assert "ends='terminated'" in caplog.text
        caplog.clear()
        assert [len(one) for one in read(path, **self.BATCHES, ends="terminated")] == [1, 1, 2]
        assert "left out" not in caplog.text

    @pytest.mark.parametrize("flag", ["terminated", "truncated"])
    def test_the_setting_ends_together_with_a_column_of_ends(self, log, flag):
        path = log(self.TEXT)
        settings = {name: value for name, value in self.SETTINGS.items() if name != "terminated"}
        with pytest.raises(ConfigError, match=rf"(?s)no effect.*'ends'.*ends='cut'.*{flag}='done'.*leave ends out"):
            read(path, **settings, **{flag: "done"}, ends="cut")

    @pytest.mark.parametrize(("reward", "fits"), [("", True), ("0", True), ("nan", True), ("10", False)])
    def test_a_reward_without_an_action(self, log, reward, fits):
        path = log(f"x,a,r\n1,0,0\n2,1,0.5\n3,,{reward}\n")
        settings = {"obs": ["x"], "actions": "a", "rewards": "r"}
        if fits:
            (one,) = read(path, **settings)
            assert one.columns["rewards"].tolist() == [0, 0.5]
            return
        unreadable(r"after the last action(.|\n)*line 4, column 'r'(.|\n)*got: +10.0", path, **settings)
