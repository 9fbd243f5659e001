"""Metrics of episodes, their smoothing, and the table of running episodes."""

import json
import pickle
import pickletools

import numpy as np
import pytest

from rollax import RolloutWorker
from rollax.env.rows import Rows
from rollax.rollout import metrics as metrics_module
from rollax.rollout.episode import Episode
from rollax.rollout.episodes import EpisodeTable
from rollax.rollout.metrics import EpisodeList, EpisodeMetrics, EpisodeWindow, FinishedEpisodes, summarize
from tests.rollout.worlds import ALL, Encode, Line, scripted


def episode(reward: float, length: int = 1, env_index: int = 0, custom=None, **policies) -> EpisodeMetrics:
    return EpisodeMetrics(reward, length, policies, custom or {}, env_index)


class TestSummary:
    def test_by_hand(self):
        # The mean of a policy is over trajectories, not over episodes: (1 + 2 + 6) / 3.
        first = episode(3, 10, x=[1.0, 2.0], y=[0.0])
        assert summarize([first, episode(6, 20, x=[6.0]), episode(0, 60, custom={"hits": 4})]) == {
            "episode_reward_mean": 3.0,
            "episode_reward_min": 0,
            "episode_reward_max": 6,
            "episode_len_mean": 30.0,
            "policy_reward_mean": {"x": 3.0, "y": 0.0},
            "custom_metrics": {"hits_mean": 4.0},
        }

    def test_without_episodes_the_mean_is_none(self):
        summary = EpisodeWindow(5).summary([])
        assert summary["episodes_this_iter"] == 0
        assert [value for name, value in summary.items() if name.startswith("episode_")] == [None] * 4
        assert summary["policy_reward_mean"] == summary["custom_metrics"] == {}


class TestAcrossProcesses:
    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_pickling_keeps_the_episodes(self, count):
        sent = EpisodeList(episode(i, 10 * i, i, {"hits": i}, x=[1.0, i]) for i in range(count))
        arrived = pickle.loads(pickle.dumps(sent))  # noqa: S301  bytes of its own
        assert arrived == sent
        assert type(arrived) is EpisodeList

    def test_episodes_are_pickled_as_columns(self):
        # NEWOBJ or REDUCE builds an object: there is one for the list, and none for each episode.
        stored = pickle.dumps(EpisodeList(episode(i) for i in range(50)))
        built = [code.name for code, _, _ in pickletools.genops(stored) if code.name in ("REDUCE", "NEWOBJ", "BUILD")]
        assert built == ["REDUCE"]


class TestFinishedEpisodes:
    def test_the_latest_are_kept(self, monkeypatch):
        monkeypatch.setattr(metrics_module, "_MOST_KEPT", 2)
        finished, one = FinishedEpisodes(), np.ones(1, int)
        for number in range(5):
            finished.add_trajectories(number * one, 0 * one, number * one)
            finished.add(number * one, one, number * one, 7 * one, {number: {"hits": 10.0 * number}})
        assert finished.take(["x"]) == [episode(n, 7, 1, {"hits": 10.0 * n}, x=[n]) for n in (3, 4)]
        assert finished.take(["x"]) == []

    def test_trajectories_of_a_running_episode_are_read_once(self):
        """Otherwise each fragment of an endless episode, in which agents come and go, would take longer."""
        reads = []

        class Ids(list):
            def __getitem__(self, number):
                reads.append(number)
                return super().__getitem__(number)

        finished, ids, one = FinishedEpisodes(), Ids(["x", "y"]), np.ones(1, int)
        for number in (0, 1):
            finished.add_trajectories(7 * one, number * one, (number + 2) * one)
            assert finished.take(ids) == []
        assert reads == []
        finished.add(7 * one, 0 * one, 5 * one, 4 * one, {})
        assert finished.take(ids) == [episode(5, 4, x=[2], y=[3])]
        assert reads == [0, 1]


