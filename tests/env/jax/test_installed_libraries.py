"""Environments of jumanji, navix and MuJoCo Playground themselves, step for step as their libraries play them.

These libraries are in the extra `jaxenvs` alone, so `make learning` plays them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, EnvError, PPOTrainer, SACTrainer, TimeLimit, to_base_env
from rollax.core.spaces import choices
from rollax.rollout.compiled_sampler import CompiledSampler
from tests.env.jax.named import MODEL, outcomes_of, the_env
from tests.env.refused import refused

pytestmark = [pytest.mark.learning, pytest.mark.filterwarnings("ignore")]


def leaves(tree: Any) -> dict[str, Any]:
    """Path -> leaf, of dicts, named tuples and dataclasses alike."""
    return {jax.tree_util.keystr(path, simple=True): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def trained(trainer_class: Any, env: Any, iterations: int = 2, **config: Any) -> dict[str, Any]:
    """The last result of a short training, whose fragments are sampled by one compiled call each."""
    with trainer_class(env, {"num_envs_per_worker": 8, "model": MODEL, "seed": 0, **config}) as trainer:
        assert type(trainer.workers.local.sampler) is CompiledSampler
        return [trainer.train() for _ in range(iterations)][-1]


class TestJumanji:
    def valid(self, rng: np.random.Generator, env: Any, obs: Any) -> Any:
        """A random action that the mask allows."""
        if "action_mask" not in obs:
            return jnp.asarray(env.action_space.sample())
        masks = np.split(np.asarray(obs["action_mask"]), np.cumsum(choices(env.action_space))[:-1])
        drawn = [rng.choice(mask.nonzero()[0]) for mask in masks]
        return jnp.asarray(drawn if isinstance(env.action_space, spaces.MultiDiscrete) else drawn[0], jnp.int32)

    @pytest.mark.parametrize(
        ("name", "settings", "to_theirs"),
        [
            ("Snake-v1", {"time_limit": 30}, lambda action: action),
            ("TSP-v1", {}, lambda action: action),
            ("PacMan-v1", {"time_limit": 12}, lambda action: action),
            ("Maze-v0", {"time_limit": 9}, lambda action: action),
            ("Tetris-v0", {"num_rows": 8, "num_cols": 6}, lambda action: jnp.stack([action // 6, action % 6])),
            ("Cleaner-v0", {"time_limit": 25}, lambda action: action),
            ("MultiCVRP-v0", {}, lambda action: action),
            ("RubiksCube-partly-scrambled-v0", {}, lambda action: action),
        ],
    )
    def test_episodes(self, name, settings, to_theirs):
        jumanji: Any = pytest.importorskip("jumanji")
        theirs, env = jumanji.make(name, **settings), the_env(f"jax:jumanji/{name}", **settings)
        env.action_space.seed(0)
        step, their_step = jax.jit(env.step), jax.jit(theirs.step)
        limit, rng = getattr(theirs, "time_limit", None), np.random.default_rng(0)
        for seed in range(2):
            (state, obs), (their_state, expected) = env.reset(jax.random.key(seed)), theirs.reset(jax.random.key(seed))
            number, over = 0, False
            while not over:
                self.assert_same(obs, expected.observation)
                action = self.valid(rng, env, obs)
                outcome = step(state, action, jax.random.key(0))
                state, obs, number = outcome.state, outcome.obs, number + 1
                their_state, expected = their_step(their_state, to_theirs(action))
                np.testing.assert_allclose(outcome.reward, expected.reward, rtol=1e-5)
                over = bool(expected.last())
                assert (outcome.terminated | outcome.truncated) == over
                assert outcome.truncated == (number == limit)
            self.assert_same(obs, expected.observation)

    def assert_same(self, obs: Any, expected: Any) -> None:
        """Observations are equal, and masks too, unless jumanji's has no valid action."""
        ours, theirs = leaves(obs), leaves(expected)
        mask, legal = ours.pop("action_mask", None), theirs.pop("action_mask", None)
        if legal is not None:
            assert mask.size == legal.size
            assert (np.asarray(mask) >= np.ravel(legal)).all()
            if (np.asarray(mask) > np.ravel(legal)).any():
                assert not np.all(np.asarray(legal).any(axis=-1))
        assert ours.keys() == theirs.keys()
        for path, leaf in ours.items():
            np.testing.assert_allclose(leaf, theirs[path], rtol=1e-5)

    def test_masks_of_combinations_and_of_choices(self):
        pytest.importorskip("jumanji")
        env = the_env("jax:jumanji/Minesweeper-v0")
        assert (env.action_space, env.observation_space["action_mask"]) == (
            spaces.Discrete(100),
            spaces.MultiBinary(100),
        )
        env = the_env("jax:jumanji/Cleaner-v0")
        assert env.action_space == spaces.MultiDiscrete([4, 4, 4])
        assert env.observation_space["action_mask"] == spaces.MultiBinary(12)
        assert env.observation_space["agents_locations"] == spaces.Box(-np.inf, np.inf, (3, 2), np.float32)

    def test_time_limits(self):
        pytest.importorskip("jumanji")
        assert the_env("jax:jumanji/Cleaner-v0").max_episode_steps == 100
        assert the_env("jax:jumanji/Cleaner-v0", max_episode_steps=7).max_episode_steps == 7
        assert not isinstance(the_env("jax:jumanji/Cleaner-v0", max_episode_steps=None), TimeLimit)
        assert not isinstance(the_env("jax:jumanji/Game2048-v1"), TimeLimit)

    def test_environments_themselves(self):
        jumanji: Any = pytest.importorskip("jumanji")
        wrappers: Any = pytest.importorskip("jumanji.wrappers")
        given = jumanji.make("Connector-v3")
        refused(EnvError, to_base_env, given, says="a reward for each agent...(10,)...MultiToSingleWrapper")
        (env,) = to_base_env(wrappers.MultiToSingleWrapper(given)).get_sub_environments()
        assert (env.max_episode_steps, given.time_limit) == (50, 50)
        *_, last = outcomes_of(env, jnp.zeros(10, jnp.int32), 60)
        assert (bool(last.terminated), bool(last.truncated)) == (False, True)
        refused(EnvError, to_base_env, wrappers.AutoResetWrapper(jumanji.make("Snake-v1")), says="AutoResetWrapper")

    def test_training(self):
        pytest.importorskip("jumanji")
        config = {"env_config": {"num_rows": 6, "num_cols": 6, "time_limit": 40}, "train_batch_size": 400}
        result = trained(PPOTrainer, "jax:jumanji/Snake-v1", **config)
        assert result["episode_len_mean"] <= 40
        assert result["episodes_this_iter"] > 0
        assert np.isfinite(result["info"]["learner"]["default_policy"]["total_loss"])


