"""Wrong values and contradictions that a broken multi-agent environment returns are refused."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Dict

from rollax import BaseEnv, EnvError, MultiAgentError, to_base_env
from tests.env.refused import play, refused
from tests.env.worlds import ACTION_SPACE, ALL, OBS_SPACE, FixedSteps

OBS = np.zeros(3, np.float32)
BOTH = {"a": OBS, "b": OBS}
ON = {ALL: False}
FINE = (BOTH, {"a": 1.0, "b": 1.0}, ON, ON, {})
NAMES = ("obs", "rewards", "terminateds", "truncateds", "infos")


class Polled(BaseEnv):
    """The same in the dict view, of one sub-environment."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def __init__(self, env: FixedSteps) -> None:
        self.env = env

    def poll(self):
        return *({0: part} for part in self.env.step({})), {}

    def send_actions(self, actions):
        pass

    def try_reset(self, env_id=None):
        obs, infos = self.env.reset()
        return {0: obs}, {0: infos}


KINDS = {
    "FixedSteps, sub-environment 0": to_base_env,
    "Polled, sub-environment 0": lambda env: to_base_env(Polled(env)),
    # The broken environment is the second of two.
    "FixedSteps, sub-environment 1": lambda env: to_base_env(FixedSteps(FINE), lambda index: env, 2),
}
EVERY_KIND = pytest.mark.parametrize(("where", "kind"), KINDS.items(), ids=KINDS.keys())
LATER = pytest.mark.parametrize(
    "before", [[], [FINE, (BOTH, {}, {ALL: True}, ON, {}), FINE, FINE]], ids=["first", "later"]
)


def parts(**changed: Any) -> tuple:
    named = dict(zip(("obs", "rewards", "terms", "truncs", "infos"), FINE, strict=True))
    return tuple((named | changed).values())


@EVERY_KIND
@LATER
class TestContradictions:
    def refuses(self, kind, before, says, *steps):
        refused(MultiAgentError, play, kind(FixedSteps(*before, *steps)), len(before) + len(steps), says=says)

    @pytest.mark.parametrize("missing", ["terms", "truncs"])
    def test_missing_all(self, where, kind, before, missing):
        says = f"{missing[:-1]}...has no '__all__'...{where}...got:      ['a', 'b']...expected: a flag '__all__'"
        self.refuses(kind, before, says, parts(**{missing: {"a": False, "b": False}}))

    def test_reward_for_an_agent_that_has_ended(self, where, kind, before):
        says = f"An agent has a reward, but has ended...{where}, agent 'b'...got:      0.5"
        only_a = {"obs": {"a": OBS}, "rewards": {"a": 1.0}}
        ends = parts(**only_a, terms={"b": True, ALL: False})
        self.refuses(kind, before, says, ends, parts(**only_a), parts(obs={"a": OBS}, rewards={"a": 1.0, "b": 0.5}))

    def test_reward_for_an_agent_never_seen(self, where, kind, before):
        says = f"or has never been observed...{where}, agent 'z'...got:      -2"
        self.refuses(kind, before, says, parts(rewards={"a": 1.0, "z": -2}))

    def test_empty_obs(self, where, kind, before):
        says = f"No agent can act: obs is empty, and '__all__' is not True...{where}...got:      {{}}"
        self.refuses(kind, before, says, parts(obs={}, rewards={}))
        if "FixedSteps" in where:  # a BaseEnv may continue without actions
            self.refuses(kind, before, says, parts(obs={}))
            self.refuses(kind, before, says, parts(obs={}, terms={"a": True, "b": True, ALL: False}))


def test_spaces_by_agent_in_the_place_of_those_of_one_agent():
    class LikeRLlib(FixedSteps):
        observation_space = Dict({"a": OBS_SPACE, "b": OBS_SPACE})

    says = "wrong keys...agent 'a'...got:      ndarray...expected: ['a', 'b']...for spaces by agent, as in RLlib, set"
    refused(EnvError, play, to_base_env(LikeRLlib(FINE)), 1, says=says)


def test_a_dict_observation_with_other_keys_than_the_agents():
    class Parts(FixedSteps):
        observation_space = Dict({"position": OBS_SPACE})

    refused(EnvError, play, to_base_env(Parts(FINE)), 1, says="wrong keys...fix:      return the parts of the space")


@EVERY_KIND
@LATER
class TestValues:
    """`test_bad_output.py` has the values that are refused of every agent, of one agent or of several."""

    def refuses(self, kind, before, says, **changed):
        refused(EnvError, play, kind(FixedSteps(*before, parts(**changed))), len(before) + 1, says=says)

    def test_of_the_second_agent(self, where, kind, before):
        bad = np.array([0, np.nan, 0], np.float32)
        self.refuses(kind, before, f"NaN...{where.split(', ')[1]}, agent 'b'", obs={"a": OBS, "b": bad})
        self.refuses(kind, before, f"NaN or infinite...{where}, agent 'b'", rewards={"a": 1.0, "b": np.inf})

    def test_a_reward_of_an_agent_that_does_not_act(self, where, kind, before):
        self.refuses(kind, before, f"NaN or infinite...{where}, agent 'a'", obs={"b": OBS}, rewards={"a": np.nan})

    def test_the_flag_of_all(self, where, kind, before):
        says = f"The truncated flag is not a boolean...{where}, agent '__all__'...got:      int: 0"
        self.refuses(kind, before, says, truncs={ALL: 0})

    def test_none_is_not_an_observation(self, where, kind, before):
        self.refuses(kind, before, f"{where}, agent 'a'...got:      None", obs={"a": None, "b": OBS})


