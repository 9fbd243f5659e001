"""Fragments that one compiled call samples beside those of single steps, and what is sampled by single steps."""

import logging

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rollax import (
    A2CConfig,
    Callbacks,
    DDPGConfig,
    DQNConfig,
    EnvError,
    JaxPolicy,
    NonFiniteError,
    Outputs,
    PPOConfig,
    PPOTrainer,
    SACConfig,
    record_env,
    to_base_env,
)
from rollax.algorithms.a3c import A2C
from rollax.algorithms.ddpg import DDPG
from rollax.algorithms.dqn import DQN
from rollax.algorithms.ppo import PPO
from rollax.algorithms.sac import SAC
from rollax.rollout.compiled_sampler import CompiledSampler
from rollax.rollout.row_sampler import RowSampler
from tests.env.jax.worlds import Both, JaxClock, JaxClocks, meeting
from tests.env.refused import refused
from tests.marks import long_except
from tests.rollout.compiled import GRU, LSTM, MODEL, PAIR, TWO, Drawing, assert_equal, compare, make, numbers_of
from tests.rollout.worlds import Weighted


class Counts(nnx.Module):
    """A memory of one's own: an integer and an array, and the action before."""

    memory_inputs = ("prev_actions",)

    def __init__(self, observation_space, num_outputs, *, rngs):
        self.layer = nnx.Linear(3, num_outputs, rngs=rngs)

    def initial_state(self):
        return np.full((), 5, np.int32), np.ones((2, 3))

    def __call__(self, obs, state, prev_actions):
        number, seen = state
        obs = obs.reshape(len(number), -1, 3)
        shifted = self.layer(obs[:, -1] + seen[:, 0] + prev_actions.reshape(len(number), -1)[:, -1:])
        policy = jnp.repeat(shifted, obs.shape[1], axis=0)
        return Outputs(policy, policy[:, 0], (number + obs.shape[1], 0.5 * seen + obs.mean(axis=1, keepdims=True)))


LONG = "jax:Pendulum-v1"  # 200 steps
SHORT = {"env_config": {"max_episode_steps": 5}}
CASES = {
    "ppo": (JaxClock, PPO, PPOConfig, {}),
    "ppo, nested": (Both, PPO, PPOConfig, {}),
    "ppo, boxes": ("jax:Pendulum-v1", PPO, PPOConfig, SHORT),
    "ppo, greedy": (JaxClock, PPO, PPOConfig, {"explore": False}),
    "ppo, signs of rewards": (Both, PPO, PPOConfig, {"clip_rewards": True}),
    "ppo, filter": ("jax:Pendulum-v1", PPO, PPOConfig, {**SHORT, "observation_filter": "MeanStdFilter"}),
    "ppo, nested, filter": (Both, PPO, PPOConfig, {"observation_filter": "MeanStdFilter"}),
    "ppo, transformer": (Both, PPO, PPOConfig, {"model": {**MODEL, "use_attention": True, "attention_memory": 3}}),
    "ppo, gru, nested, filter": (Both, PPO, PPOConfig, {"model": GRU, "observation_filter": "MeanStdFilter"}),
    "ppo, own memory": (JaxClock, PPO, PPOConfig, {"model": {"custom_model": Counts}}),
    "a2c, lstm, boxes": ("jax:Pendulum-v1", A2C, A2CConfig, {**SHORT, "model": LSTM}),
    "a2c, gru, clipped, greedy": (JaxClock, A2C, A2CConfig, {"model": GRU, "clip_rewards": 2.5, "explore": False}),
    "dqn": (JaxClock, DQN, DQNConfig, {}),
    "dqn, noisy": (JaxClock, DQN, DQNConfig, {"noisy": True}),
    "sac": ("jax:Pendulum-v1", SAC, SACConfig, SHORT),
    "ddpg, walk": ("jax:Pendulum-v1", DDPG, DDPGConfig, {**SHORT, "noise_scale": 1.0, "random_steps": 0}),
    "ddpg": ("jax:Pendulum-v1", DDPG, DDPGConfig, {**SHORT, "exploration": "GaussianNoise", "random_steps": 20}),
}