class TestNavix:
    @pytest.mark.parametrize(
        ("name", "observation", "space"),
        [
            ("Navix-Empty-Random-5x5-v0", "symbolic", spaces.Box(-np.inf, np.inf, (5, 5, 3), np.float32)),
            ("Navix-DoorKey-5x5-v0", "symbolic_first_person", spaces.Box(-np.inf, np.inf, (7, 7, 3), np.float32)),
            ("Navix-LavaGapS5-v0", "categorical", spaces.Box(-np.inf, np.inf, (5, 5), np.float32)),
            ("Navix-Dynamic-Obstacles-5x5-v0", "rgb", spaces.Box(0, 255, (40, 40, 3), np.uint8)),
        ],
    )
    def test_episodes(self, name, observation, space):
        navix: Any = pytest.importorskip("navix")
        theirs = navix.make(name, max_steps=20, observation_fn=getattr(navix.observations, observation))
        env = the_env(f"jax:navix/{name}", max_episode_steps=20, observation_fn=observation)
        assert env.observation_space == space
        step, their_step, rng, ends = jax.jit(env.step), jax.jit(theirs.step), np.random.default_rng(0), set()
        for seed in range(6):
            state, obs = jax.jit(env.reset)(jax.random.key(seed))
            expected = jax.jit(theirs.reset)(jax.random.key(seed))
            while expected.is_transition():
                np.testing.assert_array_equal(obs, expected.observation)
                action = jnp.int32(rng.integers(env.action_space.n))
                outcome, expected = step(state, action, jax.random.key(0)), their_step(expected, action)
                state, obs = outcome.state, outcome.obs
                assert outcome.reward == expected.reward
                assert outcome.terminated == expected.is_termination()
                assert outcome.truncated == expected.is_truncation()
            np.testing.assert_array_equal(obs, expected.observation)  # the last one of the episode
            ends.add((bool(outcome.terminated), int(expected.t) == 20))
        assert ends <= {(True, False), (True, True), (False, True)}

    def test_the_state_has_no_pixels_unless_observations_do(self):
        pytest.importorskip("navix")
        sizes = {}
        for observation in ("symbolic", "rgb"):
            env = the_env("jax:navix/Navix-Empty-8x8-v0", observation_fn=observation)
            state, _ = jax.eval_shape(env.reset, jax.random.key(0))
            sizes[observation] = sum(leaf.size for leaf in jax.tree.leaves(state))
        assert sizes["symbolic"] < 1000 < 8 * 8 * 8 * 8 * 3 < sizes["rgb"]

    def test_settings_and_an_environment_itself(self):
        navix: Any = pytest.importorskip("navix")
        name = "jax:navix/Navix-Empty-5x5-v0"
        refused(ConfigError, lambda: the_env(name, observation_fn="symbolik"), says="did you mean 'symbolic'")
        refused(ConfigError, lambda: the_env(name, sise=3), says="does not accept this env_config")
        assert to_base_env(navix.make("Navix-Empty-5x5-v0"), num_envs=2).name == "NavixEnv(Room)"

    def test_training(self):
        pytest.importorskip("navix")
        result = trained(PPOTrainer, "jax:navix/Navix-Empty-5x5-v0", train_batch_size=1600)
        assert 0 < result["episode_len_mean"] <= 100
        assert 0 <= result["episode_reward_mean"] <= 1


