"""`Trainer`: configs, results, determinism, evaluation, single actions."""

import gymnasium as gym
import numpy as np
import pytest

from rollax import Policy, PPOConfig, PPOTrainer, Trainer, open_dataset, register_env
from rollax.errors import ConfigError, EnvError, PolicyError, SpaceError
from tests.algorithms.checkpoints import OF_PPO
from tests.algorithms.results import PPO_STATS, keys, numbers
from tests.env.refused import raised, refused

CONFIG = {**OF_PPO, "evaluation_num_episodes": 3}


def make(env="CartPole-v1", **config):
    return PPOTrainer(env=env, config={**CONFIG, **config})


@pytest.mark.parametrize(("interval", "evaluated"), [(None, False), (0, False), (1, True)])
def test_evaluations_while_iterations_end_at_a_number_of_steps(interval, evaluated):
    with make() as trainer, trainer.stopping_at(1000, interval):
        assert (trainer.train()["evaluation"] is not None) == evaluated


class TestConfig:
    def test_dict_and_typed_config_are_equal(self):
        with make() as one, PPOTrainer("CartPole-v1", PPOConfig(**CONFIG)) as other:
            assert one.config == other.config
            assert numbers(one.train()) == numbers(other.train())

    def test_env_may_be_given_in_the_config(self):
        with PPOTrainer(config={**CONFIG, "env": "CartPole-v1"}) as trainer:
            assert trainer.config.env == "CartPole-v1"
        refused(ConfigError, PPOTrainer, says="No environment...PPOTrainer(env='CartPole-v1')", config=CONFIG)

    def test_unregistered_env(self):
        register_env("tests/registered-pole", lambda context: gym.make("CartPole-v1"))
        for wrong, right in [("CartPol-v1", "CartPole-v1"), ("tests/registered-pol", "tests/registered-pole")]:
            refused(ConfigError, make, wrong, says=f"Unknown environment...{wrong}...expected:...{right}...fix:")

    def test_changed_after_the_trainer_was_built(self):
        given = dict(CONFIG)
        with PPOTrainer("CartPole-v1", given) as trainer:
            given["lr"] = 7.0
            assert trainer.config.lr == PPOConfig().lr
            with pytest.raises(ConfigError, match=r"immutable(.|\n)*PPOConfig.lr"):
                trainer.config.lr = 0.1
            says = "cannot be replaced...PPOTrainer.config...create PPOTrainer"
            raised(ConfigError, setattr, trainer, "config", PPOConfig(), says=says)


class TestResult:
    def test_keys_are_always_the_same(self):
        # Each iteration has 4 steps of each pole, and episodes have at least 8: the first iterations end no episode.
        with make(train_batch_size=16, sgd_minibatch_size=16, evaluation_interval=5) as trainer:
            results = [trainer.train() for _ in range(10)]
        for result in results:
            assert keys({**result, "evaluation": None}) == keys({**results[0], "evaluation": None})
            assert set(result["info"]["learner"]["default_policy"]) == PPO_STATS
        for name in ("episode_reward_mean", "episode_reward_min", "episode_reward_max", "episode_len_mean"):
            assert results[0][name] is None
            assert results[-1][name] > 0
        assert results[0]["policy_reward_mean"] == {"default_policy": None}
        assert results[0]["episodes_this_iter"] == 0
        assert results[-1]["policy_reward_mean"] == {"default_policy": results[-1]["episode_reward_mean"]}

    def test_counters(self):
        with make() as trainer:
            results = [trainer.train() for _ in range(3)]
        assert [result["training_iteration"] for result in results] == [1, 2, 3]
        assert [result["timesteps_total"] for result in results] == [64, 128, 192]
        assert [result["agent_timesteps_total"] for result in results] == [64, 128, 192]
        assert all(result["timesteps_this_iter"] == 64 for result in results)
        total = sum(result["time_this_iter_s"] for result in results)
        assert results[-1]["time_total_s"] == pytest.approx(total)
        names = {"sample_s", "wait_s", "learn_s", "learner_wait_s", "broadcast_s"}
        assert all(set(result["timers"]) == names for result in results)
        assert all(result["env_steps_per_s"] > 0 for result in results)


