"""Several agents in environments in JAX: fragments beside those of single steps, mappings, and what is learned."""

import numpy as np
import pytest

from rollax import Callbacks, DQNConfig, JaxPolicy, PolicyError, PolicySpec, PPOTrainer
from rollax.algorithms.dqn import DQN
from rollax.algorithms.ppo import PPO
from rollax.rollout.compiled_sampler import CompiledSampler
from tests.env.jax.worlds import JaxClocks, Unlike, by_name, meeting
from tests.env.refused import refused
from tests.env.worlds import ACTION_SPACE, OBS_SPACE
from tests.marks import long_except
from tests.rollout.compiled import GRU, LSTM, PAIR, TWO, Drawing, compare, make

EACH = {"policy": {"turner": PPO, "mover": PPO, "nobody": PolicySpec(PPO, OBS_SPACE, ACTION_SPACE)}, "mapping": by_name}


class ByTrajectoryPolicy(JaxPolicy):
    """Adds what the other agents did at the same steps."""

    def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
        others = {agent: batch for agent, (_, batch) in other_agent_batches.items()}
        first, last = sample_batch["t"][[0, -1]]
        sample_batch["theirs"] = sum(
            batch["actions"][(first <= batch["t"]) & (batch["t"] <= last)] for batch in others.values()
        )
        assert episode.policy_for(sample_batch["agent_id"][0]) in ("default_policy", "own")
        return super().postprocess_trajectory(sample_batch)


class ByTrajectory(PPO):
    policy_class = ByTrajectoryPolicy


SEVERAL_AGENTS = {
    "one policy": {},
    "one policy, filter, lstm": {"observation_filter": "MeanStdFilter", "model": LSTM, "clip_rewards": 99.5},
    "one policy, dqn": {"policy": DQN, "config": DQNConfig},
    "two policies": PAIR,
    "two policies, filter, gru, greedy": {
        **PAIR,
        "observation_filter": "MeanStdFilter",
        "model": GRU,
        "explore": False,
        "multiagent": {
            "policies": dict.fromkeys(PAIR["policy"]),
            "policy_mapping_fn": PAIR["mapping"],
            "policies_to_train": ["own"],
        },
    },
    "different spaces": {"env": Unlike, **EACH},
    "different spaces, filter": {"env": Unlike, **EACH, "observation_filter": "MeanStdFilter"},
    "centralized critic": {"centralized_critic": True},
    "different spaces, centralized critic": {"env": Unlike, **EACH, "centralized_critic": True},
    "by trajectory": {"policy": ByTrajectory},
    "by trajectory, two policies": {**PAIR, "policy": {"own": ByTrajectory, "other": PPO}},
}


@pytest.mark.short("different spaces")
@pytest.mark.parametrize("settings", long_except(["one policy", "different spaces"], SEVERAL_AGENTS))
def test_fragments_of_several_agents_are_those_of_single_steps(settings):
    compare(**{"env": JaxClocks, **settings})


@pytest.mark.long
def test_a_mapping_of_episodes():
    """An agent has one policy during an episode; what it does there, and what follows, are its own."""
    mapping = Drawing()
    worker, policies = make(JaxClocks, PAIR["policy"], mapping=mapping), {}
    for runner in worker.runners.values():
        runner.store(frozenset({"agent_id"}))
    for _ in range(4):
        for policy_id, batch in worker.sample().items():
            for key in zip(batch["eps_id"].tolist(), batch["agent_id"].tolist(), strict=True):
                policies.setdefault(key, set()).add(policy_id)
            codes, following = np.array([ord(agent) for agent in batch["agent_id"]]), batch.following("obs")
            np.testing.assert_allclose(batch["rewards"], following[:, 0] + batch["actions"] / 10 + codes, rtol=1e-6)
            np.testing.assert_array_equal(following[:, 1], batch["actions"] + 10 * codes)
    assert {key: {policy_id} for key, policy_id in mapping.drawn.items() if key in policies} == policies
    assert set().union(*policies.values()) == {"own", "other"}


@pytest.mark.long
def test_a_mapping_that_changes_later_is_refused():
    owner = "own"
    worker = make(JaxClocks, PAIR["policy"], mapping=lambda agent: owner)
    worker.sample()
    owner = "other"
    refused(PolicyError, worker.sample, says="policy mapping changed...'other', and 'own' before...episode")


def test_with_one_policy_no_mapping_can_differ():
    worker = make(JaxClocks, mapping=lambda agent_id, episode: "default_policy")
    assert type(worker.sampler) is CompiledSampler
    assert worker.sample().env_steps == 27


@pytest.mark.long
def test_episodes_name_the_policies_of_their_agents():
    class Named(Callbacks):
        def on_episode_end(self, *, worker, base_env, episode):
            assert {agent: episode.policy_for(agent) for agent in "abc"} == {"a": "own", "b": "other", "c": "other"}
            episode.custom_metrics["named"] = 1

    worker = make(JaxClocks, **PAIR, callbacks=Named)
    assert type(worker.sampler) is CompiledSampler
    worker.sample()
    assert all(one.custom_metrics == {"named": 1} for one in worker.get_metrics())


@pytest.mark.long
@pytest.mark.parametrize("multiagent", [{}, TWO], ids=["one policy", "two policies"])
def test_several_agents_learn(multiagent):
    """At random they meet after 13 steps on average, and after 3 when they have learned it."""
    config = {
        **multiagent,
        "num_envs_per_worker": 32,
        "train_batch_size": 1024,
        "sgd_minibatch_size": 128,
        "num_sgd_iter": 6,
        "lr": 5e-3,
        "seed": 0,
        "model": {"fcnet_hiddens": (32,)},
        "evaluation_config": {"explore": True},  # who act alike may pass each other for ever
    }
    with PPOTrainer(meeting, config) as trainer:
        for _ in range(8):
            result = trainer.train()
        assert type(trainer.workers.local.sampler) is CompiledSampler
        assert result["episode_len_mean"] < 5
        assert result["episode_reward_mean"] == pytest.approx(2 * np.mean(list(result["policy_reward_mean"].values())))
        assert trainer.evaluate(20)["episode_len_mean"] < 5