class TestPlayground:
    def test_episodes(self):
        registry: Any = pytest.importorskip("mujoco_playground").registry
        theirs = registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
        env = the_env("jax:playground/CartpoleBalance", max_episode_steps=6)
        assert env.observation_space == spaces.Box(-np.inf, np.inf, (5,), np.float32)
        assert env.action_space == spaces.Box(-1, 1, (1,), np.float32)
        step, action = jax.jit(theirs.step), jnp.full(1, 0.5)
        state = jax.jit(theirs.reset)(jax.random.key(0))
        np.testing.assert_allclose(jax.jit(env.reset)(jax.random.key(0))[1], state.obs, rtol=1e-5, atol=1e-6)
        outcomes = outcomes_of(env, action, 9)
        for outcome in outcomes:
            state = step(state, action)
            np.testing.assert_allclose(outcome.obs, state.obs, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(outcome.reward, state.reward, rtol=1e-5)
            assert outcome.terminated == state.done
        assert [bool(outcome.truncated) for outcome in outcomes] == 5 * [False] + [True]

    def test_settings(self):
        pytest.importorskip("mujoco_playground")
        name = "jax:playground/CartpoleBalance"
        env = the_env(name, **{"sim_dt": 0.005, "episode_length": 100, "action_repeat": 3, "vision_config.nworld": 2})
        assert env.max_episode_steps == 34  # 100 steps of the environment
        config = env.env.env.env._config
        assert (config.sim_dt, config.vision_config.nworld, config.impl) == (0.005, 2, "jax")
        assert the_env(name).max_episode_steps == 1000
        refused(ConfigError, lambda: the_env(name, sim_td=0.1), says="did you mean 'sim_dt'")
        refused(ConfigError, lambda: the_env(name, sim_dt="fast"), says="float, as 0.01")

    def test_repeated_actions(self):
        pytest.importorskip("mujoco_playground")
        one, three = (the_env("jax:playground/PointMass", action_repeat=times) for times in (1, 3))
        singles = outcomes_of(one, jnp.full(2, 0.5), 6)
        repeated = outcomes_of(three, jnp.full(2, 0.5), 2)
        np.testing.assert_allclose(repeated[1].obs, singles[5].obs, rtol=1e-4, atol=1e-6)
        expected = sum(float(outcome.reward) for outcome in singles[3:])
        np.testing.assert_allclose(repeated[1].reward, expected, rtol=1e-4)

    def test_environments_themselves(self):
        playground: Any = pytest.importorskip("mujoco_playground")
        given = playground.registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
        (env,) = to_base_env(given).get_sub_environments()
        assert (repr(env), env.max_episode_steps) == ("TimeLimit(PlaygroundEnv(Balance), 1000)", 1000)
        refused(EnvError, to_base_env, playground.wrapper.wrap_for_brax_training(given), says="BraxAutoResetWrapper")

    def test_states_of_mjx_warp(self):
        pytest.importorskip("mujoco_playground")
        says = "no axis for sub-environments...impl='jax'"
        refused(EnvError, lambda: the_env("jax:playground/CartpoleBalance", impl="warp"), says=says)

    @pytest.mark.parametrize("trainer_class", [PPOTrainer, SACTrainer])
    def test_training(self, trainer_class):
        pytest.importorskip("mujoco_playground")
        config = {"env_config": {"max_episode_steps": 20}, "train_batch_size": 320}
        result = trained(trainer_class, "jax:playground/CartpoleBalance", **config)
        assert result["episode_len_mean"] == 20
        assert 0 < result["episode_reward_mean"] <= 20