@pytest.mark.short("ppo")
@pytest.mark.parametrize("case", long_except(["ppo", "ppo, gru, nested, filter", "dqn", "ddpg, walk"], CASES))
def test_fragments_are_those_of_single_steps(case):
    env, policy, config, settings = case
    compare(env=env, policy=policy, config=config, **settings)


@pytest.mark.long
def test_actions_and_steps_are_one_compiled_call_for_all_fragments():
    worker = make()
    for _ in range(3):
        worker.sample()
    assert worker.sampler.roll._cache_size() == 1
    worker.evaluate(2)
    worker.sample()
    assert worker.sampler.roll._cache_size() == 2  # a fragment, and a single step


def test_finished_episodes_do_not_accumulate():
    worker = make()
    worker.sample()
    assert worker.get_metrics()
    finished, steps = worker.sampler.episodes.take_finished()
    assert (len(finished), steps) == (0, 0)


@pytest.mark.long
def test_evaluation_plays_whole_episodes_and_fresh_ones_begin_afterwards():
    worker, never = make(), make()
    first = worker.sample()
    assert len(worker.evaluate(5)) == 5
    never.sample()
    second, other = worker.sample(), never.sample()
    assert not set(second["eps_id"]) & set(first["eps_id"])  # those that ran are dropped
    assert set(other["eps_id"]) & set(first["eps_id"])
    assert {episode.length for episode in worker.get_metrics()} <= {1, 2, 3, 4}


@pytest.mark.short("True-one")
@pytest.mark.parametrize(
    "case", long_except(["one"], {"one": {}, "two": {"env": JaxClocks, **PAIR, "model": GRU}, "long": {"env": LONG}})
)
@pytest.mark.parametrize("record", [True, False])
def test_evaluation_plays_the_episodes_of_single_steps(case, record):
    workers = [
        make(**case, explore=False, record=record, observation_filter="MeanStdFilter", **sampler)
        for sampler in ({}, {"sampler": RowSampler})
    ]
    assert type(workers[0].sampler) is CompiledSampler
    for episodes in (1, 7, 5):
        ours, theirs = (list(map(numbers_of, worker.evaluate(episodes))) for worker in workers)
        assert len(ours) == episodes
        for mine, other in zip(ours, theirs, strict=True):
            assert mine == pytest.approx(other, rel=1e-4)
        begun = [worker.sampler.episodes["begun"].tolist() for worker in workers]
        assert begun[0] == begun[1]


@pytest.mark.long
def test_restoring_continues():
    """A state begins fresh episodes, with the numbers that the worker which saved it goes on with."""
    saved, restored = make(), make()
    saved.sample()
    state = saved.get_state()
    saved.restart_episodes()
    restored.set_state(state)
    ours, theirs = saved.sample(), restored.sample()
    for name in ours:
        assert_equal(ours[name], theirs[name], name)


def test_custom_metrics_at_the_end_of_episodes():
    class Lengths(Callbacks):
        def on_episode_end(self, *, worker, base_env, episode):
            episode.custom_metrics["twice"] = 2 * episode.length

    worker = make(callbacks=Lengths)
    assert type(worker.sampler) is CompiledSampler
    worker.sample()
    metrics = worker.get_metrics()
    assert len(metrics) > 3
    assert all(one.custom_metrics["twice"] == 2 * one.length for one in metrics)


class Failing(JaxClock):
    """A clock whose third step fails in one way."""

    failing: str

    def step(self, state, action, key):
        outcome = super().step(state, action, key)
        wrong = jnp.where(outcome.state["count"] == 3, jnp.nan, 0.0)
        return outcome._replace(**{self.failing: getattr(outcome, self.failing) + wrong})


