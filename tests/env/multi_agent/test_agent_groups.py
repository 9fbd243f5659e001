"""Groups of agents as one agent."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, EnvError, MultiAgentEnv, MultiAgentError, RolloutWorker, SpaceError, to_base_env
from rollax.env.multi_agent.pettingzoo_export import to_pettingzoo
from tests.env.refused import refused
from tests.env.worlds import ACTION_SPACE, ALL, OBS_SPACE, FixedSteps
from tests.rollout.worlds import Encode

GROUPS = {"team": ["a", "b"]}
NO = {ALL: False}


def observation(number: float) -> np.ndarray:
    return np.full(3, number, np.float32)


BOTH = {"a": observation(1), "b": observation(2)}


class Fixed(FixedSteps):
    """a and b form the group "team", c is alone."""

    possible_agents: Any = ("a", "b", "c")

    def __init__(self, *steps: Any, first: Any = None) -> None:
        super().__init__(*steps, first=first or ({"a": observation(1), "b": observation(2), "c": observation(3)}, {}))

    def render(self):
        return "picture"

    def close(self):
        self.resets.append(("closed",))


def test_agents_in_a_set_have_the_same_order_in_every_process():
    env = Fixed()
    env.possible_agents = {f"agent {letter}" for letter in "abcdefghij"}
    grouped = env.with_agent_groups({"team": ["agent c"]})
    assert grouped.possible_agents == ["team", *sorted(env.possible_agents - {"agent c"})]


def numbers(obs: dict) -> dict:
    """The numbers from which `observation` made the observations."""
    return {
        agent: tuple(float(part[0]) for part in value) if isinstance(value, tuple) else float(value[0])
        for agent, value in obs.items()
    }


def send_zeros(base, rows) -> None:
    """Sends zeros for all acting agents."""
    for row in np.flatnonzero(rows.acts):
        zero = np.zeros(1, np.int64)
        base.send_rows(rows, np.array([row]), (zero, zero) if rows.agents[row] == "team" else zero)


def play_groups(base, polls: int) -> None:
    rows = base.reset_rows(np.arange(1))
    rows.observations(None, base.observation_space)
    for _ in range(polls):
        send_zeros(base, rows)
        rows = base.poll_rows()
        rows.observations(np.flatnonzero(rows.observing()), base.observation_space)


class TestDicts:
    """`test_multi_agent_properties.py` plays random schedules: members in other orders, that end, and that return."""

    def test_members_that_act_together(self):
        obs = {"a": observation(4), "b": observation(5), "c": observation(6)}
        env = Fixed((obs, {"a": 1.5, "b": 2.0, "c": 3.0}, NO, NO, {"b": {"x": 1}}))
        grouped = env.with_agent_groups(GROUPS)
        obs, infos = grouped.reset(seed=3, options={"y": 1})
        assert env.resets == [(3, {"y": 1})]
        assert numbers(obs) == {"team": (1, 2), "c": 3}
        assert infos == {}
        obs, rewards, terminateds, truncateds, infos = grouped.step({"team": (3, 4), "c": 1})
        assert env.got == [{"a": 3, "b": 4, "c": 1}]
        assert numbers(obs) == {"team": (4, 5), "c": 6}
        assert rewards == {"team": 3.5, "c": 3.0}
        assert (terminateds, truncateds) == (NO, NO)
        assert infos == {"team": {"b": {"x": 1}}}

    @pytest.mark.parametrize(
        ("reward", "twice"),
        [
            (np.int8(-100), -200.0),
            (np.array(-100, np.int8), -200.0),
            (np.uint8(200), 400.0),
            (np.bool_(True), 2.0),
            (np.float16(60000), 120000.0),
            (np.float32(2**24 + 2), 2.0**25 + 4),
            (2**62, 2.0**63),
        ],
    )
    def test_rewards_of_narrow_dtypes_are_summed_without_overflow(self, reward, twice):
        grouped = Fixed((Fixed().first[0], {"a": reward, "b": reward}, NO, NO, {})).with_agent_groups(GROUPS)
        grouped.reset()
        assert grouped.step({"team": (0, 0), "c": 0})[1] == {"team": twice}

    def test_members_that_take_turns(self):
        """A member that does not act keeps its last observation; its part of the action is ignored."""
        env = Fixed(
            ({"b": observation(4)}, {"a": 1.0}, NO, NO, {}),
            ({"c": observation(5)}, {"a": 2.0}, NO, NO, {}),
            ({"a": observation(6)}, {"b": 4.0, "c": 8.0}, NO, NO, {}),
            first=({"a": observation(1)}, {}),
        )
        grouped = env.with_agent_groups(GROUPS)
        assert numbers(grouped.reset()[0]) == {"team": (1, 0)}  # b has not been seen yet
        seen = [grouped.step({"team": (1, 2)}), grouped.step({"team": (3, 4)}), grouped.step({"c": 0})]
        assert env.got == [{"a": 1}, {"b": 4}, {"c": 0}]
        assert [numbers(step[0]) for step in seen] == [{"team": (1, 4)}, {"c": 5}, {"team": (6, 4)}]
        assert [step[1] for step in seen] == [{"team": 1.0}, {"team": 2.0}, {"team": 4.0, "c": 8.0}]

    @pytest.mark.parametrize(
        ("terminateds", "truncateds", "expected", "last"),
        [
            # a ends without an observation, so that it is its first one
            ({"a": True, "b": True}, {}, (True, False), (1, 5)),
            ({}, {"a": True, "b": True}, (False, True), (1, 5)),
            # what follows has the value of b alone
            ({"a": True}, {"b": True}, (False, True), (0, 5)),
            ({"a": True, "b": True}, {"a": True}, (True, True), (1, 5)),
            ({ALL: True}, {}, (True, False), (1, 5)),
            ({ALL: True}, {"b": True}, (False, True), (0, 5)),
            ({}, {ALL: True}, (False, True), (1, 5)),
        ],
    )
    def test_flags_and_observations_of_the_last_members(self, terminateds, truncateds, expected, last):
        obs = {"b": observation(5), "c": observation(6)}
        env = Fixed((obs, {"a": 1.0, "b": 2.0}, NO | terminateds, NO | truncateds, {}))
        grouped = env.with_agent_groups(GROUPS)
        grouped.reset()
        obs, rewards, *flags, _ = grouped.step({"team": (0, 0), "c": 0})
        assert tuple(flag["team"] for flag in flags) == expected
        assert rewards == {"team": 3.0}
        assert numbers(obs) == {"team": last, "c": 6}

    def test_a_new_episode_keeps_no_observation_of_the_last(self):
        env = Fixed()
        grouped = env.with_agent_groups(GROUPS)
        grouped.reset()
        env.first = ({"b": observation(4)}, {})
        assert numbers(grouped.reset()[0]) == {"team": (0, 4)}

    def test_a_reward_beside_a_first_observation_is_not_counted(self, caplog):
        env = Fixed(
            ({"a": observation(1), "b": observation(2)}, {"a": 1.0, "b": 5.0}, NO, NO, {}),
            first=({"a": observation(1)}, {}),
        )
        grouped = env.with_agent_groups(GROUPS)
        grouped.reset()
        assert grouped.step({"team": (0, 0)})[1] == {"team": 1.0}
        assert "Fixed, agent 'b': a reward of 5.0 with the first observation" in caplog.text


class TestSpaces:
    def test_tuples_of_the_members_spaces(self):
        grouped = Fixed().with_agent_groups({"team": ["a", "b"], "pair": ["c"]})
        assert grouped.possible_agents == ["team", "pair"]
        assert grouped.observation_space is None
        assert grouped.observation_spaces == {
            "team": spaces.Tuple([OBS_SPACE, OBS_SPACE]),
            "pair": spaces.Tuple([OBS_SPACE]),
        }
        assert grouped.action_spaces["pair"] == spaces.Tuple([ACTION_SPACE])

    def test_groups_and_single_agents(self):
        env = Fixed()
        env.observation_space = None
        env.observation_spaces = {"a": OBS_SPACE, "b": spaces.Discrete(2)}
        grouped = env.with_agent_groups(GROUPS)
        assert grouped.possible_agents == ["team", "c"]
        assert grouped.observation_spaces == {"team": spaces.Tuple([OBS_SPACE, spaces.Discrete(2)])}
        assert grouped.action_spaces == {"team": spaces.Tuple([ACTION_SPACE] * 2), "c": ACTION_SPACE}
        base = to_base_env(grouped)
        assert (base.observation_space, base.action_space) == (None, None)
        assert base.action_spaces == grouped.action_spaces

    def test_one_space_for_equal_groups_without_single_agents(self):
        env = Fixed()
        env.possible_agents = None
        grouped = env.with_agent_groups({"x": ["a", "b"], "y": ["c", "d"]})
        assert grouped.observation_space == spaces.Tuple([OBS_SPACE] * 2)
        assert to_base_env(grouped).action_space == spaces.Tuple([ACTION_SPACE] * 2)

    def test_given_spaces(self):
        env = Fixed()
        env.observation_space = env.action_space = None
        obs_space, act_space = spaces.Tuple([OBS_SPACE] * 2), spaces.Tuple([ACTION_SPACE] * 2)
        grouped = env.with_agent_groups(GROUPS, obs_space, act_space)
        assert grouped.observation_spaces == {"team": obs_space}
        assert grouped.action_spaces == {"team": act_space}
        says = "not known...'team'...['a', 'b']...act_space"
        refused(SpaceError, env.with_agent_groups, GROUPS, obs_space, says=says)
        refused(SpaceError, env.with_agent_groups, GROUPS, says="not known...group 'team'...obs_space")
        for wrong in (OBS_SPACE, spaces.Tuple([OBS_SPACE])):
            says = "not a Tuple with a space for each member...group 'team'...for ['a', 'b']"
            refused(SpaceError, env.with_agent_groups, GROUPS, wrong, act_space, says=says)


class TestRefused:
    @pytest.mark.parametrize(
        ("groups", "says"),
        [
            ({"team": []}, "group 'team'...no members"),
            ({"team": ["a", "z"]}, "group 'team'...got:      z...['a', 'b', 'c']"),
            ({"team": ["a", "a"]}, "group 'team'...'a', more than once"),
            ({"x": ["a"], "y": ["b", "a"]}, "group 'x'...'a', more than once"),
            ({"c": ["a", "b"]}, "group 'c'...an agent of that id"),
            ({"a": ["a", "b"]}, "group 'a'...an agent of that id"),
        ],
    )
    def test_groups(self, groups, says):
        refused(ConfigError, Fixed().with_agent_groups, groups, says=f"agent groups are invalid...{says}")

    def refuses(self, says, *steps, error=MultiAgentError, first=None):
        env = Fixed(*steps, first=first or ({"a": observation(1), "b": observation(2)}, {}))
        env.possible_agents = ("a", "b")
        refused(error, play_groups, to_base_env(env.with_agent_groups(GROUPS)), len(steps), says=says)

    def test_reset(self):
        self.refuses("reset() did not return...Fixed, sub-environment 0", error=EnvError, first=BOTH)

    @pytest.mark.parametrize(
        ("says", "step"),
        [
            ("step() did not return five", (BOTH, {}, NO, {})),
            ("rewards is not a dict", (BOTH, 1.0, NO, NO, {})),
            (
                "wrong shape...agent 'team'...element 1...(4,)",
                ({"a": observation(1), "b": np.zeros(4, np.float32)}, {}, NO, NO, {}),
            ),
            ("NaN...agent 'team'", ({"a": observation(np.nan)}, {}, NO, NO, {})),
            *[
                (f"{says}...agent 'team'", (BOTH, {"a": 1.0, "b": bad}, NO, NO, {}))
                for says, bad in (("NaN or", np.nan), *[("not a real number", bad) for bad in ("1", [1.0], None)])
            ],
            ("truncated flag is not a boolean...agent 'b'...int: 0", (BOTH, {}, NO, {"b": 0, ALL: False}, {})),
            ("not declared...agent 'z'...['team']", (BOTH | {"z": observation(1)}, {}, NO, NO, {})),
            ("terminateds has no '__all__'", (BOTH, {}, {"a": False}, NO, {})),
            ("No agent can act", ({}, {}, NO, NO, {})),
            ("No agent can act", ({"a": observation(1)}, {}, {"a": True, ALL: False}, NO, {})),
        ],
    )
    def test_step(self, says, step):
        self.refuses(says, step, error=EnvError)

    def test_reward_for_a_member_that_has_ended(self):
        ends = ({"a": observation(1)}, {}, {"b": True, ALL: False}, NO, {})
        says = "An agent has a reward, but has ended...sub-environment 0, agent 'b'...got:      2.0"
        self.refuses(says, ends, ({"a": observation(1)}, {"a": 1.0, "b": 2.0}, NO, NO, {}))

    def test_action_for_a_member(self):
        base = to_base_env(Fixed((Fixed().first[0], {}, NO, NO, {})).with_agent_groups(GROUPS))
        base.try_reset()
        refused(EnvError, base.send_actions, {0: {"a": 1}}, says="not waiting...agent 'a'...'team'")


def test_spaces_seeds_render_and_close_are_passed_through():
    env = Fixed()
    base = to_base_env(env.with_agent_groups(GROUPS))
    base.reset_rows(np.arange(1), [5])
    assert base.get_sub_environments() == [env]
    assert base.try_render() == "picture"
    base.stop()
    assert env.resets == [(5, None), ("closed",)]
    assert set(to_pettingzoo(env.with_agent_groups(GROUPS)).reset()[0]) == {"team", "c"}


def test_groups_and_single_agents_with_policies_of_their_own():
    class Zero(Encode):
        def compute_actions(self, obs_batch):  # type: ignore[override]
            rows = len(obs_batch[0] if isinstance(obs_batch, tuple) else obs_batch)
            zero = np.zeros(rows, np.int64)
            return ((zero, zero) if isinstance(self.action_space, spaces.Tuple) else zero), [], {}

    env = Fixed((Fixed().first[0], {"a": 1.0, "b": 2.0, "c": 4.0}, NO, NO, {}))
    worker = RolloutWorker(
        lambda _: env.with_agent_groups(GROUPS),
        {"team": Zero, "c": Zero},  # each policy has the spaces of its agents
        policy_mapping_fn=lambda agent: agent,
        config={"rollout_fragment_length": 3},
    )
    assert worker.get_policy("team").action_space == spaces.Tuple([ACTION_SPACE] * 2)
    batch = worker.sample()
    assert batch["team"]["rewards"].tolist() == [3.0] * 3
    assert batch["c"]["rewards"].tolist() == [4.0] * 3
    assert [part[:, 0].tolist() for part in batch["team"]["obs"]] == [[1.0] * 3, [2.0] * 3]


class SharedArray(MultiAgentEnv):
    """Two agents in turns, whose observations share one array that the environment overwrites."""

    observation_space, action_space = spaces.Box(-100, 100, (1,), np.float32), ACTION_SPACE
    possible_agents: Any = ("a", "b")

    def reset(self, *, seed=None, options=None):
        self.buffer, self.t = np.zeros(1, np.float32), 0
        return {"a": self._show(10)}, {}

    def step(self, actions):
        self.t += 1
        return {"ab"[self.t % 2]: self._show(10 + self.t)}, {}, {ALL: self.t == 4}, NO, {}

    def _show(self, number):
        self.buffer[0] = number
        return self.buffer


def test_the_last_observation_of_a_member_is_copied():
    env = to_base_env(SharedArray().with_agent_groups({"team": ["a", "b"]}))
    env.try_reset()
    env.send_actions({0: {"team": (0, 0)}})
    (seen,) = env.poll()[0][0].values()
    assert [part.tolist() for part in seen] == [[10], [11]]
    exported = to_pettingzoo(SharedArray())
    exported.reset()
    obs = exported.step({"a": 0})[0]
    assert {agent: one.tolist() for agent, one in obs.items()} == {"a": [10], "b": [11]}
