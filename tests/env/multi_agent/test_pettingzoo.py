"""PettingZoo's environments, unchanged."""

import warnings
from itertools import pairwise

import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces

from rollax import EnvError, MultiAgentError, PPOConfig, RolloutWorker, to_base_env
from rollax.algorithms.ppo import PPO
from rollax.env.multi_agent.pettingzoo_env import from_pettingzoo
from tests.env.drive import drive
from tests.env.multi_agent.pettingzoo_worlds import Dance, Queue, queue_trace
from tests.env.refused import play, refused
from tests.env.worlds import ACTION_SPACE, ALL, OBS_SPACE, Party
from tests.rollout.worlds import Encode

TIC_TAC_TOE = "classic/tictactoe-v3"


def library(kind: str, name: str):
    """A creator of one of the library's environments."""
    return lambda context=None: pettingzoo.make(kind, name)


LIBRARY = {
    ("parallel", "classic/rps-v2"): (spaces.Discrete(4), spaces.Discrete(3), 2),
    ("aec", "classic/rps-v2"): (spaces.Discrete(4), spaces.Discrete(3), 1),
    ("aec", TIC_TAC_TOE): (None, spaces.Discrete(9), 1),
    ("aec", "classic/connect_four-v3"): (None, spaces.Discrete(7), 1),
    ("parallel", "sisl/pursuit-v5"): (spaces.Box(0.0, 30.0, (7, 7, 3), np.float32), spaces.Discrete(5), 8),
}


@pytest.mark.parametrize(("kind", "name"), LIBRARY, ids=map("-".join, LIBRARY))
class TestLibrary:
    def test_instance_and_creator(self, kind, name):
        make, (obs_space, action_space, acting) = library(kind, name), LIBRARY[kind, name]
        base = to_base_env(make(), make, 2)
        assert base.num_envs == 2
        assert base.observation_space == obs_space or isinstance(base.observation_space, spaces.Dict)
        assert base.action_space == action_space
        rows = play(base, 0)
        assert (len(rows), rows.acts.all(), rows.starts.all()) == (2 * acting, True, True)
        assert [type(env) for env in base.get_sub_environments()] == [type(make())] * 2
        assert base.try_render() is None
        base.stop()

    @pytest.mark.short(
        "parallel-classic/rps-v2", "aec-classic/rps-v2", "aec-classic/tictactoe-v3", "aec-classic/connect_four-v3"
    )
    def test_sampling(self, kind, name):
        acting = LIBRARY[kind, name][2]
        config = {"num_envs_per_worker": 3, "rollout_fragment_length": 60}
        worker = RolloutWorker(library(kind, name), RandomLegal, config=config)
        assert len(worker.sample()) == pytest.approx(180 * acting, abs=3 * 2)
        metrics = worker.get_metrics()
        if "classic" in name:
            assert metrics
            # Two players; an illegal move costs 1.
            assert {m.reward for m in metrics} == {0}
        worker.stop()


class RandomLegal(Encode):
    """A random action that the mask allows, if there is one."""

    rng = np.random.default_rng(0)

    def compute_actions(self, obs_batch):  # type: ignore[override]
        every = np.ones((len(obs_batch), self.action_space.n))
        mask = obs_batch["action_mask"] if isinstance(obs_batch, dict) else every
        assert mask.any(axis=1).all()
        return np.argmax(mask * self.rng.random(mask.shape), axis=1), [], {}


def test_a_game_of_tic_tac_toe_by_hand():
    """Both players' rewards for the last move; each move's next observation is the next one of its own player."""
    worker = RolloutWorker(library("aec", TIC_TAC_TOE), FirstFree, config={"rollout_fragment_length": 7})
    batch = worker.sample()
    # The players alternate: X takes 0 2 4 6, O takes 1 3 5; with the seventh move X has the diagonal 2, 4, 6.
    by_agent = {agent: np.flatnonzero(batch["agent_id"] == agent) for agent in ("player_1", "player_2")}
    assert batch["actions"][by_agent["player_1"]].tolist() == [0, 2, 4, 6]
    assert batch["actions"][by_agent["player_2"]].tolist() == [1, 3, 5]
    assert batch["rewards"][by_agent["player_1"]].tolist() == [0, 0, 0, 1]
    assert batch["rewards"][by_agent["player_2"]].tolist() == [0, 0, -1]
    assert batch["terminateds"].sum() == 2
    assert not batch["truncateds"].any()
    for rows in by_agent.values():
        assert batch["t"][rows].tolist() == list(range(batch["t"][rows[0]], 7, 2))
        for here, there in pairwise(rows):
            for key in ("observation", "action_mask"):
                np.testing.assert_array_equal(batch["new_obs"][key][here], batch["obs"][key][there])
        # The final observation of both shows the final board.
        assert batch["new_obs"]["observation"][rows[-1]].sum() == 7
    (metrics,) = worker.get_metrics()
    assert (metrics.reward, metrics.length) == (0, 7)
    assert sorted(metrics.policy_rewards["default_policy"]) == [-1, 1]