class TestDeterminism:
    def run(self, **config):
        with make(**config) as trainer:
            results = [numbers(trainer.train()) for _ in range(4)]
            return results, trainer.get_policy().get_weights()

    def test_other_seeds_give_other_runs(self):
        learner = [self.run(seed=seed)[0][0]["info"]["learner"] for seed in (5, 6, None, None)]
        assert all(learner[i] != learner[j] for i in range(4) for j in range(i))

    @pytest.mark.long
    def test_evaluating_does_not_perturb_training(self):
        plain, weights = self.run(observation_filter="MeanStdFilter")
        with make(observation_filter="MeanStdFilter", evaluation_interval=1) as trainer:
            watched = []
            for _ in range(4):
                watched.append(numbers(trainer.train()))
                trainer.evaluate(2)
                trainer.compute_single_action(np.zeros(4, np.float32))
        assert all(result.pop("evaluation")["episodes"] == 3 for result in watched)
        assert watched == [{k: v for k, v in result.items() if k != "evaluation"} for result in plain]
        np.testing.assert_equal(weights, trainer.get_policy().get_weights())


class TestCompilations:
    @pytest.mark.long
    @pytest.mark.usefixtures("cleared_cache")
    def test_no_compilations_after_the_first_iterations(self, caplog):
        import jax

        with make(evaluation_interval=2) as trainer:
            for _ in range(4):
                trainer.train()
            trainer.compute_single_action(np.zeros(4, np.float32))
            warm = trainer.get_policy().compilations()
            assert warm <= 6
            with jax.log_compiles(), caplog.at_level("WARNING"):
                for _ in range(6):
                    trainer.train()
                trainer.compute_single_action(np.zeros(4, np.float32))
            compiled = [record.message for record in caplog.records if record.message.startswith("Compiling")]
            # The number of truncated episodes in a fragment varies, and with it the bucket of values to compute.
            assert len(compiled) == trainer.get_policy().compilations() - warm <= 1