@pytest.mark.long
@pytest.mark.parametrize(
    ("failing", "message"),
    [
        ("obs", r"observation contains NaN or infinity[\s\S]*sub-environment \d"),
        ("reward", r"sub-environment \d[\s\S]*nan"),
    ],
)
def test_numbers_that_are_none_are_named_and_fresh_episodes_begin(failing, message):
    class Once(Failing):
        pass

    Once.failing = failing
    worker = make(Once)
    with pytest.raises(EnvError, match=message):
        worker.sample()
    begun = worker.sampler.episodes["begun"].copy()
    with pytest.raises(EnvError, match=message):
        worker.sample()
    assert (worker.sampler.episodes["begun"] > begun).all()


@pytest.mark.long
def test_a_model_that_is_not_finite_is_named():
    worker = make()
    weights = {name: np.full_like(value, np.nan) for name, value in worker.get_policy().get_weights().items()}
    worker.get_policy().set_weights(weights)
    refused(NonFiniteError, worker.sample, says="default_policy")


class Starts(Callbacks):
    def on_episode_start(self, *, worker, base_env, episode):
        pass


class OwnPolicy(JaxPolicy):
    def compute_actions(self, obs_batch, **others):
        return super().compute_actions(obs_batch, **others)


class Own(PPO):
    policy_class = OwnPolicy


STEPWISE = {
    "complete_episodes": {"batch_mode": "complete_episodes"},
    "callback on_episode_start": {"callbacks": Starts},
    "compute_actions of its own": {"policy": Own},
    "noise in its parameters": {"policy": DQN, "config": DQNConfig, "exploration": "ParameterNoise"},
    "'sample_async'": {"sample_async": True},
    "differs between episodes": {"env": JaxClocks, **PAIR, "mapping": Drawing()},
    "policy_mapping_fn": {"env": JaxClocks, **PAIR, "mapping": Drawing().alone},
    "no JaxPolicy": {"env": JaxClocks, **PAIR, "policy": {"own": PPO, "other": Weighted}},
}


@pytest.mark.long
@pytest.mark.parametrize(("reason", "settings"), STEPWISE.items(), ids=STEPWISE.keys())
def test_what_is_sampled_step_by_step_is_said(reason, settings, caplog):
    with caplog.at_level(logging.WARNING, "rollax.sampling"):
        worker = make(**settings)
    assert reason in caplog.text
    assert isinstance(worker.sampler, RowSampler)
    assert worker.sample().env_steps >= 27
    worker.stop()


@pytest.mark.long
@pytest.mark.parametrize(
    ("env", "own"),
    [("jax:CartPole-v1", {"model": MODEL}), ("jax:CartPole-v1", {"model": GRU}), (meeting, {**TWO, "model": MODEL})],
    ids=["mlp", "gru", "two policies"],
)
def test_an_exact_save_resumes_bit_for_bit(env, own, tmp_path):
    config = {"num_envs_per_worker": 4, "train_batch_size": 64, "sgd_minibatch_size": 32, "seed": 0, **own}
    with PPOTrainer(env, {**config, "observation_filter": "MeanStdFilter"}) as trainer:
        trainer.train()
        path = trainer.save(tmp_path, exact=True)
        continued = [trainer.train() for _ in range(2)]
    with PPOTrainer.from_checkpoint(path, trust_code=callable(env)) as restored:
        resumed = [restored.train() for _ in range(2)]
    for one, other in zip(continued, resumed, strict=True):
        assert one["info"]["learner"] == other["info"]["learner"]
        assert one["episode_reward_mean"] == other["episode_reward_mean"]


@pytest.mark.long
def test_a_recorded_environment_is_sampled_by_polls(tmp_path):
    class Drawn(JaxClock):
        def render(self, state):
            return np.zeros((16, 16, 3), np.uint8)

    worker = make(lambda context: record_env(to_base_env(Drawn(), num_envs=1), tmp_path))
    assert isinstance(worker.sampler, RowSampler)
    worker.sample()
    worker.stop()
    assert list(tmp_path.glob("*.mp4"))
