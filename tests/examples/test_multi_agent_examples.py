"""The rules of the environments in the examples with several agents."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from examples import rock_paper_scissors, tic_tac_toe, two_trainers
from examples.async_base_env import FLOORS, TRIPS, Lifts
from examples.hierarchical_maze import (
    MAZE,
    OTHER_MAZE,
    ROOM_SIZE,
    TOP_LEVEL,
    WALK_LENGTH,
    WALKERS,
    WALKS,
    Maze,
    policy_of,
)
from examples.multi_agent_cartpole import MultiAgentCartPole
from examples.rock_paper_scissors import NOTHING_YET, AlwaysSame, BeatLast, RockPaperScissors
from rollax import DQNTrainer, PGConfig, PPOTrainer, RolloutWorker

NORTH, EAST, SOUTH, WEST = range(4)


class TestMultiAgentCartPole:
    def test_an_agent_leaves_when_its_pole_falls_and_the_last_one_ends_the_episode(self):
        env = MultiAgentCartPole({"num_agents": 3})
        obs, _ = env.reset(seed=7)
        assert list(obs) == [0, 1, 2]
        assert len({tuple(value) for value in obs.values()}) == 3
        steps = dict.fromkeys(obs, 0)
        over = False
        while not over:
            # Agent 0 always pushes to one side and falls first; the others balance their poles.
            actions = {agent: int(agent > 0 and value[2] + value[3] > 0) for agent, value in obs.items()}
            obs, rewards, terminateds, truncateds, _ = env.step(actions)
            assert rewards == dict.fromkeys(actions, 1.0)
            for agent in actions:
                steps[agent] += 1
            over = terminateds["__all__"] or truncateds["__all__"]
            ended = {agent for agent in actions if terminateds[agent] or truncateds[agent]}
            obs = {agent: value for agent, value in obs.items() if agent not in ended}
            assert over == (not obs)
        assert steps[0] < 15 < steps[1]
        assert {steps[1], steps[2]} == {500}
        assert (terminateds["__all__"], truncateds["__all__"]) == (False, True)

    def test_a_fall_is_not_a_truncation(self):
        env = MultiAgentCartPole({"num_agents": 1})
        env.reset(seed=0)
        while not (flags := env.step({0: 0})[2:4])[0][0]:
            assert flags == ({0: False, "__all__": False},) * 2
        assert flags == ({0: True, "__all__": True}, {0: False, "__all__": False})


class TestRockPaperScissors:
    @pytest.mark.parametrize(("first", "second"), [*itertools.product(range(3), repeat=2)])
    def test_payoffs(self, first, second):
        env = RockPaperScissors({})
        env.reset()
        obs, rewards, *_ = env.step({"player_0": first, "player_1": second})
        beaten_by = {0: 1, 1: 2, 2: 0}  # paper beats rock, scissors beat paper, rock beats scissors
        won = int(beaten_by[second] == first) - int(beaten_by[first] == second)
        assert rewards == {"player_0": won, "player_1": -won}
        assert obs["player_0"].tolist() == [first, second]
        assert obs["player_1"].tolist() == [second, first]

    def test_ten_rounds(self):
        env = RockPaperScissors({})
        obs, _ = env.reset()
        assert {tuple(seen) for seen in obs.values()} == {(NOTHING_YET, NOTHING_YET)}
        ends = [env.step({"player_0": 0, "player_1": 0})[2]["__all__"] for _ in range(10)]
        assert ends == [False] * 9 + [True]

    def test_rules_of_the_opponents(self):
        seen = np.array([[own, other] for own in range(3) for other in range(3)] + [[NOTHING_YET, NOTHING_YET]] * 30)
        spaces = RockPaperScissors.observation_space, RockPaperScissors.action_space
        same, beat = (cls(*spaces, PGConfig(seed=0)).compute_actions(seen)[0] for cls in (AlwaysSame, BeatLast))
        assert same[:9].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert beat[:9].tolist() == [1, 2, 0, 1, 2, 0, 1, 2, 0]
        assert set(same[9:]) == set(beat[9:]) == {0, 1, 2}

    def test_each_episode_draws_its_opponent(self):
        mapping = rock_paper_scissors.against_either()["policy_mapping_fn"]
        assert mapping("player_0") == "learner"
        assert {mapping("player_1") for _ in range(30)} == {"always_same", "beat_last"}


class TestTicTacToe:
    def test_each_player_opens_half_of_the_games(self):
        boards = [SimpleNamespace(env_index=board) for board in range(4)]
        first, second = ([tic_tac_toe.seat_by_board(f"player_{i}", board) for board in boards] for i in (1, 2))
        assert (first, second) == (["learner", "random"] * 2, ["random", "learner"] * 2)

    def test_random_moves_are_all_free_squares(self):
        config = {"num_envs_per_worker": 4, "rollout_fragment_length": 200, "seed": 0}
        worker = RolloutWorker(tic_tac_toe.make_game, tic_tac_toe.RandomMoves, config=config)
        batch = worker.sample()
        mask, actions = batch["obs"]["action_mask"], batch["actions"]
        assert mask[np.arange(len(mask)), actions].all()
        assert set(actions[mask.all(axis=1)]) == set(range(9))

    def test_a_draw_is_half_a_point(self):
        assert [tic_tac_toe.score({"policy_reward_mean": {"learner": mean}}) for mean in (-1, 0, 1)] == [0, 0.5, 1]


class TestMaze:
    @pytest.fixture
    def maze(self):
        env = Maze({})
        env.reset(seed=0)
        env.room, env.cell = (0, 0), (1, 2)
        return env

    @staticmethod
    def walk(env, side, *moves):
        env.step({TOP_LEVEL: side})
        for move in moves[:-1]:
            env.step({env.walker: move})
        return env.step({env.walker: moves[-1]})

    def test_choosing_a_side_creates_a_walker_without_a_step(self, maze):
        obs, rewards, terminateds, truncateds, _ = maze.step({TOP_LEVEL: SOUTH})
        ((walker, seen),) = obs.items()
        assert policy_of(walker) == WALKERS[0]
        assert seen.tolist() == [1, 2, 1]  # row, column, second of its two sides
        assert (rewards, terminateds, truncateds) == ({}, {"__all__": False}, {"__all__": False})
        assert maze.cell == (1, 2)

    def test_every_choice_has_a_new_walker(self, maze):
        walkers = []
        for side in (NORTH, EAST, SOUTH, WEST, NORTH):
            self.walk(maze, side, *[NORTH] * WALK_LENGTH)
            walkers.append(maze.walker)
        assert len(set(walkers)) == 5
        assert [policy_of(walker) for walker in walkers] == [*WALKERS, *WALKERS, WALKERS[0]]
        assert policy_of(TOP_LEVEL) == TOP_LEVEL

    def test_passing_the_door_ends_the_walk(self, maze):
        obs, rewards, terminateds, truncateds, _ = self.walk(maze, SOUTH, *[SOUTH] * 4)
        assert (maze.room, maze.cell) == ((1, 0), (0, 2))
        assert obs == {TOP_LEVEL: 4}
        assert rewards == {maze.walker: 1.0, TOP_LEVEL: 0.0}
        assert terminateds == {maze.walker: True, "__all__": False}
        assert truncateds == {"__all__": False}

    def test_walls_doors_of_other_sides_and_closed_sides_stop_a_walker(self, maze):
        maze.cell = (4, 1)
        self.walk(maze, SOUTH, SOUTH)
        assert (maze.room, maze.cell) == ((0, 0), (4, 1))  # beside the door
        maze.cell = (4, 2)
        self.walk(maze, EAST, SOUTH)
        assert maze.room == (0, 0)  # the door is open to walkers sent through it
        maze.cell = (0, 2)
        self.walk(maze, NORTH, NORTH)
        assert maze.room == (0, 0)  # the edge of the maze
        maze.room, maze.cell = (1, 0), (2, 4)
        self.walk(maze, EAST, EAST)
        assert maze.room == (1, 0)  # a wall between two rooms

    def test_an_unsuccessful_walk_ends_without_reward(self, maze):
        maze.step({TOP_LEVEL: NORTH})
        for _ in range(WALK_LENGTH - 1):
            obs, rewards, terminateds, *_ = maze.step({maze.walker: NORTH})
            assert list(obs) == [maze.walker]
            assert (rewards, terminateds) == ({}, {"__all__": False})
        obs, rewards, terminateds, *_ = maze.step({maze.walker: NORTH})
        assert obs == {TOP_LEVEL: 0}
        assert rewards == {maze.walker: 0.0, TOP_LEVEL: 0.0}
        assert terminateds[maze.walker]

    def test_the_goal_ends_the_episode(self, maze):
        maze.room, maze.cell = (2, 3), (4, 2)
        _, rewards, terminateds, truncateds, _ = self.walk(maze, SOUTH, SOUTH)
        assert rewards[TOP_LEVEL] == 1.0
        assert (terminateds["__all__"], truncateds["__all__"]) == (True, False)

    def test_the_last_walk_ends_the_episode(self, maze):
        ends = [self.walk(maze, NORTH, *[NORTH] * WALK_LENGTH)[2:4] for _ in range(WALKS)]
        assert [truncated["__all__"] for _, truncated in ends] == [False] * (WALKS - 1) + [True]
        assert not any(terminated["__all__"] for terminated, _ in ends)

    def test_the_same_seed_gives_the_same_episodes(self):
        mazes = Maze({}), Maze({})
        for env in mazes:
            env.reset(seed=3)
        assert [env.reset()[0] for env in mazes[:1] for _ in range(5)] == [mazes[1].reset()[0] for _ in range(5)]
        assert mazes[0].cell == mazes[1].cell

    @pytest.mark.parametrize("drawing", [MAZE, OTHER_MAZE])
    def test_the_goal_can_be_reached_from_every_room(self, drawing):
        env = Maze({"maze": drawing})
        reached, fresh = {env.goal}, [env.goal]
        while fresh:
            room = fresh.pop()
            for side, (down, right) in enumerate(((-1, 0), (0, 1), (1, 0), (0, -1))):
                beside = room[0] + down, room[1] + right
                if env.is_open(room, side):
                    assert env.is_open(beside, (side + 2) % 4)
                    fresh += {beside} - reached
                    reached.add(beside)
        assert len(reached) == env.rooms**2 == 16

    def test_episodes_begin_in_every_room_except_the_goal(self):
        env = Maze({})
        env.reset(seed=0)
        starts = {(env.reset()[0][TOP_LEVEL], *env.cell) for _ in range(3000)}
        assert {room for room, *_ in starts} == set(range(16)) - {15}
        assert {cell for _, *cell in map(list, starts) for cell in cell} == set(range(ROOM_SIZE))


class TestLifts:
    def test_the_duration_of_a_trip_is_its_distance(self):
        env = Lifts({"houses": 3})
        env.try_reset()
        env.floor[:], env.waiting[:] = [0, 2, 5], [4, 5, 4]
        env.send_actions({0: {"lift": 4}, 1: {"lift": 2}, 2: {"lift": 4}})
        for second, house, reward in ((1, 1, 0.0), (2, 2, 1.0), (5, 0, 1.0)):
            obs, rewards, terminateds, truncateds, infos, _ = env.poll()
            assert list(obs) == [house]
            assert rewards == {house: {"lift": reward}}
            assert terminateds == truncateds == {house: {"__all__": False}}
            assert infos == {house: {"lift": {"second": second}}}

    def test_lifts_that_stop_together_are_ready_together(self):
        env = Lifts({"houses": 2})
        env.try_reset()
        env.floor[:] = [0, FLOORS - 1]
        env.send_actions({0: {"lift": 1}, 1: {"lift": FLOORS - 2}})
        assert list(env.poll()[0]) == [0, 1]

    def test_sampled_rewards_and_episode_lengths(self):
        def go_there(obs_batch):
            return obs_batch[:, 1], [], {}

        policy = type("GoThere", (rock_paper_scissors.Policy,), {"compute_actions": staticmethod(go_there)})
        worker = RolloutWorker(Lifts, policy, config={"env_config": {"houses": 5}, "rollout_fragment_length": 60})
        batch = worker.sample()
        assert (batch["rewards"] == 1).all()
        assert {episode.length for episode in worker.get_metrics()} == {TRIPS}
        assert len(batch) == batch.env_steps


@pytest.mark.long
def test_two_trainers_train_one_policy_each_and_have_the_same_weights():
    ppo_config = two_trainers.config("ppo_policy", train_batch_size=128, num_envs_per_worker=1)
    dqn_config = two_trainers.config("dqn_policy", timesteps_per_iteration=64, learning_starts=32)
    ppo, dqn = PPOTrainer(two_trainers.TwoCarts, ppo_config), DQNTrainer(two_trainers.TwoCarts, dqn_config)
    with ppo, dqn:
        before = ppo.get_weights(), dqn.get_weights()
        assert set(ppo.train()["info"]["learner"]) == {"ppo_policy"}
        assert set(dqn.train()["info"]["learner"]) == {"dqn_policy"}
        assert changed(before[0], ppo.get_weights()) == {"ppo_policy"}
        assert changed(before[1], dqn.get_weights()) == {"dqn_policy"}
        targets = dict(dqn.get_policy("dqn_policy").targets)
        two_trainers.copy_weights(ppo, dqn)
        assert changed(ppo.get_weights(), dqn.get_weights()) == set()
        assert changed(before[0], ppo.get_weights()) == {"ppo_policy", "dqn_policy"}
        assert changed({"dqn_policy": targets}, {"dqn_policy": dqn.get_policy("dqn_policy").targets}) == set()


def changed(before, after):
    """The ids of the policies that differ."""

    def equal(one, other):
        return all(np.array_equal(value, other[name]) for name, value in one.items())

    return {policy_id for policy_id, weights in before.items() if not equal(weights, after[policy_id])}