class TestWindow:
    def test_the_latest_episodes_are_counted(self):
        window = EpisodeWindow(3)
        assert window.summary([episode(1), episode(2)])["episode_reward_mean"] == 1.5
        assert window.summary([episode(3), episode(7)])["episode_reward_mean"] == 4.0  # 2, 3, 7
        summary = window.summary([])
        assert (summary["episode_reward_mean"], summary["episodes_this_iter"]) == (4.0, 0)

    def test_all_episodes_of_an_iteration_are_counted(self):
        window = EpisodeWindow(2)
        window.summary([episode(100)])
        summary = window.summary([episode(1), episode(2), episode(3)])
        assert (summary["episode_reward_mean"], summary["episodes_this_iter"]) == (2.0, 3)
        assert window.summary([episode(5)])["episode_reward_mean"] == 4.0  # 3, 5

    def test_state_survives_json(self):
        window, other = EpisodeWindow(3), EpisodeWindow(3)
        window.summary([episode(1, 2, x=[1.0]), episode(4, custom={"hits": 2.0})])
        other.set_state(json.loads(json.dumps(window.state())))
        assert other.summary([episode(1)]) == window.summary([episode(1)])

    @pytest.mark.parametrize("later", [0, 1, 3])
    def test_state_has_only_the_episodes_that_later_summaries_count(self, later):
        window, other = EpisodeWindow(2), EpisodeWindow(2)
        window.summary([episode(reward) for reward in range(100)])
        other.set_state(window.state())
        assert len(window.state()) == 2
        assert other.summary([episode(7)] * later) == window.summary([episode(7)] * later)


class TestTable:
    """One sub-environment with two agents, beside one without agents."""

    @staticmethod
    def rows(rewards, over=(False, False), starts=(False, False), ended=()) -> Rows:
        flags = np.array(over), np.zeros(2, bool), np.array(starts), ~np.array(over)
        places = np.array([1, 1]), np.arange(2), [None, None]
        return Rows(*places, np.array(rewards, float), *flags, np.array(ended, int), agents=["a", "b"])

    def test_rewards_lengths_and_trajectories(self):
        table = EpisodeTable(2, first_id=40)
        assert table.add_rewards(self.rows([0, 0], starts=[True, True]), np.array([], int)) == 0
        table.begin(np.array([1, 1]))
        assert table["id"].tolist() == [-1, 40]
        assert table["begun"].tolist() == [0, 1]
        assert table.add_rewards(self.rows([1, 2]), None) == 1
        assert (table.episode(1).total_reward, table.episode(1).length) == (3.0, 1)
        assert table.add_rewards(self.rows([4, 8], over=[True, False]), None) == 1
        table.end_trajectories(np.array([1]), np.array([1]), np.array([5.0]))
        assert table.take_metrics(["x", "y"]) == []
        table.add_rewards(self.rows([0, 16], over=[False, True], starts=[False, False], ended=[1]), None)
        table.end_trajectories(np.array([1]), np.array([0]), np.array([26.0]))
        table.end(np.array([1]))
        assert table.take_finished()[0].tolist() == [40]
        (metrics,) = table.take_metrics(["x", "y"])
        assert metrics == EpisodeMetrics(31.0, 3, {"y": [5.0], "x": [26.0]}, {}, 1)
        assert table.take_metrics(["x", "y"]) == []
        table.begin(np.array([1]))
        assert table["id"].tolist() == [-1, 41]
        assert table.episode(1).total_reward == 0

    @pytest.mark.parametrize("error", [None, ValueError])
    def test_episodes_apart(self, error):
        """An episode ends, one of two trajectories of the next ends, and another episode ends apart."""
        table, one, policies = EpisodeTable(1, first_id=40), np.array([0]), ["x", "y"]

        def play(*trajectories, ends):
            table.begin(one)
            for policy, reward in trajectories:
                table["reward"][one] += reward
                table.end_trajectories(one, np.array([policy]), np.array([reward]))
            if ends:
                table.end(one)

        play((0, 1.0), (1, 2.0), ends=True)
        play((0, 4.0), ends=False)
        try:
            with table.apart():
                assert (table.take_metrics(policies), table["id"].tolist()) == ([], [-1])
                play((1, 8.0), ends=True)
                (metrics,) = table.take_metrics(policies)
                assert metrics == EpisodeMetrics(8.0, 0, {"y": [8.0]})
                play((0, 16.0), ends=False)
                if error:
                    raise error
        except ValueError:
            assert error
        assert table["id"].tolist() == [-1]
        play((1, 32.0), ends=True)
        first, second = table.take_metrics(policies)
        assert first == EpisodeMetrics(3.0, 0, {"x": [1.0], "y": [2.0]})
        assert second == EpisodeMetrics(32.0, 0, {"y": [32.0]})
        assert table.take_metrics(policies) == []

    def test_an_episode_without_agents_is_not_counted(self):
        table = EpisodeTable(1)
        table.end(np.array([0]))
        assert table.take_metrics(["x"]) == []
        assert table.take_finished()[1] == 0

    def test_which_of_the_episodes_that_end_together_count(self):
        table = EpisodeTable(3)
        table.left = np.array([1, 2, 0])
        # sub-environment:    1  0  1  2  1  0   of one share each; the second of 0 and the third of 1 are too many
        assert table.ending(np.array([1, 0, 1, 2, 1, 0])).tolist() == [True, True, True, False, False, False]
        assert table.ending(np.array([], np.int64)).tolist() == []

    def test_an_episode_that_was_resumed_takes_no_share(self):
        table = EpisodeTable(3)
        table.left = np.array([1])
        table.begin(np.array([0, 1, 2]), resumed=np.array([0]))
        assert table.ending(np.array([0, 2, 1])).tolist() == [False, True, False]
        table.end(np.array([0]))
        assert table.counting(np.array([0, 1])).tolist() == [True, True]  # the next one in the sub-environment