@LATER
@pytest.mark.parametrize("part", NAMES)
def test_parts_that_are_no_dicts(before, part):
    step = [[1] if name == part else value for name, value in zip(NAMES, FINE, strict=True)]
    says = f"{part} is not a dict...FixedSteps, sub-environment 0...got:      list"
    refused(EnvError, play, to_base_env(FixedSteps(*before, tuple(step))), len(before) + 1, says=says)


def test_undeclared_agent_at_the_reset():
    env = FixedSteps(FINE)
    env.possible_agents = ["a", "c"]
    says = "not declared by the environment...FixedSteps, sub-environment 0, agent 'b'...got:      b...['a', 'c']"
    refused(MultiAgentError, play, to_base_env(env), 1, says=says)


def test_action_for_a_finished_or_absent_agent():
    base = to_base_env(FixedSteps(parts(obs={"a": OBS}, terms={"b": True, ALL: False})))
    base.try_reset()
    base.send_actions({0: {"a": 0, "b": 0}})
    base.poll()
    for agent in ("b", "z"):
        says = f"An action was sent for an agent that is not waiting...sub-environment 0, agent '{agent}'...'a'"
        refused(EnvError, base.send_actions, {0: {agent: 0}}, says=says)
    rows = play(base, 1)
    assert rows.agents == ["a", "b"]
    says = "An action was sent for an agent that is not waiting...sub-environment 0, agent 'b'...no request...['a']"
    refused(MultiAgentError, base.send_rows, rows, np.array([1]), np.zeros(1, np.int64), says=says)


@pytest.mark.parametrize("reset", [{"a": OBS}, None, (BOTH, None), (BOTH, {}, {})])
def test_reset(reset):
    says = "reset() did not return (obs, info)...FixedSteps, sub-environment 0, reset()"
    refused(EnvError, play, to_base_env(FixedSteps(FINE, first=reset)), 0, says=says)


@pytest.mark.parametrize(("obs", "says"), [({}, "returned no observation"), (OBS, "obs is not a dict")])
def test_reset_without_agents(obs, says):
    refused(EnvError, play, to_base_env(FixedSteps(FINE, first=(obs, {}))), 0, says=f"{says}...FixedSteps")


@pytest.mark.parametrize("zero", [0, False, None, np.False_, np.float32(0), np.array(0.0), jnp.array(0.0)], ids=repr)
def test_a_reward_of_zero_for_an_agent_that_does_not_exist_is_nothing(zero, caplog):
    """Beside a first observation, and after the end."""
    ends = parts(obs={"a": OBS}, rewards={"a": 1.0}, terms={"b": True, ALL: False})
    after = parts(obs={"a": OBS}, rewards={"a": 1.0, "b": zero})
    begins = parts(rewards={"a": 1.0, "b": zero})
    assert play(to_base_env(FixedSteps(ends, after, begins)), 3).rewards.tolist() == [1, 0]
    assert "first observation" not in caplog.text


def test_a_reward_beside_a_first_observation_is_not_counted_and_warns_once(caplog):
    base = to_base_env(FixedSteps(FINE, first=({"a": OBS}, {})))
    rows = play(base, 1)
    assert rows.rewards[rows.agents.index("b")] == 0  # type: ignore[union-attr]
    play(base, 1)
    assert caplog.text.count("agent 'b': a reward of 1.0 with the first observation of a trajectory") == 1


class TestDictView:
    @pytest.mark.parametrize(
        ("parts_of", "says"),
        [
            (lambda *parts: parts[:5], "poll did not return...Changed.poll()...tuple of 5...six dicts"),
            (lambda obs, *rest: ({7: obs[0]}, *rest), "Unknown sub-environment...Changed...7...num_envs, 1"),
            (lambda *parts: (*parts[:5], {0: {"z": 3}}), "has no observation...agent 'z'...3"),
            (lambda obs, _, *rest: (obs, {0: 1.0}, *rest), "poll did not return...Changed.poll()"),
            (lambda *parts: (*parts[:4], {0: None}, {}), "poll did not return...Changed.poll()"),
        ],
    )
    def test_poll(self, parts_of, says):
        class Changed(Polled):
            def poll(self):
                return parts_of(*super().poll())

        refused(EnvError, play, Changed(FixedSteps(FINE)), 1, says=says)

    @pytest.mark.parametrize("result", [{0: BOTH}, ({1: BOTH}, {}), ([BOTH], [{}]), 3])
    def test_try_reset(self, result):
        class Other(Polled):
            def try_reset(self, env_id=None):
                return result

        says = "try_reset did not...Other.try_reset(0)...the key 0"
        refused(EnvError, play, Other(FixedSteps(FINE)), 1, says=says)


class Declares(FixedSteps):
    possible_agents = ("a", "b")


@LATER
@pytest.mark.parametrize("part", ["obs", "rewards", "terms", "truncs", "infos"])
@pytest.mark.parametrize("kind", [to_base_env, lambda env: to_base_env(DeclaresPolled(env))])
def test_undeclared_agent_in_one_part(kind, part, before):
    """As by a typo in the key of a flag."""
    values = {"obs": OBS, "rewards": 0.0, "terms": False, "truncs": False, "infos": {}}
    good = dict(zip(values, FINE, strict=True))[part]
    steps = [*before, parts(**{part: {**good, "aa": values[part]}})]
    says = "not declared by the environment...agent 'aa'...expected: one of possible_agents: ['a', 'b']"
    refused(MultiAgentError, play, kind(Declares(*steps)), len(steps), says=says)


class DeclaresPolled(Polled):
    possible_agents = ("a", "b")


def test_infos_without_an_agent_are_accepted():
    play(to_base_env(Declares(parts(infos={"__common__": {}, ALL: {}}))), 2)
