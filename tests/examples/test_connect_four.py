"""The rules of connect four, and of the players in its example."""

import numpy as np
import pettingzoo
import pytest

from examples.connect_four import COLUMNS, ROWS, ConnectFour, OneMoveAhead, Random, has_line, observed
from rollax import TrainerConfig


class Same:
    """Plays given columns on all boards of an environment."""

    def __init__(self, boards=1):
        self.env = ConnectFour({"boards": boards})
        self.rows = self.env.reset_rows(np.arange(boards))

    def play(self, *columns):
        for column in columns:
            acting = self.rows.acts.nonzero()[0]
            self.env.send_rows(self.rows, acting, np.full(len(acting), column))
            self.rows = self.env.poll_rows()
        return self.rows


def test_lines_do_not_continue_in_the_next_column():
    # The three uppermost places of column 0 and the lowest of column 1 are neighbours in number.
    assert not Same().play(1, 0, 2, 0, 2, 0, 0, 4, 0, 4, 0).terminateds.any()


def test_a_random_game_is_the_same_in_pettingzoo():
    rng = np.random.default_rng(0)
    for _ in range(30):
        game, other = Same(boards=3), pettingzoo.make("aec", "classic/connect_four-v3")
        other.reset()
        while not (seen := other.last())[2]:
            mask = seen[0]["action_mask"]
            acting = int(game.rows.acts.nonzero()[0][0])
            np.testing.assert_array_equal(game.rows.obs["action_mask"][acting], mask)
            # PettingZoo counts rows from the top.
            planes = game.rows.obs["observation"][acting]
            np.testing.assert_array_equal(planes[..., :2], seen[0]["observation"][::-1])
            column = int(rng.choice(mask.nonzero()[0]))
            game.play(column)
            other.step(column)
        assert game.rows.ended_envs.tolist() == [0, 1, 2]
        assert game.rows.terminateds.all()
        rewards = set(zip(game.rows.agents, game.rows.rewards, strict=True))
        assert rewards == {("first", other.rewards["player_0"]), ("second", other.rewards["player_1"])}


def test_a_full_board_is_a_draw():
    # Columns filled in pairs give no line: 0 1 0 1 ... then the order swaps.
    columns = [0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 2, 3, 2, 3, 3, 2, 3, 2, 2, 3, 2, 3]
    columns += [4, 5, 4, 5, 5, 4, 5, 4, 4, 5, 4, 5, 6, 6, 6, 6, 6, 6]
    rows = Same().play(*columns)
    assert rows.terminateds.tolist() == [True, True]
    assert rows.rewards.tolist() == [0, 0]
    assert not rows.obs["action_mask"].any()


@pytest.mark.parametrize(
    ("columns", "choice"),
    [
        ([0, 1, 0, 1, 0, 1], 0),  # wins, although the opponent threatens to win in column 1
        ([0, 1, 0, 6, 0], 0),  # prevents a vertical line
        ([2, 2, 3, 3, 4], {1, 5}),  # two threats: prevents one of them
    ],
)
def test_one_move_ahead(columns, choice):
    rows = Same().play(*columns)
    player = OneMoveAhead(ConnectFour.observation_space, ConnectFour.action_space, TrainerConfig(seed=0))
    obs = {name: np.repeat(column, 50, axis=0) for name, column in rows.obs.items()}
    actions, _, _ = player.compute_actions(obs)
    assert set(actions.tolist()) == (choice if isinstance(choice, set) else {choice})


def test_random_moves_are_legal_and_reach_every_free_column():
    obs = {name: np.repeat(column, 500, axis=0) for name, column in Same().play(*[3] * ROWS).obs.items()}
    player = Random(ConnectFour.observation_space, ConnectFour.action_space, TrainerConfig(seed=0))
    actions, _, _ = player.compute_actions(obs)
    assert set(actions.tolist()) == set(range(COLUMNS)) - {3}


def test_hints_are_the_columns_that_win_for_each():
    rows = Same().play(0, 1, 0, 1, 0, 1)  # both have three in a column, and "first" moves
    assert rows.obs["hints"][0].reshape(2, COLUMNS).nonzero()[1].tolist() == [0, 1]
    rows = Same().play(0, 1, 0, 1, 0, 2)
    assert rows.obs["hints"][0].nonzero()[0].tolist() == [0]


def test_observations_are_of_the_player_that_moves():
    heights = np.array([[1, 0, 2, 0, 0, 0, 0]])
    seen = observed(np.array([1 << 14], np.uint64), np.array([(1 << 0) | (1 << 15)], np.uint64), heights)
    assert np.argwhere(seen["observation"][0][..., :2]).tolist() == [[0, 0, 1], [0, 2, 0], [1, 2, 1]]
    assert ConnectFour.observation_space["observation"].contains(seen["observation"][0])


def test_places_that_would_complete_a_line():
    """All of them, on random boards, by trying each empty place."""
    rng = np.random.default_rng(0)
    bits = np.array([7 * column + row for row in range(ROWS) for column in range(COLUMNS)], np.uint64)
    one = np.uint64(1)
    for _ in range(200):
        heights = rng.integers(ROWS + 1, size=COLUMNS)
        owner = np.where(np.arange(ROWS)[:, None] < heights, rng.integers(1, 3, size=(ROWS, COLUMNS)), 0).ravel()
        pieces, other = ((one << bits[owner == player]).sum(dtype=np.uint64, keepdims=True) for player in (1, 2))
        seen = observed(pieces, other, heights[None])["observation"][0].reshape(-1, 4)
        for plane, board in ((2, pieces), (3, other)):
            if not has_line(board)[0]:
                completes = [bool(has_line(board | (one << bit))[0]) for bit in bits]
                assert seen[:, plane].tolist() == [int(completes[i] and owner[i] == 0) for i in range(len(bits))]
