import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from rollax import EnvError, SpaceError, to_base_env
from rollax.env.vector.native_vector_env import info_list
from tests.env.drive import drive
from tests.env.refused import refused
from tests.env.worlds import ACTION_SPACE, OBS_SPACE, Clock

EVERYONE = np.arange(3)
COUNTS_ALL_STEPS = tuple(map(int, gym.__version__.split(".")[:2])) >= (1, 4)
"""RecordEpisodeStatistics around a vector environment in the mode SAME_STEP; before, not the first after an end."""


class Countdown(gym.vector.VectorEnv):
    """Three copies with episodes of 1, 2 and 3 steps; the observation is the number of steps left."""

    def __init__(self, **metadata) -> None:
        self.num_envs = 3
        self.metadata = metadata
        self.single_observation_space, self.single_action_space = spaces.Discrete(4), ACTION_SPACE
        self.observation_space = batch_space(self.single_observation_space, 3)
        self.action_space = batch_space(ACTION_SPACE, 3)
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.left, self.over = np.array([1, 2, 3]), np.zeros(3, bool)
        return self.left.copy(), {}

    def step(self, actions):
        assert self.action_space.contains(actions)
        self.left = np.where(self.over, [1, 2, 3], self.left - 1)
        # It rewards resets too, and the second copy is over at its reset.
        rewards = np.full(3, 7, np.float32)
        self.over = (self.left == 0) | (self.over & (EVERYONE == 1))
        return self.left.copy(), rewards, self.over.copy(), np.zeros(3, bool), {"everybody": "here", "each": [4, 5, 6]}