class TestEvaluate:
    def test_is_greedy_and_in_separate_envs(self):
        made = []

        class Pole(gym.Wrapper):
            def __init__(self, context):
                super().__init__(gym.make("CartPole-v1"))
                made.append(context.vector_index)

        with make(Pole) as trainer:
            assert made == [0, 1, 2, 3]
            trainer.train()
            policy = trainer.get_policy()
            rng = policy.acting_rng.bit_generator.state["state"]["state"].copy()
            trainer.evaluate()
            assert made == [0, 1, 2, 3, 0, 1, 2]  # at most as many as episodes
            trainer.evaluate(7)
            assert len(made) == 7
            np.testing.assert_array_equal(policy.acting_rng.bit_generator.state["state"]["state"], rng)

    def test_takes_the_actions_of_the_policy(self):
        # The greedy policy always pushes to the left; with exploration only half of its actions would.
        with make() as trainer:
            policy = trainer.get_policy()
            weights = policy.get_weights()
            weights["policy_head.kernel"][:] = 0
            weights["policy_head.bias"][:] = [0.1, 0]
            policy.set_weights(weights)
            result = trainer.evaluate(10)
            assert 8 <= result["episode_reward_min"] <= result["episode_reward_max"] <= 11
            explored = PPOTrainer("CartPole-v1", {**CONFIG, "evaluation_config": {"explore": True}})
            explored.get_policy().set_weights(weights)
            assert explored.evaluate(10)["episode_reward_max"] > 11

    def test_at_its_interval(self):
        with make(evaluation_interval=2) as trainer:
            evaluations = [trainer.train()["evaluation"] for _ in range(4)]
        assert [None if e is None else e["episodes"] for e in evaluations] == [None, 3, None, 3]

    def test_an_error_keeps_the_time_of_the_iteration(self):
        with make(evaluation_interval=1, evaluation_config={"env_config": {"no_such": 1}}) as trainer:
            refused(ConfigError, trainer.train)
            assert (trainer.iteration, trainer.optimizer.steps) == (1, 64)
            assert trainer.time_total_s > 0
            assert not any(trainer.optimizer.timings.take()[0].values())  # its parts are not in the next result

    def test_a_model_that_does_not_fit_the_trained_weights(self):
        message = r"evaluation_config is invalid(.|\n)*weights are of a different model(.|\n)*'model'"
        with pytest.raises(ConfigError, match=message):
            make(evaluation_config={"model": {"fcnet_hiddens": (8, 8)}})
        with make(evaluation_config={"model": {**CONFIG["model"], "fcnet_activation": "relu"}}) as trainer:
            assert trainer.evaluate(1)["episodes"] == 1

    def test_evaluation_config(self, tmp_path):
        lengths = []

        def pole(context):
            lengths.append(context.get("length", 500))
            return gym.wrappers.TimeLimit(gym.make("CartPole-v1").unwrapped, context.get("length", 500))

        evaluation = {"env_config": {"length": 6}, "num_envs_per_worker": 1}
        with make(pole, evaluation_config=evaluation) as trainer:
            assert trainer.evaluate(4)["episode_rewards"] == [6, 6, 6, 6]
            assert trainer.record(4, tmp_path)["episode_rewards"] == [6, 6, 6, 6]
        assert lengths == [500, 500, 500, 500, 6, 6]

    @pytest.mark.parametrize(
        ("there", "fits"),
        [(("a", "b", 2), True), (("b", "a", 1), False), (("a", "c", 1), False), (("a", "b", np.inf), False)],
    )
    def test_the_actions_in_evaluation_are_those_of_training(self, there, fits, tmp_path):
        """Only the bounds of a Box, and dtypes, may differ."""

        class Parts(gym.Env):
            observation_space = gym.spaces.Discrete(1)

            def __init__(self, env_config):
                one, other, high = env_config["parts"]
                parts = (one, gym.spaces.Box(-high, high, (1,))), (other, gym.spaces.Box(-high, high, (1,)))
                bit = gym.spaces.Discrete(2, dtype=np.int64 if high == 1 else np.int32)
                self.action_space = gym.spaces.Dict((*parts, ("bit", bit)))

            def reset(self, *, seed=None, options=None):
                return 0, {}

            def step(self, action):
                return 0, float(action["b"].item()), True, False, {}

        class Fixed(Policy):
            def compute_actions(self, obs_batch):
                return [{"a": np.zeros(1), "b": np.ones(1), "bit": 1}] * len(obs_batch), [], {}

        config = {"env_config": {"parts": ("a", "b", 1)}, "evaluation_config": {"env_config": {"parts": there}}}
        with make(Parts, multiagent={"policies": {"default_policy": Fixed}}, **config) as trainer:
            if fits:
                assert trainer.evaluate(1)["episode_rewards"] == [2.0]
            else:
                for play in (trainer.evaluate, lambda count: trainer.record(count, tmp_path / "data")):
                    with pytest.raises(SpaceError):
                        play(1)

    def test_recording_writes_infos_only_on_request(self, tmp_path):
        with make(output=str(tmp_path / "training"), output_infos=True) as trainer:
            for name, infos in (("without", False), ("with", True)):
                trainer.record(1, tmp_path / name, infos=infos)
                (episode,) = open_dataset(tmp_path / name).trajectories()
                assert ("infos" in episode.columns) is infos


