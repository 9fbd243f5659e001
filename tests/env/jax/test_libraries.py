"""Environments of other libraries in JAX: pgx itself, and stand-ins for brax and gymnax.

brax pulls in a physics engine, and gymnax excludes the newest Gymnasium. Their stand-ins have the documented
interfaces, with what is easily taken for something else: the order of arguments, flags as floats, states that a step
changes in place. Both themselves are played by the tests marked `learning`; gymnax only where it is installed.
"""

import dataclasses
import sys
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pgx
import pytest
from gymnasium import spaces

from rollax import ConfigError, EnvError, PPOConfig, PPOTrainer, RolloutWorker, TimeLimit, to_base_env
from rollax.algorithms.ppo import PPO
from rollax.env.jax.libraries.pgx_env import PgxEnv
from rollax.env.jax.names import LIBRARIES, library_ids
from rollax.env.registry import env_creator
from rollax.rollout.compiled_sampler import CompiledSampler
from tests.env.jax.named import MODEL, end_of, make, outcomes_of, the_env
from tests.env.refused import refused


def sampled(name: str, **env_config: Any) -> Any:
    """A fragment of a compiled sampler."""
    settings = {"num_envs_per_worker": 4, "rollout_fragment_length": 40, "seed": 0, "model": MODEL}
    worker = RolloutWorker(name, PPO, config=PPOConfig(**settings, env_config=env_config))
    assert type(worker.sampler) is CompiledSampler
    return worker.sample()


class TestPgx:
    def test_episodes_are_those_of_the_library(self):
        env, game = make("jax:pgx/minatar-breakout"), pgx.make("minatar-breakout")
        step, seed = jax.jit(game.step), np.uint32(3)
        key, state = jax.random.key(seed), None
        for draw in range(60):  # of the key: the paddle stands, so that some episodes end
            drawn = jax.random.fold_in(key, np.uint32(draw))
            if state is None or state.terminated:
                state = game.init(drawn)
                rows = env.reset_rows(np.arange(1), [int(seed)] if draw == 0 else None)
            else:
                state = step(state, jnp.int32(0), drawn)
                env.send_rows(rows, None, np.zeros(1, np.int64))
                rows = env.poll_rows()
                flags = rows.terminateds[0], rows.truncateds[0], rows.rewards[0]
                assert flags == (state.terminated, False, state.rewards[0])
            np.testing.assert_array_equal(rows.obs["observation"][0], state.observation)
            assert rows.obs["observation"].dtype == np.uint8

    @pytest.mark.long
    def test_spaces(self):
        env = the_env("jax:pgx/2048")
        frame = spaces.Box(0, 1, (4, 4, 31), np.uint8)
        assert env.observation_space == spaces.Dict({"observation": frame, "action_mask": spaces.MultiBinary(4)})
        assert env.action_space == spaces.Discrete(4)
        assert the_env("jax:pgx/go_9x9", komi=6.5).action_space == spaces.Discrete(82)  # a size in the name

    @pytest.mark.long
    def test_illegal_actions_are_not_taken(self):
        fragment = sampled("jax:pgx/2048")
        masks = fragment["obs"]["action_mask"]
        assert (masks == 0).any()
        assert masks[np.arange(len(masks)), fragment["actions"]].all()
        assert (fragment["rewards"] >= 0).all()  # an illegal action costs 1

    def test_settings(self):
        env = the_env("jax:pgx/minatar-breakout", sticky_action_prob=0.5, max_episode_steps=3)
        assert (env.env.env.sticky_action_prob, env.max_episode_steps) == (0.5, 3)

    @pytest.mark.long
    def test_the_timer_of_freeway_truncates(self):
        env = the_env("jax:pgx/minatar-freeway")
        state, _ = jax.jit(env.reset)(jax.random.key(0))
        state = state.replace(_terminate_timer=jnp.int32(0))
        outcome = jax.jit(env.step)(state, jnp.int32(0), jax.random.key(1))
        assert (bool(outcome.terminated), bool(outcome.truncated)) == (False, True)
        assert outcome.state.terminated

    def test_a_game_itself(self):
        env = to_base_env(pgx.make("minatar-breakout"), num_envs=2)
        assert env.num_envs == 2
        assert env.name == "PgxEnv(minatar-breakout)"

    @pytest.mark.short("tic_tac_toe")
    @pytest.mark.parametrize("name", ["tic_tac_toe", "kuhn_poker"])
    def test_games_of_several_players(self, name):
        game, env = pgx.make(name), the_env(f"jax:pgx/{name}")
        assert env.agents == ("player_0", "player_1")
        step, their_step, rng = jax.jit(env.step), jax.jit(game.step), np.random.default_rng(0)
        movers = set()
        for seed in range(3):
            state, obs = env.reset(jax.random.key(seed))
            theirs = game.init(jax.random.key(seed))
            while not theirs.terminated:
                mover = int(theirs.current_player)
                moves, waits = (obs[f"player_{player}"] for player in (mover, 1 - mover))
                np.testing.assert_array_equal(moves["observation"], theirs.observation)
                np.testing.assert_array_equal(moves["action_mask"], theirs.legal_action_mask)
                assert np.flatnonzero(waits["action_mask"]).tolist() == [0]
                assert (moves["to_move"], waits["to_move"]) == (True, False)
                assert (moves["observation"] != waits["observation"]).any() or not theirs.observation.any()
                action = jnp.int32(rng.choice(np.flatnonzero(theirs.legal_action_mask)))
                outcome = step(state, {f"player_{mover}": action, f"player_{1 - mover}": jnp.int32(0)}, None)
                theirs, state, obs = their_step(theirs, action), outcome.state, outcome.obs
                assert [outcome.reward[agent] for agent in env.agents] == theirs.rewards.tolist()
                assert outcome.terminated == theirs.terminated
                movers.add(mover)
        assert movers == {0, 1}
        refused(EnvError, PgxEnv, game, says="The game has several players...2 players")

    @pytest.mark.long
    def test_one_policy_plays_a_game_against_itself(self):
        config = {"num_envs_per_worker": 8, "train_batch_size": 512, "model": MODEL, "seed": 0}
        with PPOTrainer("jax:pgx/tic_tac_toe", config) as trainer:
            assert type(trainer.workers.local.sampler) is CompiledSampler
            result = [trainer.train() for _ in range(2)][-1]
        assert result["episode_reward_mean"] == 0  # of both players
        assert 5 <= result["episode_len_mean"] <= 9


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class BraxState:
    obs: Any
    reward: Any
    done: Any
    metrics: dict