class FirstFree(Encode):
    """Takes the first free square."""

    def compute_actions(self, obs_batch):  # type: ignore[override]
        return np.argmax(obs_batch["action_mask"], axis=1), [], {}


def test_an_illegal_move_ends_the_game_for_both():
    base = to_base_env(library("aec", TIC_TAC_TOE)())
    base.try_reset()
    base.send_actions({0: {"player_1": 4}})
    base.poll()
    base.send_actions({0: {"player_2": 4}})
    obs, rewards, terminateds, truncateds, _, _ = base.poll()
    assert set(obs[0]) == {"player_1", "player_2"}
    assert rewards == {0: {"player_1": 0, "player_2": -1}}
    # PettingZoo's wrapper sets both flags for both players.
    assert terminateds == {0: {"player_1": True, "player_2": True, ALL: False}}
    assert truncateds == {0: {"player_1": True, "player_2": True, ALL: True}}


def test_an_agent_that_never_acts_has_no_row(caplog):
    """The first move ends the game for an agent without an observation: no step could get its reward."""
    base = to_base_env(library("aec", TIC_TAC_TOE)())
    base.try_reset()
    base.envs[0].env.unwrapped.board.squares[:] = [1, 1, 0, 2, 2, 0, 0, 0, 0]
    base.send_actions({0: {"player_1": 2}})
    rows = base.poll_rows()
    assert (rows.agents, rows.rewards.tolist(), rows.terminateds.tolist()) == (["player_1"], [1.0], [True])
    assert rows.ended_envs.tolist() == [0]
    assert "a reward of -1 with the first observation" in caplog.text


class TestSpaces:
    def test_spaces_that_differ_are_by_agent(self):
        class Mixed(Dance):
            def observation_space(self, agent):
                return OBS_SPACE if agent == "a" else spaces.Discrete(3)

        base = to_base_env(Mixed())
        assert base.observation_space is None
        assert base.action_space == ACTION_SPACE
        assert base.observation_spaces["a"] == OBS_SPACE
        assert base.observation_spaces["d"] == spaces.Discrete(3)
        assert set(base.action_spaces) == set("abcd")

        def reset_with_many_seeds() -> None:
            for seed in range(50):
                base.reset_rows(np.arange(1), [seed])

        where = "dance_v0, sub-environment 0, agent"
        refused(EnvError, reset_with_many_seeds, says=f"wrong shape...{where}...Discrete(3)")

    def test_dicts_of_spaces_do_not_warn(self):
        class Old(Dance):
            observation_spaces = dict.fromkeys("abcd", OBS_SPACE)
            action_spaces = dict.fromkeys("abcd", ACTION_SPACE)

            def observation_space(self, agent):
                return pettingzoo.ParallelEnv.observation_space(self, agent)

            def action_space(self, agent):
                return pettingzoo.ParallelEnv.action_space(self, agent)

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert to_base_env(Old()).observation_space == OBS_SPACE

    def test_without_possible_agents(self):
        env = Dance()
        del env.possible_agents
        base = to_base_env(env)
        assert (base.observation_space, base.action_space) == (None, None)
        assert len(base.reset_rows(np.arange(1))) >= 1

    def test_an_undeclared_agent(self):
        env = Dance()
        env.possible_agents = ["a"]
        with pytest.raises(MultiAgentError, match=r"not declared by the environment(?s:.*)dance_v0, sub-environment 0"):
            play(to_base_env(env), 30)


def test_an_agent_that_leaves_without_a_flag_has_terminated():
    class Vanishing(Dance):
        def reset(self, seed=None, options=None):
            self.agents = ["a", "b"]
            return {"a": np.zeros(3, np.float32), "b": np.ones(3, np.float32), "common": 3}, {"a": {}, "common": {}}

        def step(self, actions):
            obs = {agent: np.full(3, 2.0, np.float32) for agent in (*self.agents, "d")}
            self.agents = self.agents[1:]
            no = dict.fromkeys(actions, False)
            return obs, dict.fromkeys(actions, 1.0), dict(no), dict(no), {}

    base = to_base_env(Vanishing())
    rows = play(base, 1)
    assert (rows.agents, rows.terminateds.tolist(), rows.acts.tolist()) == (["a", "b"], [True, False], [False, True])
    base.send_rows(rows, np.array([1]), np.zeros(1, np.int64))
    rows = base.poll_rows()
    assert (rows.agents, rows.terminateds.tolist(), rows.ended_envs.tolist()) == (["b"], [True], [0])


