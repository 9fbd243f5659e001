"""Blocks by hand: segments, sums, rows, and the episodes in the table."""

import numpy as np

from rollax import PolicyError
from rollax.rollout.blocks import BlockColumns, Outcomes, Segments, following
from rollax.rollout.episodes import EpisodeTable
from rollax.rollout.metrics import EpisodeMetrics
from tests.env.refused import refused

NO = False
# Sub-environment 0 terminates at poll 1, sub-environment 1 is truncated at poll 3; both begin again at once.
# The segments are polls 0 1 and 2 3 of the first, polls 0 1 2 3 and none of the second.
REWARDS = np.array([[1, 10], [2, 20], [4, 40], [8, 80]], np.float64)[..., None]
TERMINATEDS = np.array([[NO, NO], [True, NO], [NO, NO], [NO, NO]])
TRUNCATEDS = np.array([[NO, NO], [NO, NO], [NO, NO], [NO, True]])
OUTCOMES = Outcomes(REWARDS, TERMINATEDS, TRUNCATEDS, TERMINATEDS | TRUNCATEDS)
# One sub-environment ends at poll 0 and is reset by poll 1, which is no step.
WAITS = Outcomes(
    np.array([[1.0], [0.0], [2.0], [4.0]])[..., None],
    *(np.array([[True], [NO], [NO], [NO]]), np.zeros((4, 1), bool), np.array([[NO], [True], [NO], [NO]])),
    np.array([[True], [NO], [True], [True]]),
)


class TestSegments:
    def test_by_hand(self):
        segments = Segments.of(OUTCOMES)
        assert segments.place.T.tolist() == [[0, 0, 1, 1], [2, 2, 2, 2]]
        assert (segments.first.tolist(), segments.last.tolist()) == ([0, 2], [1, 3])
        assert (segments.ended.tolist(), segments.begun.tolist()) == ([0, 2], [1, 3])
        assert segments.env_index.tolist() == [0, 0, 1, 1]
        assert (segments.start.tolist(), segments.length.tolist()) == ([0, 2, 0, 4], [2, 2, 4, 0])
        assert segments.sums(REWARDS, np.array([[0.5], [100.0]])).ravel().tolist() == [3.5, 12, 250, 0]
        assert segments.after(np.array([3, 0])).tolist() == [3, 0, 0, 0]
        numbers, following_number = segments.numbered(np.array([[50], [51]]), 52)
        assert (numbers.ravel().tolist(), following_number) == ([50, 52, 51, 53], 54)
        rows, step = segments.rows(np.array([0, 2, 1]))  # flat rows are 2 · poll + sub-environment
        assert rows.tolist() == [0, 2, 1, 3, 5, 7, 4, 6]
        assert step.tolist() == [0, 1, 0, 1, 2, 3, 0, 1]

    def test_a_poll_that_is_no_step(self):
        segments = Segments.of(WAITS)
        assert (segments.start.tolist(), segments.length.tolist()) == ([0, 2], [1, 2])
        assert segments.sums(WAITS.rewards, np.zeros((1, 1))).ravel().tolist() == [1, 6]
        assert segments.rows(np.array([0, 1]))[0].tolist() == [0, 2, 3]

    def test_agents_have_sums_of_their_own(self):
        sums = Segments.of(OUTCOMES).sums(np.concatenate((REWARDS, -REWARDS), axis=2), np.zeros((2, 2)))
        assert sums.tolist() == [[3, -3], [12, -12], [150, -150], [0, 0]]

    def test_sums_do_not_depend_on_where_blocks_are_cut(self):
        rewards = np.random.default_rng(0).normal(size=(20, 3, 1))
        no = np.zeros((20, 3), bool)

        def sums(first: int, last: int, before: np.ndarray) -> np.ndarray:
            flags = (no[first:last],) * 3
            return Segments.of(Outcomes(rewards[first:last], *flags)).sums(rewards[first:last], before)

        nothing = np.zeros((3, 1))
        np.testing.assert_array_equal(sums(7, 20, sums(0, 7, nothing)), sums(0, 20, nothing))

    def test_what_follows(self):
        # The segment of sub-environment 0 that ended is followed by its last observation, the others by the next ones.
        finals = [{"obs": np.array([7.0])}, {"obs": np.array([8.0])}]
        after = following(Segments.of(OUTCOMES), np.array([0, 2, 1]), finals, {"obs": np.array([1.0, 2.0])})
        assert after["obs"].tolist() == [7, 8, 1]