class Env:
    """As `brax.envs.Env`: sums actions, and is done beyond 1; its observation is a dict, as one of Playground."""

    action_size = 2

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = gain

    def reset(self, rng):
        zero = jnp.zeros(())
        return BraxState({"state": jnp.zeros(3)}, zero, zero, {"steps": zero})

    def step(self, state, action):
        obs = state.obs["state"] + self.gain * action.sum()
        state.metrics.update(steps=state.metrics["steps"] + 1)  # in place
        return BraxState({"state": obs}, 1.0, jnp.where(obs[0] > 1, 1.0, 0.0), state.metrics)


class EpisodeWrapper:
    """One of brax's training, which reports its time limit as `done`."""

    def __init__(self, env: Env) -> None:
        self.env = env


@pytest.fixture
def brax(monkeypatch):
    envs: Any = ModuleType("brax.envs")
    envs._envs = {"adder": Env}
    monkeypatch.setitem(sys.modules, "brax", ModuleType("brax"))
    monkeypatch.setitem(sys.modules, "brax.envs", envs)
    monkeypatch.setattr(Env, "__module__", "brax.envs.base")
    monkeypatch.setattr(EpisodeWrapper, "__module__", "brax.envs.wrappers.training")
    return envs


@pytest.mark.usefixtures("brax")
class TestBrax:
    def test_ends_are_terminations_and_the_limit_truncates(self):
        env = the_env("jax:brax/adder", max_episode_steps=4, gain=0.25)
        assert [float(one.obs["state"][0]) for one in outcomes_of(env, jnp.ones(2), 9)] == [0.5, 1, 1.5]
        assert end_of(env, jnp.ones(2)) == (3, True, False)
        assert end_of(env, jnp.zeros(2)) == (4, False, True)
        assert the_env("jax:brax/adder").max_episode_steps == 1000

    @pytest.mark.long
    def test_spaces_and_fragments(self):
        env = the_env("jax:brax/adder")
        assert env.observation_space == spaces.Dict({"state": spaces.Box(-np.inf, np.inf, (3,), np.float32)})
        assert env.action_space == spaces.Box(-1, 1, (2,), np.float32)
        fragment = sampled("jax:brax/adder")
        assert (fragment["rewards"] == 1).all()
        assert fragment["terminateds"].any()

    def test_an_environment_itself(self):
        (env,) = to_base_env(Env(2.0)).get_sub_environments()
        assert isinstance(env, TimeLimit)
        assert (env.max_episode_steps, env.env.env.gain) == (1000, 2)

    def test_a_wrapper_of_its_training_is_refused(self):
        class Own(Env):
            def __init__(self, env):
                self.env = env

        refused(EnvError, to_base_env, Own(EpisodeWrapper(Env())), says="has a wrapper...EpisodeWrapper")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class GymnaxParams:
    max_steps_in_episode: int = 5
    slope: float = 1.0

    def replace(self, **fields):
        return dataclasses.replace(self, **fields)


