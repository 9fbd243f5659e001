"""Environments in JAX as `BaseEnv`, what is refused when one is made, and their names."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from jax.interpreters import batching

from rollax import ConfigError, EnvError, JaxEnv, Outcome, SpaceError, TimeLimit, check_env, to_base_env
from rollax.env.jax.classic_control import CartPole
from rollax.env.rows import DEFAULT_AGENT
from tests.env.drive import drive
from tests.env.jax.named import make, the_env
from tests.env.jax.worlds import Both, JaxClock, JaxClocks, Unlike, jax_clock_trace, jax_clocks
from tests.env.refused import refused
from tests.env.test_contract import seeds_for

POLLS = 20


@pytest.mark.long
@pytest.mark.parametrize("env", [JaxClock, JaxClocks])
@pytest.mark.parametrize("view", ["rows", "dicts"])
@pytest.mark.parametrize(("num_envs", "split"), [(1, 1), (4, 3)])
def test_episodes_of_each_sub_environment_are_correct(env, view, num_envs, split):
    traces = drive(jax_clocks(num_envs, env), view, POLLS, seeds_for(num_envs), split)
    for trace, seed in zip(traces, seeds_for(num_envs), strict=True):
        assert len(trace) > POLLS / 2
        for told, happened in zip(trace, jax_clock_trace(seed, len(trace), env), strict=True):
            assert told == happened


def test_a_new_reset_with_the_same_seeds_is_a_new_beginning_and_without_seeds_another_one():
    env = jax_clocks(2)
    once, again, other = (drive(env, "rows", 13, seeds) for seeds in (seeds_for(2), seeds_for(2), None))
    for index in range(2):
        assert once[index] == again[index]
        assert once[index][:5] != other[index][:5]


def test_one_begins_anew_from_a_seed_and_the_others_go_on():
    env = jax_clocks(3)
    env.reset_rows(np.arange(3), seeds_for(3))
    before = env.running.obs[DEFAULT_AGENT]
    first = env.reset_rows(np.array([1]), [5])
    assert tuple(first.obs[0].tolist()) == jax_clock_trace(5, 1)[0].events[0].obs
    np.testing.assert_array_equal(np.delete(env.running.obs[DEFAULT_AGENT], 1, axis=0), np.delete(before, 1, axis=0))


def test_nested_observations_and_actions_have_the_dtypes_of_their_spaces():
    env = to_base_env(Both(), num_envs=2)
    rows = env.reset_rows(np.arange(2), [0, 1])
    move, turn = np.array([[1.5, -1], [3, 2]], np.float32), np.array([[1, 2], [0, 1]])
    env.send_rows(rows, None, {"move": move, "turn": turn})
    obs = env.poll_rows().obs
    np.testing.assert_array_equal(obs["seen"][0], move)
    assert obs["seen"][1].tolist() == [3, 1]
    assert obs["seen"][1].dtype == obs["count"].dtype == np.int64


def test_agents_with_different_spaces():
    env = to_base_env(Unlike(), num_envs=2)
    assert (env.observation_space, env.action_space, list(env.possible_agents)) == (None, None, ["mover", "turner"])
    rows = env.reset_rows(np.arange(2), [0, 1])
    assert rows.agents == ["mover", "turner", "mover", "turner"]
    env.send_rows(rows, np.array([0, 2]), np.array([[1.5, -1], [3, 2]], np.float32))
    env.send_rows(rows, np.array([1, 3]), np.array([2, 1]))
    rows = env.poll_rows()
    assert [rows.obs[row] for row in (0, 2)] == [(2, 1), (1, 1)]
    assert [rows.obs[row]["seen"].tolist() for row in (1, 3)] == [[1.5, -1], [3, 2]]
    assert rows.rewards.tolist() == [2, 0.5, 1, 5]


def test_frames():
    class Drawn(JaxClock):
        def render(self, state):
            return np.full((2, 2, 3), state["length"], np.uint8)

    env = to_base_env(Drawn(), num_envs=2)
    assert env.try_render() is None  # nothing has begun
    env.reset_rows(np.arange(2), [3, 4])
    for index in range(2):
        np.testing.assert_array_equal(env.try_render(index)[0, 0], np.repeat(env.running.state["length"][index], 3))
    assert jax_clocks(1).try_render() is None
    assert TimeLimit(Drawn(), 3).render(({"length": 7}, 0))[0, 0, 0] == 7


@pytest.mark.parametrize("infinite", [np.nan, np.inf])
def test_an_observation_that_is_no_number_is_named(infinite):
    class Broken(CartPole):
        def step(self, state, action, key):
            outcome = super().step(state, action, key)
            return outcome._replace(obs=outcome.obs.at[0].set(infinite))

    env = to_base_env(Broken(), num_envs=2)
    env.send_rows(env.reset_rows(np.arange(2), [0, 1]), None, np.zeros(2, np.int32))
    if np.isnan(infinite):
        refused(EnvError, env.poll_rows, says="observation contains NaN or infinity...sub-environment 0")
    else:
        env.poll_rows()  # the space has elements without bounds


def changed(env: JaxEnv, **attributes) -> JaxEnv:
    vars(env).update(attributes)
    return env


def returning(**parts) -> JaxEnv:
    """A CartPole whose steps return something else in one place."""
    return changed(CartPole(), step=lambda *given: CartPole().step(*given)._replace(**parts))


def branching(state, action, key) -> Outcome:
    return CartPole().step(-state if action else state, action, key)


@pytest.mark.parametrize(
    ("env", "error", "says"),
    [
        (returning(obs=jnp.zeros(3)), EnvError, "does not have the shape or dtype of its space...float32 (3,)"),
        (returning(obs={"a": 1}), EnvError, "The observation does not have the structure"),
        (returning(state=jnp.zeros(5)), EnvError, "a different structure than reset...float32 (5,)...float32 (4,)"),
        (returning(state=(jnp.zeros(4), 1)), EnvError, "a state of a different structure than reset"),
        (returning(reward=jnp.zeros(1)), EnvError, "reward is not a real number...float32 (1,)"),
        (returning(reward=True), EnvError, "reward is not a real number"),
        (returning(terminated=jnp.float32(1)), EnvError, "terminated is not a boolean"),
        (returning(truncated=0), EnvError, "truncated is not a boolean"),
        (changed(CartPole(), step=branching), EnvError, "step() cannot be compiled...TracerBoolConversionError"),
        (changed(CartPole(), step=lambda *given: list(CartPole().step(*given))), EnvError, "did not return an Outcome"),
        (changed(CartPole(), reset=lambda key: jnp.zeros(4)), EnvError, "reset() did not return (state, obs)"),
        (changed(JaxClocks(), agents=()), EnvError, "The agents do not have ids of their own"),
        (changed(JaxClocks(), agents=("a", "a")), EnvError, "The agents do not have ids of their own"),
        (
            changed(JaxClocks(), reset=lambda key: (0, {"a": jnp.zeros(3)})),
            *(EnvError, "not a dict by agent...reset(), obs...['c', 'a', 'b']"),
        ),
        (
            changed(JaxClocks(), step=lambda *given: JaxClocks().step(*given)._replace(reward=1.0)),
            *(EnvError, "not a dict by agent...step(), reward"),
        ),
        (changed(JaxClock(), action_space=None), SpaceError, "action_space"),
        (changed(Unlike(), action_spaces={"mover": spaces.Discrete(2)}), SpaceError, "action_space, agent 'turner'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_are_refused_when_it_is_made(env, error, says):
    refused(error, lambda: to_base_env(env, num_envs=2), says=says)


class TestTimeLimit:
    def test_truncates_and_a_termination_stays_one(self):
        env = TimeLimit(JaxClock(), 2)
        ends = set()
        for seed in range(20):
            state, _ = env.reset(jax.random.key(seed))
            inner = state[0]
            for step in (1, 2):
                outcome = env.step(state, jnp.int32(0), jax.random.key(1))
                state = outcome.state
                over = inner["length"] == step
                assert bool(outcome.terminated) == bool(over and inner["kind"] != 1)
                assert bool(outcome.truncated) == bool(step == 2 or (over and inner["kind"] != 0))
                ends.add((bool(outcome.terminated), bool(outcome.truncated)))
                if over:
                    break
        assert ends == {(False, False), (True, False), (False, True), (True, True)}

    def test_of_several_agents(self):
        env = to_base_env(TimeLimit(Unlike(), 2), num_envs=2)
        rows = env.reset_rows(np.arange(2))
        for step in (1, 2):
            env.send_rows(rows, np.array([0, 2]), np.zeros((2, 2), np.float32))
            env.send_rows(rows, np.array([1, 3]), np.zeros(2, np.int64))
            rows = env.poll_rows()
            assert rows.truncateds.tolist() == [step == 2] * 4
            assert not rows.terminateds.any()
        assert rows.ended_envs.tolist() == [0, 1]

    @pytest.mark.parametrize("steps", [0, -1, 2.0, True, None])
    def test_a_limit_that_is_none(self, steps):
        refused(ConfigError, TimeLimit, JaxClock(), steps, says="The time limit is not a positive integer")


class TestNames:
    def test_settings_and_limit(self):
        env = make("jax:CartPole-v1", 3, max_episode_steps=7, length=0.25)
        limit = env.get_sub_environments()[0]
        assert (env.num_envs, limit.max_episode_steps, limit.env.length) == (3, 7, 0.25)
        assert the_env("jax:Pendulum-v1").max_episode_steps == 200

    def test_unknown_names_and_settings(self):
        refused(ConfigError, make, "jax:CartPole-v2", says="Unknown environment in JAX...did you mean 'CartPole-v1'")
        refused(ConfigError, lambda: make("jax:CartPole-v1", lenght=1), says="does not accept this env_config...lenght")


@pytest.mark.long
@pytest.mark.parametrize("env", [JaxClock, JaxClocks, Unlike])
def test_check_env(env):
    check_env(lambda context: env())


class Untyped(JaxEnv):
    """Python's numbers wherever they can stand, and whole numbers in the place of floats."""

    observation_space, action_space = spaces.Box(0, 9, (), np.float32), spaces.Discrete(2)

    def reset(self, key):
        return 0, 5

    def step(self, state, action, key):
        return Outcome(state + 1, state, 1, False, state == 2)