class TestEpisode:
    def test_reads_the_table_until_it_is_detached(self):
        rewards, lengths = np.array([1.0, 2.0]), np.array([3, 4])
        running = Episode(9, 1, {"reward": rewards, "length": lengths})
        assert (running.total_reward, running.length) == (2.0, 4)
        rewards[1], lengths[1] = 5, 6
        assert (running.total_reward, running.length) == (5.0, 6)
        running.detach()
        rewards[1], lengths[1] = 0, 0
        assert (running.total_reward, running.length) == (5.0, 6)

    def test_policy_of_an_agent(self):
        several, one = Episode(9, 0, {}), Episode(9, 0, {}, only_policy="p")
        several.policies["a"] = "x"
        assert (several.policy_for("a"), several.policy_for("b"), one.policy_for("a")) == ("x", None, "p")


class TestInSampling:
    def test_rewards_of_metrics_are_the_environments(self):
        raw = RolloutWorker(Line, Encode, config={"rollout_fragment_length": 30})
        clipped = RolloutWorker(Line, Encode, config={"rollout_fragment_length": 30, "clip_rewards": True})
        assert np.abs(raw.sample()["rewards"]).max() > 1
        assert set(np.abs(clipped.sample()["rewards"])) <= {0.0, 1.0}
        assert raw.get_metrics() == clipped.get_metrics()

    @pytest.mark.parametrize("clip", [True, 1.0, 0.75])
    def test_a_rows_rewards_are_clipped_as_their_sum(self, clip):
        # b gets -1.75 in step 1, 2.25 in step 2 (late) and -0.75 in step 3: 2.25 - 0.75 = 1.5 for its second row.
        script = [{"a": "o", "b": "o"}, {"a": "o", "b": "or"}, {"a": "o", "b": "r"}, {"b": "or", ALL: "T"}]
        configs = ({"rollout_fragment_length": 3, "clip_rewards": value} for value in (None, clip))
        raw, clipped = (RolloutWorker(scripted(script), Encode, config=config).sample() for config in configs)
        late = raw["rewards"].tolist()
        expected = np.sign(late) if clip is True else np.clip(late, -clip, clip)
        assert clipped["rewards"].tolist() == expected.tolist()
        assert clipped["rewards"].dtype == np.float32
        assert np.abs(late).max() > 1