class Environment:
    """As `gymnax.environments.environment.Environment`: climbs, and is at the top at 3."""

    name = "Climb"
    default_params = GymnaxParams()

    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise

    def reset_env(self, key, params):
        return jnp.zeros(1), {"height": 0.0, "time": 0}

    def step_env(self, key, state, action, params):
        height = state["height"] + params.slope * action + self.noise * jax.random.uniform(key)
        state = {"height": height, "time": state["time"] + 1}
        return height[None], state, height, height >= 3, {}

    def is_truncated(self, state, params):
        return state["time"] >= params.max_steps_in_episode

    def observation_space(self, params):
        return spaces.Box(0, 9, (1,), np.int32)  # declared, and returned as floats

    def action_space(self, params):
        return spaces.Discrete(2)


@pytest.fixture
def gymnax(monkeypatch):
    library: Any = ModuleType("gymnax")
    library.registered_envs = ["Climb-v0"]
    library.make = lambda name, **settings: (Environment(**settings), Environment.default_params)
    of_spaces: Any = ModuleType("gymnax.environments.spaces")
    of_spaces.gymnax_space_to_gym_space = lambda space: space
    for module in (library, ModuleType("gymnax.environments"), of_spaces):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(Environment, "__module__", "gymnax.environments.environment")


@pytest.mark.usefixtures("gymnax")
class TestGymnax:
    def test_ends_and_limits_are_told_apart(self):
        env = the_env("jax:gymnax/Climb-v0", slope=1.5)
        assert [float(one.obs[0]) for one in outcomes_of(env, jnp.int32(1), 9)] == [1.5, 3]
        assert end_of(env, jnp.int32(1)) == (2, True, False)
        for limit, settings in ((5, {}), (3, {"max_episode_steps": 3})):
            assert end_of(the_env("jax:gymnax/Climb-v0", **settings), jnp.int32(0)) == (limit, False, True)

    def test_spaces_settings_and_fragments(self):
        env = the_env("jax:gymnax/Climb-v0", noise=0.5, slope=0.5)
        assert (env.env.noise, env.params) == (0.5, GymnaxParams(5, 0.5))
        assert env.observation_space == spaces.Box(0, 9, (1,), np.float32)
        fragment = sampled("jax:gymnax/Climb-v0", noise=0.5)
        assert len(np.unique(fragment["rewards"])) > 100  # the key of each step is new

    def test_an_environment_itself(self):
        assert to_base_env(Environment()).name == "GymnaxEnv(Climb)"

    def test_an_old_one_is_refused(self, monkeypatch):
        monkeypatch.delattr(Environment, "is_truncated")
        refused(ConfigError, the_env, "jax:gymnax/Climb-v0", says="gymnax is too old...pip install 'gymnax>=1.0'")


@pytest.mark.usefixtures("brax", "gymnax")
@pytest.mark.parametrize(
    ("library", "name", "written", "setting", "known"),
    [
        ("pgx", "minatar-breakout", "minatar-breakuot", "sticky", "sticky_action_prob"),
        ("brax", "adder", "addr", "gian", "gain: "),
        ("gymnax", "Climb-v0", "Climb-v1", "slop", "slope: "),
    ],
)
def test_unknown_names_and_settings(library, name, written, setting, known):
    says = f"Unknown environment of {library}...did you mean '{name}'"
    refused(ConfigError, env_creator, f"jax:{library}/{written}", says=says)
    says = f"does not accept this env_config...{known}"
    refused(ConfigError, lambda: the_env(f"jax:{library}/{name}", **{setting: 1}), says=says)