class TestTable:
    def make(self, **settings) -> EpisodeTable:
        table = EpisodeTable(2, first_id=5, **settings)
        table.begin(np.arange(2), several_agents=False)  # ids 5 and 6
        table["reward"][:2], table["length"][:2] = (0.5, 100.0), (3, 0)
        return table

    def record(self, table: EpisodeTable) -> np.ndarray:
        segments = Segments.of(OUTCOMES)
        returns = segments.sums(REWARDS, table["reward"][:2, None])
        return table.record_block(OUTCOMES, segments, np.zeros(1, int), returns)

    def test_by_hand(self):
        table = self.make()
        assert self.record(table).tolist() == [5, 7, 6, 8]
        columns = ("id", "reward", "length", "begun")
        assert [table[name][:2].tolist() for name in columns] == [[7, 8], [12, 0], [2, 0], [2, 2]]
        assert table.next_id == 9
        assert table.take_metrics(["x"]) == [
            EpisodeMetrics(3.5, 5, {"x": [3.5]}, {}, 0),
            EpisodeMetrics(250.0, 4, {"x": [250.0]}, {}, 1),
        ]

    def test_callbacks_see_each_episode_at_its_end(self):
        seen = []

        def ends(one):
            seen.append((one.episode_id, one.total_reward, one.length))
            one.custom_metrics["length"] = one.length

        table = self.make(on_end=ends)
        self.record(table)
        assert seen == [(5, 3.5, 5), (6, 250.0, 4)]
        assert [one.custom_metrics for one in table.take_metrics(["x"])] == [{"length": 5}, {"length": 4}]
        assert table["id"][:2].tolist() == [7, 8]

    def test_an_evaluation_counts_its_share(self):
        table = self.make()
        table.left = np.array([0, 1])
        self.record(table)
        assert table.left.tolist() == [0, 0]
        assert [one.env_index for one in table.take_metrics(["x"])] == [1]

    def test_metrics_are_in_the_order_of_the_ends(self):
        # Sub-environment 1 ends at each poll, sub-environment 0 only at the second.
        ends = np.array([[NO, True], [True, True], [NO, True]])
        outcomes = Outcomes(np.ones((3, 2, 1)), ends, np.zeros_like(ends), ends)
        segments, table = Segments.of(outcomes), EpisodeTable(2)
        table.begin(np.arange(2), several_agents=False)
        table.record_block(outcomes, segments, np.zeros(1, int), segments.sums(outcomes.rewards, np.zeros((2, 1))))
        assert [one.env_index for one in table.take_metrics(["x"])] == [1, 0, 1, 1]


class TestColumns:
    def test_arrays_grow_and_are_used_again(self):
        columns = BlockColumns(2, 1)
        for block in range(2):
            columns.begin()
            for poll in range(3):
                columns.make_room(poll)
                obs = {"a": np.array([[poll], [10.0 + poll]])}
                chosen, x = (None, [block, poll]) if poll else (np.array([1]), [poll])
                columns.put(poll, obs, chosen, {"x": np.array(x)})
        rows = columns.rows_of(np.array([1, 2, 5]))  # poll 0 of sub-environment 1, poll 1 of 0, poll 2 of 1
        assert rows["obs"]["a"].ravel().tolist() == [10, 1, 12]
        assert rows["x"].tolist() == [0, 1, 2]
        assert columns.outcomes(3).steps is None

    def test_columns_that_change_are_refused(self):
        columns = BlockColumns(1, 2)
        columns.put(0, np.zeros((1, 2)), None, {"x": np.zeros(1)})
        refused(PolicyError, columns.put, 1, np.zeros((1, 2)), None, {"y": np.zeros(1)}, says="differ")
