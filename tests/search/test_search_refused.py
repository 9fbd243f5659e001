"""Configs, environments and models that ARS and ES refuse."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from examples.own_sampler import PlainSampler
from rollax import PG, ARSTrainer, ConfigError, EnvError, ESTrainer, MultiAgentEnv, Outputs, PolicyError, RolloutWorker
from rollax.core import memory
from rollax.rollout import remote_workers
from rollax.search.ars import ARSConfig, ARSOptimizer
from rollax.search.es import ESConfig
from tests.algorithms.test_off_policy import Logs
from tests.env.old_worlds import OldVector
from tests.env.refused import raised, refused
from tests.rollout.test_worker_set import workers_here
from tests.search.search_worlds import Drift
from tests.search.searches import SMALL


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"directions_used": 20}, "directions_used <= num_directions"),
        ({"train_batch_size": 1000}, "train_batch_size has no effect(.|\n)*num_directions"),
        ({"gamma": 0.9}, "gamma has no effect"),
        ({"model": {"normalize_observations": True}}, "model.normalize_observations has no effect"),
        ({"sampler": PlainSampler}, "sampler has no effect(.|\n)*PlainSampler(.|\n)*leave sampler out"),
        ({"multiagent": {"policies": {"a": None}, "policy_mapping_fn": str}}, "trains only one policy"),
        ({"model": {"use_lstm": True}}, "use_lstm"),
        ({"num_rollouts": 5}, "num_directions"),
        ({"shaping": "centered_rank"}, "Unknown config key"),
    ],
)
def test_configs(config, message):
    with pytest.raises(ConfigError, match=message):
        ARSTrainer(Drift, {**SMALL, **config})


class Still(nnx.Module):
    def __init__(self, observation_space, num_outputs, *, rngs):
        self.width = num_outputs

    def __call__(self, obs):
        return Outputs(jnp.zeros((len(obs), self.width)))


class Remembers(nnx.Module):
    def __init__(self, observation_space, num_outputs, *, rngs):
        self.layer = nnx.Linear(*observation_space.shape, num_outputs, rngs=rngs)

    def initial_state(self):
        return (np.zeros(1, np.float32),)

    def __call__(self, obs, state):
        return Outputs(self.layer(obs), state=state)


@pytest.mark.parametrize(
    ("env", "config", "error", "message"),
    [
        (Drift, {"shaping": "sign", "clip_rewards": 0.5}, ConfigError, "clip_rewards has no effect: shaping is 'sign'"),
        ("CartPole-v1", {"action_noise_std": 0.5}, ConfigError, r"'action_noise_std'(.|\n)*0.5, for Discrete\(2\)"),
        ("CartPole-v1", {"explore": False}, ConfigError, r"explore has no effect(.|\n)*Discrete\(2\)"),
        (Drift, {"model": {"custom_model": Still}}, PolicyError, "The model has no parameters to search for"),
        (Drift, {"model": {"custom_model": Remembers}}, PolicyError, "memory, which the algorithm does not support"),
    ],
)
def test_settings_and_models_of_es(env, config, error, message):
    with pytest.raises(error, match=message):
        ESTrainer(env, {**SMALL, **config})


def test_explore_without_noise_on_actions():
    with pytest.raises(ConfigError, match=r"explore has no effect: candidates explore by perturbed parameters"):
        ARSConfig(explore=False)
    with pytest.raises(ConfigError, match="explore has no effect(.|\n)*set action_noise_std as well, or leave explore"):
        ESConfig(explore=False, action_noise_std=0.0)
    for config in (ARSConfig(), ESConfig(action_noise_std=0.0)):
        raised(ConfigError, config.changed, says="explore has no effect", explore=False)
        with pytest.raises(ConfigError, match="evaluation_config is invalid(.|\n)*explore has no effect"):
            config.changed(evaluation_config={"explore": True})
        assert not config.changed(evaluation_config={"explore": False}).for_evaluation().explore
    assert not ESConfig(explore=False).explore


def test_noise_table_size_is_accepted_with_a_warning(caplog):
    with ESTrainer(Drift, {**SMALL, "noise_size": 250_000_000}) as trainer:
        assert trainer.config.noise_size == 250_000_000
    assert caplog.text.count("noise_size has no effect") == 1


def test_output(tmp_path):
    refused(ConfigError, ARSTrainer, Drift, {**SMALL, "output": str(tmp_path)}, says="'output'...record")
    with ARSTrainer(Drift, SMALL) as trainer:
        assert trainer.record(2, tmp_path / "data")["episodes"] == 2


@pytest.mark.parametrize("env", [Logs, lambda context: OldVector(2)], ids=["loop of its own", "old vector env"])
def test_environments_that_take_no_seeds(env):
    env_config = {"actions": spaces.Discrete(4)}
    with pytest.raises(EnvError, match="The environment cannot start each episode from a given seed"):
        ARSTrainer(env, {"env_config": env_config, "seed": 0})


class Two(MultiAgentEnv):
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Box(-1, 1, (1,))
    possible_agents = ("a", "b")

    def reset(self, *, seed=None, options=None):
        return {agent: np.zeros(2, np.float32) for agent in ("a", "b")}, {}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_several_agents(monkeypatch, num_workers):
    # Raised at once, not as a failure of workers, which would be restarted.
    monkeypatch.setattr(remote_workers, "ray_workers", workers_here)
    with pytest.raises(EnvError, match="The algorithm supports only one agent, but the environment has several"):
        ARSTrainer(lambda context: Two(), {**SMALL, "num_workers": num_workers})


class Normalizes(nnx.Module):
    def __init__(self, observation_space, num_outputs, *, rngs):
        self.norm = nnx.BatchNorm(*observation_space.shape, rngs=rngs)
        self.layer = nnx.Linear(*observation_space.shape, num_outputs, rngs=rngs)

    def __call__(self, obs):
        return Outputs(self.layer(self.norm(obs)))


@pytest.mark.parametrize("trainer_class", [ESTrainer, ARSTrainer])
@pytest.mark.parametrize(
    "model",
    [
        {"normalization": "batch", "fcnet_hiddens": [4]},
        {"normalization": "batch_renorm", "fcnet_hiddens": [4]},
        {"custom_model": Normalizes},
    ],
    ids=["batch", "batch_renorm", "custom"],
)
def test_batch_normalization(trainer_class, model):
    with pytest.raises(PolicyError, match=r"batch normalization(.|\n)*got: .*norm"):
        trainer_class(Drift, {**SMALL, "model": model})


def test_layer_normalization_is_accepted():
    with ESTrainer(Drift, {**SMALL, "model": {"normalization": "layer", "fcnet_hiddens": [4]}}) as trainer:
        assert trainer.train()["training_iteration"] == 1


def test_candidates_beyond_the_memory(monkeypatch):
    # 3 × 2 parameters of 4 bytes, in 2 blocks of 16: 768 bytes.
    monkeypatch.setattr(memory, "gib", str)
    with ARSTrainer(Drift, {**SMALL, "num_envs_per_worker": 17}) as trainer:
        policy = trainer.get_policy()
        monkeypatch.setattr(memory, "available_memory_bytes", lambda: 768)
        policy.stacked(17)
        message = r"A stack of the parameters of 48 candidates(.|\n)*ARS(.|\n)*at least 1152(.|\n)*than 768"
        with pytest.raises(ConfigError, match=message):
            policy.stacked(33)


def test_learning_from_rows():
    with ARSTrainer(Drift, SMALL) as trainer:
        policy, batch = trainer.get_policy(), trainer.worker.sample()
        for method in (policy.learn_on_batch, policy.compute_gradients):
            raised(PolicyError, method, batch, says="does not implement")


def test_a_policy_of_another_kind():
    refused(PolicyError, ARSOptimizer, RolloutWorker(Drift, PG, config=ARSConfig(seed=0)), says="SearchedPolicy")