@pytest.mark.learning
@pytest.mark.filterwarnings("ignore")  # brax warns that it is maintained no longer
def test_episodes_of_brax_itself():
    envs: Any = pytest.importorskip("brax.envs")
    theirs = envs.create("inverted_pendulum", episode_length=15, auto_reset=False, backend="spring")
    env = the_env("jax:brax/inverted_pendulum", backend="spring", max_episode_steps=15)
    for action in (jnp.zeros(env.action_space.shape), jnp.ones(env.action_space.shape)):
        state, step = jax.jit(theirs.reset)(jax.random.key(0)), jax.jit(theirs.step)
        for outcome in outcomes_of(env, action, 15):
            state = step(state, action)
            np.testing.assert_allclose(outcome.obs, state.obs, rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(outcome.reward, state.reward, rtol=1e-3, atol=1e-4)
            assert outcome.truncated == (state.info["steps"] == 15)
            assert outcome.terminated == (state.done and not state.info["truncation"])
        assert state.done


@pytest.mark.learning
@pytest.mark.parametrize("name", ["CartPole-v1", "Breakout-MinAtar"])
def test_episodes_of_gymnax_itself(name):
    gymnax: Any = pytest.importorskip("gymnax")
    theirs, params = gymnax.make(name)
    params = params.replace(max_steps_in_episode=12)
    env = the_env(f"jax:gymnax/{name}", max_episode_steps=12)
    for seed in range(3):
        ours, (_, state) = env.reset(jax.random.key(seed))[0], theirs.reset(jax.random.key(seed), params)
        step = jax.jit(env.step)
        terminated = truncated = False
        while not (terminated or truncated):
            key = jax.random.fold_in(jax.random.key(seed), state.time)
            _, state, reward, terminated, truncated, info = theirs.step(key, state, jnp.int32(seed % 2), params)
            outcome = step(ours, jnp.int32(seed % 2), jax.random.split(key)[0])
            ours = outcome.state
            np.testing.assert_allclose(outcome.obs, info["final_observation"], rtol=1e-3, atol=1e-5)
            assert (outcome.reward, outcome.terminated, outcome.truncated) == (reward, terminated, truncated)


@pytest.mark.parametrize(
    ("name", "module", "fix"),
    [
        ("jax:brax/ant", "brax", r"rollax\[jaxenvs\]"),
        ("jax:pgx/2048", "pgx", r"rollax\[jaxenvs\]"),
        ("jax:gymnax/CartPole-v1", "gymnax", "gymnax>=1.0"),
        ("jax:jaxmarl/overcooked", "jaxmarl", "jaxmarl"),
        ("jax:jumanji/Snake-v1", "jumanji", r"rollax\[jaxenvs\]"),
        ("jax:navix/Navix-Empty-8x8-v0", "navix", r"rollax\[navix\]"),
        ("jax:playground/CartpoleBalance", "mujoco_playground", r"rollax\[playground\]"),
    ],
)
def test_a_library_that_is_not_installed(name, module, fix, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "brax.envs", raising=False)
    with pytest.raises(ConfigError, match=rf"pip install '?{fix}"):
        env_creator(name)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_whose_own_requirement_is_not_installed(library, tmp_path, monkeypatch):
    module = {"playground": "mujoco_playground"}.get(library, library)
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / f"{module}.py").write_text("import a_requirement_of_it")
    monkeypatch.syspath_prepend(tmp_path)
    caught = refused(ConfigError, env_creator, f"jax:{library}/one")
    assert caught.parts["expected"] == "the package a_requirement_of_it"
    assert f"install {library}" not in caught.parts["fix"].replace("'", "")


def test_names_of_libraries(monkeypatch):
    assert library_ids("pgx") == sorted(f"jax:pgx/{name}" for name in pgx.available_envs())
    monkeypatch.setitem(sys.modules, "gymnax", None)
    refused(ConfigError, library_ids, "gymnax")