def test_pythons_numbers_become_those_of_the_space():
    env = to_base_env(Untyped(), num_envs=2)
    rows = env.reset_rows(np.arange(2))
    assert rows.obs.dtype == np.float32
    for _ in range(3):
        env.send_rows(rows, None, np.zeros(2, np.int32))
        rows = env.poll_rows()
    assert rows.truncateds.all()
    assert not rows.terminateds.any()
    assert (rows.obs.dtype, rows.obs.tolist(), rows.rewards.tolist()) == (np.float32, [2, 2], [1, 1])


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Simulated:
    """A state whose contacts all sub-environments share, also under `jax.vmap`, as in MuJoCo's MJX with Warp."""

    state: jax.Array
    contacts: jax.Array


def test_a_state_that_sub_environments_share_is_refused_when_it_is_made():
    class Shares(CartPole):
        def reset(self, key):
            state, obs = super().reset(key)
            return Simulated(state, jnp.zeros(7)), obs

        def step(self, state, action, key):
            outcome = super().step(state.state, action, key)
            return outcome._replace(state=Simulated(outcome.state, state.contacts))

    assert to_base_env(Shares(), num_envs=2).num_envs == 2
    batching.register_vmappable(
        Simulated,
        int,
        int,
        lambda element, _, whole, axis: Simulated(element(whole.state, axis), whole.contacts),
        lambda stacked, size, one, axis: Simulated(stacked(size, one.state, axis), one.contacts),
        None,
    )
    try:
        refused(EnvError, to_base_env, Shares(), num_envs=2, says=".contacts...float32 (7,) for two...float32 (2, 7)")
    finally:
        batching.unregister_vmappable(Simulated)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(eq=False)
class Grid:
    """A state that compares arrays, as navix's."""

    cells: jax.Array

    def __eq__(self, other):
        return jnp.array_equal(self.cells, other.cells)


class OnAGrid(JaxEnv):
    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, key):
        return Grid(jnp.zeros(2)), jnp.zeros(2)

    def step(self, state, action, key):
        cells = state.cells.at[action].set(1)
        return Outcome(Grid(cells), cells, 1.0, cells.all())


def test_a_state_that_compares_arrays():
    env = to_base_env(OnAGrid(), num_envs=2)
    env.send_rows(env.reset_rows(np.arange(2), [0, 1]), None, np.array([0, 1]))
    np.testing.assert_array_equal(env.poll_rows().obs, [[1, 0], [0, 1]])