class TestSingleActions:
    def test_greedy_by_default(self):
        obs = np.array([0.1, -0.2, 0.3, 0.4], np.float32)
        with make() as trainer:
            trainer.train()
            logits = trainer.get_policy().compute_actions(obs[None], explore=False)[2]["action_dist_inputs"][0]
            actions = {trainer.compute_single_action(obs) for _ in range(20)}
            assert actions == {int(logits.argmax())}
            assert {trainer.compute_single_action(obs, explore=True) for _ in range(50)} == {0, 1}

    def test_in_the_bounds_of_the_environment(self):
        with make("Pendulum-v1") as trainer:
            policy = trainer.get_policy()
            weights = policy.get_weights()
            weights["policy_head.kernel"][:] = 0
            weights["policy_head.bias"][:] = [0.25, 0]
            policy.set_weights(weights)
            action = trainer.compute_single_action(np.zeros(3, np.float32))
            # The policy's [-1, 1] is mapped to the torques [-2, 2].
            np.testing.assert_allclose(action, [0.5])
            assert action.dtype == np.float32
            action, state, fetches = trainer.compute_single_action(np.zeros(3, np.float32), state=[])
            assert state == []
            assert fetches["vf_preds"].shape == ()

    def test_unknown_policy(self):
        with make() as trainer:
            for call in (trainer.get_policy, lambda name: trainer.compute_single_action(np.zeros(4), policy_id=name)):
                refused(PolicyError, call, "other", says="Unknown policy...other...'default_policy'")

    @pytest.mark.parametrize("method", ["set_weights", "set_filters"])
    def test_what_is_not_by_policy_is_refused(self, method):
        with make() as trainer:
            weights = trainer.get_weights()
            of_one = weights["default_policy"]
            setters = [getattr(trainer.worker, method)] + [trainer.set_weights] * (method == "set_weights")
            for given, got in (
                ([of_one], "list"),
                (None, "NoneType"),
                ({**weights, "other": of_one}, r"the keys \['other'\]"),
                (of_one, r"the keys \['policy_head.bias', "),
            ):
                message = rf"not a dict by policy id(.|\n)*where: +{method}\n(.|\n)*got: +{got}(.|\n)*'default_policy'"
                for setter in setters:
                    with pytest.raises(PolicyError, match=message):
                        setter(given)
            np.testing.assert_equal(trainer.get_policy().get_weights(), of_one)


def test_an_env_of_none_is_refused():
    refused(EnvError, make, lambda context: None, says="This is not an environment")


def test_is_abstract():
    refused(ConfigError, Trainer, "CartPole-v1", says="abstract...class Trainer...no config_class...such as PPOTrainer")


@pytest.mark.parametrize("missing", ["config_class", "policy_class", "optimizer_class"])
def test_a_class_without_an_attribute_is_refused(missing):
    attributes = {name: getattr(PPOTrainer, name) for name in ("config_class", "policy_class", "optimizer_class")}
    del attributes[missing]
    refused(ConfigError, type("Own", (Trainer,), attributes), "CartPole-v1", says=f"class Own\n...no {missing}\n")


def test_a_name_that_is_no_string_is_refused():
    refused(ConfigError, type("Own", (PPOTrainer,), {"name": 3}), "CartPole-v1", says="class Own: name\n...got:      3")


class Nameless(Trainer):
    config_class = PPOTrainer.config_class
    policy_class = PPOTrainer.policy_class
    optimizer_class = PPOTrainer.optimizer_class


def test_the_name_of_the_class_is_the_default(tmp_path):
    class Derived(Nameless):
        pass

    assert (Nameless.name, Derived.name, type("Own", (PPOTrainer,), {}).name) == ("Nameless", "Derived", "PPO")
    with Nameless("CartPole-v1", {"train_batch_size": 16, "sgd_minibatch_size": 8}) as trainer:
        fitted = trainer.fit({"training_iteration": 1}, tmp_path / "run", evaluate=False, progress="none")
    with Nameless.from_checkpoint(fitted.checkpoint) as restored:
        assert restored.iteration == 1


def test_two_environments_are_refused():
    with pytest.raises(ConfigError, match=r"Two different environments(.|\n)*CartPole-v1(.|\n)*Pendulum-v1"):
        PPOTrainer(env="CartPole-v1", config={"env": "Pendulum-v1"})
    PPOTrainer(env="CartPole-v1", config={"env": "CartPole-v1"}).stop()
