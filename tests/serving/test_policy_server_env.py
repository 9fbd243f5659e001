"""An environment that is a policy server: clients over HTTP, addresses, and errors."""

import threading

import gymnasium as gym
import numpy as np
import pytest

from rollax import ConfigError, DQNTrainer, EnvContext
from rollax.core.space_json import space_to_json
from rollax.serving.client import PolicyClient
from rollax.serving.policy_server_env import MultiAgentPolicyServerEnv, PolicyServerEnv
from tests.env.refused import raised
from tests.serving.learning_runs import TINY, play_episode
from tests.serving.service_session import refused
from tests.waiting import meanwhile

CONFIG = {"learning_starts": 16, "rollout_fragment_length": 4, "timesteps_per_iteration": 16, "model": TINY, "seed": 0}
CONFIG["env_config"] = {"spaces_of": "CartPole-v1", "port": 0}


@pytest.fixture(scope="module")
def trainer():
    with DQNTrainer(env=PolicyServerEnv, config=CONFIG) as trainer:
        yield trainer


def server_env(trainer):
    (env,) = trainer.worker.env.get_sub_environments()
    return env


def while_training(trainer, play, call=None):
    """The result of an iteration, or another call, during which a client plays."""

    def run():
        with PolicyClient(server_env(trainer).address) as client:
            play(client)

    return meanwhile(run, call or trainer.train)


def play_cartpole(client, steps=24):
    env = gym.make("CartPole-v1")
    while steps > 0:
        steps -= play_episode(client, env, seed=steps)
    env.close()


class TestServing:
    def test_clients_play_and_it_learns(self, trainer):
        assert while_training(trainer, play_cartpole)["timesteps_this_iter"] >= 16
        assert trainer.worker.samples_in_background

    def test_it_answers_before_and_between_iterations(self, trainer):
        with PolicyClient(server_env(trainer).address) as client:
            assert client.hello()["learns"]
            assert client.hello()["addresses"] == [server_env(trainer).address]
            play_cartpole(client, 4)
        assert server_env(trainer).server.service.backend.statistics()["episodes_total"] >= 1

    def test_values_that_would_harm_the_run_are_refused(self, trainer):
        with PolicyClient(server_env(trainer).address) as client:
            for obs in ([0.0] * 3, [0.0, 0.0, 0.0, 1e30], "x"):
                refused(422, client.episode().get_action, obs)
            episode = client.episode()
            episode.log_action([0.0] * 4, 1)
            refused(422, episode.log_returns, 1e30)
        assert while_training(trainer, play_cartpole)["timesteps_this_iter"] >= 16

    def test_evaluation_needs_another_environment(self, trainer):
        raised(ConfigError, trainer.evaluate, 1, says="A policy server cannot be evaluated...evaluation_config")

    def test_an_evaluation_interval_needs_another_environment(self):
        config = {**CONFIG, "evaluation_interval": 2}
        with pytest.raises(ConfigError, match=r"cannot be evaluated(?s:.)*'evaluation_interval'"):
            DQNTrainer(env=PolicyServerEnv, config=config)
        config["evaluation_config"] = {"env": "CartPole-v1", "env_config": {}}
        with DQNTrainer(env=PolicyServerEnv, config=config) as trainer:
            assert trainer.can_evaluate

    @pytest.mark.long
    def test_fit_ends_without_an_evaluation(self, trainer):
        with pytest.raises(ConfigError, match="no environment to evaluate in"):
            trainer.fit({"evaluation_reward_mean": 1.0}, progress="none")

        def fit():
            return trainer.fit({"training_iteration": trainer.iteration + 1}, progress="none")

        result = while_training(trainer, play_cartpole, fit)
        assert result.reached == "training_iteration"
        assert result.last["evaluation"] is None

    def test_stopping_frees_the_port(self):
        before = set(threading.enumerate())
        with DQNTrainer(env=PolicyServerEnv, config=CONFIG) as trainer:
            address = server_env(trainer).address
        port = int(address.rpartition(":")[2])
        with DQNTrainer(env=PolicyServerEnv, config={**CONFIG, "env_config": {**CONFIG["env_config"], "port": port}}):
            pass
        assert not {thread for thread in set(threading.enumerate()) - before if thread.name == "policy-server"}


class TestConfig:
    @pytest.mark.parametrize(
        ("server", "settings", "says"),
        [
            (PolicyServerEnv, {"prt": 1}, "did you mean 'port'"),
            (PolicyServerEnv, {}, "has no spaces"),
            (PolicyServerEnv, {"spaces_of": "A-v0", "action_space": gym.spaces.Discrete(3)}, "Both a space and"),
            (PolicyServerEnv, {"spaces_of": "CartPole-v1", "agents": ["a"]}, "has a single agent"),
            (MultiAgentPolicyServerEnv, {"agents": "host"}, "'agents'...host"),
        ],
    )
    def test_refused(self, server, settings, says):
        raised(ConfigError, server, settings, says=says)

    def test_several_agents_need_no_spaces(self):
        assert MultiAgentPolicyServerEnv({"agents": ["a"]}).observation_space is None

    @pytest.mark.parametrize("stored", [False, True], ids=["as spaces", "as JSON"])
    def test_nested_spaces(self, stored):
        mask = gym.spaces.Box(0, 1, (3,), np.int8)
        observed = gym.spaces.Dict({"seen": gym.spaces.Box(0, 1, (2,)), "action_mask": mask})
        spaces = {"observation_space": observed, "action_space": gym.spaces.Discrete(3)}
        env = PolicyServerEnv({name: space_to_json(space) if stored else space for name, space in spaces.items()})
        assert env.observation_space == spaces["observation_space"]
        assert env.action_space == spaces["action_space"]

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"limits": {"max_episode": 3}}, "The limits are invalid"),
            ({"limits": {"max_episodes": "3"}}, "not a positive number"),
            ({"host": "0.0.0.0"}, "token"),
        ],
    )
    def test_refused_when_a_trainer_is_made(self, settings, says):
        config = {**CONFIG, "env_config": {**CONFIG["env_config"], **settings}}
        raised(ConfigError, DQNTrainer, says=says, env=PolicyServerEnv, config=config)

    def test_each_worker_has_its_own_port(self):
        context = EnvContext({"spaces_of": "CartPole-v1", "port": 9900}, worker_index=2, num_workers=2)
        env = PolicyServerEnv(context)

        class Server:
            address = "http://127.0.0.1:9902"

        env._server = Server()
        assert env._addresses() == ["http://127.0.0.1:9901", "http://127.0.0.1:9902"]