def test_an_agent_that_has_ended_before_its_first_turn_does_not_act():
    class EndedAtReset(Queue):
        def reset(self, seed=None, options=None):
            super().reset(seed, options)
            self.agents = ["a", "b"]
            for part in (self.rewards, self._cumulative_rewards, self.last_action, self.infos):
                part |= dict.fromkeys("ab", {} if part is self.infos else 0)
            self.terminations, self.truncations = {"a": True, "b": False}, {"a": False, "b": False}
            self.agent_selection = "b"
            self._deads_step_first()

    assert to_base_env(EndedAtReset()).reset_rows(np.arange(1), [0]).agents == ["b"]


def test_agents_can_share_one_array():
    """Each last observation is the agent's own, although the array is overwritten with another agent's."""

    class Shares(Queue):
        array = np.zeros(3, np.float32)

        def observe(self, agent):
            self.array[:] = super().observe(agent)
            return self.array

    (trace,) = drive(to_base_env(Shares()), "rows", 40, [5])
    assert trace == queue_trace(5, len(trace))


@pytest.mark.parametrize("cls", [Dance, Queue])
def test_seed_options_render_and_close_are_passed_through(cls):
    resets: list = []

    class Recorded(cls):
        render_mode = "rgb_array"

        def reset(self, seed=None, options=None):
            resets.append((seed, options))
            return super().reset(seed, options)

        def render(self):
            return "picture"

    base = to_base_env(Recorded())
    base.reset_rows(np.arange(1), [17])
    assert resets == [(17, None)]
    assert base.try_render() == "picture"
    before = Party.open_count
    base.stop()
    assert Party.open_count == before - 1
    base.envs[0].reset(seed=3, options={"x": 1})
    assert resets[-1] == (3, {"x": 1})


class TestGroups:
    def test_agents_of_the_library_in_a_group(self):
        def make(context):
            env = pettingzoo.make("parallel", "classic/rps-v2", **context)
            return from_pettingzoo(env).with_agent_groups({"both": ["player_0", "player_1"]})

        base = to_base_env(make({"max_cycles": 2}))
        assert base.observation_space == spaces.Tuple([spaces.Discrete(4)] * 2)
        assert set(base.try_reset()[0][0]) == {"both"}
        (env,) = base.get_sub_environments()
        assert type(env) is type(pettingzoo.make("parallel", "classic/rps-v2"))

    def test_groups_of_an_environment_that_is_not_adapted(self):
        says = "AttributeError in its creator...'with_agent_groups'"
        refused(EnvError, RolloutWorker, lambda c: Dance().with_agent_groups({}), Encode, says=says)
        refused(EnvError, RolloutWorker, lambda: Dance().with_agent_groups({}), Encode, says=says)

    def test_environments_that_are_not_pettingzoos(self):
        refused(EnvError, from_pettingzoo, Party(), says="This is not an environment of PettingZoo...Party")
        refused(EnvError, from_pettingzoo, Dance, says="This is not an environment of PettingZoo...Dance")


class KeepsEndedAgents(Dance):
    """Keeps its agents in `agents` after their end, which PettingZoo's own test refuses."""

    def reset(self, seed=None, options=None):
        self.agents, self.t = ["a", "b"], 0
        return dict.fromkeys(self.agents, np.zeros(OBS_SPACE.shape, np.float32)), {}

    def step(self, actions):
        self.t += 1
        flags = dict.fromkeys(self.agents, self.t == 3)
        obs = dict.fromkeys(self.agents, np.full(OBS_SPACE.shape, self.t, np.float32))
        return obs, dict.fromkeys(self.agents, 1.0), flags, dict.fromkeys(self.agents, False), {}


def test_an_episode_ends_with_its_agents_even_if_they_stay_in_agents():
    config = PPOConfig(model={"fcnet_hiddens": [4]}, num_envs_per_worker=2)
    episodes = RolloutWorker(KeepsEndedAgents, PPO, config=config).evaluate(4)
    assert [(one.length, one.reward) for one in episodes] == [(3, 6.0)] * 4