class TestCartPole:
    """Gymnasium's own vector entry point."""

    def test_one_seed_for_all(self):
        env, bare = (gym.make_vec("CartPole-v1", 8, vectorization_mode="vector_entry_point") for _ in range(2))
        rows = to_base_env(env).reset_rows(np.arange(8), [2**32 - 1] * 8)
        obs, _ = bare.reset(seed=(2**32 - 1) % 2**31)
        np.testing.assert_array_equal(rows.obs, obs)

    def test_observations_are_not_copied(self):
        env = gym.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point")
        given = []
        step = env.step
        env.step = lambda actions: given.append(step(actions)) or given[-1]  # type: ignore[method-assign]
        base = to_base_env(env)
        rows = base.reset_rows(np.arange(4))
        base.send_rows(rows, None, np.zeros(4, np.int32))
        rows = base.poll_rows()
        assert rows.obs is given[0][0]
        assert rows.observations(None, base.observation_space) is rows.obs

    def test_cannot_be_reset_in_part(self):
        base = to_base_env(gym.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point"))
        base.reset_rows(np.arange(4))
        refused(EnvError, base.try_reset, 1, says="CartPole-v1...[1]...NEXT_STEP...autoreset_mode")


def test_rows_of_resets_carry_neither_rewards_nor_flags():
    base = to_base_env(Countdown(autoreset_mode=AutoresetMode.NEXT_STEP))
    rows = base.reset_rows(EVERYONE, [5, 6, 7])
    assert base.env.seeds == [5]
    got = []
    for _ in range(4):
        acting = np.flatnonzero(rows.acts)
        base.send_rows(rows, acting, np.zeros(len(acting), np.int32))
        rows = base.poll_rows()
        got.append([rows.obs, rows.rewards, rows.terminateds, rows.starts, rows.acts])
        np.testing.assert_array_equal(rows.ended_envs, np.flatnonzero(rows.terminateds))
        assert rows.info_list() == [{"everybody": "here", "each": value} for value in (4, 5, 6)]
    # step  left    reward  over   starts  waits
    #   1   0 1 2   7 7 7   1 0 0  0 0 0   0 1 1
    #   2   1 0 1   0 7 7   0 1 0  1 0 0   1 0 1
    #   3   0 2 0   7 0 7   1 0 1  0 1 0   0 0 0   the second is over as it begins: the row after that begins it
    #   4   1 2 3   0 0 0   0 0 0  1 1 1   1 0 1   and once more
    expected = [
        [[0, 1, 2], [7, 7, 7], [1, 0, 0], [0, 0, 0], [0, 1, 1]],
        [[1, 0, 1], [0, 7, 7], [0, 1, 0], [1, 0, 0], [1, 0, 1]],
        [[0, 2, 0], [7, 0, 7], [1, 0, 1], [0, 1, 0], [0, 0, 0]],
        [[1, 2, 3], [0, 0, 0], [0, 0, 0], [1, 1, 1], [1, 0, 1]],
    ]
    for found, wanted in zip(got, expected, strict=True):
        np.testing.assert_array_equal(np.array(found), np.array(wanted))


def test_without_an_autoreset_mode(caplog):
    base = to_base_env(Countdown())
    to_base_env(Countdown())
    assert base.mode is AutoresetMode.NEXT_STEP
    assert caplog.text.count("Countdown does not declare its autoreset mode") == 1
    assert 'metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}' in caplog.text


def test_the_mode_of_the_instance_overrides_that_of_its_class():
    env = Countdown(autoreset_mode=AutoresetMode.NEXT_STEP)
    env.autoreset_mode = AutoresetMode.DISABLED  # type: ignore[attr-defined]
    assert to_base_env(env).mode is AutoresetMode.DISABLED


def test_same_step_without_the_last_observation():
    base = to_base_env(Countdown(autoreset_mode=AutoresetMode.SAME_STEP))
    base.send_rows(base.reset_rows(EVERYONE), None, np.zeros(3, np.int64))
    refused(EnvError, base.poll_rows, says="Countdown, sub-environments [0]...everybody...final_obs")


def test_infos_as_lists():
    def make(mode):
        return SyncVectorEnv([Clock] * 2, autoreset_mode=mode)

    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
        plain, wrapped = to_base_env(make(mode)), to_base_env(gym.wrappers.vector.DictInfoToList(make(mode)))
        assert [type(part) for part in wrapped.get_sub_environments()] == [Clock, Clock]
        assert drive(plain, "rows", 20, [3, 4]) == drive(wrapped, "rows", 20, [3, 4])


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_recorded_statistics_belong_to_the_end_of_an_episode(mode, inside):
    single = gym.wrappers.RecordEpisodeStatistics if inside else lambda env: env
    env = SyncVectorEnv([lambda: single(Clock())] * 2, autoreset_mode=mode)
    base = to_base_env(env if inside else gym.wrappers.vector.RecordEpisodeStatistics(env))
    counts_all = COUNTS_ALL_STEPS or inside or mode is AutoresetMode.NEXT_STEP
    for trace in drive(base, "rows", 30, [3, 4]):
        rewards, ended = [], 0
        for moment in trace:
            for event in moment.events:  # an end, or the beginning of an episode
                rewards = [] if event.reward is None else [*rewards, event.reward]
                if event.terminated or event.truncated:
                    counted = rewards if counts_all or not ended else rewards[1:]
                    statistics, ended = event.info["episode"], ended + 1
                    assert (statistics["l"], statistics["r"]) == (len(counted), pytest.approx(sum(counted)))
                else:
                    assert "episode" not in event.info
        assert ended >= 5


def test_infos_from_a_dict_of_arrays():
    shared = {"scalar": np.array(2), "word": "ab"}
    infos = {
        "trajectories": np.array([3, 4]),
        "late": np.array([1.5, 0.0]),
        "_late": np.array([True, False]),
        "deep": {"x": np.array([0, 9]), "_x": np.array([False, True])},
        "_deep": np.array([False, True]),
        **shared,
    }
    assert info_list(infos, 2) == [
        {"trajectories": 3, "late": 1.5, **shared},
        {"trajectories": 4, "deep": {"x": 9}, **shared},
    ]


def test_spaces_are_checked():
    env = Countdown()
    env.single_action_space = None  # type: ignore[assignment]
    refused(SpaceError, to_base_env, env, says="Countdown.single_action_space")


def test_render():
    assert to_base_env(Countdown()).try_render() is None
    assert OBS_SPACE is to_base_env(SyncVectorEnv([Clock])).observation_space
    base = to_base_env(gym.make_vec("CartPole-v1", 2, vectorization_mode="sync", render_mode="rgb_array"))
    base.reset_rows(np.arange(2))
    assert base.try_render(1).shape == (400, 600, 3)
    base.stop()
